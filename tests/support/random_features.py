"""Random features of columns that a written configuration leaves out, and random models over all features."""

from typing import Any

import numpy as np
import pyarrow as pa
from random_schemas import DataSet

from trainer.rules.plain_types import (
    has_ids,
    is_list,
    is_moment,
    is_number,
    is_string,
    plain_type,
    to_numbers,
    to_plain,
)

ROWS = 50
Ways = list[tuple[str, dict[str, Any]]]
"""Kinds of features, dense or sparse, with their keys."""


def with_more_features(tree: dict, made: DataSet, number: int) -> dict:
    """Returns a written configuration with features of most columns that it leaves out, and another model over them."""
    random, data = np.random.default_rng([53, number]), tree["data"]
    features = [*data["dense"].items(), *data["sparse"].items()]
    columns = {one.get("column", name) for name, one in features}
    used = {*data["labels"], data.get("weight"), *data.get("groups", ()), *columns}
    for place, (name, array) in enumerate(made.columns.items()):
        ways = [] if name in used else _ways(array)
        if ways and random.random() < 0.9:
            kind, keys = ways[random.integers(len(ways))]
            data[kind][f"feature {place}"] = keys | {"column": name}
    name = str(random.choice(["wide_deep", "deepfm", "dlrm", "dlrm_dcn", "mmoe"]))
    of_model = {
        "wide_deep": {"over_layers": [8]},
        "deepfm": {"over_layers": [8]},
        "dlrm": {"dense_layers": [8], "over_layers": [8]},
        "dlrm_dcn": {"dense_layers": [8], "over_layers": [8], "cross_rank": 4},
        "mmoe": {"tower_layers": [8], "experts": {"shared": 2, "layers": [8]}},
    }
    for feature in tree["data"]["sparse"].values():
        feature.pop("dimension", None)  # most models need the same for all tables
    return tree | {"model": {"name": name, "embedding_dim": 8} | of_model[name]}


def _ways(array: pa.Array) -> Ways:
    """Returns the features that a column can be."""
    dtype, of_table = array.type, {"rows": ROWS, "ids": "hash"}
    if is_list(dtype):
        cut = {"max_ids": 3, "keep": "first", "pooling": "mean"}
        return [("sparse", of_table), ("sparse", of_table | cut)] if has_ids(dtype) else []
    ways: Ways = [("sparse", of_table), ("sparse", {"rows": ROWS, "ids": "managed"})] if has_ids(dtype) else []
    if has_ids(dtype) and not is_string(dtype) and not pa.types.is_null(plain_type(dtype)):
        ways += [("sparse", {"rows": ROWS, "ids": "modulo"})]
    if is_number(dtype):
        ways += _ways_of_numbers(array)
    if is_moment(plain_type(dtype)):
        ways += [("dense", {"transform": "age", "now": "2026-01-31", "std": 1e4})]
        ways += [("dense", {"transform": "weekday"}), ("sparse", {"transform": "weekday", "rows": 7})]
    return [*ways, ("dense", {"transform": "is_missing"})] if "interval" not in str(dtype) else ways


def _ways_of_numbers(array: pa.Array) -> Ways:
    numbers = to_numbers(to_plain(array)).drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
    if not (len(numbers) and np.abs(numbers).max() < 1e30):  # nor NaN
        return []
    edges = sorted({float(edge) for edge in np.quantile(numbers, [0.25, 0.5, 0.75])})
    scale = {"mean": float(numbers.mean()), "std": float(numbers.std()) or 1.0, "missing": float(np.median(numbers))}
    return [("dense", scale), ("sparse", {"buckets": edges, "rows": 9})]
