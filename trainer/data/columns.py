"""Checks of columns: whether they are usable, mean the same in all files, and have the types of the run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

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
from trainer.core.errors import InputError, some_of
from trainer.data.files import DataFiles
from trainer.rules.dense import check_number_type
from trainer.rules.derived_ids import check_single, check_time
from trainer.rules.hashing import check_integers
from trainer.rules.id_lists import check_earlier, check_lists, check_weight_type, check_without
from trainer.rules.lookups import check_lookup, check_overlap
from trainer.rules.plain_types import (
    INTEGERS,
    has_ids,
    has_values,
    id_type,
    is_list,
    is_number,
    is_string,
    meaning,
    meaning_in_lists,
    plain_type,
    values_type,
)
from trainer.rules.registry import id_rule
from trainer.rules.vocabulary import open_vocabulary


def _columns_of_ids(config: DataConfig) -> dict[str, list[str]]:
    """Returns the columns of ids, by sparse feature."""
    return {name: columns_of(name, one) for name, one in config.sparse.items() if takes(one) == "ids"}


@dataclass(frozen=True)
class Use:
    """A use of a column for which the type matters, because another type means other values.

    Attributes:
        key: The key of the configuration that names the use.
        column: The column.
        of_ids: Whether the values are ids; else they are numbers.
    """

    key: str
    column: str
    of_ids: bool


def uses(config: DataConfig) -> list[Use]:
    """Returns the uses of columns. Transformed times are left out, because they become seconds from any type."""
    found = [
        use for name, feature in config.dense.items() for use in _uses_of_number(f"data.dense.{name}", name, feature)
    ]
    for name, feature in config.sparse.items():
        found += _uses_of_ids(f"data.sparse.{name}", name, feature)
    found += [Use(f"data.groups.{name}", name, True) for name in config.groups]
    if hard := config.catalogue.hard_negatives:
        found.append(Use("data.catalogue.hard_negatives", hard, True))
    found += [Use(f"data.labels.{name}", name, name in config.classes) for name in config.labels]
    sections = {"data.balance": config.balance, "data.even_steps": config.even_steps}
    found += [Use(f"{key}.cost", section.cost, False) for key, section in sections.items() if section.cost]
    return [*found, Use("data.weight", config.weight, False)] if config.weight else found


def _uses_of_number(key: str, name: str, feature: DenseFeature) -> list[Use]:
    beside = [Use(f"{key}.{of}", column, True) for of, column in ids_beside(feature).items()]
    if feature.expression:
        return [Use(f"{key}.expression.{column}", column, False) for column in columns_of(name, feature)]
    if takes(feature) == "times" or takes_any(feature):
        return []
    return [Use(key, feature.column or name, takes(feature) == "ids"), *beside]


def _uses_of_ids(key: str, name: str, feature: SparseFeature) -> list[Use]:
    beside, of_ids = columns_beside(feature).items(), ids_beside(feature)
    found = [Use(f"{key}.{of}", column, of in of_ids) for of, column in beside]
    if takes(feature) == "times":
        return found
    of_ids = takes(feature) == "ids"
    if feature.columns:
        return found + [Use(f"{key}.columns.{place}", one, of_ids) for place, one in enumerate(feature.columns)]
    return [*found, Use(key, feature.column or name, of_ids)]


def id_columns(config: DataConfig) -> list[str]:
    """Returns all columns of ids: of sparse features, groups and hard negatives."""
    return list(dict.fromkeys(use.column for use in uses(config) if use.of_ids))


def check_columns(file: str, schema: pa.Schema, config: DataConfig) -> None:
    """Refuses a file that lacks a column of the configuration, or has an unusable type for it.

    Raises:
        InputError: A column is missing, occurs twice, or has another type.
    """
    for name in config.columns:
        if schema.names.count(name) != 1:
            number = "no column" if name not in schema.names else "more than one column"
            raise InputError(f"{file}: {number} '{name}'; the file has: {some_of(schema.names)}")
    beside = [*([config.weight] if config.weight else []), *config.costs]
    features = _check_features(file, schema, config)
    for name in (*features, *(name for name in config.labels if name not in config.classes), *beside):
        dtype = schema.field(name).type
        empty = pa.types.is_null(plain_type(dtype)) and name in features
        if not (is_number(dtype) or empty):
            raise InputError(f"{file}: column '{name}' is of type {dtype}; it must be a number, a date or a time")
    for name in (*config.groups, *config.classes):
        dtype = schema.field(name).type
        if is_list(dtype) or not has_ids(dtype) or pa.types.is_null(plain_type(dtype)):
            what = "a group" if name in config.groups else "a label of data.classes"
            raise InputError(
                f"{file}: column '{name}' is of type {dtype}; {what} must be an integer or a string, {INTEGERS}"
            )
    if name := config.catalogue.hard_negatives:
        dtype = schema.field(name).type
        if not (has_ids(dtype) and (is_list(dtype) or pa.types.is_null(plain_type(dtype)))):
            raise InputError(
                f"{file}: column '{name}' is of type {dtype}; hard negatives must be a list of integers or strings, "
                f"{INTEGERS}"
            )
    for name, columns in _columns_of_ids(config).items():
        for column in columns:
            _check_ids(file, name, column, _type_of(schema, column, config.sparse[name]), config.sparse[name])
        for weights in config.sparse[name].weight_columns:
            check_weight_type(file, weights, schema.field(weights).type, columns[0], schema.field(columns[0]).type)


def check_alike(config: DataConfig, schemas: dict[pa.Schema, str]) -> None:
    """Refuses columns whose meaning differs between files: a day is not a second, and 5 and "5" have different hashes.

    Args:
        config: The columns.
        schemas: The different schemas, each with the name of its first file.

    Raises:
        InputError: A column differs in two files.
    """
    for name, of_ids in dict.fromkeys((use.column, use.of_ids) for use in uses(config)):
        first: tuple[str, str] | None = None
        for schema, file in schemas.items():
            found = meaning(schema.field(name).type, of_ids)
            if first and found and found != first[0]:
                raise InputError(
                    f"{file}: column '{name}' has {found} ({schema.field(name).type}), but {first[0]} in {first[1]}; "
                    "make them alike"
                )
            first = first or ((found, file) if found else None)


def lists_of(config: DataConfig, schemas: dict[pa.Schema, str]) -> tuple[str, ...]:
    """Returns the sparse features with lists of ids: in all files with values, or because their ids have weights.

    Raises:
        InputError: A feature is a list in some files and a single id in others.
    """
    ids = _columns_of_ids(config).items()
    always = {name for name, one in config.sparse.items() if one.weights or one.lookup}
    return tuple(name for name, (one, *_) in ids if _holds_lists(one, schemas) or name in always)


def _holds_lists(column: str, schemas: dict[pa.Schema, str]) -> bool:
    kinds: dict[bool, str] = {}
    for schema, file in schemas.items():
        dtype = schema.field(column).type
        if not pa.types.is_null(plain_type(dtype)):
            kinds.setdefault(is_list(dtype), file)
    if len(kinds) == 2:
        raise InputError(
            f"{kinds[True]}: column '{column}' is a list in some files and a single id in others, such as "
            f"{kinds[False]}; make them alike"
        )
    return True in kinds


def texts_of(config: DataConfig, schemas: Collection[pa.Schema]) -> tuple[str, ...]:
    """Returns the columns of string ids: of sparse features, groups and hard negatives."""
    ids = id_columns(config)
    return tuple(name for name in ids if any(is_string(id_type(values_type(one.field(name).type))) for one in schemas))


def _type_of(schema: pa.Schema, column: str, feature: SparseFeature) -> pa.DataType:
    """Returns the type of a feature's column; of a map that ids are looked up in, the type of lists of its values."""
    dtype = schema.field(column).type
    return values_type(dtype) if feature.lookup else dtype


