"""Rules of lists of ids: how many ids are kept, which are early enough, and the weight of each id."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from trainer.core.errors import InputError, nearest
from trainer.rules.base import SparseKeys
from trainer.rules.plain_types import as_lists, is_list, is_number, meaning, offsets_of, plain_type, to_numbers

GREATEST = (2 - 2**-23) * 2.0**127  # the greatest float32


class MaxIdsKeys(SparseKeys):
    """The keys that decide how many ids of a list are kept, and from which end."""

    max_ids: pydantic.PositiveInt | None = None
    """Ids of a list at most. A sequence, of pooling none or raw, needs it. Unset: all are kept."""
    keep: Literal["last", "first"] = "last"
    """Which max_ids of a longer list are kept: the last ones, the newest as a rule, or the first."""

    def check_max_ids(self, key: str, made: str | None) -> None:
        """Refuses a sequence without a length, and a length without lists; `made` is the key that makes ids."""
        if self.pooling in ("none", "raw") and self.max_ids is None:
            raise InputError(
                f"{key}.pooling is '{self.pooling}', but {key}.max_ids is unset; set the length that a sequence has at "
                "most, 1 for a single id"
            )
        if made and self.max_ids and self.pooling not in ("none", "raw"):
            raise InputError(
                f"{key}.max_ids is {self.max_ids}, which cuts lists, but {key}.{made} makes one id; leave it out"
            )
        if self.keep == "first" and self.max_ids is None:
            raise InputError(f"{key}.keep is 'first', but {key}.max_ids is unset; set how many ids are kept")


def check_lists(file: str, column: str, dtype: pa.DataType, key: str, feature: MaxIdsKeys) -> None:
    """Refuses a column of single ids, which cannot be cut; a sequence of one id needs `max_ids = 1`."""
    has_single_ids = not (is_list(dtype) or pa.types.is_null(plain_type(dtype)))
    if has_single_ids and feature.max_ids and feature.pooling not in ("none", "raw"):
        raise InputError(
            f"{file}: column '{column}' is of type {dtype}, but {key}.max_ids is {feature.max_ids}, which cuts "
            "lists; leave it out"
        )


def kept_range(length: Any, max_ids: int, keep: str) -> tuple[Any, Any]:
    """Returns the bounds of the kept part of a list, for a length or an array of lengths in NumPy or torch."""
    surplus = (length - max_ids) * (length > max_ids)
    begin = surplus * (keep == "last")
    return begin, begin + length - surplus


def kept(offsets: np.ndarray, array: pa.Array, feature: MaxIdsKeys) -> tuple[np.ndarray, pa.Array]:
    """Returns lists of at most `feature.max_ids` elements: where each list begins, and the elements."""
    lengths, longest = np.diff(offsets), feature.max_ids
    if longest is None or not len(lengths) or lengths.max() <= longest:
        return offsets, array
    begin, end = kept_range(lengths, longest, feature.keep)
    places = np.arange(len(array)) - np.repeat(offsets[:-1], lengths)
    stay = (places >= np.repeat(begin, lengths)) & (places < np.repeat(end, lengths))
    return offsets_of(end - begin), array.filter(pa.array(stay))


class EarlierKeys(SparseKeys):
    """The keys that keep only ids with a time before the time of the sample."""

    times: str | None = pydantic.Field(None, exclude_if=lambda value: value is None)
    """Column with a list of times, one for each id: an id stays if its time is before the sample's, in whole seconds.
    Unset: all ids stay."""
    before: str | None = pydantic.Field(None, exclude_if=lambda value: value is None)
    """Column with the time of the sample."""
    within_seconds: pydantic.PositiveInt | None = pydantic.Field(None, exclude_if=lambda value: value is None)
    """The greatest age of an id that stays. Unset: any age."""

    def check_earlier(self, key: str, made: str | None) -> None:
        """Refuses times without the sample's time, and times of made ids; `made` is the key that makes ids."""
        if (self.times is None) != (self.before is None):
            raise InputError(
                f"{key}.times is {self.times!r} and {key}.before is {self.before!r}; name a column for both or none"
            )
        if self.within_seconds and self.times is None:
            raise InputError(
                f"{key}.within_seconds is {self.within_seconds}, but {key}.times is unset; name the column of times"
            )
        if self.times and made:
            raise InputError(
                f"{key}.times is '{self.times}', which chooses ids of a list, but {key}.{made} makes one id; leave it "
                "out"
            )


