"""Findings about the tables of ids: too small, too large, and ids that nothing can be learned of."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from apps.check_data.finding import Finding, percent
from apps.check_data.ids import Ids
from apps.check_data.profile import Profile
from trainer.config.data import DataConfig, SparseFeature
from trainer.core.plural import plural
from trainer.data.hashing import as_integers, mix
from trainer.data.transforms import salted

ENOUGH = 1000  # ids of a sample, for its figures to mean anything
UNIQUE = 0.9
SHARED = 0.5
TOO_LARGE = 20
SMALL = 10_000  # rows of a table of which nobody minds how many are used
UNKNOWN = 0.95


def check_tables(config: DataConfig, profile: Profile) -> Iterator[Finding]:
    """Yields what is wrong with the ids of a sparse feature and the size of its table."""
    if profile.name not in config.sparse:
        return
    ids, whole = profile.first_ids, profile.first.is_whole
    if len(ids.codes) >= ENOUGH and len(ids.distinct) > UNIQUE * len(ids.codes):
        found = f"{len(ids.distinct):,} different ids among {len(ids.codes):,}: they hardly repeat"
        remedy = "leave it out: what is learned of an id is never used again"
        # Of many users, a sample has each but once though all rows have many.
        yield Finding(
            "warning" if whole else "note", "as good as unique", profile.first.name, profile.name, found, remedy
        )
    yield from _check_size(profile, ids, config.sparse[profile.name], whole)
    yield from _check_known(profile)


def _check_size(profile: Profile, ids: Ids, feature: SparseFeature, whole: bool) -> Iterator[Finding]:
    name, where, distinct = profile.name, profile.first.name, len(ids.distinct) if whole else ids.estimated
    amount = plural(distinct, "different id")
    amount = amount if whole else f"about {amount}, estimated"
    scattered = feature.ids == "modulo" and profile.first.tally(name).maximum >= 2 * feature.rows  # else: wraps around
    if feature.ids == "hash" or scattered:
        shared = 1 - np.exp((distinct - 1) * np.log1p(-1 / feature.rows)) if feature.rows > 1 else 1.0
        if shared > SHARED and distinct > 1:
            rows = plural(feature.rows, "row")
            found = f"{amount} in {rows}: {percent(shared)} of the ids share their row with others"
            remedy = f"set data.sparse.{name}.rows to {suggested_rows(ids.distinct, distinct)}"
            yield Finding("warning", "table too small", where, name, found, remedy)
        elif feature.ids == "hash" and (sharing := _sharing(ids.distinct, feature.rows, feature.salt)):
            found = f"{sharing:,} of {plural(len(ids.distinct), 'different id')} share their row by their hash"
            remedy = "make a vocabulary of it, in which each id has its own row (python -m trainer vocabulary)"
            if (rows := suggested_rows(ids.distinct, distinct)) > feature.rows:
                remedy += f", or set data.sparse.{name}.rows to {rows}"
            yield Finding("note", "shared rows", where, name, found, remedy)
    if feature.rows > max(SMALL, TOO_LARGE * distinct) and whole:
        found = f"{amount} in {feature.rows:,} rows: most rows are never used"
        yield Finding("note", "table too large", where, name, found, f"set data.sparse.{name}.rows lower")


def _check_known(profile: Profile) -> Iterator[Finding]:
    for measured in profile.measured[1:]:
        ids = profile.ids[measured.name]
        unknown = 1 - profile.known(measured)
        if len(ids.codes) >= ENOUGH and unknown > SHARED:
            found = f"{percent(unknown)} of the ids are not among those of {profile.first.name}"
            severity = "warning" if unknown > UNKNOWN and profile.first.is_whole else "note"
            remedy = "check that both splits number their ids alike; of unseen ids nothing is known"
            yield Finding(severity, "unseen ids", measured.name, profile.name, found, remedy)


def suggested_rows(ids: pa.Array, distinct: int) -> int:
    """Returns rows for a table of hashed ids: a power of two, of at least twice as many.

    More in a small table, until no two ids share a row: of a few ids, chance gives two the same one sooner than not.

    Args:
        ids: The different ids that are known.
        distinct: How many there are.
    """
    rows = 2 ** int(np.ceil(np.log2(max(4, 2 * distinct))))
    while 2 * rows <= SMALL and _sharing(ids, rows):
        rows *= 2
    return rows


def _sharing(ids: pa.Array, rows: int, salt: int = 0) -> int:
    """Returns how many ids share their row of a table with another one by their hash."""
    _, counts = np.unique(mix(salted(as_integers(ids), salt)) % np.uint64(rows), return_counts=True)
    return int(counts[counts > 1].sum())
