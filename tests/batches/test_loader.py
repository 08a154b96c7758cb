"""The loader from outside: real Parquet files in, the batches of every rank out."""

import gc
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jobs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from jobs import config, write_rows

from trainer.batches.batch import Batch
from trainer.batches.loader import Loader
from trainer.batches.rows import Rows
from trainer.batches.windows import SharedRows, shared
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.core.errors import InputError
from trainer.data.dataset import RowGroup, find_files
from trainer.data.epoch_order import Lanes, RowSlice
from trainer.data.row_groups import find_training_files
from trainer.training.loop import run as run_job
from trainer.training.setup import begin_job

ROW_GROUPS = {"a": [0, 37, 5, 0, 200], "b": [], "c": [1], "d": [0], "e": [300, 1, 64], "f": [96]}
ROWS = 704
CONFIG = {
    "dense": {"row_id": {}},
    "sparse": {"row_id_too": {"rows": ROWS}, "many": {"rows": ROWS * 3}},
    "labels": ["label", "other"],
    "weight": "weight",
    "shuffle_window_rows": 40,
}


def table(first: int, rows: int) -> pa.Table:
    """Returns rows whose every value follows from the row's number."""
    numbers = np.arange(first, first + rows)
    many = [[3 * n + i for i in range(n % 4)] or None for n in numbers.tolist()]
    return pa.table(
        {
            "row_id": pa.array(numbers, pa.float32()),
            "row_id_too": pa.array(numbers, mask=numbers % 5 == 0),
            "many": pa.array(many, pa.list_(pa.int32())),
            "label": pa.array(numbers % 2, pa.int8()),
            "other": pa.array(numbers % 3 == 0),
            "weight": pa.array(1 + numbers % 7, pa.float64()),
        }
    )


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path, first = tmp_path_factory.mktemp("lanes"), 0
    for name, groups in ROW_GROUPS.items():
        with pq.ParquetWriter(path / f"{name}.parquet", table(0, 0).schema) as writer:
            for rows in groups:
                writer.write_table(table(first, rows))
                first += rows
    assert first == ROWS
    assert pq.ParquetFile(path / "a.parquet").num_row_groups == 5
    return str(path)


def make_loader(folder, rank=0, world=1, lanes=8, size=64, seed=3, shuffle=True, keep=True, **changes) -> Loader:
    config = DataConfig(**(CONFIG | {"train": [folder]} | changes))
    files = find_files("data.train", config.train, config)
    return Loader(files, config, Lanes(files.rows, lanes, size, keep), rank, world, seed, shuffle)


def run(folder, start=0, stop=None, **options) -> list[Batch]:
    loader = make_loader(folder, **options)
    return list(loader.batches(start, loader.steps_per_epoch if stop is None else stop))


def row_ids(batch: Batch) -> list[int]:
    """Returns the numbers of the real rows."""
    return batch.dense[batch.weights > 0, 0].int().tolist()


def global_row_ids(folder, world, **options) -> list[list[int]]:
    """Returns the numbers of every step's rows, rank behind rank."""
    ranks = [run(folder, rank=rank, world=world, **options) for rank in range(world)]
    return [list(itertools.chain(*map(row_ids, batches))) for batches in zip(*ranks, strict=True)]


