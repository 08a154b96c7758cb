"""Managed ids of a table with many blocks: spread over the ranks, with the rows of one rank on any number of them."""

import os
import shutil
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command import write_config
from jobs import config, launch_rounds, losses, saved_tensors
from managed import rows_of_ids
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from trainer_process import Training, committed

from trainer.extensions.managed_ids.blocks import Blocks

ROWS, GROWN = 6000, 7000
STEPS, HALF, BATCH = 12, 6, 960
LANES = 24  # for 8 ranks, and for 3


def write_many_ids(folder):
    """Writes rows with single ids and lists of ids of one table, far more than it has rows."""
    draw, rows = np.random.default_rng(0), STEPS * BATCH
    bags = [((draw.zipf(1.3, n) + draw.integers(0, 9000, n)) % 12000).tolist() for n in draw.integers(0, 5, rows)]
    table = pa.table(
        {
            "d0": draw.standard_normal(rows).astype(np.float32),
            "one": draw.integers(0, 9000, rows) * 10**14,
            "bag": pa.array([[one * 10**14 for one in bag] for bag in bags], pa.list_(pa.int64())),
            "label": (draw.random(rows) < 0.3).astype(np.float32),
        }
    )
    folder.mkdir()
    pq.write_table(table, folder / "0.parquet", row_group_size=1000)
    return folder


def settings(data, rows=ROWS, steps=STEPS):
    feature = {"ids": "managed", "rows": rows, "table": "ids"}
    changes = {"data__global_batch_size": BATCH, "data__lanes": LANES, "checkpoint__every_steps": HALF}
    tree = config(data, train__steps=steps, checkpoint__grow_tables=True, **changes)
    tree["data"] |= {"dense": {"d0": {}}, "sparse": {"one": feature, "bag": feature}}
    return tree


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    """Runs on some numbers of ranks, and `8 to 3`: begun on 8 and resumed on 3. `grown` gets rows as it is resumed."""
    folder = tmp_path_factory.mktemp("sharded")
    data = write_many_ids(folder / "data")

    def job(name, **changes):
        return {"config": settings(data, **changes), "out": str(folder / name)}

    whole = (1, 2, 4, 8) if request.config.getoption("all") else (1,)
    launch_rounds([*((ranks, [job(str(ranks))]) for ranks in whole), (8, [job("half", steps=HALF)])], folder)
    for name in ("8 to 3", "grown 3", "grown 1"):
        shutil.copytree(folder / "half", folder / name)
    resumed = [(3, [job("8 to 3"), job("grown 3", rows=GROWN)]), (1, [job("grown 1", rows=GROWN)])]
    launch_rounds(resumed, folder)
    return {path.name: path for path in folder.iterdir() if path.is_dir() and path != data}


def test_any_number_of_ranks_gives_an_id_the_same_row(runs):
    for name, out in runs.items():
        step = HALF if name == "half" else STEPS
        reference = runs["grown 1" if "grown" in name else "1"]
        expected, found = (rows_of_ids(saved_tensors(one, step)) for one in (reference, out))
        assert {key: len(value) for key, value in found.items()} == {key: len(value) for key, value in expected.items()}
        assert all(torch.equal(found[key], value) for key, value in expected.items()), name
        np.testing.assert_allclose(losses(out), losses(reference)[:step], rtol=1e-5)


def test_ids_lose_their_rows_within_their_blocks(runs):
    tensors = saved_tensors(runs["1"], STEPS)
    used, evicted, overflowed = tensors["managed.ids.totals"].tolist()
    assert used == (tensors["managed.ids.ids"] >= 0).sum()
    assert evicted > 1000
    assert overflowed == 0
    for name, ends in (("1", (ROWS,)), ("grown 1", (ROWS, GROWN))):
        ids = saved_tensors(runs[name], STEPS)["managed.ids.ids"].numpy()
        blocks = Blocks.of_table(ROWS).grown(ends[-1])
        assert blocks.number == 23
        part = blocks.part_of(ids, blocks.number)
        rows = np.concatenate([[row for rows in blocks.part(n, 23).rows for row in rows] for n in range(23)])
        block = np.empty(len(ids), int)
        block[rows] = np.repeat(range(23), [sum(map(len, blocks.part(n, 23).rows)) for n in range(23)])
        assert (part == block)[ids >= 0].all()


def test_each_rank_saves_its_own_rows(runs):
    saved = FsspecReader(str(runs["half"] / "checkpoints" / f"step-{HALF:09d}")).read_metadata()
    sizes = [chunk.sizes[0] for chunk in saved.state_dict_metadata["managed.ids.ids"].chunks]
    assert len(sizes) == 8
    assert sum(sizes) == ROWS
    assert max(sizes) <= ROWS / 8 * 1.1


def test_a_rank_of_eight_is_killed_and_three_resume(request, runs, tmp_path):
    if not request.config.getoption("all"):
        pytest.skip("starts 8 ranks and kills one; --all runs it")
    file = write_config(tmp_path / "config.toml", settings(runs["1"].parent / "data"))
    job = Training(file, tmp_path / "out", "--train.steps", "1000000", ranks=8)
    job.wait_until(lambda: HALF in committed(job.out))
    os.kill(job.workers()[-1], signal.SIGKILL)
    job.end()
    assert job.code != 0
    for step in committed(job.out):
        if step > HALF:  # it went further before it was killed
            (job.out / "checkpoints" / f"step-{step:09d}" / "manifest.json").unlink()
    resumed = Training(file, job.out, ranks=3)
    assert resumed.end()
    assert resumed.code == 0
    expected, found = (rows_of_ids(saved_tensors(one, STEPS)) for one in (runs["1"], job.out))
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    np.testing.assert_allclose(losses(job.out), losses(runs["1"]), rtol=1e-5)