def _check_ids(file: str, name: str, column: str, dtype: pa.DataType, feature: SparseFeature) -> None:
    text, strings = id_rule(name, feature).takes_strings, is_string(id_type(dtype))
    if not has_ids(dtype) or (strings and not text):
        allowed = (
            "an integer, a string, or a list of either"
            if text
            else f"an integer or a list of integers (strings need data.sparse.{name}.ids = 'hash')"
        )
        raise InputError(f"{file}: column '{column}' is of type {dtype}; it must be {allowed}, {INTEGERS}")
    if not has_values(dtype):
        return
    if feature.ids == "vocabulary":
        _check_vocabulary(file, name, column, dtype, feature)


def _check_vocabulary(file: str, name: str, column: str, dtype: pa.DataType, feature: SparseFeature) -> None:
    """Refuses a vocabulary whose ids are of another kind than the column's: no id would match, or only by chance."""
    vocabulary, here = open_vocabulary(name, feature), meaning(dtype, of_ids=True)
    if vocabulary.is_text != is_string(id_type(dtype)) or vocabulary.meaning not in (None, here):
        there = vocabulary.meaning or ("strings" if vocabulary.is_text else "integers")
        raise InputError(
            f"{file}: column '{column}' has ids of type {id_type(dtype)}, but data.sparse.{name}.vocabulary is one of "
            f"{there}; name one of {here}"
        )