@pytest.mark.parametrize("world", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("options", [{}, {"size": 32, "shuffle_window_rows": 7}, {"size": 1024}], ids=str)
def test_every_row_once_and_the_same_batches_on_any_number_of_ranks(folder, world, options):
    steps = global_row_ids(folder, world, **options)
    assert sorted(itertools.chain(*steps)) == list(range(ROWS))
    assert steps == global_row_ids(folder, 1, **options)


@pytest.fixture
def copied(folder, tmp_path):
    """A copy of the folder, whose files a test may remove."""
    return shutil.copytree(folder, tmp_path / "copied")


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("window", [ROWS // 8, ROWS])
def test_a_small_data_set_is_decoded_once_and_its_later_epochs_are_as_ever(folder, copied, world, window):
    options = {"world": world, "shuffle_window_rows": window * world}
    epoch = make_loader(folder, **options).steps_per_epoch
    alone = [run(folder, start, start + epoch, **options) for start in range(0, 3 * epoch, epoch)]
    several = make_loader(str(copied), **options).batches(epoch - 1, 3 * epoch)
    together = [next(several), next(several)]
    if world == 1:  # which has read all by now; of several ranks, each needs other row groups in the next epoch
        for file in copied.iterdir():
            file.unlink()
    together += several
    for one, other in zip(alone[0][-1:] + alone[1] + alone[2], together, strict=True):
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("dense", "labels", "weights"))
        assert torch.equal(one.sparse.values(), other.sparse.values())
        assert torch.equal(one.sparse.lengths(), other.sparse.lengths())


def test_a_larger_data_set_is_read_in_each_epoch(copied):
    loader = make_loader(str(copied), shuffle_window_rows=ROWS // 8 - 1)
    batches = loader.batches(0, 3 * loader.steps_per_epoch)
    next(batches)
    for file in copied.iterdir():
        file.unlink()
    with pytest.raises(InputError, match="parquet"):
        list(batches)


def test_rows_that_are_chosen_anew_are_not_kept(folder):
    options = {"select": {"keep_negatives": 0.5}, "labels": ["label"], "shuffle_window_rows": ROWS}
    data = DataConfig(**(CONFIG | {"train": [folder]} | options))
    files = find_training_files(data, seed=5)
    lanes = Lanes(files.rows, 8, 64)
    loader = Loader(files, data, lanes, 0, 1, 5, shuffle=True)
    epochs = [range(loader.steps_per_epoch), range(loader.steps_per_epoch, 2 * loader.steps_per_epoch)]
    several = list(loader.batches(0, 2 * loader.steps_per_epoch))
    first, second = ({row for step in steps for row in row_ids(several[step])} for steps in epochs)
    assert first != second
    assert first == {row for batch in loader.batches(0, loader.steps_per_epoch) for row in row_ids(batch)}


@pytest.mark.parametrize("world", [1, 3, 6, 12])
def test_other_numbers_of_lanes(folder, world):
    steps = global_row_ids(folder, world, lanes=6, size=60)
    assert sorted(itertools.chain(*steps)) == list(range(ROWS))
    assert steps == global_row_ids(folder, 1, lanes=6, size=60)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_row_stays_together(folder, shuffle):
    for batch in run(folder, shuffle=shuffle, stop=25):
        many, single = batch.sparse["many"], batch.sparse["row_id_too"]
        assert batch.sparse.keys() == ["row_id_too", "many"]
        for i, n in enumerate(batch.dense[:, 0].int().tolist()):
            if batch.weights[i] == 0:
                assert single.lengths()[i] == many.lengths()[i] == 0
                continue
            assert batch.labels[i].tolist() == [n % 2, n % 3 == 0]
            assert batch.weights[i] == 1 + n % 7
            begin, end = many.offsets()[i : i + 2].tolist()
            assert many.values()[begin:end].tolist() == [3 * n + j for j in range(n % 4)]
            begin, end = single.offsets()[i : i + 2].tolist()
            assert single.values()[begin:end].tolist() == ([] if n % 5 == 0 else [n])


def test_types_and_shapes(folder):
    batch = run(folder, stop=1, world=2)[0]
    assert batch.dense.shape == (32, 1)
    assert batch.labels.shape == (32, 2)
    assert batch.weights.shape == (32,)
    assert all(part.is_contiguous() for part in (batch.dense, batch.labels, batch.weights))
    assert {batch.dense.dtype, batch.labels.dtype, batch.weights.dtype, batch.scale.dtype} == {torch.float32}
    assert {batch.sparse.values().dtype, batch.sparse.lengths().dtype} == {torch.int32}


def test_epochs_and_seeds_differ(folder):
    steps = make_loader(folder).steps_per_epoch
    both = [row_ids(batch) for batch in run(folder, stop=2 * steps)]
    assert both == [row_ids(batch) for batch in run(folder, stop=2 * steps)]
    assert both[:steps] != both[steps:]
    assert sorted(itertools.chain(*both[steps:])) == list(range(ROWS))
    assert both[:steps] != [row_ids(batch) for batch in run(folder, seed=4)]


@pytest.mark.parametrize("start", [0, 1, 4, 10, 11, 15, 22, 25])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"keep": False}, {"world": 16, "rank": 5}], ids=str)
def test_seeking_gives_the_tail(folder, start, options):
    stop = 26
    whole, tail = run(folder, stop=stop, **options), run(folder, start, stop, **options)
    assert len(tail) == stop - start
    for expected, found in zip(whole[start:], tail, strict=True):
        for part in ("dense", "labels", "weights", "scale"):
            assert torch.equal(getattr(expected, part), getattr(found, part))
        assert torch.equal(expected.sparse.values(), found.sparse.values())
        assert torch.equal(expected.sparse.lengths(), found.sparse.lengths())