def check_earlier(file: str, schema: pa.Schema, column: str, key: str, feature: EarlierKeys) -> None:
    """Refuses columns of the rule without times, and ids that are not in lists."""
    if feature.times is None or feature.before is None:
        return
    for name, lists in ((column, True), (feature.times, True), (feature.before, False)):
        dtype = schema.field(name).type
        plain = plain_type(dtype)
        value = plain.value_type if is_list(plain) else plain
        has_times = name == column or pa.types.is_timestamp(value) or pa.types.is_integer(value)
        if not pa.types.is_null(plain) and (is_list(dtype) != lists or not (has_times or pa.types.is_null(value))):
            wanted = "ids" if name == column else "timestamps, or of integers: seconds since 1970"
            single = "a timestamp, or an integer: seconds since 1970"
            raise InputError(
                f"{file}: column '{name}' is of type {dtype}, but {key}.times is '{feature.times}'; it must be "
                f"{f'a list of {wanted}' if lists else single}"
            )


def are_earlier(times: np.ndarray, now: np.ndarray, within_seconds: int | None) -> np.ndarray:
    """Returns which times are before `now` and no older than the window, `[N]`, from seconds `[N]`."""
    earlier = times < now
    return earlier if within_seconds is None else earlier & (times >= now - within_seconds)


class OtherItemsKeys(SparseKeys):
    """The keys that take the sample's own item out of its history."""

    without: str | None = pydantic.Field(None, exclude_if=lambda value: value is None)
    """Column with a single id, of another feature: equal ids are left out, such as a sample's own item in a history
    that has the event to predict. Unset: all ids stay."""
    without_in: str | None = pydantic.Field(None, exclude_if=lambda value: value is None)
    """Column with the list of ids that are compared, where this feature's list goes with it, such as ratings of items.
    Unset: this feature's own."""

    def check_without(self, key: str, made: str | None, columns: Mapping[str, list[str]]) -> None:
        """Refuses columns of no feature, and made ids.

        Args:
            key: The feature's section.
            made: The key that makes ids.
            columns: The columns of the sparse features of ids.
        """
        if self.without is None and self.without_in is not None:
            raise InputError(
                f"{key}.without_in is '{self.without_in}', but {key}.without is unset; name the column of the sample's "
                "own id, or leave it out"
            )
        if self.without is not None and made:
            raise InputError(
                f"{key}.without is '{self.without}', which chooses ids of a list, but {key}.{made} makes one id; leave "
                "it out"
            )
        known = {column for of_feature in columns.values() for column in of_feature}
        for rule, column in (("without", self.without), ("without_in", self.without_in)):
            if column is not None and column not in known:
                raise InputError(f"{key}.{rule} is '{column}', which no sparse feature has{nearest(column, known)}")


def check_without(file: str, schema: pa.Schema, column: str, key: str, feature: OtherItemsKeys) -> None:
    """Refuses ids that are not in lists, an own item that is one, and ids of another kind than the own item's."""
    if feature.without is None:
        return
    compared = feature.without_in or column
    for name, lists in ((column, True), (compared, True), (feature.without, False)):
        dtype = schema.field(name).type
        if not pa.types.is_null(plain_type(dtype)) and is_list(dtype) != lists:
            wanted = "a list of ids" if lists else "a single id"
            raise InputError(
                f"{file}: column '{name}' is of type {dtype}, but {key}.without is '{feature.without}'; it must be "
                f"{wanted}"
            )
    here, own = (meaning(schema.field(name).type, of_ids=True) for name in (compared, feature.without))
    if here and own and here != own:
        raise InputError(
            f"{file}: column '{compared}' has {here}, but '{feature.without}', which {key}.without takes out of it, "
            f"{own}; write them alike"
        )


class WeightKeys(SparseKeys):
    """The key of weights, which multiply the embeddings of a list's ids."""

    weights: str | list[str] | None = None
    """Column with a weight for each id: a number beside a single id, a list of them beside a list. Of several columns,
    the weight is the product. A sum is weighted, a mean divided by the sum of the weights; of pooling none, only
    model.actions may have them. Unset: every id weighs 1."""

    @property
    def weight_columns(self) -> list[str]:
        """The columns whose product is the weight of an id."""
        return [self.weights] if isinstance(self.weights, str) else self.weights or []

    def check_weights(self, key: str, made: str | None) -> None:
        """Refuses weights without embeddings, and weights of made ids; `made` is the key that makes ids."""
        if self.weights is None:
            return
        if len({*self.weight_columns}) != len(self.weight_columns) or not self.weight_columns:
            raise InputError(f"{key}.weights is {self.weights}; name at least one column, each once, or leave it out")
        if self.pooling == "raw":
            raise InputError(
                f"{key}.weights is {self.weights!r}, but {key}.pooling is 'raw', without embeddings; leave weights out"
            )
        if made:
            raise InputError(
                f"{key}.weights is {self.weights!r}, but {key}.{made} makes ids, which have no weights; leave one out"
            )


