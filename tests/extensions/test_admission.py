"""Managed ids that get a row once they have occurred often enough."""

import json
import shutil
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from exported import ask, export, parity_of
from hypothesis import given
from hypothesis import settings as drawn
from hypothesis import strategies as st
from jobs import launch_rounds, losses, saved_tensors
from managed import rows_of_ids, settings, write_ids
from test_row_map import APART, BATCHES, BLOCKS, LET_GO_EVERY, RULES, Naive, since

from trainer.extensions.managed_ids.admission import Waiting
from trainer.extensions.managed_ids.blocks import Blocks
from trainer.extensions.managed_ids.row_map import USED, RowMap
from trainer.rules.managed import FREE, SHARED


class NaiveAdmission:
    """The same with dicts, of the ids with a row and of those that wait for one."""

    def __init__(self, blocks, evict, after):
        self.rows, self.waiting, self.after = Naive(blocks, evict), Naive(blocks, evict), after

    def update(self, batch, step, unused_since):
        self.waiting.seen = len(batch)
        total = Counter(batch)
        for one in total.keys() & self.waiting.known.keys():
            _, last, count = self.waiting.known[one]
            total[one] += self.waiting.aged(count, last, step)
        asks = [one for one in total if one in self.rows.known or total[one] >= self.after]
        evicted = self.rows.update([one for one in asks for _ in range(total[one])], step, unused_since, len(batch))
        for one in self.waiting.known.keys() & self.rows.known.keys():
            self.waiting.let_go.add(self.waiting.known.pop(one)[0])
        waits = [one for one in batch if one not in self.rows.known]
        self.waiting.update(waits, step, unused_since, len(batch))
        return evicted


class Parts:
    """The maps of all parts of the blocks, each given its own ids."""

    def __init__(self, blocks, evict, after, parts):
        self.blocks = blocks
        self.rows = [RowMap(blocks, evict, part, parts) for part in range(parts)]
        self.waiting = [Waiting(RowMap(blocks, evict, part, parts), after) for part in range(parts)]

    def update(self, batch, step, unused_since=None):
        ids, counts = np.unique(np.array(batch, np.int64), return_counts=True)
        part = self.blocks.part_of(ids, len(self.rows))
        return [
            change
            for n, (rows, waiting) in enumerate(zip(self.rows, self.waiting, strict=True))
            for change in waiting.update(rows, ids[part == n], counts[part == n], step, len(batch), unused_since)
        ]

    def contents(self):
        """Returns place, last step and count of each id with a row, and of each that waits."""
        return self.contents_of(self.rows), self.contents_of([one.counted for one in self.waiting])

    def contents_of(self, maps):
        found = {}
        for part, one in enumerate(maps):
            rows = [row for rows in self.blocks.part(part, len(maps)).rows for row in rows]
            found |= {
                int(one.state[0, place]): [rows[place], *one.state[1:, place].tolist()]
                for place in np.flatnonzero(one.state[0] != FREE)
            }
        return found


@drawn(max_examples=150, deadline=None)
@given(BATCHES, BLOCKS, st.integers(1, 4), RULES, APART, LET_GO_EVERY, st.integers(2, 5))
def test_as_dicts_would(batches, blocks, parts, evict, apart, let_go, after):
    ours, naive = Parts(blocks, evict, after, parts), NaiveAdmission(blocks, evict, after)
    for number, batch in enumerate(batches, 1):
        unused = since(number, apart, let_go)
        changes = ours.update(batch, number * apart, unused)
        evicted = [row for one, change in changes if one in ours.rows for row in change.evicted.tolist()]
        assert sorted(evicted) == naive.update(batch, number * apart, unused)
        assert ours.contents() == (naive.rows.known, naive.waiting.known)
    for maps, one in ((ours.rows, naive.rows), ([one.counted for one in ours.waiting], naive.waiting)):
        assert sum(one.totals for one in maps)[USED] == len(one.known)


