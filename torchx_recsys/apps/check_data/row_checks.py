"""Checks that compare rows or columns: duplicates, users in two splits, identical columns."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pyarrow.compute as pc

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.finding import Finding, percent
from torchx_recsys.apps.check_data.hashes import different, hash_rows
from torchx_recsys.apps.check_data.profile import Profile
from trainer.core.errors import some_of

COPIES = 0.01


def check_duplicates(checked: Checked) -> Iterator[Finding]:
    """Finds splits with duplicate rows."""
    for measured in checked.splits:
        copies = len(measured.hashes) - len(different(measured.hashes))
        if copies > COPIES * len(measured.hashes):
            found = f"{percent(copies, len(measured.hashes))} of the rows are copies of others"
            yield Finding("warning", "duplicate rows", measured.name, "", found, "look at how the files are written")


def check_rows_of_others(checked: Checked) -> Iterator[Finding]:
    """Finds splits that share rows with an earlier split: metrics on rows seen in training mean nothing."""
    for earlier, measured in combinations(checked.splits, 2):
        again = int(np.isin(measured.hashes, earlier.hashes).sum())
        if again > COPIES * len(measured.hashes):
            found = f"{percent(again, len(measured.hashes))} of the rows are rows of {earlier.name}, too"
            remedy = "divide the rows before training: metrics on seen rows mean nothing"
            yield Finding("error", "rows in two splits", measured.name, "", found, remedy)


SPREAD = 0.5  # share of distinct numbers from which copies by chance are unlikely
UNIQUE = 0.9
ENOUGH = 1000


def check_near_copies(checked: Checked) -> Iterator[Finding]:
    """Finds rows that differ only in a time or a row number: probably events logged twice."""
    first, rows = checked.first, checked.first.sample.num_rows
    profiles = [checked.profiles[name] for name in first.sample.column_names if name in checked.profiles]
    kept = [one for one in profiles if not _numbers_rows(one, rows)]
    numbers = [one for one in kept if one.kind == "number" and one.different > SPREAD * rows]
    if not numbers or len(kept) == len(profiles) or rows < ENOUGH:
        return
    copies = rows - len(different(hash_rows([one.bits for one in kept])))
    exact = rows - len(different(hash_rows([one.bits for one in profiles])))
    if copies - exact > COPIES * rows:
        but = some_of(one.name for one in profiles if one not in kept)
        found = f"{percent(copies - exact, rows)} of the rows are copies of others but for {but}"
        yield Finding("warning", "near copies", first.name, "", found, "keep one row of each event")


def _numbers_rows(profile: Profile, rows: int) -> bool:
    """Returns whether a column has times, or a distinct number or name for each row."""
    return profile.kind == "time" or (profile.kind in ("integer", "text") and profile.different > UNIQUE * rows)


DIVIDED = 0.1  # share of a split's users known from the first split above which the split is not by user


def check_users(checked: Checked) -> Iterator[Finding]:
    """Finds groups, such as users, of which a few are in two splits and all others in one.

    The split is probably meant to be by user. Users in both splits make metrics too good.
    """
    if not checked.first.is_whole:  # a sample of rows lacks users that the split has
        return
    for profile in checked.of(checked.config.groups):
        for measured in profile.measured[1:]:
            there, here = profile.first_ids.distinct, profile.ids[measured.name].distinct
            known = pc.sum(pc.is_in(here, there)).as_py() or 0  # pyrefly: ignore[missing-attribute]
            if 0 < known < DIVIDED * len(here):
                found = f"{known:,} of {len(here):,} are in {profile.first.name}, too, and the others are not"
                yield Finding(
                    "warning", "users in two splits", measured.name, profile.name, found, "divide the rows by user"
                )


def check_twins(checked: Checked) -> Iterator[Finding]:
    """Finds features with equal values in every row: the second one costs memory and time, and adds no information."""
    seen: dict[bytes, str] = {}
    for profile in checked.used("integer", "number", "text"):
        bits = profile.bits.tobytes()
        if len(profile.bits) >= ENOUGH and len(profile.first_ids.distinct) > 1 and bits in seen:
            found = f"it has the values of '{seen[bits]}' in every row that was looked at"
            yield Finding("warning", "same column", profile.first.name, profile.name, found, "leave one of them out")
        seen.setdefault(bits, profile.name)
