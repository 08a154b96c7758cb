"""Ctrl-C before there is anything to save: nothing is printed, whatever is being imported."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from trainer_process import ranks_of

# Python's own start, before any line of a program, reports an interrupt as it likes.
MOMENTS = {
    "the first library is imported": lambda process: "/site-packages/" in maps(process),
    "torch is imported": lambda process: "libtorch_cpu" in maps(process),
    "TorchRec is imported": lambda process: "fbgemm_gpu" in maps(process),
    "ranks have started": lambda process: len(ranks_of(process.pid)) == 2,
}
ALONE = ["-m", "trainer", "plan", "movielens"]
RANKS = ["-m", "trainer.launch", "--nproc-per-node", "2", "-m", "trainer", "train", "movielens", "--out", "out"]


def maps(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return ""


ALL_MOMENTS = [*MOMENTS]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("words", "moment"),
    [
        *(pytest.param(ALONE, moment, id=f"alone-{moment}") for moment in ALL_MOMENTS[:-1]),
        *(pytest.param(RANKS, moment, id=f"ranks-{moment}") for moment in ALL_MOMENTS),
    ],
)
def test_it_is_quiet(tmp_path, words, moment):
    output = tmp_path / "output"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": ""}
    with output.open("wb") as file:
        shell = subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
            # A test run in the background of a shell ignores it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    watched = psutil.Process(shell.pid)
    while shell.poll() is None and not MOMENTS[moment](watched):
        time.sleep(0.01)
    os.killpg(shell.pid, signal.SIGINT)
    code = shell.wait(600)
    # A plan can be there before the signal is.
    assert code in (-signal.SIGINT, 128 + signal.SIGINT, 1) or (code == 0 and words is ALONE)
    said = output.read_text()
    assert "Traceback" not in said
    assert "Error" not in said