@drawn(max_examples=80, deadline=None)
@given(BATCHES, BLOCKS, RULES, st.integers(0, 12), LET_GO_EVERY)
def test_changes_can_be_undone_and_made_again(batches, blocks, evict, kept, let_go):
    whole, part = Parts(blocks, evict, 2, 1), Parts(blocks, evict, 2, 1)
    for one, taken in ((whole, batches), (part, batches[:kept])):
        changes = [one.update(batch, number, since(number, 1, let_go)) for number, batch in enumerate(taken, 1)]
        if one is whole:
            undone = [change for step in changes[kept:] for change in step]
    after = whole.contents()
    for one, change in reversed(undone):
        one.undo(change)
    assert whole.contents() == part.contents()
    for one, change in undone:
        one.redo(change)
    assert whole.contents() == after


STEPS, HALF, EPOCH = 8, 5, 4
AFTER = 5
SHARED_TABLE = {"ids": "managed", "rows": 400, "table": "ids", "admit_after": AFTER}
KEYS = ("ids", "waiting_ids")
FEW = {"ids": "managed", "rows": 20, "admit_after": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs on 1, 2 and 4 ranks, and those on 2 resumed in the second epoch, on as many ranks and on another number."""
    folder = tmp_path_factory.mktemp("admission")
    data = write_ids(folder / "data")

    def job(name, steps=STEPS, rows=400, **options):
        tree = settings(data, train__steps=steps, checkpoint__every_steps=EPOCH, data__validation=[str(data)])
        shared = SHARED_TABLE | {"rows": rows}
        tree["data"]["sparse"] |= {"s0": shared, "s1": shared, "s2": FEW}
        tree["checkpoint"]["grow_tables"] = rows > 400
        return {"config": tree, "out": str(folder / name)} | options

    launch_rounds([(4, [job("4")]), (2, [job("2"), job("half", HALF)])], folder)
    for name in ("resumed", "alone", "grown"):
        shutil.copytree(folder / "half", folder / name)
    alone = [job("1"), job("alone", resume="must"), job("grown", rows=500, resume="must")]
    launch_rounds([(2, [job("resumed", resume="must")]), (1, alone)], folder)
    return folder


def occurrences(folder):
    """Returns how often each id of the shared table occurs in an epoch."""
    rows = pq.read_table(folder / "data")
    one, bags = rows["s0"].to_pylist(), rows["s1"].to_pylist()
    ids = [value for value in one if value is not None] + [value for bag in bags for value in bag]
    return Counter(value & (2**63 - 1) for value in ids)


@pytest.mark.parametrize("name", ["1", "2", "4", "grown"])
def test_an_id_has_a_row_from_the_step_of_that_occurrence_on(runs, name):
    counted = occurrences(runs)
    for epochs, step in ((1, EPOCH), (2, STEPS))[name == "grown" :]:
        tensors = saved_tensors(runs / name, step)
        has_row, waits = (
            {int(one) for one in tensors[f"managed.ids.{key}"].tolist() if one != FREE}
            for key in ("ids", "waiting_ids")
        )
        assert has_row == {one for one, count in counted.items() if epochs * count >= AFTER}
        assert waits == counted.keys() - has_row
        assert waits if epochs == 1 else has_row
        place = (tensors["managed.ids.waiting_ids"] != FREE).nonzero()[:, 0]
        ids, counts = (tensors[f"managed.ids.waiting_{key}"][place].tolist() for key in ("ids", "counts"))
        assert dict(zip(ids, counts, strict=True)) == {one: epochs * counted[one] for one in waits}


def test_any_number_of_ranks_gives_the_same_rows(runs):
    expected = rows_of_ids(saved_tensors(runs / "4", STEPS))
    assert len(expected) == 16
    for name in ("1", "2", "resumed", "alone"):
        assert losses(runs / name) == pytest.approx(losses(runs / "4"), abs=1e-5)
        found = saved_tensors(runs / name, STEPS)
        assert all(torch.equal(found[key], value) for key, value in expected.items()), name


def test_a_resume_on_as_many_ranks_is_exact(runs):
    assert losses(runs / "resumed") == losses(runs / "2")
    before, after = saved_tensors(runs / "2", STEPS), saved_tensors(runs / "resumed", STEPS)
    assert before.keys() == after.keys()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


def test_what_is_reported(runs):
    lines = [json.loads(line) for line in (runs / "2/metrics.jsonl").read_text().splitlines()]
    tensors = saved_tensors(runs / "2", EPOCH)
    assert lines[EPOCH - 1]["ids/ids/waiting"] == (tensors["managed.ids.waiting_ids"] != FREE).sum() > 0
    assert lines[EPOCH - 1]["ids/ids/used"] == (tensors["managed.ids.ids"] != FREE).sum() > 0


def test_an_id_that_waits_is_answered_as_an_unseen_one(runs, tmp_path):
    directory = export(runs, "2", tmp_path / "to", "--checkpoint", EPOCH)
    tensors = saved_tensors(runs / "2", EPOCH)
    with_row, waiting = ([one for one in tensors[f"managed.ids.{key}"].tolist() if 0 <= one < 2**62] for key in KEYS)
    unseen = 2**61 + 1
    ids = [unseen, *waiting, *with_row]
    columns = {name: values[:1] * len(ids) for name, values in parity_of(directory)["columns"].items()}
    (answer,) = ask((directory, columns | {"s0": ids}))[0].values()
    of_unseen, of_waiting, of_others = answer[0], answer[1 : 1 + len(waiting)], answer[1 + len(waiting) :]
    assert {*of_waiting} == {of_unseen}
    assert of_unseen not in of_others
    assert with_row


def test_fine_tuning_begins_to_count_where_the_other_run_did_not(runs, tmp_path):
    def job(name, source, **feature):
        tree = settings(runs / "data", train__steps=1, finetune={"checkpoint": str(source)})
        own = {"ids": "managed", "rows": 400, "table": "ids"} | feature
        tree["data"]["sparse"] |= {"s0": own, "s1": own, "s2": {"ids": "managed", "rows": 20} | feature}
        return {"config": tree, "out": str(tmp_path / name)}

    without = job("without", runs / "2")
    launch_rounds([(1, [without, job("again", tmp_path / "without", admit_after=AFTER)])], tmp_path)
    before, between, after = (
        saved_tensors(runs / "2", STEPS),
        saved_tensors(tmp_path / "without", 1),
        saved_tensors(tmp_path / "again", 1),
    )
    assert not [name for name in between if "waiting" in name]
    had = before["managed.ids.ids"] != FREE
    assert torch.equal(between["managed.ids.ids"][had], before["managed.ids.ids"][had])
    assert torch.equal(after["managed.ids.ids"], between["managed.ids.ids"])  # a step has new ids, but not so often
    assert after["managed.ids.waiting_totals"][USED] == (after["managed.ids.waiting_ids"] != FREE).sum()


def test_an_id_that_finds_all_rows_in_use_keeps_its_count():
    ours = Parts(Blocks.of_table(2), "least_used", 2, 1)  # a row for an id
    ours.update([1, 1], 1)
    ours.update([1, 2, 2], 2)  # the row is that of an id of this step
    assert [dict(one) for one in ours.contents()] == [{1: [1, 2, 3]}, {2: [1, 2, 2]}]
    ours.update([2], 3)
    assert [dict(one) for one in ours.contents()] == [{2: [1, 3, 3]}, {}]
    assert ours.rows[0].rows_of(np.array([1, 2, 3])).tolist() == [SHARED, 1, SHARED]


WRONG = [
    ({"ids": "managed", "rows": 9, "admit_after": 1}, "data.sparse.s0.admit_after is 1"),
    (
        {"rows": 100, "admit_after": 3},
        "data.sparse.s0.admit_after is 3, but data.sparse.s0.ids is 'error', which counts",
    ),
]


@pytest.mark.parametrize(("feature", "message"), WRONG)
def test_wrong_settings(refusal, feature, message):
    assert message in refusal({"data__sparse__s0": feature})


def test_features_of_a_table_count_together(refusal):
    here, there = ({"ids": "managed", "rows": 9, "table": "t", "admit_after": n} for n in (2, 3))
    message = refusal({"data__sparse__s0": here, "data__sparse__s1": there})
    assert "data.sparse.s1.admit_after is 3, but data.sparse.s0.admit_after is 2 and both use table 't'" in message
