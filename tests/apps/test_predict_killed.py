"""A prediction that is killed again and again, on other numbers of ranks, writes what an undisturbed one does."""

import contextlib
import signal
import time

import numpy as np
import psutil
import pytest
from command import start_trainer
from predictions import parts, read, train, write_data

PLANS = {1: "table_wise", 2: "row_wise", 4: "column_wise"}
OTHERS = ("--rows-per-part", "16", "--batch-size", "8")  # a job keeps those of its first start
SIZES = ("--rows-per-part", "16", "--batch-size", "16")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    data = write_data(folder / "data")
    return data, train(data, folder)


def start(trained, to, ranks, *flags):
    data, run = trained
    words = ["predict", run / "config.toml", "--out", run, "--source", data / "new", "--to", to, *flags]
    log = to.parent / f"{to.name}.log"
    return start_trainer([*words, "--planner.sharding-types", PLANS[ranks]], log, log, ranks * (ranks > 1))


def kill_after(job, folder, new_parts, seconds):
    """Kills a job once it has written so many parts, unless it ends before; returns whether it was killed."""
    before = len([*folder.glob("*.parquet")])
    while job.poll() is None and len([*folder.glob("*.parquet")]) < before + new_parts:
        time.sleep(0.002)
    time.sleep(seconds)
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(job.pid)
        parent.suspend()  # so that it starts no rank meanwhile
        for one in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):  # or else the parent would stay suspended
                one.kill()
    code = job.wait()
    assert code <= 0, "it failed by itself"
    return code < 0


@pytest.mark.more("a signal stands for all that kills")
def test_every_row_once_whatever_is_killed(trained, tmp_path, request):
    assert start(trained, tmp_path / "undisturbed", 1, *SIZES).wait() == 0
    kills, random = 20 if request.config.getoption("all") else 5, np.random.default_rng(7)
    killed, interrupted = 0, 0
    folder = tmp_path / "0"
    while killed < kills:
        if (folder / "manifest.json").exists():  # it has ended in spite of all kills; another one
            folder = tmp_path / str(killed)
        ranks = int(random.choice([1, 2, 4], p=[0.5, 0.3, 0.2]))
        sizes = SIZES if random.integers(2) or not [*folder.glob("*.parquet")] else OTHERS
        job = start(trained, folder, ranks, *sizes)
        killed += kill_after(job, folder, int(random.integers(0, 6)), random.random() * 0.05)
        interrupted += 0 < len([*folder.glob("*.parquet")]) < 40
    assert interrupted >= kills // 2
    assert start(trained, folder, 2, *SIZES, "--data.global-batch-size", "128").wait() == 0
    expected = {part.name: part.read_bytes() for part in parts(tmp_path / "undisturbed")}
    assert len(expected) == 40
    for done in {folder, *(manifest.parent for manifest in tmp_path.glob("*/manifest.json"))}:
        assert {part.name: part.read_bytes() for part in parts(done)} == expected
    assert read(folder)["row_id"].to_pylist() == list(range(640))


def test_a_signal_stops_it_between_two_steps(trained, tmp_path):
    folder, tiny = tmp_path / "stopped", ("--rows-per-part", "2", "--batch-size", "1")
    job = start(trained, folder, 1, *tiny)
    while job.poll() is None and not [*folder.glob("*.parquet")]:
        time.sleep(0.002)
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 75
    said = (tmp_path / "stopped.log").read_text()
    assert "SIGTERM: the job stops after this step, and keeps the parts that are written" in said
    assert "The same command continues it." in said
    assert 0 < len([*folder.glob("*.parquet")]) < 320
    assert {path.name for path in folder.iterdir() if path.suffix != ".parquet"} == {"job.json"}
