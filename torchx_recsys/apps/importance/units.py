"""What is permuted together: features of the same columns, and a history with what belongs to its items."""

from collections.abc import Iterable
from dataclasses import dataclass

from trainer.config.features import SparseFeature, columns_beside, columns_of
from trainer.config.root import Config


@dataclass(frozen=True)
class Unit:
    """Columns whose values move together from row to row.

    Attributes:
        name: The features that are made of the columns, for people.
        columns: The columns.
        dense: Dense features made of nothing but these columns.
        sparse: Sparse features made of nothing but these columns.
        crosses: Sparse features made of one of these columns and of others.
    """

    name: str
    columns: frozenset[str]
    dense: frozenset[str]
    sparse: frozenset[str]
    crosses: frozenset[str]


def units_of(config: Config) -> list[Unit]:
    """Returns the units of a configuration; each column of a feature belongs to one of them."""
    data, model = config.data, config.model
    dense = {name: {*columns_of(name, one), *columns_beside(one).values()} for name, one in data.dense.items()}
    sparse = {name: _own_columns(name, feature) for name, feature in data.sparse.items()}
    crosses = [name for name, feature in data.sparse.items() if feature.columns]
    apart = [{column} for name in crosses for column in sparse[name]]
    whole = [*dense.values(), *(columns for name, columns in sparse.items() if name not in crosses)]
    of_history = model.history, *model.actions, *model.history_attributes, model.history_times
    beside = [name for name in of_history if name]
    history = [set().union(*(sparse[name] for name in beside if name in sparse))]
    return [_unit(frozenset(columns), dense, sparse) for columns in _merged([*whole, *apart, *history]) if columns]


def _own_columns(name: str, feature: SparseFeature) -> set[str]:
    # Not `before`: it is the time of the row, to which the lists of another row are moved after they were cut.
    beside = (feature.times, feature.lookup, feature.lookup_in)
    return {*columns_of(name, feature), *feature.weight_columns, *(one for one in beside if one)}


def _merged(sets: Iterable[set[str]]) -> list[set[str]]:
    """Returns the unions of sets that have an element in common."""
    merged: list[set[str]] = []
    for one in sets:
        touched = [other for other in merged if other & one]
        merged = [*(other for other in merged if not other & one), one.union(*touched)]
    return merged


def _unit(columns: frozenset[str], dense: dict[str, set[str]], sparse: dict[str, set[str]]) -> Unit:
    of_dense, of_sparse = ([name for name, own in named.items() if own <= columns] for named in (dense, sparse))
    partly = [name for name, own in sparse.items() if own & columns and not own <= columns]
    names = dict.fromkeys([*of_dense, *of_sparse]) or sorted(columns)
    return Unit(" + ".join(names), columns, frozenset(of_dense), frozenset(of_sparse), frozenset(partly))
