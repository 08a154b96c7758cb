"""The ids of a table: which rows it has for which ids."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature, takes
from trainer.data.managed import own_rows
from trainer.data.vocabulary import listed_ids, open_vocabulary
from trainer.models.embeddings import name_in_model
from trainer.training.managed_ids import ManagedIds


@dataclass(frozen=True)
class TableIds:
    """The ids that have a row of their own in a table, `N`.

    Attributes:
        name: `id`, or `row` where rows are no ids of the data: those that are hashed, shifted or made of numbers.
        ids: The ids, `[N]` integers or strings.
        rows: The row of each, `[N]` int64.
    """

    name: str
    ids: pa.Array
    rows: np.ndarray


def ids_of_table(config: DataConfig, table: str, managed: ManagedIds) -> TableIds:
    """Returns the ids of a table, in the order of their rows.

    Args:
        config: The data.
        table: The table.
        managed: The rows of managed ids.

    Raises:
        InputError: Its vocabulary cannot be read.
    """
    names = config.features_of_tables()[table]
    feature = config.sparse[names[0]]
    if feature.ids == "vocabulary":
        ids = listed_ids(names[0], feature)
        return TableIds("id", ids, open_vocabulary(names[0], feature).unseen_rows + np.arange(len(ids)))
    if feature.ids == "managed":
        known = managed.tensors()[f"managed.{name_in_model(table)}.ids"].numpy()
        rows = own_rows(known)
        return TableIds("id", pa.array(known[rows]), rows)
    rows = np.arange(feature.rows)
    return TableIds("id" if all(_are_rows(config.sparse[name]) for name in names) else "row", pa.array(rows), rows)


def _are_rows(feature: SparseFeature) -> bool:
    return feature.ids != "hash" and takes(feature) == "ids" and not feature.offset
