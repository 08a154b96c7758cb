"""Checks of histories that are gathered from a log: the order of the log, and what samples find in it."""

from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.finding import Finding, percent
from torchx_recsys.apps.check_data.reading import Measured
from torchx_recsys.apps.sort_log.digests import fingerprint_of
from trainer.config.history import HistoryConfig
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.data.history.columns import HistoryColumns, history_columns
from trainer.data.history.gather import EventCounts, Gatherer
from trainer.rules.plain_types import plain_type

UNKNOWN = 0.5  # share of samples with users that the log lacks from which that is a warning


def check_log(checked: Checked) -> Iterator[Finding]:
    """Finds a log of histories whose events are not in the order of user and time, or not those that were written."""
    if not (columns := _columns(checked)) or not columns.log.is_mapped:
        return
    places = columns.log.places_out_of_order()
    if len(places):
        found = (
            f"{plural(len(places), 'event')} are earlier than the event of the user before, first event {places[0]:,}"
        )
        yield Finding("error", "log out of order", columns.log.name, columns.log.time, found, "write it by sort-log")
    elif fingerprint_of(columns.log) != columns.log.fingerprint:
        found = "its files are damaged: their events do not have the fingerprint that is in log.json"
        yield Finding("error", "damaged log", columns.log.name, "", found, "write it again by sort-log")


def check_gathered(checked: Checked) -> Iterator[Finding]:
    """Finds samples whose users or times do not go with the log; says how many histories are empty, short and cut."""
    if not (columns := _columns(checked)):
        return
    user, time = columns.config.reads
    for measured in checked.splits:
        if not {user, time} <= {*measured.sample.column_names}:
            continue
        users = measured.sample[user].combine_chunks()
        counts = Gatherer(columns, ()).measure(users, _times(measured, time), _refuse)
        if (unknown := int((counts.known == 0).sum())) > UNKNOWN * len(users):
            text = f"{percent(unknown, len(users))} of the rows have a user without any event in the log"
            yield Finding("warning", "users without events", measured.name, user, text, "sort a log with their events")
        if counts.known.any():
            yield from _times_outside(measured, time, counts, measured is checked.first)
        yield _described(measured.name, counts, columns.config)


def _times_outside(measured: Measured, time: str, counts: EventCounts, is_first: bool) -> Iterator[Finding]:
    """Finds times of samples that lie outside of those of the log."""
    remedy = "write times of samples and events in the same unit and zone, or sort a log with events around the samples"
    if not counts.before.any():
        text = "no row is later than an event of its user in the log"
        yield Finding("error", "times apart", measured.name, time, text, remedy)
    elif is_first and (counts.before == counts.known).all():
        text = "every row is later than all events of its user in the log"
        yield Finding("warning", "times apart", measured.name, time, text, remedy)


def _described(name: str, counts: EventCounts, config: HistoryConfig) -> Finding:
    assert config.length
    kept, most = counts.kept, config.length

    def share(rows: np.ndarray) -> str:
        return percent(rows.sum(), len(rows))

    text = (
        f"{share(kept == 0)} are empty, {share((kept > 0) & (kept < most))} shorter than {most:,}, "
        f"{share(kept < counts.before)} leave out earlier events; {kept.mean():,.1f} events on average, {kept.max():,} "
        f"at most; {share(counts.at > 0)} of the rows have events at their own time, which no history has"
    )
    return Finding("note", "histories", name, "", text, "set data.history.length to what the model reads")


def _columns(checked: Checked) -> HistoryColumns | None:
    return history_columns(checked.config)


def _times(measured: Measured, name: str) -> pa.Array:
    """Returns the times of the sample in their own type, of which the sample has integers."""
    ticks, dtype = (
        measured.sample[name].combine_chunks(),
        plain_type(measured.split.files.files[0].schema.field(name).type),
    )
    if pa.types.is_date(dtype):
        return ticks.cast(pa.timestamp("ms"))
    return ticks.cast(pa.timestamp(dtype.unit)) if pa.types.is_timestamp(dtype) else ticks


def _refuse(message: str, row: int) -> NoReturn:
    raise InputError(message)
