"""`transform = "hour"`, `"weekday"`, `"age"`: turns a time into a number or an id.

Sparse features have the first two, dense features all three.
"""

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.core.errors import InputError
from trainer.rules.base import SparseKeys
from trainer.rules.nulls import is_missing, zero_filled
from trainer.rules.plain_types import SECOND, plain_type

if TYPE_CHECKING:
    from torch import Tensor

TIME_VALUES = {"hour": 24, "weekday": 7}
"""The number of values of each part of a time."""
TIMES = ("hour", "weekday", "age")
"""The transforms that take times."""
HOUR, DAY = 3600, 86400  # in seconds
# The range of integer times: years 1973 to 2099, so that numbers such as 20260131 and milliseconds are noticed.
SECONDS = range(10**8, 4_102_444_800)
NO_TIME = "is no time in seconds since 1970, between the years 1973 and 2099; write timestamps or dates"


class TimeKeys(SparseKeys):
    """The key of this rule for ids."""

    transform: Literal["none", "hour", "weekday"] = "none"
    """Makes ids of times: the hour of the day, or the weekday (0 is Monday), both in UTC."""


def check_now(key: str, transform: str, now: str | None) -> None:
    """Refuses an age without a day, a day without an age, and an invalid day."""
    if (transform == "age") != (now is not None):
        raise InputError(
            f"{key}.now is {now!r} and {key}.transform is '{transform}'; 'age' needs a now, and nothing else does"
        )
    if now is not None and not _is_day(now):
        raise InputError(f"{key}.now is '{now}'; it must be a day, such as \"2026-01-31\"")


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def check_time(file: str, column: str, dtype: pa.DataType, key: str, transform: str) -> None:
    """Refuses a column without times."""
    kinds = [pa.types.is_timestamp, pa.types.is_integer, pa.types.is_null]
    kinds += [pa.types.is_date] if transform != "hour" else []
    if not any(kind(plain_type(dtype)) for kind in kinds):
        dates = ", dates" if transform != "hour" else ""
        raise InputError(
            f"{file}: column '{column}' is of type {dtype}, but {key}.transform is '{transform}'; it takes "
            f"timestamps{dates}, or integers: seconds since 1970"
        )


def to_seconds(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns times in whole seconds since 1970 in UTC, `[R]` int64, and which are missing, `[R]`."""
    missing, dtype = is_missing(array), array.type
    if pa.types.is_date(dtype):
        return _wide(array.cast(pa.date32(), safe=False).cast(pa.int32())) * DAY, missing
    if pa.types.is_timestamp(dtype):
        return _wide(array.cast(pa.int64())) // SECOND[dtype.unit], missing
    return _wide(array), missing


def are_times(seconds: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Returns which integers of a column are times or missing, `[R]`."""
    return missing | (seconds >= SECONDS.start) & (seconds < SECONDS.stop)


def _wide(array: pa.Array) -> np.ndarray:
    return zero_filled(pc.cast(array, pa.int64(), safe=False))


def part_of_time(seconds: Any, part: str) -> Any:
    """Returns the hour or weekday of times in seconds since 1970, for an array of NumPy or torch."""
    return seconds // HOUR % 24 if part == "hour" else (seconds // DAY + 3) % 7  # 1970 began on a Thursday


def age(seconds: np.ndarray, now: str) -> np.ndarray:
    """Returns the days from times to the beginning of a day, `[R]` float64."""
    return (day_start(now) - seconds) / DAY


def age_in_torch(seconds: "Tensor", now: str) -> "Tensor":
    """Returns the same in torch, which divides integers in float32."""
    return (day_start(now) - seconds).double() / DAY


def day_start(day: str) -> int:
    """Returns the beginning of a day in UTC, in seconds since 1970."""
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp())
