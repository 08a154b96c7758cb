"""Makes data in Criteo's shape from a known model, which bounds the AUC of any other model.

python -m trainer synthetic --out data/synthetic --rows 1000000
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import tomli_w

from torchx_recsys.apps.datasets.writer import ROW_GROUP_ROWS, SPLITS, DataSetWriter, print_summary
from torchx_recsys.apps.engines.threads import Threads
from trainer.core.errors import InputError

PRESET, PRESET_TABLE_ROWS = "synthetic", 100_000  # the default of --table-rows
DENSE_FEATURES, SPARSE_FEATURES = 13, 26
HEAD_IDS = 16
BIAS, DENSE_STD, SPARSE_STD = -2.0, 1.2, 3.0  # parameters of the log-odds
TRUTH_STREAM = 99
LEAST = {"rows": 1, "files": 1, "validation_rows": 0, "test_rows": 0, "hotness": 1, "zipf": 0, "seed": 0}


@dataclass(frozen=True)
class Shape:
    """The shape of rows.

    Attributes:
        hotness: Maximum number of ids per row and feature; above 1 a row has one to `hotness` ids.
        zipf: Exponent of the id frequencies.
        table_rows: Ids of every sparse feature.
        null_rate: Fraction of missing values.
    """

    hotness: int
    zipf: float
    table_rows: tuple[int, ...]
    null_rate: float

    @property
    def schema(self) -> pa.Schema:
        """The columns of the files."""
        ids = pa.list_(pa.int64()) if self.hotness > 1 else pa.int64()
        dense = [(f"int_{i}", pa.float32()) for i in range(DENSE_FEATURES)]
        sparse = [(f"cat_{i}", ids) for i in range(SPARSE_FEATURES)]
        return pa.schema([("row_id", pa.int64()), ("label", pa.float32()), *dense, *sparse])


@dataclass(frozen=True)
class Truth:
    """The logistic model that draws the labels.

    Attributes:
        dense: Weight of every dense feature, `[13]`.
        sparse: Effects of each sparse feature's most frequent ids, then 0 for other ids, `[26, HEAD_IDS + 1]`.
    """

    dense: np.ndarray
    sparse: np.ndarray


@dataclass(frozen=True)
class FilePlan:
    """One file: its split, its number in the split, its rows, and the row_id of the first row."""

    split: str
    number: int
    rows: int
    first_row_id: int

    @property
    def name(self) -> str:
        """The name of the file, which sorts by number."""
        return f"part-{self.number:05d}"


def synthetic(
    out: str = "data/synthetic",
    rows: int = 1_000_000,
    files: int = 8,
    validation_rows: int | None = None,
    test_rows: int | None = None,
    hotness: int = 1,
    zipf: float = 1.1,
    table_rows: tuple[int, ...] = (100_000,),
    null_rate: float = 0.0,
    signal: float = 1.0,
    seed: int = 0,
    workers: int = 0,
) -> dict[str, Any]:
    """Makes rows in Criteo's shape whose labels come from a known logistic model.

    The columns are `row_id` (int64, unique over all splits), `label` (float32), `int_0` to `int_12` (float32, standard
    normal) and `cat_0` to `cat_25` (int64, or a list of them if hotness is above 1). The log-odds of a label are linear
    in the dense features, plus an effect of each of the 16 most frequent ids of every sparse feature: a million rows
    suffice to come close to the best AUC, which is printed and written to `OUT/summary.json` with the best log loss.

    The rows of a file depend on the seed, the split and the file's number alone: with more rows, each file begins with
    the same ones (but for `row_id`). Memory grows by 9 bytes per row to validate and test on. Started again after an
    interruption, it keeps the files to train on.

    The preset `synthetic` trains on the data. For other table rows, or without a split, it is the base of
    `OUT/config.toml`, which the last line then names.

    Args:
        out: Directory to write to, on any fsspec URL.
        rows: Rows to train on.
        files: Files they are spread over. Validation and test are one file each.
        validation_rows: Rows to validate on, by default a tenth of those to train on.
        test_rows: Rows to test on, by default a tenth, too.
        hotness: Ids per row and sparse feature: 1 gives single ids, more gives lists of one to this many.
        zipf: The k-th most frequent id is about k**-zipf as frequent as the first. 0: all alike.
        table_rows: Ids of each sparse feature: one number for all, or 26.
        null_rate: Fraction of missing values, in dense and in sparse features.
        signal: Scales the true weights and effects; 0 gives labels that nothing predicts.
        seed: Other seeds give other truths and other rows.
        workers: Threads. 0: one per core.

    Returns:
        The summary, as in `OUT/summary.json`.

    Raises:
        InputError: An argument is out of range.
    """
    validation_rows, test_rows = (rows // 10 if each is None else each for each in (validation_rows, test_rows))
    settings: dict[str, Any] = {"source": "synthetic", "rows": rows, "files": files, "seed": seed, "signal": signal}
    settings |= {"validation_rows": validation_rows, "test_rows": test_rows}
    settings |= {"hotness": hotness, "zipf": zipf, "table_rows": table_rows, "null_rate": null_rate}
    _check(settings)
    shape = Shape(hotness, zipf, table_rows * (SPARSE_FEATURES // len(table_rows)), null_rate)
    planned = plan_files({"train": (rows, files), "validation": (validation_rows, 1), "test": (test_rows, 1)})
    truth, data_set = make_truth(seed, signal), DataSetWriter(out, settings)
    made = Threads(workers).map(lambda file: _make(data_set, file, shape, truth, seed), planned)
    summary = data_set.commit([(file.split, file.name) for file in planned], dict(best for best in made if best))
    config = _config(data_set, shape, summary)
    usual = None if config == PRESET else data_set.out  # a configuration beside the data names its files
    print_summary(summary, "synthetic data", config, out, ["best_auc", "best_log_loss"], usual)
    return summary


def _config(data_set: DataSetWriter, shape: Shape, summary: dict[str, Any]) -> str:
    """Returns the configuration to train with: the preset, or `OUT/config.toml` for other tables or without a split."""
    rows = {split: found["rows"] for split, found in summary["splits"].items()}
    if all(rows.values()) and {*shape.table_rows} == {PRESET_TABLE_ROWS}:
        return PRESET
    splits = {split: [f"{data_set.out}/{split}"] if rows[split] else [] for split in SPLITS}
    sparse = {f"cat_{i}": {"rows": table_rows} for i, table_rows in enumerate(shape.table_rows)}
    data_set.write_once("config.toml", tomli_w.dumps({"base": PRESET, "data": splits | {"sparse": sparse}}))
    return f"{data_set.out}/config.toml"


def plan_files(splits: dict[str, tuple[int, int]]) -> list[FilePlan]:
    """Spreads the rows of every split over its files, and numbers all rows. Leaves out empty files."""
    parts, first = [], 0
    for split, (rows, files) in splits.items():
        for number in range(files):
            count = (number + 1) * rows // files - number * rows // files
            parts += [FilePlan(split, number, count, first)] * (count > 0)
            first += count
    return parts


def make_truth(seed: int, signal: float) -> Truth:
    """Draws the weights and effects."""
    random = np.random.default_rng([seed, TRUTH_STREAM])
    dense = random.standard_normal(DENSE_FEATURES)
    sparse = np.pad(random.standard_normal((SPARSE_FEATURES, HEAD_IDS)), [(0, 0), (0, 1)])
    return Truth(
        signal * DENSE_STD / math.sqrt(DENSE_FEATURES) * dense,
        signal * SPARSE_STD / math.sqrt(SPARSE_FEATURES) * sparse,
    )


def _make(
    data_set: DataSetWriter, part: FilePlan, shape: Shape, truth: Truth, seed: int
) -> tuple[str, dict[str, float | None]] | None:
    """Writes one file. Returns its split and the best metrics; None for train, which may have too many rows."""
    if part.split == "train" and data_set.counts(part.split, part.name) is not None:
        return None
    logits, labels = [], []
    with data_set.part(part.split, part.name, shape.schema) as writer:
        for number, start in enumerate(range(0, part.rows, ROW_GROUP_ROWS)):
            # A generator per row group: no file waits for the file before, and adding rows does not change the first
            # rows.
            random = np.random.default_rng([seed, SPLITS.index(part.split), part.number, number])
            count = min(ROW_GROUP_ROWS, part.rows - start)
            columns, logit = _features(random, shape, truth)
            label = random.random(ROW_GROUP_ROWS) < 1 / (1 + np.exp(-logit))
            row_ids = np.arange(part.first_row_id + start, part.first_row_id + start + ROW_GROUP_ROWS)
            table = pa.Table.from_arrays([row_ids, label.astype(np.float32), *columns], schema=shape.schema)
            writer.write(table.slice(0, count))
            if part.split != "train":
                logits.append(logit[:count])
                labels.append(label[:count])
    return (part.split, _best(np.concatenate(logits), np.concatenate(labels))) if logits else None


def _features(random: np.random.Generator, shape: Shape, truth: Truth) -> tuple[list[pa.Array], np.ndarray]:
    """Draws the feature columns of one row group, always whole, and the log-odds of its labels."""
    columns, logit = [], np.full(ROW_GROUP_ROWS, BIAS)
    for weight in truth.dense:
        values, missing = random.standard_normal(ROW_GROUP_ROWS, np.float32), _missing(random, shape)
        logit += np.where(missing, 0, weight * values)
        columns.append(pa.array(values, mask=missing))
    for effects, table_rows in zip(truth.sparse, shape.table_rows, strict=True):
        hot = random.integers(1, shape.hotness + 1, ROW_GROUP_ROWS) if shape.hotness > 1 else None
        ranks = _ranks(random.random(ROW_GROUP_ROWS if hot is None else hot.sum()), table_rows, shape.zipf)
        missing = _missing(random, shape)
        effect, ids = effects[np.minimum(ranks, HEAD_IDS)], _ids(ranks, table_rows)
        if hot is None:
            columns.append(pa.array(ids, mask=missing))
        else:
            offsets = np.r_[0, np.cumsum(hot)].astype(np.int32)
            effect = np.add.reduceat(effect, offsets[:-1]) / math.sqrt((1 + shape.hotness) / 2)
            columns.append(pa.ListArray.from_arrays(offsets, ids, mask=pa.array(missing)))
        logit += np.where(missing, 0, effect)
    return columns, logit


def _missing(random: np.random.Generator, shape: Shape) -> np.ndarray:
    return random.random(ROW_GROUP_ROWS, np.float32) < shape.null_rate


def _ranks(uniform: np.ndarray, count: int, zipf: float) -> np.ndarray:
    """Turns uniform numbers into ranks from 0 to `count - 1` by a power law."""
    # Inverts the integral of the law. numpy.random.zipf has no upper end and no exponent up to 1, and choice(p=...)
    # needs a table of all ids.
    if zipf == 1:
        places = (count + 1) ** uniform
    else:
        places = (1 + uniform * ((count + 1) ** (1 - zipf) - 1)) ** (1 / (1 - zipf))
    return np.clip(places.astype(np.int64) - 1, 0, count - 1)


def _ids(ranks: np.ndarray, count: int) -> np.ndarray:
    """Scatters the ranks over the table, one to one."""
    # Otherwise the frequent ids would be neighbours, all on one rank under row-wise sharding.
    step = next(step for step in range(count * 5 // 8 + 1, 2 * count + 2) if math.gcd(step, count) == 1)
    return ranks * step % count


def _best(logits: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """Returns the metrics of predictions by the true logits."""
    surprise = np.logaddexp(0, np.where(labels, -logits, logits))
    return {"best_auc": ranking_auc(logits, labels), "best_log_loss": float(surprise.mean())}


def ranking_auc(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Returns the exact area under the ROC curve, ties counted as half; None if all labels are equal."""
    # Exact, by ranks: a bound for evaluations, whose streaming AUC counts scores in bins.
    _, ranks, counts = np.unique(scores, return_inverse=True, return_counts=True)
    positives = np.bincount(ranks, labels > 0)
    negatives = counts - positives
    below = np.cumsum(negatives) - negatives
    pairs = positives.sum() * negatives.sum()
    return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else None


def _check(settings: dict[str, Any]) -> None:
    for name, least in LEAST.items():
        if settings[name] < least:
            raise InputError(f"--{name.replace('_', '-')} is {settings[name]}; it must be {least} or more")
    table_rows, null_rate = settings["table_rows"], settings["null_rate"]
    if len(table_rows) not in (1, SPARSE_FEATURES) or min(table_rows) < 1:
        raise InputError(f"--table-rows is {table_rows}; it must be one positive number, or {SPARSE_FEATURES}")
    if not 0 <= null_rate <= 1:
        raise InputError(f"--null-rate is {null_rate}; it must be between 0 and 1")
