"""The catalogue of data whose labels are all 1: which columns describe the item, and a file with a row for each."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torchx_recsys.apps.check_data.label import plain
from torchx_recsys.apps.check_data.profile import Profile
from torchx_recsys.apps.check_data.splits import Split
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.core.storage import open_storage
from trainer.data.row_groups import RowGroupReader

ITEM = re.compile(
    r"(items?|products?|films?|movies?|videos?|songs?|tracks?|articles?|news|books?|ads?|posts?|listings?|sku|isbn)"
    r"(_?(id|code))?",
    re.IGNORECASE,
)
ROWS = "train_rows"  # of the catalogue: how often an item occurs, by which negatives are drawn


def item_column(profiles: Mapping[str, Profile], label: str) -> str:
    """Returns the column of the item.

    Raises:
        InputError: No column is named like one, or nothing else is left to find an item for.
    """
    known = [name for name, one in profiles.items() if one.kind in ("integer", "text") and name != label]
    if found := next((name for name in known if ITEM.fullmatch(plain(name))), None):
        return found
    raise InputError(
        f"--label is '{label}', which is always 1: items are to be found, but no column is named like their ids; name "
        "it item_id, or give rows of label 0"
    )


def columns_of_item(profiles: Mapping[str, Profile], item: str) -> list[str]:
    """Returns the columns with one value for all rows of an item, the item's first."""
    items = profiles[item].bits
    number = len(np.unique(items))
    alike = [
        name
        for name, one in profiles.items()
        if name != item and len(np.unique(np.stack([items, one.bits], axis=1), axis=0)) == number
    ]
    return [item, *alike]


def write_items(url: str, splits: Sequence[Split], config: DataConfig, columns: Sequence[str]) -> None:
    """Writes a row for each item of all splits, with its columns and its number of rows in the first split."""
    parts: list[pa.Table] = []
    for split in splits:
        reader = RowGroupReader(split.files, config, [*columns])
        for group in split.files.row_groups:
            with reader.open(group) as column:
                rows = pa.table({name: column(name) for name in columns})
            weight = np.full(rows.num_rows, float(split is splits[0]))
            parts = [_once([*parts, rows.append_column(ROWS, pa.array(weight))])]
    fs, path = open_storage(url)
    with fs.open(path, "wb") as file:
        pq.write_table(parts[0], file)


def _once(parts: list[pa.Table]) -> pa.Table:
    """Returns the first row of every item, with the sum of the weights of its rows."""
    rows = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
    rows = rows.filter(rows[0].is_valid())
    coded = rows[0].combine_chunks().dictionary_encode()
    _, first, places = np.unique(coded.indices.to_numpy(), return_index=True, return_inverse=True)
    weights = np.bincount(places, rows[ROWS].to_numpy())
    return rows.take(first).set_column(rows.num_columns - 1, ROWS, pa.array(weights))