@pytest.mark.parametrize("world", [1, 4, 16])
def test_scale_makes_the_mean_over_ranks_the_mean_over_rows(folder, world):
    ranks = [run(folder, rank=rank, world=world, size=96) for rank in range(world)]
    for batches in zip(*ranks, strict=True):
        rows = sum(len(row_ids(batch)) for batch in batches)
        losses = [(batch.dense[:, 0] * batch.weights).sum() * batch.scale for batch in batches]
        expected = sum(n * (1 + n % 7) for batch in batches for n in row_ids(batch)) / rows
        assert torch.stack(losses).mean().item() == pytest.approx(expected)
        assert {len(batch.weights) for batch in batches} == {96 // world}


def test_last_batch_dropped(folder):
    kept, dropped = run(folder, size=96), run(folder, size=96, keep=False)
    assert (len(kept), len(dropped)) == (8, 7)
    assert [row_ids(batch) for batch in dropped] == [row_ids(batch) for batch in kept[:7]]
    assert all((batch.weights > 0).all() for batch in dropped)


def test_without_shuffling_lanes_keep_the_files_order(folder):
    steps = global_row_ids(folder, 1, lanes=1, size=50, shuffle=False)
    assert list(itertools.chain(*steps)) == list(range(ROWS))
    ranks = [run(folder, rank=rank, world=4, lanes=4, size=64, shuffle=False) for rank in range(4)]
    served = [list(itertools.chain(*map(row_ids, batches))) for batches in ranks]
    assert list(itertools.chain(*served)) == list(range(ROWS))


def test_shuffling_moves_rows_far(folder):
    first = np.array(row_ids(run(folder, lanes=1, size=40, stop=1)[0]))
    assert (np.diff(first) != 1).mean() > 0.8


def test_batches_do_not_change_later(folder):
    """What batches are made in is used again; a batch must own its memory as long as anybody holds it."""
    kept = run(folder, stop=40, read_threads=4, prefetch_batches=3)
    fresh = [row_ids(batch) for batch in make_loader(folder).batches(0, 40)]
    assert [row_ids(batch) for batch in kept] == fresh


@pytest.mark.parametrize("world", [1, 2, 16])
@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("keep", [True, False])
def test_batches_made_together_are_those_made_one_by_one(folder, monkeypatch, world, start, keep):
    options = {"sparse": {"row_id_too": {"rows": ROWS}}, "groups": ["label"], "world": world, "keep": keep}
    options |= {"rank": world - 1, "start": start, "stop": 25}  # over the ends of epochs
    if world < 16:  # of which two share a lane
        assert make_loader(folder, world=world, sparse=options["sparse"])._together > 1
    together = run(folder, **options)
    monkeypatch.setattr("trainer.batches.loader.TOGETHER_ROWS", 1)
    alone = run(folder, **options)
    assert len(together) == len(alone) == 25 - start
    for one, other in zip(together, alone, strict=True):
        assert one.sparse.length_per_key() == other.sparse.length_per_key()
        for name in ("dense", "labels", "weights", "scale", "groups", "log_q"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)
        for name in ("values", "lengths"):
            torch.testing.assert_close(getattr(one.sparse, name)(), getattr(other.sparse, name)(), rtol=0, atol=0)


@pytest.mark.parametrize(("cores", "threads"), [(1, 2), (2, 2), (6, 3), (16, 4)])
def test_half_of_the_cores_read(folder, monkeypatch, cores, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
    pools = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, max_workers, name):
            super().__init__(max_workers, name)
            pools.append((name, max_workers))

    monkeypatch.setattr("trainer.batches.loader.ThreadPoolExecutor", Pool)
    run(folder, stop=1)
    run(folder, stop=1, read_threads=5)
    own = [(name, 5) for name in ("decode", "read")]
    assert pools == [("assemble", 1), ("decode", threads), ("read", threads), ("assemble", 1), *own]


@pytest.mark.parametrize("world", [1, 8])
def test_threads_that_share_the_columns_of_a_row_group_read_the_same(tmp_path, world):
    """All windows need the one row group of the file; on eight ranks each has fewer lanes than threads."""
    pq.write_table(table(0, ROWS), tmp_path / "one.parquet")
    options = {"folder": str(tmp_path), "world": world, "groups": ["label"]}
    for one, other in zip(run(**options, read_threads=1), run(**options, read_threads=4), strict=True):
        for name in ("dense", "labels", "weights", "groups"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        for name in ("values", "lengths"):
            assert torch.equal(getattr(one.sparse, name)(), getattr(other.sparse, name)())


def test_of_several_bad_columns_the_first_is_named(tmp_path):
    columns = {f"n{number}": [1.0] * 100 for number in range(20)}
    bad = {name: [*values[:-1], math.inf] if name in ("n7", "n19") else values for name, values in columns.items()}
    pq.write_table(pa.table(bad | {"label": [1.0] * 100}), tmp_path / "bad.parquet")
    dense = {"dense": {name: {} for name in columns}, "sparse": {}, "labels": ["label"], "weight": None}
    for _ in range(10):
        with pytest.raises(InputError, match="row 99, column 'n7': inf"):
            run(str(tmp_path), read_threads=4, **dense)


PANDAS = """
import sys, threading
print(threading.current_thread().name, file=sys.stderr)
raise ImportError
"""


@pytest.mark.more("pandas is rarely there")
def test_pandas_is_imported_by_one_thread(folder, tmp_path):
    (tmp_path / "pandas.py").write_text(PANDAS)
    read = f"from test_loader import run; run({folder!r}, stop=1)"
    paths = [str(tmp_path), *map(str, (Path(__file__).parent, Path(jobs.__file__).parent)), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", read], env=os.environ | {"PYTHONPATH": ":".join(paths)}, capture_output=True, text=True
    )
    imported = [line for line in done.stderr.splitlines() if "Thread" in line or line.startswith("read")]
    assert (done.returncode, set(imported)) == (0, {"MainThread"}), done.stderr


def test_leaving_early_ends_the_threads(folder):
    import threading

    before = threading.active_count()
    batches = make_loader(folder).batches(0, 1000)
    next(batches)
    batches.close()
    assert threading.active_count() == before


def test_fewer_rows_than_lanes(tmp_path):
    pq.write_table(table(0, 3), tmp_path / "few.parquet")
    for world in (1, 8, 16):
        steps = global_row_ids(str(tmp_path), world, size=16, stop=3)
        assert [sorted(rows) for rows in steps] == [[0, 1, 2]] * 3


def test_only_dense_or_only_sparse(folder):
    dense = run(folder, sparse={}, stop=1)[0]
    assert dense.sparse.keys() == []
    assert len(row_ids(dense)) == 64
    only_sparse = run(folder, dense={}, stop=1)[0]
    assert only_sparse.dense.shape == (64, 0)


def test_bad_values_name_the_file_and_the_row_group(folder):
    with pytest.raises(
        ValueError, match=r"f\.parquet, row group 0, row \d+, column 'row_id_too': id 608 is outside \[0, 608\)"
    ):
        run(folder, shuffle=False, lanes=1, size=8, sparse={"row_id_too": {"rows": 608}})
    with pytest.raises(ValueError, match=r"e\.parquet, row group 0, row 40, column 'row_id': 283\.0 is not a label"):
        run(folder, labels=["row_id"], start=5, stop=8, dense={}, shuffle=False, lanes=1)


def test_truncated_file(folder, tmp_path):
    whole = Path(folder, "e.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"cut\.parquet: cannot be read as Parquet, is it whole\?"):
        make_loader(str(tmp_path))


def test_damage_between_the_footers(folder, tmp_path):
    whole = bytearray(Path(folder, "e.parquet").read_bytes())
    whole[4:-3000] = bytes(len(whole) - 3004)
    (tmp_path / "zeros.parquet").write_bytes(whole)
    with pytest.raises(ValueError, match=r"zeros\.parquet, row group \d: cannot be read, is it whole\?"):
        run(str(tmp_path))


def test_file_that_vanishes(tmp_path):
    pq.write_table(table(0, 100), tmp_path / "gone.parquet")
    loader = make_loader(str(tmp_path))
    (tmp_path / "gone.parquet").unlink()
    with pytest.raises(ValueError, match=r"gone\.parquet, row group 0: cannot be read"):
        next(loader.batches(0, 1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["click"]}, r"no column 'click'; the file has: row_id, row_id_too, many"),
        ({"dense": {"many": {}}}, r"column 'many' is of type list<.*>; it must be a number"),
        ({"sparse": {"weight": {"rows": 9}}}, r"column 'weight' is of type double; it must be an integer or a list"),
        ({"sparse": {"weight": {"rows": 9, "ids": "hash"}}}, r"it must be an integer, a string, or a list of either"),
        ({"train": []}, r"data\.train is empty"),
    ],
)
def test_columns_that_cannot_be_used(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        make_loader(folder, **changes)


def test_text_needs_hashing(tmp_path):
    pq.write_table(pa.table({"id": ["a"], "label": [1]}), tmp_path / "text.parquet")
    plain = {"dense": {}, "labels": ["label"], "weight": None}
    with pytest.raises(ValueError, match=r"strings need data\.sparse\.id\.ids = 'hash'"):
        make_loader(str(tmp_path), sparse={"id": {"rows": 5}}, **plain)
    assert run(str(tmp_path), sparse={"id": {"rows": 5, "ids": "hash"}}, **plain)[0].sparse.values().numel() == 1


def test_lists_in_some_files_only(tmp_path):
    pq.write_table(pa.table({"id": [1], "label": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"id": [[1]], "label": [1]}), tmp_path / "2.parquet")
    with pytest.raises(ValueError, match=r"2\.parquet: column 'id' is a list in some files and a single id in others"):
        make_loader(str(tmp_path), dense={}, sparse={"id": {"rows": 5}}, labels=["label"], weight=None)


def test_types_may_differ_between_files(tmp_path):
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32()), "label": [1.0, 0.0]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"id": pa.array([3, 4], pa.int64()), "label": [1, 0]}), tmp_path / "2.parquet")
    config = {"dense": {}, "sparse": {"id": {"rows": 5}}, "labels": ["label"], "weight": None}
    batch = run(str(tmp_path), lanes=1, size=4, **config)[0]
    assert sorted(batch.sparse.values().tolist()) == [1, 2, 3, 4]


