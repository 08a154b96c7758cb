"""Figures of each column in the sample, the source of findings, suggestions and the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from torchx_recsys.apps.check_data.distinct import Distinct
from torchx_recsys.apps.check_data.figures import (
    Ids,
    auc_alone,
    auc_of_ids,
    bucket_shares,
    edges_of,
    ids_of,
    known_share,
    psi,
    skewness,
    zipf_exponent,
)
from torchx_recsys.apps.check_data.hashes import bits_of
from torchx_recsys.apps.check_data.reading import Measured
from torchx_recsys.apps.check_data.splits import Kind

FEW, FIRST = 32, 1000


@dataclass(frozen=True)
class Profile:
    """A column in all splits.

    Attributes:
        name: Its name.
        kind: Its kind in the first split.
        measured: The splits that have the column; checks compare the others with the first.
        labels: Whether each row of the first split's sample is of the positive class, by label, `[R]`.
    """

    name: str
    kind: Kind
    measured: Sequence[Measured]
    labels: Mapping[str, np.ndarray]
    _finite: dict[str, np.ndarray] = field(default_factory=dict, compare=False)

    @property
    def first(self) -> Measured:
        """The split that the others are compared with."""
        return self.measured[0]

    def numbers(self, measured: Measured) -> np.ndarray:
        """Returns the values of a split's sample, null as NaN, `[R]`."""
        (column,) = measured.sample.column(self.name).chunks
        return column.cast("float64", safe=False).to_numpy(zero_copy_only=False)

    def finite(self, measured: Measured) -> np.ndarray:
        """Returns the finite values of a split's sample, ascending."""
        if measured.name not in self._finite:
            values = self.numbers(measured)
            values = values[self._order] if measured is self.first else np.sort(values)
            first, stop = np.searchsorted(values, -np.inf, side="right"), np.searchsorted(values, np.inf)
            self._finite[measured.name] = values[first:stop]
        return self._finite[measured.name]

    @cached_property
    def _order(self) -> np.ndarray:
        """The rows of the first split's sample in the order of their values, missing ones last, `[R]`."""
        return np.argsort(self.numbers(self.first))

    @cached_property
    def ids(self) -> dict[str, Ids]:
        """The ids of each split's sample, by its name."""
        return {one.name: ids_of(one.sample.column(self.name)) for one in self.measured}

    @cached_property
    def bits(self) -> np.ndarray:
        """64 bits for each value of the first split's sample, equal for equal values, `[R]`."""
        return bits_of(self.first.sample.column(self.name).combine_chunks(), self.kind)

    @property
    def first_ids(self) -> Ids:
        """The ids of the first split's sample."""
        return self.ids[self.first.name]

    @cached_property
    def different(self) -> int:
        """The number of distinct values in the first split's sample."""
        if self.kind == "number":
            return 1 + int(np.count_nonzero(np.diff(self.finite(self.first))))
        return len(self.first_ids.distinct)

    @property
    def counted(self) -> Distinct | None:
        """The distinct ids of all rows of the first split; None if only its sample was counted."""
        return self.first.distinct.get(self.name)

    @property
    def knows_all_ids(self) -> bool:
        """Whether the distinct ids of all rows of the first split were counted."""
        return self.first.is_whole or self.counted is not None

    @property
    def distinct(self) -> int:
        """The number of distinct ids in the first split, estimated from the sample if not all rows were counted."""
        if self.counted:
            return min(self.counted.number, self.first.tally(self.name).values)
        return len(self.first_ids.distinct) if self.first.is_whole else self.first_ids.estimated

    @property
    def is_distinct_exact(self) -> bool:
        """Whether `distinct` is exact, not an estimate."""
        return self.counted.is_exact if self.counted else self.first.is_whole

    @cached_property
    def has_few_values(self) -> bool:
        """Whether the first rows have so few distinct numbers that each may be a category."""
        values = self.numbers(self.first)[:FIRST]
        return len(np.unique(values[np.isfinite(values)])) <= FEW

    @cached_property
    def zipf(self) -> float:
        """Zipf's exponent of the ids."""
        return zipf_exponent(self.first_ids.counts)

    @cached_property
    def skew(self) -> float:
        """Skewness of the finite values."""
        return skewness(self.finite(self.first))

    @cached_property
    def auc_as_number(self) -> float:
        """The best AUC for any label with the values alone as scores; NaN without labels."""
        values = self.numbers(self.first)[self._order]
        return _best([auc_alone(values, label[self._order]) for label in self.labels.values()])

    @cached_property
    def auc_as_ids(self) -> float:
        """The best AUC for any label with the ids alone, out of fold; NaN without labels."""
        return _best([auc_of_ids(self.first_ids, one, seed=0) for one in self.labels.values()])

    def shift(self, measured: Measured) -> float:
        """Returns the population stability index of the values from the first split to another."""
        edges = edges_of(self.finite(self.first))
        return psi(bucket_shares(self.numbers(self.first), edges), bucket_shares(self.numbers(measured), edges))

    def known(self, measured: Measured) -> float:
        """Returns the share of another split's ids that the first split has."""
        return known_share(self.ids[measured.name], self.first_ids)


def _best(aucs: Sequence[float]) -> float:
    found = [auc for auc in aucs if not np.isnan(auc)]
    return max(found, default=float("nan"))


def profiles_of(measured: Sequence[Measured], labels: Sequence[str]) -> dict[str, Profile]:
    """Returns the columns of the first split, each with the splits where it has the same kind.

    Args:
        measured: The splits.
        labels: Columns to predict; columns that are not probabilities are left out.
    """
    first, of_labels = measured[0], {}
    for name in labels:
        if first.split.kinds.get(name) in ("integer", "number") and name in first.sample.column_names:
            values = first.sample.column(name).combine_chunks().cast("float64").to_numpy(zero_copy_only=False)
            of_labels[name] = np.nan_to_num(values) > 0.5
    return {
        name: Profile(name, kind, [one for one in measured if one.split.kinds.get(name) == kind], of_labels)
        for name, kind in first.split.kinds.items()
        if name in first.sample.column_names
    }
