"""The catalogue in memory: every item with its features, for negatives in training and for retrieval in evaluation."""

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.batches.batch import Batch, batches_of_share, features_only
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.rows import NO_ITEM, Rows
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.columns import UNKNOWN, RecordedTypes
from trainer.data.dataset import FileSet, find_files
from trainer.data.files import DataFile
from trainer.data.row_groups import RowGroupReader
from trainer.rules.id_lists import ids_in, weights_of


@dataclass(frozen=True)
class Catalogue:
    """All `I` items, sorted by id.

    Attributes:
        ids: Ids of the items, `[I]` int64, as in the groups of samples.
        weights: The weight with which each item is drawn as a negative, `[I]` float64.
        rows: `I + 1` rows as in a data set, with weight 0 and without features of the query. The last row has no
            features at all and stands for an unknown item.
        fingerprint: Changes with any item, weight or feature.
    """

    ids: np.ndarray
    weights: np.ndarray
    rows: Rows
    fingerprint: str

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def ends(self) -> np.ndarray:
        """The cumulated weights, `[I]` float64."""
        return np.cumsum(self.weights)

    @cached_property
    def _log_q(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(np.append(self.weights, 0.0) / self.ends[-1]).astype(np.float32)

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Finds the row of each id, in the shape of `ids`; `I` for an id that is not in the catalogue."""
        found = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        return np.where(self.ids[found] == ids, found, len(self))

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Draws items by weight, given random numbers in [0, 1), `[N]`; returns their rows."""
        return np.searchsorted(self.ends, uniform * self.ends[-1], side="right")

    def log_q(self, ids: np.ndarray) -> np.ndarray:
        """Returns the log probability that each id is drawn, float32; minus infinity for an id that cannot be drawn."""
        return self._log_q[self.find(ids)]

    def batches(self, data: DataConfig, rank: int, world_size: int, size: int) -> Iterator[Batch]:
        """Yields this rank's share of the items as `batches_of_share` does; rows without an item fill the last ones."""
        return batches_of_share(self.rows, data, rank, world_size, size)


def read_catalogue(
    data: DataConfig, item_features: Collection[str], samples: DataFile | None = None, types: RecordedTypes = UNKNOWN
) -> Catalogue:
    """Reads the catalogue from its files.

    Args:
        data: The data.
        item_features: Names of the features of items.
        samples: A file of the samples that the items will be joined with. Unset: they will not be joined.
        types: The types of the columns of the samples.

    Raises:
        InputError: A file cannot be read, a value is not allowed, an id occurs twice, no item has a weight, or a column
            has another type than in the samples.
    """
    columns = _columns(data, item_features)
    files = find_files("data.catalogue.items", data.catalogue.items, columns)
    here = files.files[0].lists
    if samples:
        _check_lists(files, columns, here, samples.lists)
    types.check(columns.model_copy(update={"weight": None}), files.files)
    types.check_items(data, files.files)
    reader = RowGroupReader(files, columns)
    chunks = (Chunk(reader.read(group), range(group.rows), partial(reader.where, group)) for group in files.row_groups)
    items = Rows.join([decode(chunk, columns, here) for chunk in chunks])
    items = items.take(items.groups[0].argsort(kind="stable"))
    ids, weights = items.groups[0], items.numbers[-1].astype(np.float64)
    _check_items(files, ids, weights)
    bags = [name for name in data.sparse if name in samples.lists] if samples else here
    return Catalogue(ids, weights, _as_samples(items, columns, data, bags), _fingerprint(items))


def _columns(data: DataConfig, item_features: Collection[str]) -> DataConfig:
    """Returns the configuration of the catalogue's columns as a data set without labels."""
    columns = {"groups": [data.catalogue.id], "weight": data.catalogue.weight}
    return features_only(data, item_features).model_copy(update=columns)


def _check_lists(files: FileSet, columns: DataConfig, here: Collection[str], there: Collection[str]) -> None:
    for name in columns.sparse:
        if (name in here) != (name in there):
            is_here, is_there = ("a list", "single ids") if name in here else ("single ids", "a list")
            raise InputError(
                f"{files.files[0].name}: column '{name}' is {is_here}, but {is_there} in data.train; make them alike"
            )


def _fingerprint(items: Rows) -> str:
    digest = hashlib.sha256()
    for block in (items.groups, items.numbers, items.ids):
        digest.update(block.tobytes())
    for bag in items.bags.values():
        for values in (pc.list_value_length(bag), ids_in(bag)):  # pyrefly: ignore[missing-attribute]
            digest.update(values.to_numpy(zero_copy_only=False).tobytes())
    for weights in weights_of(items.bags).values():
        digest.update(weights.tobytes())
    return digest.hexdigest()[:16]


def _check_items(files: FileSet, ids: np.ndarray, weights: np.ndarray) -> None:
    name = files.files[0].name
    if len(twice := ids[1:][ids[1:] == ids[:-1]]):
        raise InputError(f"{name}: item {twice[0]} is there twice; data.catalogue.items has a row for each item")
    if not weights.any():
        raise InputError(f"{name}: every weight is 0, so that no item can be drawn; give some item a weight above 0")


def _as_samples(items: Rows, columns: DataConfig, data: DataConfig, lists: Collection[str]) -> Rows:
    """Returns the items as rows of samples, with an empty row at the end."""
    rows = Rows.padding(len(items) + 1, data, lists)
    rows.fill(data, items, columns)
    rows.groups[data.groups.index(columns.groups[0]), -1] = NO_ITEM
    bags = {name: pa.concat_arrays([bag, rows.bags[name].slice(len(items))]) for name, bag in items.bags.items()}
    return replace(rows, bags=rows.bags | bags)
