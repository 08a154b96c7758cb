"""Checks of rows and of columns beside each other: near copies, users in two splits, a column twice."""

from collections.abc import Iterator

import numpy as np

from apps.check_data.checked import Checked
from apps.check_data.finding import Finding, percent
from apps.check_data.reading import bits_of, hash_rows

COPIES = 0.01
SPREAD = 0.5  # different numbers, of all rows, that make a copy by chance unlikely
UNIQUE = 0.9
DIVIDED = 0.1  # of a split's users, known from the first split; if more are, the split is not by user
ENOUGH = 1000
WRAPPED = 2**31


def check_near_copies(checked: Checked) -> Iterator[Finding]:
    """Yields rows that only differ in a time or a number of the row: an event that was logged twice."""
    first = checked.first
    bits = {
        name: bits_of(first.sample.column(name).combine_chunks(), checked.profiles[name].kind)
        for name in _names(checked)
    }
    distinct = {name: len(np.unique(one)) / max(1, len(one)) for name, one in bits.items()}
    kept = [name for name in bits if not _numbers_rows(checked, name, distinct[name])]
    numbers = [name for name in kept if checked.profiles[name].kind == "number" and distinct[name] > SPREAD]
    if not numbers or len(kept) == len(bits) or first.sample.num_rows < ENOUGH:
        return
    rows = first.sample.num_rows
    copies = rows - len(np.unique(hash_rows([bits[name] for name in kept])))
    exact = rows - len(np.unique(hash_rows([*bits.values()])))
    if copies - exact > COPIES * rows:
        but = ", ".join(name for name in bits if name not in kept)
        found = f"{percent(copies - exact, rows)} of the rows are copies of others but for {but}"
        yield Finding("warning", "near copies", first.name, "", found, "keep one row of each event")


def check_users(checked: Checked) -> Iterator[Finding]:
    """Yields groups, such as users, of which a few are in two splits, where all others are in one.

    The split is meant to be by user; what was learned of these users makes metrics too good.
    """
    if not checked.first.is_whole:  # a sample lacks users that are there
        return
    for profile in (checked.profiles[name] for name in checked.config.groups if name in checked.profiles):
        for measured in profile.measured[1:]:
            there, here = profile.first_ids.distinct, profile.ids[measured.name].distinct
            known = len({*there.to_pylist()} & {*here.to_pylist()})
            if 0 < known < DIVIDED * len(here):
                found = f"{known:,} of {len(here):,} are in {profile.first.name}, too, and the others are not"
                yield Finding(
                    "warning", "users in two splits", measured.name, profile.name, found, "divide the rows by user"
                )


def check_twins(checked: Checked) -> Iterator[Finding]:
    """Yields features with the same values in every row: the second costs memory and time, and tells nothing."""
    seen: dict[bytes, str] = {}
    for profile in checked.used("integer", "number", "text"):
        column = profile.first.sample.column(profile.name).combine_chunks()
        bits = hash_rows([bits_of(column, profile.kind)]).tobytes()
        if len(column) >= ENOUGH and len(profile.first_ids.distinct) > 1 and bits in seen:
            found = f"it has the values of '{seen[bits]}' in every row that was looked at"
            yield Finding("warning", "same column", profile.first.name, profile.name, found, "leave one of them out")
        seen.setdefault(bits, profile.name)


def check_wrapped_ids(checked: Checked) -> Iterator[Finding]:
    """Yields ids above 2^31 that became negative in 32 bits: in other data they are other ids.

    Hashes of 32 bits are negative, too, but lie everywhere; numbers that count up do not reach -1.
    """
    for profile in checked.used("integer"):
        if profile.name not in checked.config.sparse:
            continue
        tally, ids = profile.first.tally(profile.name), profile.first_ids.distinct.to_numpy(zero_copy_only=False)
        ends = -WRAPPED <= tally.minimum < -0.9 * WRAPPED and 0.9 * WRAPPED < tally.maximum < WRAPPED
        if ends and not ((ids < 0) & (ids > -WRAPPED // 2)).any():
            found = f"ids from {tally.minimum:.0f} to {tally.maximum:.0f}: those above 2^31 wrapped around in 32 bits"
            remedy = "write 64-bit integers; of the negative ids, 2^32 is missing"
            yield Finding("warning", "wrapped ids", profile.first.name, profile.name, found, remedy)


def _names(checked: Checked) -> list[str]:
    return [name for name in checked.first.sample.column_names if name in checked.profiles]


def _numbers_rows(checked: Checked, name: str, distinct: float) -> bool:
    """Returns whether a column holds times, or a number or name of its own for each row."""
    kind = checked.profiles[name].kind
    return kind == "time" or (kind in ("integer", "text") and distinct > UNIQUE)
