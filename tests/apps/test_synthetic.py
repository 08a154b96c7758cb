import gc
import json
import re
import resource
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchx_recsys.apps.datasets.synthetic import ranking_auc, synthetic
from trainer.__main__ import main as trainer
from trainer.core.errors import InputError, StorageError

pytestmark = pytest.mark.slow


def read(out, split):
    return pa.concat_tables([pq.read_table(file) for file in sorted(Path(out, split).glob("*.parquet"))])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("synthetic") / "out"
    summary = synthetic(str(out), rows=300_000, files=3, validation_rows=1000, test_rows=100_000, table_rows=(1000,))
    return out, summary


def test_shape(made):
    out, summary = made
    assert json.loads((out / "summary.json").read_text()) == summary
    assert {split: values["rows"] for split, values in summary["splits"].items()} == {
        "train": 300_000,
        "validation": 1000,
        "test": 100_000,
    }
    train = read(out, "train")
    types = {name: train.schema.field(name).type for name in train.schema.names}
    dense, sparse = [f"int_{i}" for i in range(13)], [f"cat_{i}" for i in range(26)]
    assert types == {"row_id": pa.int64(), "label": pa.float32()} | dict.fromkeys(dense, pa.float32()) | dict.fromkeys(
        sparse, pa.int64()
    )
    metadata = pq.ParquetFile(out / "train/part-00000.parquet").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [65536, 34464]
    assert {column.null_count for column in train.itercolumns()} == {0}


LARGE = ["--table-rows", *map(str, [150_000, *[10] * 25])]


