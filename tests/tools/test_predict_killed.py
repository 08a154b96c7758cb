"""A prediction that is killed again and again, on other numbers of ranks, writes what an undisturbed one does."""

import time

import numpy as np
import pytest
from forked_ranks import ForkedRanks
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
    plan = ("--planner.sharding-types", PLANS[ranks])
    paths = [run / "config.toml", "--out", run, "--source", data / "new", "--to", to]
    return ForkedRanks(ranks, ["predict", *map(str, paths), *plan, *flags], to.parent / f"{to.name}.log")


def kill_after(job, folder, new_parts, seconds):
    """Kills a job once it has written so many parts, unless it ends before; returns whether it was killed."""
    before = len([*folder.glob("*.parquet")])
    while job.is_running and len([*folder.glob("*.parquet")]) < before + new_parts:
        time.sleep(0.002)
    time.sleep(seconds)
    killed = job.is_running
    job.kill()
    return killed


def test_every_row_once_whatever_is_killed(trained, tmp_path, request):
    start(trained, tmp_path / "undisturbed", 1, *SIZES).end()
    kills, random = 20 if request.config.getoption("all") else 5, np.random.default_rng(7)
    killed, interrupted = 0, 0
    folder = tmp_path / "0"
    while killed < kills:
        if (folder / "manifest.json").exists():  # it has ended in spite of all kills; another one
            folder = tmp_path / str(killed)
        ranks = int(random.choice([1, 2, 4]))
        sizes = SIZES if random.integers(2) or not [*folder.glob("*.parquet")] else OTHERS
        job = start(trained, folder, ranks, *sizes)
        killed += kill_after(job, folder, int(random.integers(0, 6)), random.random() * 0.05)
        interrupted += 0 < len([*folder.glob("*.parquet")]) < 40
    assert interrupted >= kills // 2
    start(trained, folder, 2, *SIZES, "--data.global-batch-size", "128").end()
    assert [part.name for part in parts(folder)] == [part.name for part in parts(tmp_path / "undisturbed")]
    for one, other in zip(parts(folder), parts(tmp_path / "undisturbed"), strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    assert read(folder)["row_id"].to_pylist() == list(range(640))
