"""The features: what becomes of the columns of the data before the model sees them."""

from datetime import date
from itertools import pairwise
from typing import Annotated, Any, Literal

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import MayChange, Section
from trainer.rules.hash import HashKeys
from trainer.rules.managed import ManagedKeys
from trainer.rules.registry import check_id_rule, lists_ids
from trainer.rules.vocabulary import VocabularyKeys

TIME_VALUES = {"hour": 24, "weekday": 7}
"""How many values each part of a time has."""
TIMES = ("hour", "weekday", "age")
"""The transforms that take times."""


class DenseFeature(Section):
    """A number of each sample, made of a column. The keys are applied in their order here."""

    column: str | None = None
    """Column of the files. Unset: the feature's own name. One column can make several features."""
    missing: float = 0.0
    """Replaces a null, before the transform; of hour, weekday and age the result for one."""
    clip: list[float] = []
    """[low, high]: lower values become low, higher ones high, before the transform; of an age, its days. Unset: all
    values stay."""
    transform: Literal["none", "log1p", "log3", "is_missing", "hour", "weekday", "age"] = "none"
    """log1p is log(x + 1), log3 is log(x + 3), the usual one for Criteo's counts, is_missing 1 for a null and else 0.
    The others take times: hour of the day and weekday (0 is Monday) in UTC, and age, the days until `now`."""
    now: str | None = None
    """For age: the day at whose beginning, in UTC, an age is 0, such as "2026-01-31"."""
    mean: float = 0.0
    """Subtracted after the transform."""
    std: float = 1.0
    """Divides what is left: the feature is (transform(x) - mean) / std."""

    @pydantic.field_validator("now", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return value.isoformat() if isinstance(value, date) else value  # TOML has dates of its own


class SparseFeature(ManagedKeys, VocabularyKeys, HashKeys):  # whose keys stand in documentation from the last on
    """Ids of each sample, made of a column: a single id, or a list of them. A null is an empty bag."""

    columns: list[str] = []
    """Instead: two or three columns of single ids, whose combinations are the ids. Needs ids = "hash"."""
    weights: str | None = None
    """Column with a weight for each id: a number beside a single id, a list of them beside a list. A sum is weighted,
    a mean divided by the sum of the weights. Unset: every id weighs 1."""
    buckets: list[float] = []
    """Makes ids of numbers: 0 below the first of these edges, 1 from it on, and so on; rows is above their number."""
    transform: Literal["none", "hour", "weekday"] = "none"
    """Makes ids of times: the hour of the day, or the weekday (0 is Monday), both in UTC."""
    offset: int = pydantic.Field(0, gt=-(2**31), lt=2**31)
    """Added to each id, such as -1 to ids that begin at 1."""
    max_ids: pydantic.PositiveInt | None = None
    """Ids of a list at most. A sequence, of pooling none, needs it. Unset: all are kept."""
    keep: Literal["last", "first"] = "last"
    """Which max_ids of a longer list are kept: the last ones, the newest as a rule, or the first."""
    hotness: Annotated[pydantic.PositiveFloat, MayChange] = 1.0
    """Ids per sample to expect on average; only the planner uses it."""
    zipf: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """Zipf's exponent of the ids, how fast they get rarer from the most popular on; only the planner uses it."""
    distinct: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Different ids that the data has; only the planner uses it. Unset: as many as rows."""


def columns_of(name: str, feature: DenseFeature | SparseFeature) -> list[str]:
    """Returns the columns that a feature is made of."""
    several = feature.columns if isinstance(feature, SparseFeature) else []
    return several or [feature.column or name]


def takes(feature: DenseFeature | SparseFeature) -> Literal["numbers", "times", "ids"]:
    """Returns which values a feature is made of."""
    if feature.transform in TIMES:
        return "times"
    return "numbers" if isinstance(feature, DenseFeature) or feature.buckets else "ids"


def check_dense(name: str, feature: DenseFeature) -> None:
    """Refuses keys of a dense feature that do not go together.

    Raises:
        InputError: The message names the key.
    """
    key = f"data.dense.{name}"
    if feature.std <= 0:
        raise InputError(f"{key}.std is {feature.std}; it must be greater than 0")
    if feature.clip and not (len(feature.clip) == 2 and feature.clip[0] < feature.clip[1]):
        raise InputError(f"{key}.clip is {feature.clip}; it must be two numbers, [low, high], with low below high")
    if feature.transform == "is_missing" and (feature.clip or feature.missing):
        other = "clip" if feature.clip else "missing"
        raise InputError(
            f"{key}.{other} is {getattr(feature, other)}, but {key}.transform is 'is_missing', which does not use it; "
            "leave it out"
        )
    if (feature.transform == "age") != (feature.now is not None):
        raise InputError(
            f"{key}.now is {feature.now!r} and {key}.transform is '{feature.transform}'; 'age' needs a now, and "
            "nothing else does"
        )
    if feature.now is not None and not _is_day(feature.now):
        raise InputError(f"{key}.now is '{feature.now}'; it must be a day, such as \"2026-01-31\"")


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def check_sparse(name: str, feature: SparseFeature) -> None:
    """Refuses keys of a sparse feature that do not go together; the same errors."""
    key = f"data.sparse.{name}"
    check_id_rule(key, feature)
    _check_length(key, feature)
    _check_columns(key, feature)
    _check_made(key, feature)
    _check_weights(key, feature)
    feature.check_salt(key)
    feature.check_vocabulary(key)
    feature.check_managed(key)


def _check_length(key: str, feature: SparseFeature) -> None:
    if feature.pooling == "none" and feature.max_ids is None:
        raise InputError(
            f"{key}.pooling is 'none', but {key}.max_ids is unset; set the length that a sequence has at most, 1 for a "
            "single id"
        )
    made = next((way for way in ("columns", "buckets", "transform") if getattr(feature, way) not in ([], "none")), None)
    if made and feature.max_ids and feature.pooling != "none":
        raise InputError(
            f"{key}.max_ids is {feature.max_ids}, which cuts lists, but {key}.{made} makes one id; leave it out"
        )
    if feature.keep == "first" and feature.max_ids is None:
        raise InputError(f"{key}.keep is 'first', but {key}.max_ids is unset; set how many ids are kept")


def _check_columns(key: str, feature: SparseFeature) -> None:
    columns = feature.columns
    if not columns:
        return
    if len(columns) not in (2, 3) or len({*columns}) < len(columns):
        raise InputError(f"{key}.columns is {columns}; it must be two or three columns; one alone is {key}.column")
    if feature.column is not None:
        raise InputError(f"{key}.column is '{feature.column}' and {key}.columns is {columns}; set one of them")
    if feature.ids != "hash":
        raise InputError(f"{key}.columns is {columns}, but {key}.ids is '{feature.ids}'; a cross needs 'hash'")


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
    if any(high <= low for low, high in pairwise(feature.buckets)):
        raise InputError(f"{key}.buckets is {feature.buckets}; its edges must ascend")
    ids = len(feature.buckets) + 1 if feature.buckets else TIME_VALUES.get(feature.transform, 0)
    way = "buckets" if feature.buckets else "transform"
    if feature.rows < ids:
        raise InputError(f"{key}.rows is {feature.rows}, but {key}.{way} makes {ids} ids; set rows to at least that")
    if ids and feature.ids != "error":
        raise InputError(
            f"{key}.ids is '{feature.ids}', but {key}.{way} makes ids that are rows already; leave ids out"
        )


def _check_weights(key: str, feature: SparseFeature) -> None:
    if feature.weights is None:
        return
    if feature.pooling == "none":
        raise InputError(
            f"{key}.weights is '{feature.weights}', but {key}.pooling is 'none', which leaves the embeddings as they "
            "are; set it to 'sum' or 'mean', or leave weights out"
        )
    made = {"columns": feature.columns, "buckets": feature.buckets, "transform": feature.transform != "none"}
    if way := next((way for way, is_set in made.items() if is_set), None):
        raise InputError(
            f"{key}.weights is '{feature.weights}', but {key}.{way} makes ids, which have no weights; leave one out"
        )