def test_ids_are_text_in_all_files_or_numbers_in_all(tmp_path):
    pq.write_table(pa.table({"id": ["a"], "label": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"id": [3], "label": [1]}), tmp_path / "2.parquet")
    sparse = {"id": {"rows": 5, "ids": "hash"}}
    with pytest.raises(
        InputError, match=r"2\.parquet: column 'id' has integers \(int64\), but strings in .*1\.parquet"
    ):
        run(str(tmp_path), lanes=1, size=2, dense={}, sparse=sparse, labels=["label"], weight=None)


def test_no_rows_and_no_files(folder, tmp_path):
    with pytest.raises(ValueError, match=r"data\.train has no rows in its 2 files"):
        make_loader(folder, train=[f"{folder}/b.parquet", f"{folder}/d.parquet"])
    with pytest.raises(InputError, match=r"data\.train: no Parquet file at '.*nowhere'"):
        make_loader(f"{tmp_path}/nowhere")


@pytest.mark.parametrize("pattern", ["pipe.parquet", "*.parquet", ""])
def test_a_pipe_is_refused_at_once(tmp_path, pattern):
    pq.write_table(table(0, 3), tmp_path / "whole.parquet")
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(InputError, match=r"pipe\.parquet: is not a regular file"):
        make_loader(folder=None, train=[f"{tmp_path}/{pattern}"])


