"""A job that is started on another number of ranks every time ends as its baseline, but for rounding."""

import signal
from pathlib import Path

import numpy as np
import pytest
from command import write_config
from jobs import config, losses, write_rows
from row_recorder import RowLog
from trainer_process import Training

pytestmark = pytest.mark.more("test_resume.py goes on on another number of ranks once")

ROWS, BATCH, STEPS = 640, 64, 40  # 10 steps an epoch
INTERRUPT_AFTER = 7  # steps, which are not those of a save
WORLD_SIZES = [4, 2, 1, 4]
SHARDING = {4: "row_wise", 2: "table_wise", 1: "table_row_wise"}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world-sizes")
    tree = config(write_rows(folder / "data", [350, 290]), train__steps=STEPS, checkpoint__every_steps=5)
    tree["data"]["dense"]["row_id"] = {}
    tree["optimizer"]["sparse"] = {"name": "rowwise_adagrad", "learning_rate": 0.05}
    tree["optimizer"]["dense"] = {"name": "adamw", "learning_rate": 0.01}
    tree["model"]["name"] = "row_recorder:build"
    return write_config(folder / "config.toml", tree)


def start(file: Path, out: Path, ranks: int) -> Training:
    flags = ["--planner.sharding-types", SHARDING[ranks]]
    return Training(file, out, *flags, ranks=ranks if ranks > 1 else 0, RECORDED_RUN=str(out))


def test_another_number_of_ranks_at_every_restart(file, tmp_path):
    baseline = start(file, tmp_path / "baseline", 1)
    assert baseline.end()
    out = tmp_path / "out"
    log = RowLog(out)
    for number, ranks in enumerate(WORLD_SIZES[:-1], start=1):
        job = start(file, out, ranks)
        job.wait_until(lambda number=number: log.follow().starts == number and log.step >= log.first + INTERRUPT_AFTER)
        if number % 2:
            job.kill()
        else:
            job.signal(signal.SIGTERM).end()
    job = start(file, out, WORLD_SIZES[-1])
    output = job.end()
    assert job.code == 0, output
    assert log.follow().starts == len(WORLD_SIZES)
    np.testing.assert_allclose(losses(out), losses(baseline.out), rtol=1e-5, atol=0)
    for first in range(1, STEPS + 1, ROWS // BATCH):
        assert sorted(row for step in range(first, first + ROWS // BATCH) for row in log.rows[step]) == [*range(ROWS)]
