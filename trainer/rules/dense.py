"""Rules of dense features: nulls are replaced, then numbers and times are clipped, transformed and standardized."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pydantic

from trainer.core.errors import InputError
from trainer.core.section import Section
from trainer.rules.derived_ids import DAY, TIMES, part_of_time
from trainer.rules.plain_types import (
    as_lists,
    has_values,
    is_list,
    is_missing,
    is_number,
    list_lengths,
    plain_type,
    to_float32,
    zero_filled,
)

if TYPE_CHECKING:
    from torch import Tensor

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"log1p": np.log1p, "log3": lambda x: np.log(x + 3)}
TORCH_FUNCTIONS: "dict[str, Callable[[Tensor], Tensor]]" = {
    "log1p": lambda x: x.log1p(),
    "log3": lambda x: (x + 3).log(),
}


class NumberKeys(Section):
    """The keys of a dense feature, in the order in which they are applied."""

    column: str | None = None
    """Column of the files. Unset: the feature's own name. One column can make several features."""
    width: pydantic.PositiveInt | None = pydantic.Field(None, exclude_if=lambda width: width is None)
    """Length of the vectors in the column, lists of numbers such as embeddings of texts: each place is a column of the
    model's input, and the other keys apply to each. Unset: the column has a single number."""
    missing: float = 0.0
    """Replaces a null, before the transform; of hour, weekday and age the result for one."""
    clip: list[float] = []
    """[low, high]: lower values become low, higher ones high, before the transform; of an age, its days. Unset: all
    values stay."""
    transform: Literal["none", "log1p", "log3", "is_missing", "hour", "weekday", "age"] = "none"
    """log1p is log(x + 1), log3 is log(x + 3), the usual one for Criteo's counts, is_missing 1 for a null or NaN, else
    0. The others take times: hour of the day and weekday (0 is Monday) in UTC, and age, the days until `now`."""
    now: str | None = None
    """For age: the day at whose beginning, in UTC, an age is 0, such as "2026-01-31"."""
    mean: float = 0.0
    """Subtracted after the transform."""
    std: float = 1.0
    """Divides what is left: the feature is (transform(x) - mean) / std."""

    @pydantic.field_validator("now", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return value.isoformat() if isinstance(value, date) else value  # TOML has its own dates

    def check(self, key: str) -> None:
        """Refuses conflicting keys.

        Raises:
            InputError: The message names the key.
        """
        if self.width and (self.transform == "is_missing" or self.transform in TIMES):
            raise InputError(
                f"{key}.width is {self.width}, but {key}.transform is '{self.transform}', which makes a single number; "
                "leave width out"
            )
        if self.std <= 0:
            raise InputError(f"{key}.std is {self.std}; it must be greater than 0")
        if self.clip and not (len(self.clip) == 2 and self.clip[0] < self.clip[1]):
            raise InputError(f"{key}.clip is {self.clip}; it must be two numbers, [low, high], with low below high")
        if self.transform == "is_missing" and (self.clip or self.missing):
            other = "clip" if self.clip else "missing"
            raise InputError(
                f"{key}.{other} is {getattr(self, other)}, but {key}.transform is 'is_missing', which does not use "
                "it; leave it out"
            )
        if (self.transform == "age") != (self.now is not None):
            raise InputError(
                f"{key}.now is {self.now!r} and {key}.transform is '{self.transform}'; 'age' needs a now, and nothing "
                "else does"
            )
        if self.now is not None and not _is_day(self.now):
            raise InputError(f"{key}.now is '{self.now}'; it must be a day, such as \"2026-01-31\"")


def check_number_type(file: str, name: str, dtype: pa.DataType, key: str, feature: NumberKeys) -> None:
    """Refuses a column that holds no numbers, numbers in place of vectors, and vectors of another length.

    Raises:
        InputError: The message names file and column.
    """
    plain = plain_type(dtype)
    of_vectors = is_list(dtype) and (is_number(plain.value_type) or not has_values(dtype))
    if pa.types.is_null(plain):
        return
    if feature.width is None and not is_number(dtype):
        remedy = f"; for vectors, set {key}.width to their length" if of_vectors else ""
        raise InputError(f"{file}: column '{name}' is of type {dtype}; it must be a number, a date or a time{remedy}")
    if feature.width is not None and not of_vectors:
        raise InputError(
            f"{file}: column '{name}' is of type {dtype}, but {key}.width is {feature.width}; it must be a list of "
            "numbers, or leave width out"
        )
    size = getattr(dtype, "list_size", feature.width)
    if feature.width is not None and size != feature.width:
        raise InputError(
            f"{file}: column '{name}' has vectors of {size} numbers, but {key}.width is {feature.width}; set it to "
            f"{size}"
        )


def has_dense_value(numbers: Any, feature: dict[str, Any], library: Any) -> Any:
    """Returns which numbers have a finite dense value, in their shape; NaN counts as missing.

    Args:
        numbers: float32, in an array of NumPy or torch.
        feature: The keys of the feature, but for is_missing and times.
        library: NumPy or torch.
    """
    values = library.where(numbers != numbers, library.full_like(numbers, feature["missing"]), numbers)
    if feature["clip"]:
        values = values.clip(*feature["clip"])
    if feature["transform"] == "log1p":
        values = library.log1p(values)
    if feature["transform"] == "log3":
        values = library.log(values + 3)
    return library.isfinite((values - feature["mean"]) / feature["std"])


def filled(array: pa.Array, feature: NumberKeys) -> np.ndarray:
    """Returns numbers with `missing` in place of nulls, `[R]` float32."""
    array = to_float32(array)
    values = zero_filled(array)
    if array.null_count and feature.missing:
        values[is_missing(array)] = feature.missing
    return values


def filled_vectors(array: pa.Array, feature: NumberKeys) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors of lists of numbers, `[R, width]` float32, and the lengths of the lists, `[R]`.

    A null list is a vector of `missing`; so is a list of another length, which the caller refuses.
    """
    lists, width = as_lists(array), feature.width or 1
    lengths = np.where(is_missing(lists), width, list_lengths(lists))
    whole = lengths == width
    if not whole.all():
        lists = lists.filter(pa.array(whole))
    present = ~is_missing(lists)
    values = filled(lists.flatten(), feature).reshape(-1, width)
    if len(values) == len(lengths):
        return values, lengths
    vectors = np.full((len(lengths), width), feature.missing, np.float32)
    vectors[np.flatnonzero(whole)[present]] = values
    return vectors, lengths


def null_flags(array: pa.Array) -> np.ndarray:
    """Returns 1 for a null or NaN, else 0, `[R]` float32."""
    return array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False).astype(np.float32)


def number_of_time(seconds: np.ndarray, missing: np.ndarray, feature: NumberKeys) -> np.ndarray:
    """Returns the transform of times, `[R]` float32."""
    is_age = feature.transform == "age"
    values = (_day_start(feature) - seconds) / DAY if is_age else part_of_time(seconds, feature.transform)
    return np.where(missing, np.float32(feature.missing), values.astype(np.float32))


def transformed(raw: np.ndarray, feature: NumberKeys) -> np.ndarray:
    """Returns the dense values of numbers without nulls, float32 in their shape. They can be infinite or NaN."""
    values = np.clip(raw, *np.asarray(feature.clip, np.float32)) if feature.clip else raw
    if feature.transform in FUNCTIONS:
        values = FUNCTIONS[feature.transform](values)
    if (feature.mean, feature.std) != (0.0, 1.0):
        values = (values - np.float32(feature.mean)) / np.float32(feature.std)
    return values


def dense_in_torch(raw: "Tensor", present: "Tensor", feature: NumberKeys) -> "Tensor":
    """Returns the model's input for raw values, `[B]` float32, of vectors `[B, width]`.

    Args:
        raw: Numbers, float32; or times in seconds since 1970, int64. Missing values may be anything.
        present: Which values are not missing, in the same shape.
        feature: The feature.
    """
    if feature.transform == "is_missing":
        values = (~present).float()
    elif feature.transform in TIMES:
        seconds = raw.where(present, 0)
        if feature.transform == "age":  # in float64, because torch would divide integers in float32
            made = (_day_start(feature) - seconds).double() / DAY
        else:
            made = part_of_time(seconds, feature.transform)
        values = made.float().where(present, feature.missing)
    else:
        values = raw.where(present, feature.missing)
    if feature.clip:
        values = values.clamp(*feature.clip)
    if feature.transform in TORCH_FUNCTIONS:
        values = TORCH_FUNCTIONS[feature.transform](values)
    return values if (feature.mean, feature.std) == (0.0, 1.0) else (values - feature.mean) / feature.std


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _day_start(feature: NumberKeys) -> int:
    """Returns the beginning of the day `now` in UTC, in seconds since 1970."""
    return int(datetime.fromisoformat(str(feature.now)).replace(tzinfo=UTC).timestamp())