def test_a_directory_that_a_glob_matches_is_refused(tmp_path):
    (tmp_path / "day").mkdir()
    with pytest.raises(InputError, match=r"day: is not a regular file"):
        make_loader(folder=None, train=[f"{tmp_path}/*"])


def test_a_link_to_a_file_is_read(folder, tmp_path):
    (tmp_path / "link.parquet").symlink_to(f"{folder}/f.parquet")
    assert len(run(str(tmp_path), stop=1)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["label", "other", "label"]}, r"data\.labels names 'label' twice"),
        ({"labels": ["row_id"]}, r"data\.labels names 'row_id', which data\.dense\.row_id names too"),
        ({"labels": ["many"]}, r"data\.labels names 'many', which data\.sparse\.many names too"),
        ({"labels": ["weight"]}, r"data\.labels names 'weight', which data\.weight = 'weight' names too"),
    ],
)
def test_a_label_has_one_purpose(changes, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**(CONFIG | changes))


def test_several_features_on_one_table(folder):
    sparse = {"row_id_too": {"rows": ROWS * 3, "table": "t"}, "many": {"rows": ROWS * 3, "table": "t"}}
    batch = run(folder, sparse=sparse, stop=1)[0]
    assert batch.sparse.keys() == ["row_id_too", "many"]


