"""Checks of single columns: missing, constant or forbidden values, and ids that do not fit their table."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from apps.check_data.figures import Ids, middle_std
from apps.check_data.finding import Finding, percent
from apps.check_data.profile import Profile
from apps.check_data.reading import Measured, Tally
from trainer.config.data import DataConfig, DenseFeature, SparseFeature
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.splitmix import mix
from trainer.data.decode import Chunk, decode
from trainer.rules.hash import salted
from trainer.rules.strings import as_integers

MOSTLY_NULL = 0.9
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
HUGE = 1e6  # standard deviations
MOSTLY_ZERO = 0.5
ENOUGH = 1000  # ids that a sample needs before its figures mean anything
UNIQUE = 0.9
SHARED = 0.5
TOO_LARGE = 20
SMALL = 10_000  # rows of a table; unused rows of a smaller table do not matter
UNKNOWN = 0.95


def check_values(config: DataConfig, profile: Profile) -> Iterator[Finding]:
    """Yields findings on the values of a column that the configuration uses."""
    name = profile.name
    for measured in profile.measured:
        tally = measured.tally(name)
        if name in config.dense:
            yield from _check_feature(profile, measured, tally)
            yield from _check_number(profile, measured, tally, config.dense[name])
        if name in config.sparse:
            yield from _check_feature(profile, measured, tally)
            yield from _check_ids(profile, measured, tally, config.sparse[name])
        if name in config.labels:
            yield from _check_label(name, measured, tally, name in config.numeric_labels)
        if name == config.weight:
            yield from _check_weight(profile, measured, tally)


def _check_feature(profile: Profile, measured: Measured, tally: Tally) -> Iterator[Finding]:
    name, where = profile.name, measured.name
    if tally.values == 0:
        found = f"none of {plural(tally.rows, 'row')} has a value"
        yield Finding("warning", "all null", where, name, found, "leave it out")
        return
    if tally.nulls >= MOSTLY_NULL * tally.rows:
        share = percent(tally.nulls, tally.rows)
        yield Finding("warning", "mostly null", where, name, f"{share} of the rows have no value", "leave it out")
    if _is_constant(profile, measured, tally):
        value = measured.sample.column(name).drop_null()[0].as_py()
        yield Finding(
            "warning", "constant", where, name, f"every value is {value!r}", "leave it out: it carries no signal"
        )


def _is_constant(profile: Profile, measured: Measured, tally: Tally) -> bool:
    if tally.nulls or tally.rows < 2:
        return False
    if profile.kind in ("integer", "number"):
        return tally.minimum == tally.maximum and not tally.nan + tally.infinite
    return profile.kind == "text" and len(profile.ids[measured.name].distinct) == 1


def _check_number(profile: Profile, measured: Measured, tally: Tally, feature: DenseFeature) -> Iterator[Finding]:
    name, where = profile.name, measured.name
    yield from _not_finite(name, where, tally, "write a null where there is no number, and set 'missing'")
    largest = max(abs(tally.minimum), abs(tally.maximum)) if tally.has_values else 0.0
    finite = profile.finite(profile.first)
    spread = middle_std(finite) if len(finite) else 0.0
    if largest > LARGEST_FLOAT32:
        found = f"a value of {largest:.3g} is beyond float32, which ends at {LARGEST_FLOAT32:.3g}"
        yield Finding("error", "huge", where, name, found, "find out where it comes from, and write a null instead")
    elif spread > 0 and abs(largest - np.median(finite)) > HUGE * spread and feature.transform == "none":
        found = f"a value of {largest:.3g} is {largest / spread:.1g} standard deviations of all but the extremes"
        yield Finding("warning", "huge", where, name, found, "write a null instead, or use a transform")
    if tally.has_values and largest <= LARGEST_FLOAT32 and (refused := _refused(name, tally, feature)):
        remedy = f"set another data.dense.{name}.transform, or write a null instead"
        yield Finding("error", "transform", where, name, refused, remedy)


def _refused(name: str, tally: Tally, feature: DenseFeature) -> str:
    """Returns why training refuses the smallest or the largest value; empty if training takes both."""
    config = DataConfig(dense={name: feature}).model_copy(update={"labels": []})
    for value in (tally.minimum, tally.maximum):
        try:
            decode(Chunk(pa.table({name: [float(value)]}).column, range(1)), config, ())
        except InputError as error:
            return f"the value {value:g} is refused: {error}"
    return ""


def _not_finite(name: str, where: str, tally: Tally, remedy: str) -> Iterator[Finding]:
    for check, count in (("not a number", tally.nan), ("infinite", tally.infinite)):
        if count:
            found = f"{plural(count, 'value')} ({percent(count, tally.rows)})"
            yield Finding("error", check, where, name, found, remedy)


def _check_ids(profile: Profile, measured: Measured, tally: Tally, feature: SparseFeature) -> Iterator[Finding]:
    name, outside = profile.name, tally.minimum < 0 or tally.maximum >= feature.rows
    if not (tally.has_values and outside) or feature.ids not in ("error", "modulo"):
        return
    ids = profile.ids[measured.name].distinct.to_numpy(zero_copy_only=False)
    counts = profile.ids[measured.name].counts
    share = percent(int(counts[(ids < 0) | (ids >= feature.rows)].sum()), int(counts.sum()))
    found = f"ids from {tally.minimum:.0f} to {tally.maximum:.0f} in a table of {plural(feature.rows, 'row')}"
    if feature.ids == "error":
        remedy = f"set data.sparse.{name}.rows to {tally.maximum + 1:.0f}, or ids to 'hash'"
        yield Finding("error", "outside the table", measured.name, name, f"{found}, {share} outside", remedy)
    elif tally.minimum >= 0 and tally.maximum < 2 * feature.rows:
        remedy = f"set data.sparse.{name}.rows to {tally.maximum + 1:.0f}, so that none shares a row"
        yield Finding("warning", "wraps around", measured.name, name, f"{found}: {share} share others' rows", remedy)


def _check_label(name: str, measured: Measured, tally: Tally, numeric: bool) -> Iterator[Finding]:
    where = measured.name
    if tally.nulls:
        found = f"{plural(tally.nulls, 'row')} of {tally.rows:,} without a label"
        yield Finding("error", "label null", where, name, found, "leave these rows out")
    yield from _not_finite(name, where, tally, "leave these rows out")
    if not tally.has_values:
        return
    if not numeric and (tally.minimum < 0 or tally.maximum > 1):
        found = f"values from {tally.minimum:g} to {tally.maximum:g}; a label is in [0, 1]"
        yield Finding("error", "label range", where, name, found, "write 0 and 1, or name it in data.numeric_labels")
    elif tally.minimum == tally.maximum:
        found = f"every label is {tally.minimum:g}; there is nothing to learn"
        yield Finding("error", "label of one class", where, name, found, "look at how the label is made")


def _check_weight(profile: Profile, measured: Measured, tally: Tally) -> Iterator[Finding]:
    name, where = profile.name, measured.name
    if tally.nulls:
        found = f"{plural(tally.nulls, 'row')} without a weight"
        yield Finding("error", "weight null", where, name, found, "write 0 or 1")
    yield from _not_finite(name, where, tally, "write 0 or 1")
    if tally.has_values and tally.minimum < 0:
        found = f"the smallest weight is {tally.minimum:g}; none may be below 0"
        yield Finding("error", "weight negative", where, name, found, "look at how the weight is made")
    elif tally.has_values and tally.maximum == 0:
        yield Finding("error", "weight zero", where, name, "every weight is 0: nothing is learned", "leave it out")
    elif (share := float((profile.numbers(measured) == 0).mean())) > MOSTLY_ZERO:
        found = f"{percent(share)} of the rows weigh 0: they cost time and teach nothing"
        yield Finding("warning", "weight zero", where, name, found, "leave these rows out")


def check_tables(config: DataConfig, profile: Profile) -> Iterator[Finding]:
    """Yields findings on the ids of a sparse feature and on the size of its table."""
    if profile.name not in config.sparse:
        return
    ids, whole = profile.first_ids, profile.first.is_whole
    if len(ids.codes) >= ENOUGH and len(ids.distinct) > UNIQUE * len(ids.codes):
        found = f"{len(ids.distinct):,} different ids among {len(ids.codes):,}: they hardly repeat"
        remedy = "leave it out: what is learned of an id is never used again"
        # A sample of many users may have each user once, though all rows have each user many times.
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
    """Returns the rows of a table for hashed ids: a power of two, at least twice the number of ids.

    A small table gets more rows, until no two ids share a row: even a few ids are likely to collide.

    Args:
        ids: The known distinct ids.
        distinct: The number of distinct ids in all rows.
    """
    rows = 2 ** int(np.ceil(np.log2(max(4, 2 * distinct))))
    while 2 * rows <= SMALL and _sharing(ids, rows):
        rows *= 2
    return rows


def _sharing(ids: pa.Array, rows: int, salt: int = 0) -> int:
    """Returns how many ids share their row of a table with another id by their hash."""
    _, counts = np.unique(mix(salted(as_integers(ids), salt)) % np.uint64(rows), return_counts=True)
    return int(counts[counts > 1].sum())
