"""The signature of an exported model: its columns with their types and rules, its inputs in order, its outputs."""

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from torchx_recsys.apps.export.served import name_of_presence, name_of_weights, names_of_list
from trainer.batches.batch import features_only
from trainer.config.data import DataConfig
from trainer.config.features import (
    DenseFeature,
    SparseFeature,
    columns_beside,
    columns_of,
    ids_beside,
    takes,
    takes_any,
)
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import FileSet
from trainer.models.outputs import ModelOutput
from trainer.rules.dense import NumberKeys
from trainer.rules.derived_ids import SECONDS, inputs_of_cross
from trainer.rules.expression import inputs_of_expression
from trainer.rules.plain_types import (
    SECOND,
    has_values,
    id_type,
    is_list,
    is_moment,
    is_string,
    map_types,
    plain_type,
    values_type,
)
from trainer.rules.registry import id_rule

VERSION = 2  # version 1 had no inputs that mark missing ids: -2^63, a valid id, stood for them
HASH_OF_STRINGS = "BLAKE2b of the UTF-8 bytes, 8 bytes, little-endian, signed"


def signature(
    data: DataConfig, types: dict[str, pa.DataType], lists: Collection[str], outputs: list[ModelOutput]
) -> dict[str, Any]:
    """Returns the signature as JSON values.

    Args:
        data: The columns and their rules.
        types: The types of columns.
        lists: The sparse features that are lists of ids.
        outputs: The outputs.

    Raises:
        InputError: Two features would have the same input, or take different values from a column.
    """
    _check_times(data, types)
    _check_earlier(data)
    columns = [entry for name, feature in data.dense.items() for entry in _of_dense(name, feature, types)]
    for name, feature in data.sparse.items():
        columns += _of_sparse(name, feature, types, name in lists)
    inputs = [entry for column in columns for entry in inputs_of(column)]
    names = [entry["name"] for entry in inputs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"feature '{twice[0]}' has the name of an input of another one, such as NAME, NAME.present or NAME.values; "
            "rename it and name its column"
        )
    return {
        "version": VERSION,
        "columns": columns,
        "hash_of_strings": HASH_OF_STRINGS,
        "inputs": inputs,
        "outputs": [{"name": output.name, "kind": output.kind} for output in outputs],
    }


def items_in(config: Config) -> dict[str, Any]:
    """Returns the entry `items` of a model that knows the features of an item; nothing for another one.

    It has the column of the items' ids, the columns of an item, which no query has, and the columns of a query with
    items that it has had.
    """
    if not config.model.item_features:
        return {}
    data = config.data.with_whole_lists()
    query = [name for name in (*data.dense, *data.sparse) if name not in config.model.item_features]
    asked = features_only(data, query).columns
    columns = [name for name in features_only(data, config.model.item_features).columns if name not in asked]
    seen = [columns_of(name, data.sparse[name])[0] for name in data.catalogue.exclude]
    return {"items": {"id": data.catalogue.id, "columns": columns, "seen": seen}}


def column_types(files: FileSet, data: DataConfig) -> dict[str, pa.DataType]:
    """Returns the plain type of each feature column, from the first file with values in the column."""
    features = [*data.dense.items(), *data.sparse.items()]
    columns = [column for name, one in features for column in (*columns_of(name, one), *columns_beside(one).values())]
    return {column: _type_of(column, files) for column in columns}


def _type_of(column: str, files: FileSet) -> pa.DataType:
    types = [plain_type(schema.field(column).type) for schema in files.files.first_of_schemas()]
    return next((dtype for dtype in types if has_values(dtype)), types[0])


def lists_in(files: FileSet, data: DataConfig) -> list[str]:
    """Returns the sparse features whose column has lists. Training also keeps single ids with weights in lists."""
    columns = {name: columns_of(name, data.sparse[name])[0] for name in files.files[0].lists}
    return [
        name
        for name, column in columns.items()
        if any(is_list(values_type(schema.field(column).type)) for schema in files.files.first_of_schemas())
    ]


def type_of_ids(dtype: pa.DataType) -> str:
    """Returns `string`, `int64` or `uint64` for the type of a column."""
    ids = id_type(values_type(dtype))
    return "string" if is_string(ids) else "uint64" if pa.types.is_uint64(ids) else "int64"


def _check_times(data: DataConfig, types: dict[str, pa.DataType]) -> None:
    """Refuses a column of times that two features read as different numbers, as clients send one list."""
    uses: dict[str, dict[str, str]] = {}
    for kind, features in (("dense", data.dense), ("sparse", data.sparse)):
        for name, feature in features.items():
            for column in columns_of(name, feature):
                if not takes_any(feature):
                    uses.setdefault(column, {})[takes(feature)] = f"data.{kind}.{name}"
            for key, column in ids_beside(feature).items():
                uses.setdefault(column, {})["ids"] = f"data.{kind}.{name}.{key}"
    for column, found in uses.items():
        differ = is_moment(types[column]) if "times" in found else _has_ticks(types[column])
        if differ and len(found) > 1:
            one, other, *_ = sorted(found, reverse=True)  # times before others
            raise InputError(
                f"column '{column}' has {one} to {found[one]}, but {other} to {found[other]}; an exported model "
                "takes a column in one way: write it as two"
            )


def _has_ticks(dtype: pa.DataType) -> bool:
    """Returns whether times are different numbers as ids, in ticks, than as values, in seconds."""
    return SECOND.get(getattr(dtype, "unit", "s"), 1) > 1


