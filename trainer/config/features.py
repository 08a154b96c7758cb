"""The features: what becomes of the columns of the data before the model sees them; trainer/rules does it."""

from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import MayChange
from trainer.rules.dense import NumberKeys
from trainer.rules.derived_ids import TIME_VALUES, TIMES, BucketKeys, CrossKeys, TimeKeys
from trainer.rules.expression import ExpressionKeys, columns_in
from trainer.rules.hashing import HashKeys, OffsetKeys
from trainer.rules.id_lists import EarlierKeys, MaxIdsKeys, OtherItemsKeys, WeightKeys
from trainer.rules.lookups import LookupKeys, OverlapKeys
from trainer.rules.managed import ManagedKeys
from trainer.rules.registry import check_id_rule, lists_ids
from trainer.rules.vocabulary import VocabularyKeys


class DenseFeature(NumberKeys, OverlapKeys, LookupKeys, ExpressionKeys):
    """A number of each sample, or a vector, made of a column or of several. The keys are applied in their order."""


class SparseFeature(  # whose keys stand in the documentation from the last class on
    ManagedKeys,
    VocabularyKeys,
    HashKeys,
    OtherItemsKeys,
    EarlierKeys,
    LookupKeys,
    MaxIdsKeys,
    OffsetKeys,
    TimeKeys,
    BucketKeys,
    WeightKeys,
    CrossKeys,
):
    """Ids of each sample, made of a column: a single id, or a list of them. A null is an empty bag."""

    hotness: Annotated[pydantic.PositiveFloat, MayChange] = 1.0
    """Ids per sample to expect on average; only the planner uses it."""
    zipf: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """Zipf's exponent of the ids, how fast they get rarer from the most popular on; only the planner uses it."""
    distinct: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Different ids that the data has; only the planner uses it. Unset: as many as rows."""


def columns_of(name: str, feature: DenseFeature | SparseFeature) -> list[str]:
    """Returns the columns that a feature is made of."""
    if isinstance(feature, SparseFeature):
        return feature.columns or [feature.column or name]
    return [*columns_in(feature.expression)] if feature.expression else [feature.column or name]


def columns_beside(feature: DenseFeature | SparseFeature) -> dict[str, str]:
    """Returns the columns that a rule of a feature reads beside its own, by the rule's key."""
    keys = ("times", "before", "without", "without_in", "lookup", "lookup_in", "overlap")
    weights = feature.weight_columns if isinstance(feature, SparseFeature) else []
    of_weights = {f"weights.{place}" if len(weights) > 1 else "weights": one for place, one in enumerate(weights)}
    return of_weights | {key: column for key in keys if (column := getattr(feature, key, None))}


def ids_beside(feature: DenseFeature | SparseFeature) -> dict[str, str]:
    """Returns those of the columns beside that hold ids, by the rule's key."""
    beside = columns_beside(feature).items()
    return {key: one for key, one in beside if key.partition(".")[0] not in ("weights", "times", "before")}


def takes(feature: DenseFeature | SparseFeature) -> Literal["numbers", "times", "ids"]:
    """Returns which values a feature is made of."""
    if feature.transform in TIMES:
        return "times"
    if isinstance(feature, DenseFeature):
        return "ids" if feature.overlap else "numbers"
    return "numbers" if feature.buckets else "ids"


def ways_of(feature: DenseFeature | SparseFeature) -> list[str]:
    """Returns the key that makes a dense feature of several columns; nothing for a feature of one column."""
    return [way for way in ("expression", "lookup", "overlap") if getattr(feature, way, None) is not None]


def takes_any(feature: DenseFeature | SparseFeature) -> bool:
    """Returns whether a feature is made of a column of any type, as it is only whether a value is missing."""
    return feature.transform == "is_missing" and not ways_of(feature)


