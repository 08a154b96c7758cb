"""Counts, rates and histories of `data.split` against plain Python: only what is strictly before a row."""

import bisect
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx_recsys.apps.split.split import split

EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.one_of(st.none(), st.integers(0, 3)),
            "item": st.one_of(st.none(), st.integers(0, 5)),
            "stars": st.integers(1, 5),
            "at": st.integers(0, 8),
        }
    ),
    min_size=3,
    max_size=60,
)


def prepared(events, **arguments):
    """Returns the rows of all splits, by their number in the log."""
    schema = pa.schema([(name, pa.int64()) for name in ("user", "item", "stars", "at", "event")])
    rows = [row | {"event": number} for number, row in enumerate(events)]
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.Table.from_pylist(rows, schema), f"{folder}/log.parquet", row_group_size=20)
        flags = dict(by="share", validation="0", test="0", time="at", user="user", item="item", leaks="tell")
        split((f"{folder}/log.parquet",), f"{folder}/out", **flags | arguments)
        found = pq.read_table(Path(folder, "out/train")).to_pylist()
    by_event = {row["event"]: row for row in found}
    assert [*by_event] == sorted(range(len(events)), key=lambda event: (events[event]["at"], event))
    return rows, by_event


def mean(values):
    return sum(values) / len(values) if values else None


@settings(max_examples=15, deadline=None)
@given(EVENTS, st.sampled_from([0.0, 1.0, 5.0]))
def test_counts_and_rates_are_of_rows_strictly_before(events, smoothing):
    labels = ("liked = stars >= 4", "stars")
    rows, found = prepared(events, label=labels, aggregate=("user", "item"), smoothing=smoothing)
    for row in rows:
        earlier = [other for other in rows if other["at"] < row["at"]]
        for key in ("user", "item"):
            own = [other for other in earlier if other[key] == row[key]]
            expected = {f"{key}_count": len(own)}
            for name, of in (("liked", lambda one: one["stars"] >= 4), ("stars", lambda one: one["stars"])):
                prior = mean([of(one) for one in earlier])
                weight = len(own) + smoothing
                total = sum(map(of, own)) + (smoothing * prior if smoothing and earlier else 0)
                is_known = weight and (earlier if smoothing else own)
                expected[f"{key}_{name}_rate"] = total / weight if is_known else None
            if row[key] is None:
                expected = dict.fromkeys(expected)
            for name, value in expected.items():
                assert found[row["event"]][name] == (None if value is None else pytest.approx(value, rel=1e-6)), name


@settings(max_examples=15, deadline=None)
@given(EVENTS, st.integers(1, 6), st.booleans())
def test_histories_are_of_events_strictly_before(events, length, only_liked):
    where = ("stars >= 4", "item != 2") if only_liked else ()
    arguments = dict(history=length, history_with=("at", "stars"), history_where=where, label=("liked = stars >= 4",))
    rows, found = prepared(events, **arguments)
    for row in rows:
        own = [other for other in rows if other["at"] < row["at"] and other["user"] == row["user"] is not None]
        own = [other for other in own if other["item"] is not None]
        if only_liked:
            own = [other for other in own if other["stars"] >= 4 and other["item"] != 2]
        last = sorted(own, key=lambda other: (other["at"], other["event"]))[-length:]
        for name in ("item", "at", "stars"):
            assert found[row["event"]][f"{name}_history"] == [other[name] for other in last]


def test_one_label_gives_a_rate_without_its_name_and_none_a_count_alone():
    events = [{"user": 1, "item": n, "stars": 5, "at": n} for n in range(4)]
    _, found = prepared(events, label=("liked = stars >= 4",), aggregate=("user",))
    assert [found[event]["user_rate"] for event in range(4)] == [None, 1, 1, 1]
    _, found = prepared(events, aggregate=("user",))
    assert [name for name in found[0] if name.startswith("user_")] == ["user_count"]
    assert [found[event]["user_count"] for event in range(4)] == [0, 1, 2, 3]


def test_histories_that_are_made_in_several_parts():
    """Lists of up to 4,000 items are made for 262 rows at once, and users and moments go across these."""
    chance = random.Random(0)
    of = {"user": 2, "item": 1000, "stars": 6, "at": 900}
    events = [{name: chance.randrange(most) for name, most in of.items()} for _ in range(6000)]
    rows, found = prepared(events, history=4000, history_where=("stars = 5",))
    for user in range(2):
        own = sorted(
            (row["at"], row["event"], row["item"]) for row in rows if row["user"] == user and row["stars"] == 5
        )
        for row in rows:
            if row["user"] == user:
                end = bisect.bisect_left(own, (row["at"],))
                assert found[row["event"]]["item_history"] == [item for _, _, item in own[:end]]
