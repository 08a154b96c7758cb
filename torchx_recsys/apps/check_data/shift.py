"""Measures the shift of features between two parts of a data set, such as two days."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from torchx_recsys.apps.check_data.figures import psi, shares_of_ids
from torchx_recsys.apps.check_data.profile import Profile, profiles_of
from torchx_recsys.apps.check_data.reading import Measured, read_split, sampling_mask
from torchx_recsys.apps.check_data.splits import chosen_groups, numbers_alike, open_split
from torchx_recsys.apps.engines.threads import Threads
from trainer.config.data import DataConfig
from trainer.config.features import columns_of, takes
from trainer.data.columns import id_columns

ROWS = 20_000  # number of rows in the sample of each part
GROUPS = 8  # number of row groups that a sample is spread over
NUMBERS = ("integer", "number", "time")


@dataclass(frozen=True)
class Shift:
    """The shift of a part of a data set, by samples of this part and the part before.

    Attributes:
        label_rates: The mean of each label whose values are in [0, 1].
        indices: The population stability index of each column of features, the greatest first.
    """

    label_rates: Mapping[str, float]
    indices: Mapping[str, float]


def measure_shift(key: str, parts: Sequence[Sequence[str]], data: DataConfig, rows: int = ROWS) -> Shift:
    """Measures the shift of the last of one or two parts against the first.

    Numbers are compared by tenths of their values, ids by tenths of their occurrences.

    Args:
        key: The key or flag that requests it, for messages.
        parts: Files, globs or directories of each part.
        data: Names the reader, the features and the labels.
        rows: Rows of the sample of each part.

    Raises:
        InputError: A pattern matches nothing, or a file cannot be read.
    """
    opened = [open_split(f"part {number}", key, files, data, seed=0) for number, files in enumerate(parts)]
    splits = numbers_alike(opened, id_columns(data))
    columns = [name for name in _columns(data) if all(name in split.kinds for split in splits)]
    measured: list[Measured] = []
    keys: list[str] = []
    for split in splits:
        groups, mask = chosen_groups(split, rows, False, 0, GROUPS), sampling_mask(split.files.rows)
        one, keys = read_split(split, data, columns, groups, rows, 0, keys, mask, Threads())
        measured.append(one)
    profiles = profiles_of(measured, [])
    compared = [name for name in columns if name not in data.labels and len(profiles[name].measured) > 1]
    found = {name: _index(profiles[name], data) for name in compared}
    rates = {name: measured[-1].tally(name).rate for name in data.labels if name in columns}
    return Shift(
        {name: rate for name, rate in rates.items() if rate == rate},  # leaves out NaN
        dict(sorted(found.items(), key=lambda item: -item[1])),
    )


def _columns(data: DataConfig) -> list[str]:
    """Returns the labels and the columns of features, except times, which always increase."""
    features = (*data.dense.items(), *data.sparse.items())
    used = (columns_of(name, one) for name, one in features if takes(one) != "times")
    return list(dict.fromkeys(chain(data.labels, *used)))


def _index(profile: Profile, data: DataConfig) -> float:
    first, last = profile.measured
    if profile.kind in NUMBERS and profile.name not in id_columns(data):
        return profile.shift(last)
    return psi(*shares_of_ids(profile.ids[first.name], profile.ids[last.name]))
