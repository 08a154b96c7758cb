"""Checks of text ids: different spellings of the same id, broken encodings, numbers and nulls as text."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.figures import readable
from torchx_recsys.apps.check_data.finding import Finding, percent
from torchx_recsys.apps.check_data.profile import Profile
from trainer.core.console import plural
from trainer.rules.plain_types import is_list, plain_type

FEW = 0.001  # minimum share of occurrences for a finding
ALIKE = str.maketrans("АВЕКМНОРСТХасеорхуіјѕΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABEKMHOPCTXaceopxyijsABEZHIKMNOPTYXo")  # noqa: RUF001


def check_look_alikes(checked: Checked) -> Iterator[Finding]:
    """Finds ids that look the same to a reader: composed or not, Cyrillic or Latin, with or without a blank.

    Each has its own row, so training learns them separately.
    """
    for profile in checked.used("text", "texts"):
        alike = defaultdict(list)
        for place, text in _texts(profile):
            looks = " ".join(unicodedata.normalize("NFKC", text).split())
            # A look-alike mixes two scripts; a word in one script is genuine.
            latin = looks.translate(ALIKE)
            alike[latin if latin.isascii() else looks].append((place, text))
        groups = [group for group in alike.values() if len(group) > 1]
        rarer = [place for group in groups for place, _ in sorted(group, key=lambda one: -_count(profile, one[0]))[1:]]
        if _share(profile, rarer) > FEW:
            one, other, *_ = (text for _, text in groups[0])
            found = f"{plural(len(rarer), 'id')} of {len(alike):,} look like others, such as {one!a} and {other!a}"
            remedy = "write them in one way: normalize to NFKC, strip blanks, and use one script"
            yield Finding("warning", "look-alikes", profile.first.name, profile.name, found, remedy)


# UTF-8 that was read as Latin-1, and bytes that could not be read at all.
BROKEN = re.compile("[ÃÂ][\u0080-\u00bf]|â€|\ufffd")


def check_broken_text(checked: Checked) -> Iterator[Finding]:
    """Finds texts decoded with a wrong encoding: correct data will have other ids."""
    for profile in checked.used("text", "texts"):
        broken = [(place, text) for place, text in _texts(profile) if BROKEN.search(text)]
        if not _is_binary(checked.dtype(profile.name)):
            broken += _undecodable(profile)
        if (share := _share(profile, [place for place, _ in broken])) > FEW:
            found = f"{percent(share)} of the values are in a wrong encoding, such as {broken[0][1]!r}"
            remedy = "read them as UTF-8 where they are written, and write them again"
            yield Finding("warning", "broken text", profile.first.name, profile.name, found, remedy)


MANY = 0.01
NULLS = {"", "null", "none", "nan", "n/a", "na", "nil", "undefined", "-", "\\n"}


def check_nulls_as_text(checked: Checked) -> Iterator[Finding]:
    """Finds words for null: they are treated as an id, which mixes values missing for different reasons."""
    for profile in checked.used("text"):
        words = [(place, text) for place, text in _texts(profile) if text.strip().lower() in NULLS]
        if (share := _share(profile, [place for place, _ in words])) > MANY:
            found = f"{percent(share)} of the values are {words[0][1]!r}, which is an id and no null"
            yield Finding(
                "warning",
                "null as text",
                profile.first.name,
                profile.name,
                found,
                "write a null where nothing is known",
            )


NUMBERS = 0.99
NUMBER = re.compile(r"[+-]?\d+\.\d+([eE][+-]?\d+)?")


def check_numbers_as_text(checked: Checked) -> Iterator[Finding]:
    """Finds texts that are decimal numbers: as ids, 0.5 and 0.50 are unrelated."""
    for profile in checked.used("text"):
        numbers = [(place, text) for place, text in _texts(profile) if NUMBER.fullmatch(text)]
        if _share(profile, [place for place, _ in numbers]) > NUMBERS:
            found = f"every value is a number, such as {numbers[0][1]!r}, written as text"
            yield Finding(
                "warning",
                "numbers as text",
                profile.first.name,
                profile.name,
                found,
                "write numbers, and use it as dense",
            )


def _texts(profile: Profile) -> Iterator[tuple[int, str]]:
    """Yields the distinct ids that are text, each with its index among the ids."""
    for place, value in enumerate(profile.first_ids.distinct.to_pylist()):
        with suppress(UnicodeDecodeError):
            yield place, value.decode()


def _undecodable(profile: Profile) -> Iterator[tuple[int, str]]:
    """Yields the ids that are not valid text."""
    texts = {place for place, _ in _texts(profile)}
    for place, value in enumerate(profile.first_ids.distinct.to_pylist()):
        if place not in texts:
            yield place, str(readable(value))


def _is_binary(dtype: pa.DataType) -> bool:
    plain = plain_type(dtype)
    plain = plain.value_type if is_list(plain) else plain
    return pa.types.is_binary(plain) or pa.types.is_large_binary(plain)


def _count(profile: Profile, place: int) -> int:
    return int(profile.first_ids.counts[place])


def _share(profile: Profile, places: list[int]) -> float:
    """Returns the share of these ids among all occurrences."""
    counts = profile.first_ids.counts
    return float(counts[np.array(places, np.int64)].sum() / max(1, counts.sum()))
