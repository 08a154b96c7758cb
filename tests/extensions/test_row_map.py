"""The rows of managed ids, against a dict in plain Python."""

import itertools
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.extensions.managed_ids.blocks import Blocks
from trainer.extensions.managed_ids.eviction import COUNTS, IDS, LAST_USED
from trainer.extensions.managed_ids.row_map import EVICTED, HALF_LIFE, OVERFLOWED, USED, RowMap
from trainer.rules.managed import FREE, SHARED

BATCHES = st.lists(st.lists(st.integers(0, 12), max_size=14), max_size=12)
APART = st.sampled_from([1, 5, HALF_LIFE, 900])  # steps from a batch to the next
LET_GO_EVERY = st.sampled_from([None, 1, 2, 3])
RULES = st.sampled_from(["least_recent", "least_used"])
BLOCKS = st.builds(
    lambda number, rows, more: Blocks(number, (number + rows,)).grown(number + rows + more),
    *(st.integers(1, 3), st.integers(1, 7), st.integers(0, 4)),
)


class Naive:
    """The same with a dict from ids to [row, last step, count], block by block."""

    def __init__(self, blocks, evict):
        self.blocks, self.evict, self.known = blocks, evict, {}
        self.let_go = set()
        self.evicted = self.overflowed = self.seen = 0

    def aged(self, count, last, step):
        return count // 2 ** ((step - last) * self.seen // (HALF_LIFE * self.blocks.rows))

    def rows_of(self, block):
        found = {
            row
            for start, end in itertools.pairwise([0, *self.blocks.ends])
            for row in range(*(start + n * (end - start) // self.blocks.number for n in (block, block + 1)))
        }
        return found - {SHARED}

    def update(self, batch, step, unused_since=None, seen=None):
        self.seen = len(batch) if seen is None else seen
        old = [one for one in self.known if one not in batch]
        gone = (
            {} if unused_since is None else {one: self.known[one] for one in old if self.known[one][1] <= unused_since}
        )
        resting = {self.known.pop(one)[0] for one in gone}
        self.evicted += len(gone)
        found = [self.update_block(block, batch, step, resting) for block in range(self.blocks.number)]
        self.let_go |= resting
        return sorted(row for rows in found for row in rows)

    def update_block(self, block, batch, step, resting):
        mine = [one for one in sorted(set(batch)) if self.blocks.of_ids(np.array([one]))[0] == block]
        counts, rows = {one: batch.count(one) for one in mine}, self.rows_of(block)
        known = {one: entry for one, entry in self.known.items() if entry[0] in rows}
        for one in counts.keys() & known.keys():
            row, last, count = known[one]
            self.known[one] = [row, step, self.aged(count, last, step) + counts[one]]
        new = sorted(counts.keys() - known.keys(), key=lambda one: (-counts[one], one))
        held = sorted(self.let_go & rows)
        free = sorted(rows - {row for row, _, _ in known.values()} - resting - self.let_go)
        idle = [
            (row, last, self.aged(count, last, step), one)
            for one, (row, last, count) in known.items()
            if one not in counts
        ]
        rule = (lambda x: (x[1], x[2], x[0])) if self.evict == "least_recent" else (lambda x: (x[2], x[1], x[0]))
        taken = sorted(idle, key=rule)[: max(0, len(new) - len(held) - len(free))]
        for _, _, _, one in taken:
            del self.known[one]
        given = held + free + sorted(row for row, *_ in taken)
        for row, one in zip(given, new, strict=False):
            self.known[one] = [row, step, counts[one]]
        self.let_go -= {*held[: len(new)]}
        self.evicted += len(taken)
        self.overflowed += max(0, len(new) - len(given))
        return held[: len(new)] + [row for row, *_ in taken]


class Parts:
    """The maps of all parts of the blocks, each given its own ids."""

    def __init__(self, blocks, evict, parts):
        self.blocks, self.maps = blocks, [RowMap(blocks, evict, part, parts) for part in range(parts)]

    def update(self, batch, step, unused_since=None):
        """Returns the changes of the maps."""
        ids, counts = np.unique(np.array(batch, np.int64), return_counts=True)
        part = self.blocks.part_of(ids, len(self.maps))
        return [
            one.update(ids[part == n], counts[part == n], step, len(batch), unused_since)
            for n, one in enumerate(self.maps)
        ]

    def resume(self):
        """Goes on with new maps of the same state."""
        for part, one in enumerate(self.maps):
            self.maps[part] = RowMap(self.blocks, one.evict, part, len(self.maps))
            self.maps[part].state[:], self.maps[part].totals[:] = one.state, one.totals

    def rows_of(self, ids):
        part = self.blocks.part_of(ids, len(self.maps))
        rows = np.zeros(len(ids), np.int64)
        for n, one in enumerate(self.maps):
            rows[part == n] = one.rows_of(ids[part == n])
        return rows

    @property
    def totals(self):
        return sum(one.totals for one in self.maps)

    def contents(self):
        """Returns row, last step and count of each id."""
        found = {}
        for part, one in enumerate(self.maps):
            rows = [row for rows in self.blocks.part(part, len(self.maps)).rows for row in rows]
            assert one.state.shape == (3, len(rows))
            found |= {
                int(one.state[IDS, place]): [rows[place], *one.state[1:, place].tolist()]
                for place in np.flatnonzero(one.state[IDS] != FREE)
            }
        return found


def contents(one):
    rows = np.flatnonzero(one.state[IDS] != FREE)
    return {int(one.state[IDS, row]): [int(row), *one.state[1:, row].tolist()] for row in rows}


def updates(one, batches, apart=1, let_go=None):
    """Takes batches as steps; every so many, ids that the steps since the last time did not have are let go."""
    return [
        one.update(
            *np.unique(np.array(batch, np.int64), return_counts=True),
            number * apart,
            len(batch),
            since(number, apart, let_go),
        )
        for number, batch in enumerate(batches, 1)
    ]


def since(number, apart, let_go):
    return None if let_go is None or number % let_go else (number - let_go) * apart


@settings(max_examples=150, deadline=None)
@given(BATCHES, BLOCKS, st.integers(1, 4), RULES, APART, LET_GO_EVERY, st.booleans())
def test_as_a_dict_would(batches, blocks, parts, evict, apart, let_go, resumed):
    ours, naive = Parts(blocks, evict, parts), Naive(blocks, evict)
    for number, batch in enumerate(batches, 1):
        unused = since(number, apart, let_go)
        if resumed:
            ours.resume()
        changes = ours.update(batch, number * apart, unused)
        assert sorted(row for change in changes for row in change.evicted) == naive.update(
            batch, number * apart, unused
        )
        assert ours.contents() == naive.known
        expected = [naive.known.get(one, [SHARED])[0] for one in range(13)]
        assert ours.rows_of(np.arange(13)).tolist() == expected
    assert ours.totals.tolist() == [len(naive.known), naive.evicted, naive.overflowed]


@pytest.mark.parametrize("evict", ["least_recent", "least_used"])
def test_many_rows_as_a_dict_would(evict):
    # More ids than are looked up apart from the others, and more rows than are looked at together.
    with (
        patch("trainer.extensions.managed_ids.row_map.RECENT", 3),
        patch("trainer.extensions.managed_ids.eviction.ROWS_AT_ONCE", 40),
    ):
        draw, blocks = np.random.default_rng(0), Blocks(7, (90, 131))
        ours, naive = Parts(blocks, evict, 3), Naive(blocks, evict)
        for step in range(1, 60):
            batch = (draw.zipf(1.2, 50) % 300 + step).tolist()
            ours.update(batch, step)
            naive.update(batch, step)
            assert ours.contents() == naive.known
    assert naive.evicted > 500


@settings(max_examples=80, deadline=None)
@given(BATCHES, BLOCKS, RULES, st.integers(0, 12), LET_GO_EVERY)
def test_changes_can_be_undone_and_made_again(batches, blocks, evict, kept, let_go):
    whole, part = RowMap(blocks, evict), RowMap(blocks, evict)
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


def test_a_table_that_grows_keeps_its_ids_in_their_rows():
    small = RowMap(Blocks(3, (40,)), "least_used")
    updates(small, [range(60)])
    before = contents(small)
    blocks = small.blocks.grown(40).grown(75)
    assert blocks == Blocks(3, (40, 75))
    large = Parts(blocks, "least_used", 2)
    state = np.concatenate([small.state, np.repeat([[FREE], [0], [0]], 35, 1)], 1)
    for part, one in enumerate(large.maps):
        one.state[:] = state[:, [row for rows in blocks.part(part, 2).rows for row in rows]]
    assert large.contents() == before
    large.update(range(60), 2)
    after = large.contents()
    assert len(before) < 40
    assert len(after) == 60
    assert {one: after[one][0] for one in before} == {one: row for one, (row, _, _) in before.items()}


@settings(deadline=None)  # a busy machine is no fault
@given(st.integers(1, 50), st.integers(1, 70))
def test_each_row_is_of_one_part_and_each_id_of_the_part_of_its_rows(number, parts):
    blocks = Blocks(number, (number * 3 + 2, number * 3 + 9))
    rows = [row for part in range(parts) for rows in blocks.part(part, parts).rows for row in rows]
    assert sorted(rows) == [*range(blocks.rows)]
    ids = np.arange(200)
    part = blocks.part_of(ids, parts)
    owned = [range(one * number // parts, (one + 1) * number // parts) for one in range(parts)]
    assert all(block in owned[at] for block, at in zip(blocks.of_ids(ids), part, strict=True))


def test_the_largest_ids_and_numbers():
    one = RowMap(Blocks.of_table(4), "least_recent")
    updates(one, [[2**63 - 1, 0, 0], [5, 7, 9]])
    assert contents(one) == {5: [3, 2, 1], 7: [1, 2, 1], 9: [2, 2, 1]}
    assert one.rows_of(np.array([2**63 - 1, 9, 0])).tolist() == [SHARED, 2, SHARED]
    assert one.totals[[USED, EVICTED, OVERFLOWED]].tolist() == [3, 2, 0]


@pytest.mark.parametrize(("evict", "kept"), [("least_recent", 2), ("least_used", 1)])
def test_the_two_rules_differ(evict, kept):
    one = RowMap(Blocks.of_table(3), evict)
    updates(one, [[1, 1, 1], [2], [3]])
    assert kept in contents(one)
    assert one.state[COUNTS, one.rows_of(np.array([kept]))[0]] == (1 if kept == 2 else 3)
    assert one.state[LAST_USED].max() == 3


@pytest.mark.parametrize(("steps", "kept"), [(HALF_LIFE * 3, 1), (HALF_LIFE * 6, 2)])
def test_what_was_frequent_once_leaves_in_the_end(steps, kept):
    one = RowMap(Blocks.of_table(3), "least_used")
    for step, id_, count in ((1, 1, 6), (steps, 2, 2), (steps + 1, 3, 1)):
        one.update(np.array([id_]), np.array([count]), step, count)
    assert kept in contents(one)
