"""Checks of times: days without rows, invalid times, mixed time zones, columns that change their meaning."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.figures import bucket_shares, edges_of, psi
from torchx_recsys.apps.check_data.finding import Finding, percent
from trainer.rules.plain_types import SECOND, plain_type


def check_time_zones(checked: Checked) -> Iterator[Finding]:
    """Finds times with a time zone in some files and another or none in others: they are hours apart."""
    for name in checked.profiles:
        zones = {}
        for measured in checked.splits:
            for file in measured.split.files.files:
                dtype = plain_type(file.schema.field(name).type) if name in file.schema.names else pa.null()
                if pa.types.is_timestamp(dtype):
                    zones.setdefault(dtype.tz or "no time zone", file.name)
        if len(zones) > 1:
            (first, _), (second, file), *_ = zones.items()
            found = f"its times are in {first}, and in {second} here"
            yield Finding("warning", "time zones", file, name, found, "write all times in UTC")


ENOUGH = 30  # minimum median of rows a day for a day without rows to count
RARE = 0.1  # maximum share of empty days; more of them follow a rule, such as weekends


def check_days(checked: Checked) -> Iterator[Finding]:
    """Finds days without rows between days with many: a job failed, or skips February 29."""
    for name, days in _days(checked):
        first, counts = int(days.min()), np.bincount(days - days.min())
        missing = np.flatnonzero(counts == 0)
        if len(missing) and np.median(counts) >= ENOUGH and len(missing) < RARE * len(counts):
            day = np.datetime64(first + int(missing[0]), "D")
            more = f" and {len(missing) - 1} more days" if len(missing) > 1 else ""
            found = f"no row is of {day}{more}; a day has {np.median(counts):.0f} of the rows that were looked at"
            yield Finding("warning", "missing days", checked.first.name, name, found, "write the rows of these days")


EPOCH = 0.001


def check_epoch(checked: Checked) -> Iterator[Finding]:
    """Finds times at the beginning of 1970, which stand for unknown times."""
    for name, days in _days(checked):
        share = float((days == 0).mean())
        if share > EPOCH and np.median(days) > 365:
            found = f"{percent(share)} of the times are of 1970-01-01: a 0 for a time that is not known"
            yield Finding("warning", "epoch", checked.first.name, name, found, "write a null instead")


ENDS = 20  # number of parts by time; the labels of the last one may be too young
YOUNG = 0.5  # fraction of every earlier part's mean label below which labels are too young


def check_young_labels(checked: Checked) -> Iterator[Finding]:
    """Finds labels that were still to come: they are events after their row, missing for the last rows."""
    for name, profile in checked.profiles.items():
        if profile.kind != "time":
            continue
        order = np.argsort(profile.numbers(checked.first))  # rows without a time are NaN, and come last
        order = order[: len(order) - checked.first.sample.column(name).null_count]
        if len(order) < ENDS * ROWS:
            continue
        for label, positive in profile.labels.items():
            *before, last = (positive[part].mean() for part in np.array_split(order, ENDS))
            if last < YOUNG * min(before):
                end = percent(1 / ENDS)
                found = f"its mean is {last:.3g} in the last {end} by {name}, and {min(before):.3g} or more before"
                remedy = "leave out the last rows until their labels have come, as the others' have"
                yield Finding("warning", "young labels", checked.first.name, label, found, remedy)


PARTS, ROWS = 8, 100
CHANGED, STEADY = 1.0, 0.25  # limits of population stability indices


def check_change(checked: Checked) -> Iterator[Finding]:
    """Finds numbers whose distribution changes at a row, and is steady before and after it.

    A unit or a source has changed, so that the same number means different things before and after.
    """
    for profile in checked.used("integer", "number"):
        values = profile.numbers(profile.first)
        if profile.name not in checked.config.dense or len(values) < PARTS * ROWS:
            continue
        edges = edges_of(profile.finite(profile.first))
        parts = [bucket_shares(part, edges) for part in np.array_split(values, PARTS)]
        steps = np.array([psi(one, other) for one, other in pairwise(parts)])
        largest = int(steps.argmax())
        if steps[largest] > CHANGED and np.delete(steps, largest).max() < STEADY:
            found = (
                f"after {percent((largest + 1) / PARTS)} of the rows its values are others: a population stability "
                f"index of {steps[largest]:.1f}, and below {STEADY} before and after"
            )
            remedy = "find out what was changed then, and write all rows in the same way"
            yield Finding("warning", "changed meaning", profile.first.name, profile.name, found, remedy)


DAY = 86_400


def _days(checked: Checked) -> Iterator[tuple[str, np.ndarray]]:
    """Yields each column of times in the sample of the first split, as days since 1970."""
    for name, profile in checked.profiles.items():
        dtype = plain_type(checked.dtype(name))
        if profile.kind == "time" and (pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)):
            ticks = SECOND[dtype.unit] if pa.types.is_timestamp(dtype) else 1000  # dates are computed as date64
            found = checked.first.sample.column(name).drop_null().to_numpy()
            if len(found):
                yield name, found // (DAY * ticks)