def test_fingerprint_tells_changes(folder, tmp_path):
    config = DataConfig(**CONFIG)
    pq.write_table(table(0, 10), tmp_path / "x.parquet")
    before = find_files("data.train", [str(tmp_path)], config).fingerprint
    assert before == find_files("data.train", [f"{tmp_path}/*.parquet"], config).fingerprint
    pq.write_table(table(0, 11), tmp_path / "x.parquet")
    assert before != find_files("data.train", [str(tmp_path)], config).fingerprint


def test_memory_file_system():
    import fsspec

    with fsspec.open("memory://set/one.parquet", "wb") as file:
        pq.write_table(table(0, 100), file)
    assert sorted(itertools.chain(*global_row_ids("memory://set", 2))) == list(range(100))


def test_only_row_groups_that_come_again_are_shared():
    first, second, third = (RowGroup(0, index, 9) for index in range(3))
    parts = [RowSlice(first, 6, 9), RowSlice(second, 0, 9), RowSlice(third, 0, 4), RowSlice(first, 2, 6)]
    found = shared([*parts, RowSlice(third, 4, 5)], lambda part, order: pytest.fail(f"{part} is not asked for"))
    assert {group: (one.whole.start, one.whole.stop, one.uses) for group, one in found.items()} == {
        first: (2, 9, 2),
        third: (0, 5, 2),
    }


def test_shared_rows_are_decoded_once_and_given_up_after_their_last_use():
    group, made = RowGroup(0, 0, 9), []

    def decode(part, order):
        assert order is None
        made.append(part)
        numbers = np.arange(part.start, part.stop, dtype=np.float32)[None]
        return Rows(numbers, np.empty((0, len(part)), np.int32), {}, *np.empty((3, 0, len(part)), np.int64))

    kept = SharedRows(RowSlice(group, 2, 9), 2, decode)
    assert kept.take(RowSlice(group, 5, 9)).numbers.tolist() == [[5, 6, 7, 8]]
    assert kept.take(RowSlice(group, 2, 5)).numbers.tolist() == [[2, 3, 4]]
    assert made == [RowSlice(group, 2, 9)]
    kept.uses = 1
    kept.take(RowSlice(group, 2, 5))
    assert len(made) == 2


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_is_where_it_is_said_to_be(tmp_path, shuffle):
    seed = 3
    write_rows(tmp_path, [130, 0, 90], row_group_size=37)
    tree = config(tmp_path, data__shuffle=shuffle)
    tree["data"]["dense"] = {"row_id": {}}
    data = Config.model_validate(tree).data
    files = find_files("data.train", data.train, data)
    lanes = Lanes(files.rows, 8, 64)
    loader = Loader(files, data, lanes, 0, 1, seed, shuffle)
    for step, batch in enumerate(loader.batches(0, 2 * lanes.steps), 1):
        for position, (row, weight) in enumerate(zip(batch.dense[:, 0], batch.weights, strict=True)):
            found = loader.locate(step, position)
            assert (found == "padding") == (weight == 0)
            if weight:
                name, group, place = re.fullmatch(r"(.+), row group (\d+), row (\d+)", found).groups()
                assert pq.ParquetFile(name).read_row_group(int(group))["row_id"][int(place)].as_py() == row


def test_its_threads_end_with_the_session(rows, tmp_path):
    """Garbage collection could end them in the start of another thread, and wait there forever."""
    gc.disable()
    try:
        with process_group() as context:  # which collects garbage at its end
            with begin_job(Config.model_validate(config(rows, train__steps=2)), str(tmp_path), "auto", context) as job:
                run_job(job)
            left = [one.name for one in threading.enumerate() if one.name.startswith(("assemble", "read", "decode"))]
    finally:
        gc.enable()
    assert left == []
