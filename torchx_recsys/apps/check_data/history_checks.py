"""Checks of histories: actions at or after the time of their row, unknown when a model predicts."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.finding import Finding, percent
from trainer.core.console import plural
from trainer.rules.plain_types import list_lengths

LATE = 0.001  # share of rows from which late actions are an error


def check_late_actions(checked: Checked) -> Iterator[Finding]:
    """Finds lists of times that reach the time of their row or go beyond it: the model learns from the future."""
    for times, now, rule in _times(checked):
        for measured in checked.splits:
            lists, ends = (measured.sample.column(name).combine_chunks() for name in (times, now))
            row = np.repeat(np.arange(len(ends)), list_lengths(lists))
            after = _numbers(lists.flatten()) - _numbers(ends)[row]
            rows = len(np.unique(row[after >= 0]))  # a null is NaN, and so not late
            if not rows:
                continue
            found = (
                f"{percent(rows, len(ends))} of the rows have a time at or after {now}, up to "
                f"{plural(int(np.nanmax(after)), 'second')} after it"
            )
            # Times do not order actions within the second of their row; `check_own_ids` finds the row's own action.
            later = len(np.unique(row[after > 0]))
            severity = "error" if later > LATE * len(ends) else "warning"
            remedy = f"end the lists before {now}, or let training do so: times = '{times}', before = '{now}'"
            if rule:
                severity, remedy = "note", f"data.sparse.{rule} leaves these out; look at how the lists are made"
            yield Finding(severity, "late actions", measured.name, times, found, remedy)


def _times(checked: Checked) -> Iterator[tuple[str, str, str | None]]:
    """Yields columns of times with the column of the row's time, and a feature that drops late ids."""
    config, raw = checked.config, checked.config.raw
    filtered = {one.times: (str(one.before), name) for name, one in config.sparse.items() if one.times}
    pairs = {
        times: (now, None)
        for times, length in raw.items()
        for now, one in raw.items()
        if length > 1 and one == 1 and times not in filtered
    }
    for times, (now, rule) in (pairs | filtered).items():
        kinds = [checked.profiles[name].kind if name in checked.profiles else "" for name in (times, now)]
        if kinds == ["integers", "integer"]:
            yield times, now, rule


OWN = 0.9
OF_LISTS = {"integers": "integer", "texts": "text"}


def check_own_ids(checked: Checked) -> Iterator[Finding]:
    """Finds lists that begin or end with the id of the row itself: the history has the action to predict."""
    sparse = checked.config.sparse
    for profile in (one for one in checked.of(sparse) if one.kind in OF_LISTS):
        for other in (one for one in checked.of(sparse) if one.kind == OF_LISTS[profile.kind]):
            if sparse[profile.name].rows != sparse[other.name].rows:
                continue
            lists, ids = (profile.first.sample.column(name).combine_chunks() for name in (profile.name, other.name))
            shares = _shares_of_own(lists, ids)
            place = max(shares, key=lambda place: shares[place])
            if shares[place] > OWN:
                found = f"its {place} id is the row's own {other.name} in {percent(shares[place])} of the rows"
                remedy = (
                    f"end the list before the row's own action, or let training take it out: without = '{other.name}'"
                )
                yield Finding("error", "own id in history", profile.first.name, profile.name, found, remedy)


def _shares_of_own(lists: pa.LargeListArray, ids: pa.Array) -> dict[str, float]:
    """Returns how often the last and the first id of the list are the row's id, among rows that have both."""
    has_both = (list_lengths(lists) > 0) & ids.is_valid().to_numpy(zero_copy_only=False)
    lists, ids = lists.filter(pa.array(has_both)), ids.filter(pa.array(has_both))
    stops = np.cumsum(list_lengths(lists))
    found = {}
    for place, at in (("last", stops - 1), ("first", np.concatenate([[0], stops])[:-1])):
        same = pc.equal(lists.flatten().take(pa.array(at)), ids)  # pyrefly: ignore[missing-attribute]
        found[place] = float(same.fill_null(False).to_numpy(zero_copy_only=False).mean()) if len(same) else 0.0
    return found


def _numbers(column: pa.Array) -> np.ndarray:
    """Returns integers as float64, `[N]`, with NaN for null."""
    return column.to_numpy(zero_copy_only=False).astype(np.float64)
