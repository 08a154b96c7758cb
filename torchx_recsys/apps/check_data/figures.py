"""Figures of numbers and ids: quantiles, skewness, shift, counts, and how well a column alone predicts a label."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BUCKETS = 10
FLOOR = 1e-4  # share assumed for an empty bucket, as the logarithm of 0 is infinite
TRANSFORMS: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    "log1p": (-1.0, np.log1p),
    "log3": (-3.0, lambda x: np.log(x + 3)),
}
"""Transforms that are suggested: the bound below all values, and the function."""
SKEWED = 3.0
FREQUENT = 20  # below this count, the rank of an id is mostly chance
RARE = 16  # ids with fewer occurrences and equal counts are computed together
SHRINK = 1.0  # number of samples with the mean label rate added to each id's samples


def auc(scores: np.ndarray, negatives: np.ndarray, positives: np.ndarray) -> float:
    """Returns the area under the ROC curve, with ties counted as half; NaN for labels of one class.

    Args:
        scores: Any finite or infinite numbers, ascending, `[N]`.
        negatives: How many samples of the negative class have each, `[N]`.
        positives: How many of the positive class, `[N]`.
    """
    if not (negatives.any() and positives.any()):
        return float("nan")
    first = np.flatnonzero(np.append(True, scores[1:] != scores[:-1]))
    negatives, positives = (np.add.reduceat(one, first, dtype=np.int64) for one in (negatives, positives))
    below = np.cumsum(negatives) - negatives / 2
    return float(positives @ below / (positives.sum() * negatives.sum()))


def auc_alone(values: np.ndarray, labels: np.ndarray) -> float:
    """Returns the AUC of a column alone, in the better direction, with missing values (NaN) at the better end.

    Args:
        values: The values, ascending, the missing ones last, `[R]`.
        labels: Whether each is of the positive class, `[R]`.
    """
    missing = np.isnan(values)
    found = [auc(np.where(missing, np.inf, values), ~labels, labels)]
    if number := int(missing.sum()):
        labels = np.roll(labels, number)
        found.append(auc(np.roll(np.where(missing, -np.inf, values), number), ~labels, labels))
    return max(max(one, 1 - one) for one in found)


def edges_of(values: np.ndarray) -> np.ndarray:
    """Returns the inner edges of buckets with equal numbers of values; the values are finite."""
    return np.unique(np.quantile(values, np.linspace(0, 1, BUCKETS + 1)[1:-1])) if len(values) else np.zeros(0)


def rank_error(rows: int) -> float:
    """Returns the 95 % error bound of an empirical distribution function for a sample of rows.

    By the inequality of Dvoretzky, Kiefer and Wolfowitz, with Massart's constant.
    """
    return float(np.sqrt(np.log(2 / 0.05) / (2 * rows)))


def bucket_shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the share of values in each bucket, and last the share of missing values (NaN)."""
    missing = np.isnan(values)
    places = np.searchsorted(edges, values[~missing], side="right")
    counts = np.bincount(places, minlength=len(edges) + 1)
    return np.append(counts, missing.sum()) / max(1, len(values))


def psi(expected: np.ndarray, found: np.ndarray) -> float:
    """Returns the population stability index of two distributions over the same buckets."""
    expected, found = np.maximum(expected, FLOOR), np.maximum(found, FLOOR)
    return float(((found - expected) * np.log(found / expected)).sum())


def skewness(values: np.ndarray) -> float:
    """Returns the third standardized moment; 0 for constants."""
    spread = values.std() if len(values) else 0.0
    if spread == 0:
        return 0.0
    standard = (values - values.mean()) / spread
    return float((standard * standard * standard).mean())  # ten times as fast as **


def middle_std(values: np.ndarray) -> float:
    """Returns the standard deviation of ascending values without the lowest and the highest hundredth."""
    low, high = np.quantile(values, [0.01, 0.99])
    return float(values[np.searchsorted(values, low) : np.searchsorted(values, high, side="right")].std())


def best_transform(values: np.ndarray) -> str:
    """Suggests a transform for finite values: for skewed values, a logarithm that is defined for all of them."""
    if len(values) and skewness(values) > SKEWED:
        for name, (above, _) in TRANSFORMS.items():
            # Half of the distance to the pole of the logarithm is left for values not seen yet.
            if values.min() >= above / 2:
                return name
    return "none"


def transformed(values: np.ndarray, name: str) -> np.ndarray:
    """Returns values after a suggested transform."""
    return values if name == "none" else TRANSFORMS[name][1](values)


