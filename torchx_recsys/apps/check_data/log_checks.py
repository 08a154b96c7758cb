"""Checks of histories that are gathered from a log: the order of the log, and what samples find in it."""

from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.finding import Finding, percent
from torchx_recsys.apps.check_data.reading import Measured
from trainer.config.history import HistoryConfig
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.data.history.columns import HistoryColumns, history_columns
from trainer.data.history.gather import Gatherer
from trainer.data.history.gather import Measured as Found
from trainer.rules.plain_types import plain_type

UNKNOWN = 0.5  # share of samples with users that the log lacks from which that is a warning


def check_log(checked: Checked) -> Iterator[Finding]:
    """Finds a log of histories whose events are not in the order of user and time."""
    if not (columns := _columns(checked)) or not columns.log.is_mapped:
        return
    places = columns.log.places_out_of_order()
    if len(places):
        found = (
            f"{plural(len(places), 'event')} are earlier than the event of the user before, first event {places[0]:,}"
        )
        yield Finding("error", "log out of order", columns.log.name, columns.log.time, found, "write it by sort-log")


def check_gathered(checked: Checked) -> Iterator[Finding]:
    """Finds samples whose users or times do not go with the log; says how many histories are empty, short and cut."""
    if not (columns := _columns(checked)):
        return
    user, time = columns.config.reads
    for measured in checked.splits:
        if not {user, time} <= {*measured.sample.column_names}:
            continue
        users = measured.sample[user].combine_chunks()
        found = Gatherer(columns, ()).measure(users, _times(measured, time), _refuse)
        if (unknown := int((found.known == 0).sum())) > UNKNOWN * len(users):
            text = f"{percent(unknown, len(users))} of the rows have a user without any event in the log"
            yield Finding("warning", "users without events", measured.name, user, text, "sort a log with their events")
        if found.known.any():
            yield from _apart(measured, time, found, measured is checked.first)
        yield _described(measured.name, found, columns.config)


def _apart(measured: Measured, time: str, found: Found, is_first: bool) -> Iterator[Finding]:
    """Finds times of samples that lie outside of those of the log."""
    remedy = "write times of samples and events in the same unit and zone, or sort a log with events around the samples"
    if not found.before.any():
        text = "no row is later than an event of its user in the log"
        yield Finding("error", "times apart", measured.name, time, text, remedy)
    elif is_first and (found.before == found.known).all():
        text = "every row is later than all events of its user in the log"
        yield Finding("warning", "times apart", measured.name, time, text, remedy)


def _described(name: str, found: Found, config: HistoryConfig) -> Finding:
    assert config.length
    kept, most = found.kept, config.length

    def share(rows: np.ndarray) -> str:
        return percent(rows.sum(), len(rows))

    text = (
        f"{share(kept == 0)} are empty, {share((kept > 0) & (kept < most))} shorter than {most:,}, "
        f"{share(kept < found.before)} leave out earlier events; {kept.mean():,.1f} events on average, {kept.max():,} "
        f"at most; {share(found.at > 0)} of the rows have events at their own time, which no history has"
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