def check_dense(name: str, feature: DenseFeature) -> None:
    """Refuses keys of a dense feature that do not go together.

    Raises:
        InputError: The message names the key.
    """
    key = f"data.dense.{name}"
    feature.check(key)
    feature.check_expression(key)
    feature.check_lookup(key)
    feature.check_overlap(key)
    ways = ways_of(feature)
    if len(ways) > 1:
        raise InputError(f"{key}.{ways[0]} and {key}.{ways[1]} are both set, of which a number has one; leave one out")
    if ways and feature.width:
        raise InputError(
            f"{key}.width is {feature.width}, but {key}.{ways[0]} makes a single number; leave one of them out"
        )
    if ways == ["expression"] and feature.column is not None:
        raise InputError(
            f"{key}.column is '{feature.column}', but {key}.expression names the columns; leave column out"
        )
    allowed = ("none", "is_missing") if ways == ["expression"] else ("none", "is_missing", "log1p", "log3")
    if ways and feature.transform not in allowed:
        hint = "; write it into the expression" if feature.transform.startswith("log") else ""
        raise InputError(
            f"{key}.transform is '{feature.transform}', but with {key}.{ways[0]} it must be one of {', '.join(allowed)}"
            f"{hint}"
        )


def check_sparse(name: str, feature: SparseFeature, columns: Mapping[str, list[str]]) -> None:
    """Refuses keys of a sparse feature that do not go together; `columns` are those of all features of ids."""
    key, made = f"data.sparse.{name}", made_by(feature)
    check_id_rule(key, feature)
    feature.check_max_ids(key, made)
    feature.check_columns(key)
    _check_made(key, feature)
    feature.check_weights(key, made)
    feature.check_earlier(key, made)
    feature.check_without(key, made, columns)
    feature.check_lookup(key)
    _check_looked_up(key, feature, made)
    feature.check_salt(key)
    feature.check_vocabulary(key)
    feature.check_managed(key)
    _check_raw(key, feature)


def _check_looked_up(key: str, feature: SparseFeature, made: str | None) -> None:
    """Refuses other rules that choose ids, or go with them, beside a lookup."""
    others = (made, *(rule for rule in ("weights", "times", "without") if getattr(feature, rule) is not None))
    if feature.lookup is not None and (other := next(filter(None, others), None)):
        raise InputError(
            f"{key}.lookup is '{feature.lookup}', which makes the ids, but {key}.{other} is set too; leave one out"
        )


def _check_raw(key: str, feature: SparseFeature) -> None:
    """Refuses rules that would change ids which have no table."""
    for rule, value, plain in (("ids", feature.ids, "error"), ("table", feature.table, None)):
        if feature.pooling == "raw" and value != plain:
            raise InputError(
                f"{key}.{rule} is '{value}', but {key}.pooling is 'raw', which takes ids as they are and has no table; "
                "leave it out"
            )


def made_by(feature: SparseFeature) -> str | None:
    """Returns the key that makes ids of what are none: of several columns, of numbers or of times."""
    ways = {"columns": feature.columns, "buckets": feature.buckets, "transform": feature.transform != "none"}
    return next((way for way, is_set in ways.items() if is_set), None)


def _check_made(key: str, feature: SparseFeature) -> None:
    """Refuses ids that are made in two ways, and those that have no row in the table."""
    made = {
        "columns": feature.columns,
        "buckets": feature.buckets,
        "transform": feature.transform if feature.transform != "none" else None,
        "offset": feature.offset,
    }
    if len(ways := [way for way, value in made.items() if value]) > 1:
        raise InputError(f"{key}.{ways[0]} and {key}.{ways[1]} are both set, of which an id has one; leave one out")
    if feature.offset and lists_ids(feature):
        raise InputError(
            f"{key}.offset is {feature.offset}, but {key}.ids is '{feature.ids}', which takes ids as they are; leave "
            "it out"
        )
    feature.check_buckets(key)
    ids = len(feature.buckets) + 1 if feature.buckets else TIME_VALUES.get(feature.transform, 0)
    way = "buckets" if feature.buckets else "transform"
    if feature.rows < ids:
        raise InputError(f"{key}.rows is {feature.rows}, but {key}.{way} makes {ids} ids; set rows to at least that")
    if ids and feature.ids != "error":
        raise InputError(
            f"{key}.ids is '{feature.ids}', but {key}.{way} makes ids that are rows already; leave ids out"
        )