def _check_earlier(data: DataConfig) -> None:
    """Refuses a column of which two features keep ids before different times, as clients send one list."""
    first: dict[str, str] = {}
    for name, feature in data.sparse.items():
        for column in columns_of(name, feature):
            other = data.sparse[first.setdefault(column, name)]
            for key in ("times", "before", "within_seconds"):
                if (here := getattr(feature, key)) != (there := getattr(other, key)):
                    raise InputError(
                        f"data.sparse.{name}.{key} is {here!r}, but data.sparse.{first[column]}.{key} is {there!r} for "
                        f"the same column '{column}'; an exported model takes a column in one way: write it as two"
                    )


def _of_dense(name: str, feature: DenseFeature, types: dict[str, pa.DataType]) -> list[dict[str, Any]]:
    """Returns the entries of a feature's columns."""
    if feature.expression:
        # The loader checks the columns by plain rules: the program computes the expression, and applies the others.
        plain = {"kind": "number", "type": "float64", **NumberKeys().model_dump(exclude={"column"})}
        return [
            {"name": column, "input": one, **plain, "expression": feature.expression}
            for column, one in inputs_of_expression(name, feature.expression).items()
        ]
    (column,), rules = columns_of(name, feature), feature.model_dump(exclude={"column"})
    if takes(feature) == "times":
        return [_time(name, column, types[column]) | rules]
    about, beside = _of_lookup(name, feature, types)
    if feature.overlap:
        about = {"keys": type_of_ids(types[column])}
        beside = [_read_beside(name, feature.overlap, types)]
    kind = "vector" if feature.width else "number"
    return [{"name": column, "input": name, "kind": kind, "type": "float32", **rules, **about}, *beside]


def _of_lookup(
    name: str, feature: DenseFeature | SparseFeature, types: dict[str, pa.DataType]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns what a lookup adds to the entry of its column, and the entries of its other columns."""
    if feature.lookup is None:
        return {}, []
    column, keys = columns_of(name, feature)[0], feature.lookup_in
    of_keys = map_types(types[column])[0] if keys is None else types[keys]
    about = {"lookup": feature.lookup, "lookup_in": keys, "keys": type_of_ids(of_keys)}
    return about, [_read_beside(name, one, types) for one in (feature.lookup, keys) if one]


def _read_beside(name: str, column: str, types: dict[str, pa.DataType]) -> dict[str, Any]:
    """Returns the entry of a column that the loader reads for another one, and which is no input."""
    return {"name": column, "input": name, "kind": "beside", "type": type_of_ids(types[column])}


def _of_sparse(name: str, feature: SparseFeature, types: dict[str, pa.DataType], is_list: bool) -> list[dict[str, Any]]:
    """Returns the entries of a feature's columns."""
    columns, made = columns_of(name, feature), feature.model_dump(include={"buckets", "transform"})
    if takes(feature) == "times":
        return [_time(name, columns[0], types[columns[0]]) | made]
    if takes(feature) == "numbers":
        return [{"name": columns[0], "input": name, "kind": "number", "type": "float32", **made}]
    rules = {"rule": feature.ids, "rows": feature.rows, **feature.model_dump(include={"offset", "salt"})}
    rules |= id_rule(name, feature).described()
    cut = feature.model_dump(include={"max_ids", "keep"}) if feature.max_ids and is_list else {}
    if feature.without:
        cut |= {"without": feature.without, "without_in": feature.without_in or columns[0]}
    about, beside = _of_lookup(name, feature, types)
    cut |= about
    kind, inputs = "list" if is_list else "id", inputs_of_cross(name, feature) or [name]
    ids = [
        {"name": column, "input": one, "kind": kind, "type": type_of_ids(types[column]), **rules, **cut}
        for column, one in zip(columns, inputs, strict=True)
    ]
    if feature.weights is None:
        return [*ids, *beside]
    rules = {"ids": columns[0], "pooling": feature.pooling, **cut}
    kind = "weights" if is_list else "weight"
    weights = [
        {"name": column, "input": name, "kind": kind, "type": "float32", **rules} for column in feature.weight_columns
    ]
    return [*ids, weights[0], *(factor | {"is_factor": True} for factor in weights[1:])]


def _time(name: str, column: str, dtype: pa.DataType) -> dict[str, Any]:
    limits = {} if is_moment(dtype) else {"range": [SECONDS.start, SECONDS.stop]}
    return {"name": column, "input": name, "kind": "time", "type": "int64", **limits}


def inputs_of(column: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the entries of the inputs that a column of a signature becomes."""
    name = column["input"]
    if column["kind"] == "beside" or column.get("is_factor"):  # a factor multiplies the input of the weights before it
        return []
    if column["kind"] == "number":
        return [{"name": name, "dtype": column["type"], "shape": ["B"]}]
    if column["kind"] == "vector":
        return [{"name": name, "dtype": "float32", "shape": ["B", column["width"]]}]
    if column["kind"] in ("id", "time"):
        present = {"name": name_of_presence(name), "dtype": "bool", "shape": ["B"], "present_of": name}
        return [{"name": name, "dtype": "int64", "shape": ["B"]}, present]
    if column["kind"] == "weight":
        return [{"name": name_of_weights(name), "dtype": "float32", "shape": ["B"]}]
    if column["kind"] == "weights":
        return [{"name": name_of_weights(name), "dtype": "float32", "shape": [f"N of {name}"]}]
    values, lengths = names_of_list(name)
    return [
        {"name": values, "dtype": "int64", "shape": [f"N of {name}"]},
        {"name": lengths, "dtype": "int64", "shape": ["B"], "lengths_of": values},
    ]
