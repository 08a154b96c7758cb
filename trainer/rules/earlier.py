"""`times` and `before`: keeps the ids of a list that are of a time before the sample's."""

import numpy as np
import pyarrow as pa
import pydantic

from trainer.core.errors import InputError
from trainer.rules.base import SparseKeys
from trainer.rules.plain_types import is_list, plain_type


class EarlierKeys(SparseKeys):
    """The keys of this rule."""

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