def _check_features(file: str, schema: pa.Schema, config: DataConfig) -> list[str]:
    """Checks the columns of dense features, times, crosses, offsets, cut lists; returns the numbers to make ids of."""
    numbers = []
    for kind, features in (("dense", config.dense), ("sparse", config.sparse)):
        for name, feature in features.items():
            columns, key = columns_of(name, feature), f"data.{kind}.{name}"
            check_lookup(file, schema, columns[0], key, feature, of_ids=kind == "sparse")
            if isinstance(feature, DenseFeature) and (feature.lookup or feature.overlap):
                check_overlap(file, schema, columns[0], key, feature)
            elif takes(feature) == "times":
                check_time(file, columns[0], schema.field(columns[0]).type, key, feature.transform)
            elif takes(feature) == "numbers" and not takes_any(feature):
                if isinstance(feature, SparseFeature) or feature.expression:
                    numbers += columns
                else:
                    check_number_type(file, columns[0], schema.field(columns[0]).type, key, feature)
            elif isinstance(feature, SparseFeature):
                check_earlier(file, schema, columns[0], key, feature)
                check_without(file, schema, columns[0], key, feature)
                for column in columns:
                    dtype = _type_of(schema, column, feature)
                    check_lists(file, column, dtype, key, feature)
                    check_single(file, column, dtype, key, feature)
                    check_integers(file, column, dtype, key, feature)
    return numbers


LISTS = "lists of "


@dataclass(frozen=True)
class RecordedTypes:
    """The meaning of the columns' values when a model was trained on them.

    Types that are read as the same values have the same meaning: integers of any width, strings in any layout.

    Attributes:
        meanings: The meaning of each use of a column, by its key, such as `data.sparse.user`. Columns without values
            are left out.
        where: Name of the data in messages.
    """

    meanings: Mapping[str, str]
    where: str

    @classmethod
    def of_files(cls, config: DataConfig, files: DataFiles, where: str) -> "RecordedTypes":
        """Records the types of files whose columns have been checked."""
        found: dict[str, str] = {}
        for schema in files.first_of_schemas():
            for use in uses(config):
                if meaning := meaning_in_lists(schema.field(use.column).type, use.of_ids):
                    found.setdefault(use.key, meaning)
        return cls(found, where)

    @classmethod
    def of_checkpoint(cls, url: str, train_state: Mapping[str, Any]) -> "RecordedTypes":
        """Returns the types recorded in a checkpoint; earlier versions of checkpoints have none."""
        return cls(train_state.get("types", {}), f"the data of the checkpoint at {url}")

    def completed(self, other: "RecordedTypes") -> "RecordedTypes":
        """Returns these types, completed from another record for columns that had no values."""
        return RecordedTypes({**other.meanings, **self.meanings}, self.where)

    def check(self, config: DataConfig, files: DataFiles) -> None:
        """Refuses files in which a column has another meaning: its ids would get other rows, its numbers another unit.

        Args:
            config: The columns that are read.
            files: Files whose columns have been checked.

        Raises:
            InputError: A column differs.
        """
        for schema, file in files.first_of_schemas().items():
            for use in uses(config):
                dtype, there = schema.field(use.column).type, self.meanings.get(use.key)
                here = meaning_in_lists(dtype, use.of_ids)
                if here and there and here != there:
                    raise InputError(
                        f"{file.name}: column '{use.column}' has {here} ({dtype}), but {use.key} had {there} in "
                        f"{self.where}; make them alike"
                    )

    def check_items(self, data: DataConfig, files: DataFiles) -> None:
        """Refuses a catalogue whose ids are of another kind than those of hard negatives.

        Args:
            data: Names the column of the items' ids.
            files: The catalogue.

        Raises:
            InputError: The columns differ.
        """
        hard, item = data.catalogue.hard_negatives, str(data.catalogue.id)
        there = self.meanings.get("data.catalogue.hard_negatives", "").removeprefix(LISTS)
        here = next((one for schema in files.first_of_schemas() if (one := meaning(schema.field(item).type, True))), "")
        if here and there and here != there:
            raise InputError(
                f"{files[0].name}: column '{item}' has {here}, but column '{hard}' of {self.where} {there}; make them "
                "alike"
            )

    def ids_of(self, feature: str) -> str:
        """Returns the meaning of a sparse feature's ids, alone or in lists; empty if unknown."""
        key = f"data.sparse.{feature}"
        own = [text for name, text in self.meanings.items() if name == key or name.startswith(f"{key}.columns.")]
        return " and ".join(text.removeprefix(LISTS) for text in own)


UNKNOWN = RecordedTypes({}, "")