def check_weight_type(file: str, name: str, dtype: pa.DataType, column: str, ids: pa.DataType) -> None:
    """Refuses a column of weights that holds no numbers, or lists of numbers for single ids."""
    plain = plain_type(dtype)
    if pa.types.is_null(plain):
        return
    value = plain.value_type if is_list(plain) else plain
    if not (is_number(value) or pa.types.is_null(value)):
        raise InputError(
            f"{file}: column '{name}' is of type {dtype}; the weights of ids must be a number, or a list of numbers"
        )
    if is_list(dtype) != is_list(ids) and not pa.types.is_null(plain_type(ids)):
        raise InputError(
            f"{file}: column '{name}' is of type {dtype}, but column '{column}', whose ids it weighs, of type {ids}; "
            "lists of ids need lists of weights, and single ids single weights"
        )


def is_weight(value: Any, pooling: str, greatest: float) -> Any:
    """Returns whether a number is a weight, or which numbers of an array are. NaN is not."""
    return (abs(value) <= greatest) & ((value >= 0) | (pooling != "mean"))


def allowed_weights(pooling: str) -> str:
    """Returns the range of weights, for messages."""
    return "finite and, for a mean, at least 0" if pooling == "mean" else "finite"


def aligned(ids: pa.Array, weights: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns ids and weights in lists; single ids become lists with one element."""
    if is_list(ids.type) or is_list(weights.type):
        return as_lists(ids), as_lists(weights)
    return one_each(ids), one_each(weights)


def one_each(array: pa.Array) -> pa.LargeListArray:
    """Returns single ids as lists of one element; a null stays an element."""
    return pa.LargeListArray.from_arrays(np.arange(len(array) + 1), array)


def to_weights(weights: pa.Array) -> pa.Array:
    """Returns numbers as float32."""
    return pc.cast(to_numbers(weights), pa.float32(), safe=False)


def weighted_type(ids: pa.DataType) -> pa.StructType:
    """Returns the type of ids with weights, given the type of the ids."""
    return pa.struct([("id", ids), ("weight", pa.float32())])


def with_weights(ids: pa.Array, weights: pa.Array) -> pa.StructArray:
    """Returns ids with their weights, `[N]`; null for a null id."""
    mask = ids.is_null() if ids.null_count else None
    return pa.StructArray.from_arrays([ids, weights], fields=[*weighted_type(ids.type)], mask=mask)


def ids_in(bags: pa.LargeListArray) -> pa.Array:
    """Returns the ids in lists, `[N]`, with or without weights."""
    found = bags.flatten()
    return found.field("id") if pa.types.is_struct(found.type) else found


def weights_of(bags: Mapping[str, pa.LargeListArray]) -> dict[str, np.ndarray]:
    """Returns the weights of ids, for bags with weights, `[N]` float32 each."""
    found = {name: one.flatten() for name, one in bags.items() if pa.types.is_struct(one.type.value_type)}
    return {name: one.field("weight").to_numpy() for name, one in found.items()}


def pooling_weights(
    features: Mapping[str, SparseKeys], lengths: np.ndarray, weights: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Returns the weights that turn a weighted sum into the pooling of every feature, `[N]` float32.

    For ids with weights, FBGEMM on a CPU leaves out the division of a mean, and torch refuses a mean.

    Args:
        features: The sparse features.
        lengths: Ids of each feature in each row, `[F * R]`.
        weights: Weights of the ids, for features with weights, `[N]` float32 each.
    """
    of_features = lengths.reshape(len(features), -1)
    return np.concatenate(
        [
            _pooling_weights(feature.pooling, ids, weights.get(name))
            for (name, feature), ids in zip(features.items(), of_features, strict=True)
        ]
    )


def _pooling_weights(pooling: str, lengths: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    found = np.ones(lengths.sum(), np.float32) if weights is None else weights
    if pooling != "mean":
        return found
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    totals = np.bincount(row_of, found, minlength=len(lengths))
    # Ids whose weights add up to 0 count as no ids.
    return (found / np.where(totals > 0, totals, 1)[row_of]).astype(np.float32)