@pytest.mark.parametrize(
    "flags",
    [[], LARGE, ["--table-rows", "50"], ["--validation-rows", "0"], ["--rows", "9", "--files", "1"]],
    ids=["default", "large", "small", "no-validation", "no-splits"],
)
def test_the_printed_command_trains_on_what_was_made(flags, tmp_path, capsys):
    words = ["--out", str(tmp_path / "data"), "--rows", "2000", "--files", "2", "--zipf", "0", *flags]
    assert trainer(["synthetic", *words]) == 0
    (hint,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Next: ")]
    printed = re.fullmatch(r"Next:  torchx run dlrm.multi_node --config (\S+) -j 1x2(?: --(.+))?", hint)
    config, overrides = printed[1], (printed[2] or "").split()
    assert (config == "synthetic") == (not flags)
    run = ["--out", str(tmp_path / "run"), "--report.tensorboard", "false"]
    assert trainer(["train", config, *run, *overrides]) == 0
    assert trainer(["synthetic", *words]) == 0  # once more leaves the configuration as it is


def test_row_ids_are_unique_over_all_splits(made):
    ids = np.concatenate([read(made[0], split)["row_id"] for split in ("train", "validation", "test")])
    assert np.array_equal(np.sort(ids), np.arange(401_000))


def test_ids_follow_a_power_law(made):
    counts = -np.sort(-np.bincount(np.array(read(made[0], "train")["cat_7"]), minlength=1000))
    assert len(counts) == 1000
    slope = np.polyfit(np.log(np.arange(10, 200)), np.log(counts[10:200]), 1)[0]
    assert slope == pytest.approx(-1.1, abs=0.1)


def one_hot(table, table_rows):
    """Numbers of the features that are on, and the dense values."""
    sparse = np.stack([np.array(table[f"cat_{i}"]) + i * table_rows for i in range(26)], 1)
    return np.stack([np.array(table[f"int_{i}"]) for i in range(13)], 1), sparse, np.array(table["label"])


def test_a_model_gets_close_to_the_best_auc_and_never_past_it(made):
    out, summary = made
    dense, sparse, label = one_hot(read(out, "train"), 1000)
    weights, effects, squares, bias = np.zeros(13), np.zeros(26_000), np.full(26_000, 1e-3), 0.0
    for start in range(0, len(label) - 500, 500):  # logistic regression, Adagrad for the ids
        rows = slice(start, start + 500)
        logit = dense[rows] @ weights + effects[sparse[rows]].sum(1) + bias
        error = 1 / (1 + np.exp(-logit)) - label[rows]
        gradient = np.bincount(sparse[rows].ravel(), np.repeat(error, 26), 26_000) / 500
        squares += gradient**2
        effects -= 0.05 * gradient / np.sqrt(squares)
        weights -= 0.2 * dense[rows].T @ error / 500
        bias -= 0.2 * error.mean()
    dense, sparse, label = one_hot(read(out, "test"), 1000)
    logit = dense @ weights + effects[sparse].sum(1) + bias
    auc, best = ranking_auc(logit, label), summary["splits"]["test"]["best_auc"]
    assert best - 0.01 < auc < best
    log_loss = np.logaddexp(0, np.where(label > 0, -logit, logit)).mean()
    assert summary["splits"]["test"]["best_log_loss"] < log_loss


def test_auc_counts_pairs():
    random = np.random.default_rng(0)
    scores, labels = random.integers(0, 20, 300), random.integers(0, 2, 300)
    positive, negative = scores[labels == 1][:, None], scores[labels == 0][None]
    assert ranking_auc(scores, labels) == pytest.approx(
        (positive > negative).mean() + (positive == negative).mean() / 2
    )
    assert ranking_auc(scores, np.ones(300)) is None
    assert ranking_auc(np.empty(0), np.empty(0)) is None


def test_no_signal_means_no_auc(tmp_path):
    summary = synthetic(str(tmp_path), rows=1000, signal=0)
    assert summary["splits"]["test"]["best_auc"] == pytest.approx(0.5, abs=0.001)


def test_the_same_seed_gives_the_same_files_with_any_number_of_workers(tmp_path):
    settings = {"rows": 70_001, "files": 2, "validation_rows": 10, "test_rows": 10, "hotness": 3, "null_rate": 0.1}
    for name, other in {"a": {"workers": 1}, "b": {"workers": 2}, "c": {"seed": 1}}.items():
        synthetic(str(tmp_path / name), **settings | other)
    files = {name: [path.read_bytes() for path in sorted((tmp_path / name).rglob("*.parquet"))] for name in "abc"}
    assert files["a"] == files["b"]
    assert not set(files["a"]) & set(files["c"])


def test_a_larger_set_begins_with_the_same_rows(tmp_path):
    for name, rows in {"small": 1000, "large": 200_000}.items():
        synthetic(str(tmp_path / name), rows=rows, files=2, validation_rows=0, test_rows=0)
    small, large = (pq.read_table(tmp_path / name / "train/part-00001.parquet") for name in ("small", "large"))
    assert small.drop_columns("row_id") == large.drop_columns("row_id").slice(0, 500)


def test_bags_and_missing_values_on_object_storage():
    summary = synthetic(
        "memory://synthetic/bags", rows=20_000, files=3, hotness=4, null_rate=0.25, table_rows=(50,) * 26
    )
    fs = fsspec.filesystem("memory")
    table = pa.concat_tables(
        [pq.read_table(name, filesystem=fs) for name in fs.ls("/synthetic/bags/train", detail=False)]
    )
    assert table.num_rows == summary["splits"]["train"]["rows"] == 20_000
    bags = table["cat_3"].combine_chunks()
    assert bags.null_count / len(bags) == pytest.approx(0.25, abs=0.02)
    assert set(np.diff(bags.drop_null().offsets)) == {1, 2, 3, 4}
    ids = np.array(bags.flatten())
    assert (ids.min(), ids.max()) == (0, 49)
    assert table["int_3"].null_count / 20_000 == pytest.approx(0.25, abs=0.02)
    assert "test" in summary["splits"]


def test_files_that_are_there_are_kept(tmp_path):
    settings = {"rows": 1000, "files": 2}
    first = synthetic(str(tmp_path), **settings)
    assert [first["splits"][split]["rows"] for split in ("train", "validation", "test")] == [1000, 100, 100]
    kept, lost = sorted((tmp_path / "train").iterdir())
    before, content = kept.stat().st_mtime_ns, lost.read_bytes()
    lost.unlink()
    assert synthetic(str(tmp_path), **settings) == first
    assert kept.stat().st_mtime_ns == before
    assert lost.read_bytes() == content
    with pytest.raises(ValueError, match=r"made with zipf = 1.1, and now it is 1.2"):
        synthetic(str(tmp_path), **settings, zipf=1.2)


def test_settings_that_cannot_be_read_get_one_clear_line(tmp_path):
    (tmp_path / "out/settings.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"--out is '.*out', which cannot be used: .*Is a directory"):
        synthetic(str(tmp_path / "out"), rows=1000)


def test_a_full_disk_gets_one_clear_line(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StorageError, match="File too large"):
            synthetic(str(tmp_path), rows=10_000, files=2, workers=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    # Arrow's writer fails again when it is freed, which CPython 3.11 cannot report from within `ast.parse`.
    gc.collect()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "--rows is 0; it must be 1 or more"),
        ({"test_rows": -1}, "--test-rows is -1; it must be 0 or more"),
        ({"table_rows": (1, 2)}, "one positive number, or 26"),
        ({"table_rows": ()}, "one positive number, or 26"),
        ({"null_rate": 2.0}, "--null-rate is 2.0; it must be between 0 and 1"),
    ],
)
def test_wrong_arguments_get_one_clear_line(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        synthetic(str(tmp_path / "out"), **arguments)
    assert not (tmp_path / "out").exists()
