"""The order of an epoch: windows hold each row of a lane once, and an order never changes."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.dataset import RowGroup
from trainer.data.epoch_order import RowSlice, ends_of, epoch_order, row_slices, window_order, windows

row_groups = st.lists(st.integers(1, 50), min_size=1, max_size=12).map(
    lambda sizes: [RowGroup(0, index, rows) for index, rows in enumerate(sizes)]
)


def rows_of(found: list[RowSlice]) -> list[tuple[RowGroup, int]]:
    return [(span.group, row) for span in found for row in range(span.start, span.stop)]


@given(row_groups, st.integers(1, 120))
def test_windows_partition_a_lane(groups, size):
    lane = [RowSlice(group, group.index % 3 % group.rows, group.rows) for group in groups]
    found = list(windows(lane, size))
    assert rows_of([span for window in found for span in window.row_slices]) == rows_of(lane)
    assert [window.number for window in found] == list(range(len(found)))
    assert [window.start for window in found] == [0, *(window.stop for window in found[:-1])]
    assert all(1 <= len(window) <= size for window in found)


@given(row_groups, st.integers(50, 120))
def test_windows_hold_whole_row_groups_where_they_fit(groups, size):
    found = list(windows([RowSlice(group, 0, group.rows) for group in groups], size))
    assert [span.group for window in found for span in window.row_slices] == groups
    assert all(
        len(window) + following.row_slices[0].group.rows > size for window, following in itertools.pairwise(found)
    )


@given(row_groups, st.data())
def test_spans_are_the_rows_asked_for(order, data):
    rows = sum(group.rows for group in order)
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    sequence = [(group, row) for group in order for row in range(group.rows)]
    assert rows_of(row_slices(order, ends_of(order), start, stop)) == sequence[start:stop]


def test_an_epoch_has_its_own_order():
    groups = [RowGroup(0, index, 10) for index in range(50)]
    order = epoch_order(groups, seed=1, epoch=2, shuffle=True)
    assert order == epoch_order(groups, seed=1, epoch=2, shuffle=True)
    assert sorted(order, key=lambda group: group.index) == groups
    others = [epoch_order(groups, *key, shuffle=True) for key in ((1, 3), (2, 2), (2, 1))]
    assert all(order != other for other in [*others, groups])
    assert epoch_order(groups, 1, 2, shuffle=False) == groups


def test_window_orders_differ_from_one_another():
    keys = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    orders = [tuple(window_order(100, *key)) for key in keys]
    assert len(set(orders)) == len(orders)
    assert all(sorted(order) == list(range(100)) for order in orders)
    np.testing.assert_array_equal(window_order(6, 7, 1, 2, 3), window_order(6, 7, 1, 2, 3))


def test_window_order_is_the_same_everywhere():
    """Checkpoints hold a step and no rows, so this order may never change."""
    assert window_order(8, 0, 0, 0, 0).tolist() == [3, 1, 6, 7, 5, 2, 4, 0]
    assert window_order(12, 7, 1, 2, 3).tolist() == [7, 4, 10, 5, 6, 8, 3, 2, 11, 0, 1, 9]


def test_window_orders_are_random():
    """Over many windows, a row's place is on average in the middle, and says nothing about its neighbours' places."""
    places = np.array([np.argsort(window_order(64, 0, 0, 0, window)) for window in range(4000)])
    assert abs(places.mean(axis=0) - 31.5).max() < 5 * 18.5 / 4000**0.5
    assert abs(np.corrcoef(places[:, :8].T) + 1 / 63 - (1 + 1 / 63) * np.eye(8)).max() < 5 / 4000**0.5
