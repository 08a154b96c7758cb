"""The signature of an exported model: its columns with their types and rules, its inputs in order, its outputs."""

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import FileSet, id_type, inspect, is_string
from trainer.data.readers.registry import make_reader
from trainer.models.outputs import ModelOutput
from trainer.tools.export.served import names_of_list

VERSION = 1
HASH_OF_STRINGS = "BLAKE2b of the UTF-8 bytes, 8 bytes, little-endian, signed"


def signature(
    data: DataConfig, types: dict[str, str], lists: Collection[str], outputs: list[ModelOutput]
) -> dict[str, Any]:
    """Returns the signature as JSON holds it.

    Args:
        data: The columns and their rules.
        types: The types of ids, by sparse feature.
        lists: The sparse features that are lists of ids.
        outputs: The outputs.

    Raises:
        InputError: Two columns would have the same input.
    """
    columns = [_number(name, data) for name in data.dense]
    columns += [_ids(name, data, types[name], name in lists) for name in data.sparse]
    inputs = [entry for column in columns for entry in _inputs(column)]
    names = [entry["name"] for entry in inputs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"column '{twice[0]}' has the name of an input that a column of lists has; rename it")
    return {
        "version": VERSION,
        "columns": columns,
        "hash_of_strings": HASH_OF_STRINGS,
        "no_id": -(2**63),
        "inputs": inputs,
        "outputs": [{"name": output.name, "kind": output.kind} for output in outputs],
    }


def id_types(files: FileSet, data: DataConfig) -> dict[str, str]:
    """Returns `string`, `int64` or `uint64` for each sparse feature, as the files have it."""
    schema = inspect(files.files[0].url, make_reader(data)).schema
    return {name: _type(id_type(schema.field(name).type)) for name in data.sparse}


def _type(dtype: pa.DataType) -> str:
    return "string" if is_string(dtype) else "uint64" if pa.types.is_uint64(dtype) else "int64"


def _number(name: str, data: DataConfig) -> dict[str, Any]:
    return {"name": name, "kind": "number", "type": "float32", **data.dense[name].model_dump()}


def _ids(name: str, data: DataConfig, dtype: str, is_list: bool) -> dict[str, Any]:
    feature = data.sparse[name]
    longest = {"max_ids": feature.max_ids} if feature.max_ids and is_list else {}
    kind = "list" if is_list else "id"
    return {"name": name, "kind": kind, "type": dtype, "rule": feature.ids, "rows": feature.rows, **longest}


def _inputs(column: dict[str, Any]) -> list[dict[str, Any]]:
    name = column["name"]
    if column["kind"] == "number":
        return [{"name": name, "dtype": "float32", "shape": ["B"]}]
    if column["kind"] == "id":
        return [{"name": name, "dtype": "int64", "shape": ["B"]}]
    values, lengths = names_of_list(name)
    return [
        {"name": values, "dtype": "int64", "shape": [f"N of {name}"]},
        {"name": lengths, "dtype": "int64", "shape": ["B"], "lengths_of": values},
    ]
