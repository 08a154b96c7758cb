"""The rows of managed ids, against a dict in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.rules.managed import COUNTS, EVICTED, FREE, HALF_LIFE, IDS, LAST_USED, OVERFLOWED, SHARED, USED, RowMap

BATCHES = st.lists(st.lists(st.integers(0, 12), max_size=14), max_size=12)
APART = st.sampled_from([1, 5, HALF_LIFE, 900])  # steps from a batch to the next
LET_GO_EVERY = st.sampled_from([None, 1, 2, 3])
RULES = st.sampled_from(["least_recent", "least_used"])


class Naive:
    """The same with a dict from ids to [row, last step, count]."""

    def __init__(self, rows, evict):
        self.rows, self.evict, self.known = rows, evict, {}
        self.let_go = set()
        self.evicted = self.overflowed = 0

    def aged(self, count, last, batch, step):
        return count // 2 ** ((step - last) * len(batch) // (HALF_LIFE * self.rows))

    def update(self, batch, step, unused_since=None):
        counts = {one: batch.count(one) for one in sorted(set(batch))}
        old = [one for one, (_, last, _) in self.known.items() if one not in counts]
        gone = (
            {} if unused_since is None else {one: self.known[one] for one in old if self.known[one][1] <= unused_since}
        )
        for one in gone:
            del self.known[one]
        self.evicted += len(gone)
        resting = {row for row, _, _ in gone.values()}
        for one in counts.keys() & self.known.keys():
            row, last, count = self.known[one]
            self.known[one] = [row, step, self.aged(count, last, batch, step) + counts[one]]
        new = sorted(counts.keys() - self.known.keys(), key=lambda one: (-counts[one], one))
        taken = {row for row, _, _ in self.known.values()} | resting
        free = [row for row in range(1, self.rows) if row not in taken and row not in self.let_go]
        again = sorted(self.let_go)[: len(new)]
        free = again + free
        idle = [
            (row, last, self.aged(count, last, batch, step), one)
            for one, (row, last, count) in self.known.items()
            if one not in counts
        ]
        rule = (lambda x: (x[1], x[2], x[0])) if self.evict == "least_recent" else (lambda x: (x[2], x[1], x[0]))
        taken = sorted(idle, key=rule)[: max(0, len(new) - len(free))]
        for _, _, _, one in taken:
            del self.known[one]
        rows = free + sorted(row for row, *_ in taken)
        for row, one in zip(rows, new, strict=False):
            self.known[one] = [row, step, counts[one]]
        self.let_go = self.let_go - {*again} | resting
        self.evicted += len(taken)
        self.overflowed += max(0, len(new) - len(rows))
        return again + sorted(row for row, *_ in taken)


def contents(one):
    rows = np.flatnonzero(one.state[IDS] != FREE)
    return {int(one.state[IDS, row]): [int(row), *one.state[1:, row].tolist()] for row in rows}


def updates(one, batches, apart=1, let_go=None):
    """Takes batches as steps; every so many, ids that the steps since the last time did not have are let go."""
    return [
        one.update(
            *np.unique(np.array(batch, np.int64), return_counts=True), number * apart, since(number, apart, let_go)
        )
        for number, batch in enumerate(batches, 1)
    ]


def since(number, apart, let_go):
    return None if let_go is None or number % let_go else (number - let_go) * apart


@settings(max_examples=150, deadline=None)
@given(BATCHES, st.integers(2, 9), RULES, APART, LET_GO_EVERY, st.booleans())
def test_as_a_dict_would(batches, rows, evict, apart, let_go, resumed):
    ours, naive = RowMap(rows, evict), Naive(rows, evict)
    for number, batch in enumerate(batches, 1):
        unused = since(number, apart, let_go)
        if resumed:
            ours.forget_index()
        change = ours.update(*np.unique(np.array(batch, np.int64), return_counts=True), number * apart, unused)
        assert change.evicted.tolist() == naive.update(batch, number * apart, unused)
        assert contents(ours) == naive.known
        expected = [naive.known.get(one, [SHARED])[0] for one in range(13)]
        assert ours.rows_of(np.arange(13)).tolist() == expected
    assert ours.totals.tolist() == [len(naive.known), naive.evicted, naive.overflowed]


@settings(max_examples=80, deadline=None)
@given(BATCHES, st.integers(2, 9), RULES, st.integers(0, 12), LET_GO_EVERY)
def test_changes_can_be_undone_and_made_again(batches, rows, evict, kept, let_go):
    whole, part = RowMap(rows, evict), RowMap(rows, evict)
    changes = updates(whole, batches, let_go=let_go)
    updates(part, batches[:kept], let_go=let_go)
    after = whole.state.copy(), whole.totals.copy()
    for change in reversed(changes[kept:]):
        whole.undo(change)
    assert (whole.state == part.state).all()
    assert (whole.totals == part.totals).all()
    assert (whole.rows_of(np.arange(13)) == part.rows_of(np.arange(13))).all()
    for change in changes[kept:]:
        whole.redo(change)
    assert (whole.state == after[0]).all()
    assert (whole.totals == after[1]).all()


def test_the_largest_ids_and_numbers():
    one = RowMap(4, "least_recent")
    updates(one, [[2**63 - 1, 0, 0], [5, 7, 9]])
    assert contents(one) == {5: [3, 2, 1], 7: [1, 2, 1], 9: [2, 2, 1]}
    assert one.rows_of(np.array([2**63 - 1, 9, 0])).tolist() == [SHARED, 2, SHARED]
    assert one.totals[[USED, EVICTED, OVERFLOWED]].tolist() == [3, 2, 0]


@pytest.mark.parametrize(("evict", "kept"), [("least_recent", 2), ("least_used", 1)])
def test_the_two_rules_differ(evict, kept):
    one = RowMap(3, evict)
    updates(one, [[1, 1, 1], [2], [3]])
    assert kept in contents(one)
    assert one.state[COUNTS, one.rows_of(np.array([kept]))[0]] == (1 if kept == 2 else 3)
    assert one.state[LAST_USED].max() == 3


@pytest.mark.parametrize(("steps", "kept"), [(HALF_LIFE * 3, 1), (HALF_LIFE * 6, 2)])
def test_what_was_frequent_once_leaves_in_the_end(steps, kept):
    one = RowMap(3, "least_used")
    for step, id_, count in ((1, 1, 6), (steps, 2, 2), (steps + 1, 3, 1)):
        one.update(np.array([id_]), np.array([count]), step)
    assert kept in contents(one)
