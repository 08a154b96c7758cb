"""Checks that columns have what the transforms of features take."""

import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature, SparseFeature, columns_of, takes
from trainer.core.errors import InputError
from trainer.rules.plain_types import id_type, is_list, is_string, plain_type


def check_features(file: str, schema: pa.Schema, config: DataConfig) -> list[str]:
    """Checks the columns of times, crosses, offsets and cut lists, and returns those that must be numbers.

    Raises:
        InputError: A column is of a type that a feature cannot be made of.
    """
    numbers = []
    for kind, features in (("dense", config.dense), ("sparse", config.sparse)):
        for name, feature in features.items():
            (column, *others), key = columns_of(name, feature), f"data.{kind}.{name}"
            if takes(feature) == "times":
                _check_time(file, column, schema.field(column).type, key, feature)
            elif takes(feature) == "numbers" and feature.transform != "is_missing":  # which takes any type
                numbers.append(column)
            elif isinstance(feature, SparseFeature):
                for one in (column, *others):
                    _check_made(file, one, schema.field(one).type, key, feature)
    return numbers


def _check_time(file: str, column: str, dtype: pa.DataType, key: str, feature: DenseFeature | SparseFeature) -> None:
    kinds = [pa.types.is_timestamp, pa.types.is_integer, pa.types.is_null]
    kinds += [pa.types.is_date] if feature.transform != "hour" else []
    if not any(kind(plain_type(dtype)) for kind in kinds):
        dates = ", dates" if feature.transform != "hour" else ""
        raise InputError(
            f"{file}: column '{column}' is of type {dtype}, but {key}.transform is '{feature.transform}'; it takes "
            f"timestamps{dates}, or integers: seconds since 1970"
        )


def _check_made(file: str, column: str, dtype: pa.DataType, key: str, feature: SparseFeature) -> None:
    has_single_ids = not (is_list(dtype) or pa.types.is_null(plain_type(dtype)))
    if has_single_ids and feature.max_ids and feature.pooling != "none":  # a sequence of one has to say so
        raise InputError(
            f"{file}: column '{column}' is of type {dtype}, but {key}.max_ids is {feature.max_ids}, which cuts "
            "lists; leave it out"
        )
    if feature.columns and is_list(dtype):
        raise InputError(f"{file}: column '{column}' is of type {dtype}, but {key}.columns crosses single ids only")
    if feature.offset and is_string(id_type(dtype)):
        raise InputError(
            f"{file}: column '{column}' is of type {dtype}, but {key}.offset is {feature.offset}, which is added to "
            "integers only; leave it out"
        )
