"""Figures of ids: how many, how often each, how skewed, and how well they alone predict a label."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.tools.check_data.numbers import rank_auc

FREQUENT = 20  # of an id with fewer occurrences, its place among the others is mostly chance
SHRINK = 1.0  # samples of the mean label rate that every id's own is averaged with


@dataclass(frozen=True)
class Ids:
    """The ids of a column in a sample of `R` rows.

    Attributes:
        distinct: The different ids.
        codes: The place of each id among these, `[N]`.
        row_of: The row of each id, `[N]`.
        rows: The number of rows.
    """

    distinct: pa.Array
    codes: np.ndarray
    row_of: np.ndarray
    rows: int

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each distinct id occurs, `[D]`."""
        return np.bincount(self.codes, minlength=len(self.distinct))

    @property
    def hotness(self) -> float:
        """Ids per row."""
        return len(self.codes) / max(1, self.rows)

    @cached_property
    def estimated(self) -> int:
        """Different ids of all rows, at least: from those that the sample has once and twice (Chao 1984)."""
        once, twice = int((self.counts == 1).sum()), int((self.counts == 2).sum())
        return len(self.distinct) + once * (once - 1) // (2 * (twice + 1))

    def top(self, number: int) -> list[tuple[object, int, int]]:
        """Returns the most frequent ids: each with its place in `distinct`, and how often it occurs."""
        best = np.argsort(-self.counts, kind="stable")[:number]
        return [(self.distinct[int(one)].as_py(), int(one), int(self.counts[one])) for one in best]


def ids_of(column: pa.ChunkedArray | pa.Array) -> Ids:
    """Returns the ids of a column of single ids or lists, in a type of `kinds.COMPUTED`; nulls are no ids."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    rows = np.arange(len(array))
    if pa.types.is_large_list(array.type):
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        array, rows = array.flatten(), np.repeat(rows, lengths)
    if array.null_count:
        rows = rows[array.is_valid().to_numpy(zero_copy_only=False)]
        array = array.drop_null()
    coded = array.dictionary_encode()
    return Ids(coded.dictionary, coded.indices.to_numpy(), rows, len(column))


def zipf_exponent(counts: np.ndarray) -> float:
    """Returns Zipf's exponent of ids by maximum likelihood: of those that are frequent enough to have a rank.

    Args:
        counts: How often each id occurs, `[D]`.
    """
    frequent = np.sort(counts[counts >= FREQUENT])[::-1]
    if len(frequent) < 2:
        return 0.0
    logs = np.log(np.arange(1, len(frequent) + 1))
    observed, low, high = float(frequent @ logs / frequent.sum()), 0.0, 5.0
    for _ in range(40):  # the mean of log ranks falls with the exponent
        middle = (low + high) / 2
        weights = np.exp(-middle * logs)
        low, high = (middle, high) if weights @ logs / weights.sum() > observed else (low, middle)
    return round(low, 3)


def auc_of_ids(ids: Ids, labels: np.ndarray, seed: int) -> float:
    """Returns the AUC of the mean label rate of each row's ids, counted in the other half of the rows.

    Args:
        ids: The ids.
        labels: Whether each row is of the positive class, `[R]`.
        seed: Halves the rows.
    """
    half = np.random.default_rng(seed).random(ids.rows) < 0.5
    found = [_auc_of_other_half(ids, labels, one) for one in (half, ~half)]
    return float(np.nanmean(found)) if not np.isnan(found).all() else float("nan")


def _auc_of_other_half(ids: Ids, labels: np.ndarray, counted: np.ndarray) -> float:
    if counted.all() or not counted.any():
        return float("nan")
    mean, here = float(labels[counted].mean()), counted[ids.row_of]
    shown = np.bincount(ids.codes[here], minlength=len(ids.distinct))
    positive = np.bincount(ids.codes[here], labels[ids.row_of[here]], minlength=len(ids.distinct))
    rates = (positive + SHRINK * mean) / (shown + SHRINK)
    sums = np.bincount(ids.row_of, rates[ids.codes], minlength=ids.rows)
    sizes = np.bincount(ids.row_of, minlength=ids.rows)
    scores = np.where(sizes > 0, sums / np.maximum(sizes, 1), mean)
    return rank_auc(scores[~counted], labels[~counted])


def known_share(ids: Ids, earlier: Ids) -> float:
    """Returns the part of ids that another sample has, too."""
    known = pc.is_in(ids.distinct, earlier.distinct)  # pyrefly: ignore[missing-attribute]
    return float(ids.counts[known.to_numpy(zero_copy_only=False)].sum() / max(1, len(ids.codes)))
