"""A job of 32 ranks loses one of them, and is resumed on 16; only with `--all`, as it takes half a minute."""

import os
import signal

import numpy as np
import pytest
from command import write_config
from jobs import config, losses, write_rows
from trainer_process import Training, committed

RANKS, FEWER, STEPS, SAVED = 32, 16, 12, 4


@pytest.mark.sample(0)  # 32 ranks
def test_a_rank_of_many_is_killed_and_half_as_many_resume(tmp_path):
    changes = {"train__steps": STEPS, "checkpoint__every_steps": SAVED, "data__lanes": RANKS}
    tree = config(write_rows(tmp_path / "data", [2000, 1840]), **changes)
    file = write_config(tmp_path / "config.toml", tree)
    baseline = Training(file, tmp_path / "baseline", ranks=0)
    assert baseline.code == 0, baseline.output()

    job = Training(file, tmp_path / "out", "--train.steps", "1000000", ranks=RANKS)
    job.wait_until(lambda: SAVED in committed(job.out))
    os.kill(job.workers()[-1], signal.SIGKILL)
    assert "timed out" not in job.end().lower()
    assert job.code != 0
    for step in committed(job.out):
        if step > STEPS - SAVED:  # it went further before it was killed
            (job.out / "checkpoints" / f"step-{step:09d}" / "manifest.json").unlink()

    resumed = Training(file, job.out, ranks=FEWER)
    output = resumed.end()
    assert resumed.code == 0, output
    assert "timed out" not in output.lower()
    np.testing.assert_allclose(losses(job.out), losses(baseline.out), rtol=1e-5, atol=0)
