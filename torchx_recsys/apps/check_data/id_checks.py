"""Checks of ids that do not fit their table, hardly repeat, or are unknown from training."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.finding import Finding, percent
from torchx_recsys.apps.check_data.profile import Profile
from torchx_recsys.apps.check_data.reading import Measured
from trainer.config.features import SparseFeature
from trainer.core.arrays import mix
from trainer.core.console import plural
from trainer.rules.hashing import as_integers, salted


def check_outside(checked: Checked) -> Iterator[Finding]:
    """Finds ids beyond their table with `ids = "error"`: training refuses them."""
    for profile, measured, tally in checked.columns(checked.config.sparse):
        feature = checked.config.sparse[profile.name]
        if feature.ids == "error" and tally.has_values and (tally.minimum < 0 or tally.maximum >= feature.rows):
            found = f"{_range(profile, measured, feature)}, {_outside(profile, measured, feature)} outside"
            remedy = f"set data.sparse.{profile.name}.rows to {tally.maximum + 1:.0f}, or ids to 'hash'"
            yield Finding("error", "outside the table", measured.name, profile.name, found, remedy)


def check_wraps_around(checked: Checked) -> Iterator[Finding]:
    """Finds ids slightly beyond their table with `ids = "modulo"`: few ids share rows, probably by mistake."""
    for profile, measured, tally in checked.columns(checked.config.sparse):
        feature = checked.config.sparse[profile.name]
        if feature.ids == "modulo" and tally.minimum >= 0 and feature.rows <= tally.maximum < 2 * feature.rows:
            share = _outside(profile, measured, feature)
            found = f"{_range(profile, measured, feature)}: {share} share others' rows"
            remedy = f"set data.sparse.{profile.name}.rows to {tally.maximum + 1:.0f}, so that none shares a row"
            yield Finding("warning", "wraps around", measured.name, profile.name, found, remedy)


def _range(profile: Profile, measured: Measured, feature: SparseFeature) -> str:
    tally = measured.tally(profile.name)
    return f"ids from {tally.minimum:.0f} to {tally.maximum:.0f} in a table of {plural(feature.rows, 'row')}"


def _outside(profile: Profile, measured: Measured, feature: SparseFeature) -> str:
    ids, counts = profile.ids[measured.name].distinct.to_numpy(zero_copy_only=False), profile.ids[measured.name].counts
    return percent(int(counts[(ids < 0) | (ids >= feature.rows)].sum()), int(counts.sum()))


ENOUGH = 1000  # minimum number of ids in a sample for meaningful figures
UNIQUE = 0.9


def check_unique(checked: Checked) -> Iterator[Finding]:
    """Finds columns whose ids hardly repeat: what training learns about an id is never used again."""
    for profile in checked.of(checked.config.sparse):
        distinct, values = len(profile.first_ids.distinct), len(profile.first_ids.codes)
        if counted := profile.counted:
            distinct, values = profile.distinct, profile.first.tally(profile.name).values
        if values >= ENOUGH and distinct > UNIQUE * values:
            about = "" if profile.is_distinct_exact or not counted else "about "
            found = f"{about}{distinct:,} different ids among {values:,}: they hardly repeat"
            remedy = "leave it out: what is learned of an id is never used again"
            # A sample of many users may have each user once, though all rows have each user many times.
            severity = "warning" if profile.knows_all_ids else "note"
            yield Finding(severity, "as good as unique", profile.first.name, profile.name, found, remedy)


SHARED = 0.5


def check_small_tables(checked: Checked) -> Iterator[Finding]:
    """Finds tables in which most ids share a row by chance."""
    for profile in checked.of(checked.config.sparse):
        feature = checked.config.sparse[profile.name]
        if (shared := _shared_by_chance(profile, feature)) > SHARED:
            rows = plural(feature.rows, "row")
            found = f"{_amount(profile)} in {rows}: {percent(shared)} of the ids share their row with others"
            remedy = f"set data.sparse.{profile.name}.rows to {suggested_rows(profile)}"
            yield Finding("warning", "table too small", profile.first.name, profile.name, found, remedy)


def check_shared_rows(checked: Checked) -> Iterator[Finding]:
    """Finds ids whose hashes share a row although the table is large enough."""
    for profile in checked.of(checked.config.sparse):
        feature, ids = checked.config.sparse[profile.name], profile.first_ids.distinct
        if feature.ids != "hash" or _shared_by_chance(profile, feature) > SHARED:
            continue
        if sharing := _sharing(ids, feature.rows, feature.salt):
            found = f"{sharing:,} of {plural(len(ids), 'different id')} share their row by their hash"
            remedy = "make a vocabulary of it, in which each id has its own row (python -m trainer vocabulary)"
            if (rows := suggested_rows(profile)) > feature.rows:
                remedy += f", or set data.sparse.{profile.name}.rows to {rows}"
            yield Finding("note", "shared rows", profile.first.name, profile.name, found, remedy)


def _shared_by_chance(profile: Profile, feature: SparseFeature) -> float:
    """Returns the expected share of ids that share a row, if rows are assigned by chance; else 0."""
    scattered = feature.ids == "modulo" and profile.first.tally(profile.name).maximum >= 2 * feature.rows
    if profile.distinct < 2 or not (feature.ids == "hash" or scattered):
        return 0.0
    return 1 - np.exp((profile.distinct - 1) * np.log1p(-1 / feature.rows)) if feature.rows > 1 else 1.0


TOO_LARGE = 20  # rows of a table that is too large, as a multiple of its ids
SMALL = 10_000  # tables with fewer rows are not checked: their unused rows do not matter


def check_large_tables(checked: Checked) -> Iterator[Finding]:
    """Finds tables most of whose rows are never used."""
    for profile in checked.of(checked.config.sparse):
        rows = checked.config.sparse[profile.name].rows
        if profile.knows_all_ids and rows > max(SMALL, TOO_LARGE * profile.distinct):
            found = f"{_amount(profile)} in {rows:,} rows: most rows are never used"
            remedy = f"set data.sparse.{profile.name}.rows lower"
            yield Finding("note", "table too large", profile.first.name, profile.name, found, remedy)


def _amount(profile: Profile) -> str:
    amount = plural(profile.distinct, "different id")
    if profile.is_distinct_exact:
        return amount
    return f"about {amount}" if profile.counted else f"about {amount}, estimated"


UNSEEN, UNKNOWN = 0.5, 0.95


def check_unseen_ids(checked: Checked) -> Iterator[Finding]:
    """Finds splits with many ids that training never sees."""
    for profile in checked.of(checked.config.sparse):
        for measured in profile.measured[1:]:
            unknown = 1 - profile.known(measured)
            if len(profile.ids[measured.name].codes) >= ENOUGH and unknown > UNSEEN:
                found = f"{percent(unknown)} of the ids are not among those of {profile.first.name}"
                severity = "warning" if unknown > UNKNOWN and profile.first.is_whole else "note"
                remedy = "check that both splits number their ids alike; of unseen ids nothing is known"
                yield Finding(severity, "unseen ids", measured.name, profile.name, found, remedy)


WRAPPED = 2**31


def check_wrapped_ids(checked: Checked) -> Iterator[Finding]:
    """Finds ids above 2^31 that became negative in 32 bits: other data may have them unchanged.

    Hashes of 32 bits are negative, too, but spread over the whole range; consecutive numbers do not reach -1.
    """
    for profile in (one for one in checked.of(checked.config.sparse) if one.kind == "integer"):
        tally, ids = profile.first.tally(profile.name), profile.first_ids.distinct.to_numpy(zero_copy_only=False)
        ends = -WRAPPED <= tally.minimum < -0.9 * WRAPPED and 0.9 * WRAPPED < tally.maximum < WRAPPED
        if ends and not ((ids < 0) & (ids > -WRAPPED // 2)).any():
            found = f"ids from {tally.minimum:.0f} to {tally.maximum:.0f}: those above 2^31 wrapped around in 32 bits"
            remedy = "write 64-bit integers; of the negative ids, 2^32 is missing"
            yield Finding("warning", "wrapped ids", profile.first.name, profile.name, found, remedy)


def suggested_rows(profile: Profile) -> int:
    """Returns the rows of a table for hashed ids: a power of two, at least twice the number of ids.

    A small table gets more rows, until no two ids share a row: even a few ids are likely to collide.
    """
    rows = 2 ** int(np.ceil(np.log2(max(4, 2 * profile.distinct))))
    while 2 * rows <= SMALL and _sharing(profile.first_ids.distinct, rows):
        rows *= 2
    return rows


def _sharing(ids: pa.Array, rows: int, salt: int = 0) -> int:
    """Returns how many ids have a hash that shares its row with another id."""
    _, counts = np.unique(mix(salted(as_integers(ids), salt)) % np.uint64(rows), return_counts=True)
    return int(counts[counts > 1].sum())
