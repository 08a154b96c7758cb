"""Training on CSV files: as on Parquet files of the same rows, on any number of ranks, and after a kill."""

import gzip

import pytest
import torch
from command import write_config
from csv_files import csv_config, write_alike
from jobs import config, launch_rounds, losses, numbers_of_ranks, saved_tensors
from trainer_process import Gate, Training

BLOCK = {"block_bytes": 3000}
MATRIX = "ranks", numbers_of_ranks


def settings(data, reader="parquet", cache=None, **changes):
    csv = {"data__csv": BLOCK | {"cache": str(cache)}} if cache else {}
    return config(data, data__reader=reader, **csv, **changes)


@pytest.fixture(scope="module")
def files(rows, tmp_path_factory):
    """Directories of the same rows: CSV, CSV that is compressed, and Parquet with row groups as the blocks are."""
    folder = tmp_path_factory.mktemp("files")
    columns = {"dense": {"d0": {}, "d1": {}}, "sparse": {f"s{i}": {"rows": 100 + i} for i in range(6)}}
    plain, parquet = write_alike(rows, folder / "csv", csv_config(folder / "cache", csv=BLOCK, **columns))
    (folder / "gz").mkdir()
    for file in plain.iterdir():
        (folder / "gz" / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    return {"plain": plain, "gz": folder / "gz", "parquet": parquet, "cache": folder / "cache"}


@pytest.fixture(scope="module")
def runs(matrix, files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    kinds = {
        "parquet": settings(files["parquet"]),
        "plain": settings(files["plain"], "csv", files["cache"]),
        "gz": settings(files["gz"], "csv", folder / "new-cache"),
    }
    rounds = [
        (ranks, [{"config": tree, "out": str(folder / f"{kind}-{ranks}")} for kind, tree in kinds.items()])
        for ranks in matrix
    ]
    launch_rounds(rounds, folder)
    return folder


@pytest.mark.parametrize("kind", ["plain", "gz"])
def test_the_losses_are_those_of_parquet_bit_for_bit(runs, kind, ranks):
    expected = losses(runs / f"parquet-{ranks}")
    assert len(set(expected)) == len(expected) == 20
    assert losses(runs / f"{kind}-{ranks}") == expected
    baseline, found = (saved_tensors(runs / f"{name}-{ranks}", 20) for name in ("parquet", kind))
    for name, value in baseline.items():
        assert torch.equal(value, found[name]), name


def test_the_number_of_ranks_changes_no_sample(runs, ranks):
    torch.testing.assert_close(losses(runs / f"gz-{ranks}"), losses(runs / "parquet-1"), rtol=1e-5, atol=1e-7)


def test_a_killed_job_is_resumed_exactly(files, runs, tmp_path):
    tree = settings(files["gz"], "csv", tmp_path / "cache", checkpoint__every_steps=4, model__name="custom:gated")
    out, file = tmp_path / "out", write_config(tmp_path / "config.toml", tree)
    gate = Gate(tmp_path / "gate", 15)
    Training(file, out, ranks=2, **gate.environment).after_steps(10).kill()
    again = Training(file, out, ranks=2)
    output = again.end()
    assert again.code == 0, output
    assert losses(out) == losses(runs / "parquet-2")
    baseline, found = saved_tensors(runs / "parquet-2", 20), saved_tensors(out, 20)
    for name, value in baseline.items():
        assert torch.equal(value, found[name]), name