@dataclass(frozen=True)
class Ids:
    """The ids of a column in a sample of `R` rows.

    Attributes:
        distinct: The different ids.
        codes: The index of each id in `distinct`, `[N]`.
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

    @cached_property
    def is_single(self) -> bool:
        """Whether no row has more than one id."""
        return bool((np.diff(self.row_of) > 0).all())

    def counts_in(self, groups: np.ndarray, number: int) -> np.ndarray:
        """Returns how often each distinct id occurs in each of some groups of rows, `[D, number]`.

        Args:
            groups: The group of each row, `[R]`.
            number: The number of groups.
        """
        cells = self.codes * number + groups[self.row_of]
        return np.bincount(cells, minlength=len(self.distinct) * number).reshape(-1, number)

    @property
    def hotness(self) -> float:
        """Ids per row."""
        return len(self.codes) / max(1, self.rows)

    @cached_property
    def estimated(self) -> int:
        """A lower bound of the distinct ids in all rows, from the ids that occur once and twice (Chao 1984)."""
        once, twice = int((self.counts == 1).sum()), int((self.counts == 2).sum())
        return len(self.distinct) + once * (once - 1) // (2 * (twice + 1))

    def top(self, number: int) -> list[tuple[object, int, int]]:
        """Returns the most frequent ids, each with its place in `distinct` and its count."""
        least = np.partition(self.counts, -number)[-number] if number < len(self.counts) else 0
        often = np.flatnonzero(self.counts >= least)
        best = often[np.argsort(-self.counts[often], kind="stable")][:number]
        return [(readable(self.distinct[int(one)].as_py()), int(one), int(self.counts[one])) for one in best]


def readable(value: object) -> object:
    """Returns a value of a column as shown: bytes of strings that are not UTF-8 are written in hex."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def ids_of(column: pa.ChunkedArray | pa.Array) -> Ids:
    """Returns the ids of a column of single ids or lists, in a type of `COMPUTED`, without nulls."""
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


def shares_of_ids(expected: Ids, found: Ids) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shares of ids in two samples, by deciles of the first sample's ids in order of frequency.

    Deciles come from every other row of the first sample, and its shares from the remaining rows: in the rows that
    defined the deciles, no id would be new. The last share is of new ids.
    """
    counts, others = expected.counts_in(np.arange(expected.rows) % 2, 2).T
    order = np.argsort(-counts, kind="stable")
    middles = (np.cumsum(counts[order]) - counts[order] / 2) / max(1, counts.sum())
    buckets = np.full(len(counts) + 1, BUCKETS)
    buckets[order] = np.where(counts[order] > 0, (BUCKETS * middles).astype(np.int64), BUCKETS)
    places = pc.index_in(found.distinct, expected.distinct).fill_null(-1)  # pyrefly: ignore[missing-attribute]
    both = ((buckets[:-1], others), (buckets[places.to_numpy()], found.counts))
    first, second = (np.bincount(place, count, BUCKETS + 1) / max(1, count.sum()) for place, count in both)
    return first, second


def zipf_exponent(counts: np.ndarray) -> float:
    """Returns Zipf's exponent by maximum likelihood, from the ids that are frequent enough to have a rank.

    Args:
        counts: How often each id occurs, `[D]`.
    """
    frequent = np.sort(counts[counts >= FREQUENT])[::-1]
    if len(frequent) < 2:
        return 0.0
    logs = np.log(np.arange(1, len(frequent) + 1))
    observed, low, high = float(frequent @ logs / frequent.sum()), 0.0, 5.0
    for _ in range(40):  # bisection: the mean of log ranks falls with the exponent
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
    groups = 2 * half + labels
    rows = np.bincount(groups, minlength=4).reshape(2, 2)
    counts, found = ids.counts_in(groups, 4), []
    counts, times = _alike(counts) if ids.is_single else (counts, np.ones(len(counts), np.int64))
    counts = counts.reshape(-1, 2, 2)
    for counted in (0, 1):
        if not rows[counted].any():
            continue
        mean = rows[counted, 1] / rows[counted].sum()
        rates = (counts[:, counted, 1] + SHRINK * mean) / (counts[:, counted].sum(axis=1) + SHRINK)
        if ids.is_single:  # all rows with the same id have the same score
            others = counts[:, 1 - counted] * times[:, np.newaxis]
            scores, others = np.append(rates, mean), np.vstack([others, rows[1 - counted] - others.sum(axis=0)])
        else:
            other = half != counted
            scores = _mean_of_rows(ids, rates, mean)[other]
            others = np.stack([~labels[other], labels[other]], axis=1)
        order = np.argsort(scores)
        found.append(auc(scores[order], *others[order].T))
    return float(np.nanmean(found)) if not np.isnan(found).all() else float("nan")


def _alike(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Groups ids with equal counts: most ids are rare, so that few groups are left to sort.

    Args:
        counts: How often each id occurs in each of 4 groups, `[D, 4]`.
    """
    rare, digits = (counts < RARE).all(axis=1), RARE ** np.arange(4)
    ids = np.bincount(counts[rare] @ digits)
    found = np.flatnonzero(ids)
    times = np.append(np.ones(np.count_nonzero(~rare), np.int64), ids[found])
    return np.concatenate([counts[~rare], found[:, np.newaxis] // digits % RARE]), times


def _mean_of_rows(ids: Ids, rates: np.ndarray, mean: float) -> np.ndarray:
    """Returns the mean rate of each row's ids; `mean` for a row without ids, `[R]`."""
    sums = np.bincount(ids.row_of, rates[ids.codes], minlength=ids.rows)
    sizes = np.bincount(ids.row_of, minlength=ids.rows)
    return np.where(sizes > 0, sums / np.maximum(sizes, 1), mean)


def known_share(ids: Ids, earlier: Ids) -> float:
    """Returns the share of ids that are also in another sample."""
    known = pc.is_in(ids.distinct, earlier.distinct)  # pyrefly: ignore[missing-attribute]
    return float(ids.counts[known.to_numpy(zero_copy_only=False)].sum() / max(1, len(ids.codes)))
