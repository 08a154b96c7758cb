"""Ctrl-C before there is anything to save: nothing is printed, whatever is being imported."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

# Python's own start, before any line of a program, reports an interrupt as it likes.
MOMENTS = {
    "the first library is imported": lambda maps: "/site-packages/" in maps,
    "torch is imported": lambda maps: "libtorch_cpu" in maps,
    "TorchRec is imported": lambda maps: "fbgemm_gpu" in maps,
}
ALONE = ["-m", "trainer", "plan", "movielens"]
RANKS = ["-m", "trainer.launch", "--nproc-per-node", "2", "-m", "trainer", "train", "movielens", "--out", "out"]


def maps(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("words", "ranks"), [(ALONE, 0), (RANKS, 2)], ids=["alone", "ranks"])
def test_it_is_quiet(tmp_path, words, ranks, moment):
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
        )
    watched = psutil.Process(shell.pid)
    while shell.poll() is None and not (len(watched.children()) >= ranks and is_reached(moment, watched, ranks)):
        time.sleep(0.01)
    os.killpg(shell.pid, signal.SIGINT)
    code = shell.wait(600)
    # A plan can be there before the signal is.
    assert code in (-signal.SIGINT, 128 + signal.SIGINT, 1) or (code == 0 and not ranks)
    said = output.read_text()
    assert "Traceback" not in said
    assert "Error" not in said


def is_reached(moment: str, watched: psutil.Process, ranks: int) -> bool:
    if not ranks:
        return MOMENTS[moment](maps(watched))
    return all(MOMENTS[moment](maps(rank)) for rank in watched.children())
