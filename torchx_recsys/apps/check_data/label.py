"""The label of data without a configuration: which column it is, and what there is to learn of it."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from torchx_recsys.apps.check_data.profile import Profile
from trainer.core.console import plural
from trainer.core.errors import InputError, nearest, some_of

LABEL = re.compile(
    r"label|target|y|clicks?|clicked|is_\w+|(\w+_)?(label|target|click|clicked)|conversions?|converted|purchased?|"
    r"bought|likes?|liked|recommended\w*",
    re.IGNORECASE,
)
AMOUNT = re.compile(
    r"(\w+_)?(ratings?|stars?|scores?|grades?|ranks?|counts?|numbers?|quantity|amount|prices?|age|days|hours|minutes|"
    r"seconds|duration|visits|sales|views)|(num|number|n)_\w+",
    re.IGNORECASE,
)
COUNT = re.compile(
    r"(\w+_)?(counts?|clicks|plays|listens|streams|views|visits|downloads|impressions|purchases|orders|sales|quantity)|"
    r"(num|number|n)_\w+",
    re.IGNORECASE,
)
SKEWED = 1.0  # skewness from which whole numbers have the long tail of counts
CLASSES = 20  # most whole numbers that may be classes
TEXTS = 1000  # most texts that may be classes
EVEN = 10  # counts of the most and the least frequent whole number that are classes differ by less than this factor
Task = Literal["binary", "values", "counts", "classes", "items"]


@dataclass(frozen=True)
class Label:
    """A label.

    Attributes:
        name: Its column.
        task: What is learned: whether it is 1 (or the second of two values), its value, its value as a count, its
            class, or which item of all goes with a label, where every label is 1.
        classes: Its values in the order of their numbers, where they are not the numbers themselves.
        mean: Mean of values or counts.
        std: Their standard deviation.
    """

    name: str
    task: Task
    classes: tuple[str | int, ...] = ()
    mean: float = 0.0
    std: float = 1.0

    def data(self) -> dict[str, Any]:
        """Returns its keys of section `data`."""
        numeric = self.task in ("values", "counts") or len(self.classes) > 2
        return {
            "labels": [self.name],
            **({"numeric_labels": [self.name]} if numeric else {}),
            **({"classes": {self.name: [*self.classes]}} if self.classes else {}),
        }


def guess_label(
    profiles: Mapping[str, Profile], label: str | None, task: str | None, repeated: Mapping[str, str] = {}
) -> Label:
    """Returns the label: the column `label`, or the column that most resembles one.

    Args:
        profiles: The columns.
        label: The column, if it is given.
        task: What to learn of it, if it is given.
        repeated: Column names that occur more than once in a file, each with the file.

    Raises:
        InputError: The column is missing or cannot be learned, or no column looks like a label.
    """
    if task is not None and task not in get_args(Task):
        raise InputError(f"--task is '{task}'{nearest(task, get_args(Task))}")
    if label is not None:
        if label not in profiles:
            raise InputError(f"--label is '{label}', which is no column{nearest(label, profiles)}")
        if fault := _fault(profiles[label]):
            raise InputError(f"--label is '{label}', {fault}")
        return _label_of(profiles[label], task)
    return _label_of(profiles[_guess_name(profiles, repeated)], task)


def _guess_name(profiles: Mapping[str, Profile], repeated: Mapping[str, str]) -> str:
    faults = {name: _fault(profile) for name, profile in profiles.items()}
    binary = [name for name, fault in faults.items() if not fault and _is_binary(profiles[name])]
    named = [name for name in binary if _named_like_a_label(name)]
    exact = [name for name in named if name.lower() in ("label", "target", "click", "clicked", "y")]
    if found := exact or named:
        return found[0]
    like = [name for name in faults if _named_like_a_label(name) and name not in binary]
    if found := [name for name in like if not faults[name]] or (binary if len(binary) == 1 and not like else []):
        return found[0]
    if like:
        raise InputError(f"--label is unset, and '{like[0]}' is named like one, {faults[like[0]]}")
    if twice := [name for name in repeated if _named_like_a_label(name)]:
        raise InputError(
            f"--label is unset, and '{twice[0]}' is named like one, but {repeated[twice[0]]} has more than one such "
            "column; name each apart"
        )
    has = f"these have 0 and 1: {some_of(binary)}" if binary else "none has only the values 0 and 1"
    if not binary and (with_nulls := [name for name, profile in profiles.items() if _is_binary(profile)]):
        raise InputError(f"--label is unset, and '{with_nulls[0]}' would do, {faults[with_nulls[0]]}")
    # In tables written by hand or exported for training, the label is usually last.
    such = f", such as --label {shlex.quote(binary[-1])}" if binary else ""
    raise InputError(f"--label is unset, and no column of --source is named like a label; {has}; name one{such}")


def _label_of(profile: Profile, task: str | None) -> Label:
    """Returns what a column that can be learned is, as `task` says or by its values."""
    name, fits = profile.name, _tasks(profile)
    if task and task not in fits:
        raise InputError(f"--task is '{task}', but '{name}' {_described(profile)}; use {' or '.join(fits)}")
    chosen = task or fits[0]
    if chosen in ("values", "counts"):
        values = profile.finite(profile.first)
        return Label(name, chosen, (), short(values.mean()), short(values.std()) or 1.0)
    if chosen == "items" or (chosen == "binary" and _is_binary(profile)):
        return Label(name, chosen)
    return Label(name, chosen, tuple(_values(profile)))


def _tasks(profile: Profile) -> list[Task]:
    """Returns what may be learned of a column, the most likely first."""
    if profile.kind == "text":
        return ["binary"] if profile.different == 2 else ["classes"]
    tally = profile.first.tally(profile.name)
    if tally.minimum == tally.maximum:
        return ["items"]
    if _is_binary(profile):
        return ["binary", "values"]
    found = _tasks_of_numbers(profile)
    if any(measured.tally(profile.name).minimum < 0 for measured in profile.measured):
        return found
    is_count = COUNT.fullmatch(plain(profile.name)) and profile.kind == "integer" and profile.skew > SKEWED
    return ["counts", *found] if is_count else [*found, "counts"]


def _tasks_of_numbers(profile: Profile) -> list[Task]:
    if profile.kind == "number" or profile.different > CLASSES:
        return ["values"]
    if profile.different == 2:
        return ["binary", "values"]
    tally = profile.first.tally(profile.name)
    counts = profile.first_ids.counts
    even = counts.max() < EVEN * counts.min() and tally.minimum in (0, 1) and not AMOUNT.fullmatch(plain(profile.name))
    return ["classes", "values"] if even else ["values", "classes"]


def _values(profile: Profile) -> list[str | int]:
    """Returns the different values of all splits, ascending."""
    values = {value for measured in profile.measured for value in profile.ids[measured.name].distinct.to_pylist()}
    return sorted(value.decode() if isinstance(value, bytes) else value for value in values)


def _fault(profile: Profile) -> str:
    """Returns why a column cannot be a label, and the remedy; empty if it can."""
    tally = profile.first.tally(profile.name)
    if profile.kind not in ("integer", "number", "text"):
        return "which is no column of numbers or texts; name another column"
    if not tally.values:
        return "which has no value; name another column"
    if profile.kind == "text" and not 1 < profile.different <= TEXTS:
        return f"which {_described(profile)}; name a column of 2 to {TEXTS:,} different texts, or one of numbers"
    if tally.nulls or tally.nan:
        nulls = plural(tally.nulls + tally.nan, "null")
        return f"which has {nulls} in {tally.rows:,} rows; leave these rows out, or write what they mean"
    if tally.infinite:
        return f"which has {plural(tally.infinite, 'infinite value')}; leave these rows out"
    if profile.kind != "text" and tally.minimum == tally.maximum != 1:
        return f"which {_described(profile)}: there is nothing to learn; name another column"
    return ""


def _described(profile: Profile) -> str:
    tally = profile.first.tally(profile.name)
    if profile.kind == "text":
        return f"has {plural(profile.different, 'different text')}"
    if tally.minimum == tally.maximum:
        return f"is always {tally.minimum:g}"
    return f"has numbers from {tally.minimum:g} to {tally.maximum:g}"


def _is_binary(profile: Profile) -> bool:
    """Returns whether the values of a column are 0, 1 and null."""
    if profile.kind not in ("integer", "number"):
        return False
    tally = profile.first.tally(profile.name)
    return {*np.unique(profile.finite(profile.first))} <= {0, 1} and (tally.minimum, tally.maximum) == (0, 1)


def _named_like_a_label(name: str) -> bool:
    return LABEL.fullmatch(plain(name)) is not None


def plain(name: str) -> str:
    """Returns the name of a column with an underscore for whatever is no letter or digit, as patterns expect."""
    return re.sub(r"\W+", "_", name)


def short(value: float) -> float:
    """Returns a number with four digits."""
    return float(f"{value:.4g}")
