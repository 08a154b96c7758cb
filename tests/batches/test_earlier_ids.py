"""Lists of ids with times keep those before the time of their row, like a loop over rows and ids; what is refused."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.columns import check_columns
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

NOW, ROWS = 1_700_000_000, 96
RULE = {"rows": 100, "times": "at", "before": "now"}


def config(**feature) -> DataConfig:
    return DataConfig.model_validate({"sparse": {"seen": RULE | feature}})


def decoded(ids, times, now, order=None, **feature):
    """Returns the ids of each row, or pairs of id and weight."""
    weights = {"w": pa.array([[one / 2 for one in row] for row in ids])} if "weights" in feature else {}
    table = pa.table({"seen": ids, "at": times, "now": now, "label": [0.0] * len(now), **weights})
    data = config(**feature)
    check_columns("here", table.schema, data)
    rows = decode(Chunk(table.column, range(table.num_rows), "here, row {}".format), data, ["seen"], order)
    return rows.bags["seen"].to_pylist()


def histories(seed=0):
    """Returns lists of ids and of times, in no order and some after the row's own, nulls among all; and these."""
    random = np.random.default_rng(seed)
    now = NOW + random.integers(-500, 500, ROWS)
    lengths = random.integers(0, 12, ROWS)
    ids = [[None if random.random() < 0.1 else int(one) for one in random.integers(0, 100, n)] for n in lengths]
    at = [
        [None if random.random() < 0.1 else int(one) for one in time + random.integers(-60, 20, n)]
        for time, n in zip(now, lengths, strict=True)
    ]
    empty = range(5, ROWS, 9)
    return *([None if row in empty else one for row, one in enumerate(lists)] for lists in (ids, at)), now.tolist()


@pytest.mark.parametrize("max_ids", [None, 3])
@pytest.mark.parametrize("within", [None, 30])
def test_ids_before_the_time_of_their_row_stay(within, max_ids):
    ids, at, now = histories()
    expected = []
    for past, times, time in zip(ids, at, now, strict=True):
        stay = []
        for one, when in zip(past or [], times or [], strict=True):
            if one is not None and when is not None and when < time and (within is None or when >= time - within):
                stay.append(one)
        expected.append(stay[-max_ids:] if max_ids else stay)
    feature = {"within_seconds": within, "max_ids": max_ids}
    assert decoded(pa.array(ids), pa.array(at), pa.array(now), **feature) == expected
    order = np.random.default_rng(1).permutation(ROWS)
    shuffled = decoded(pa.array(ids), pa.array(at), pa.array(now), order, **feature)
    assert shuffled == [expected[row] for row in order]
    late = sum(len([one for one in past or [] if one is not None]) for past in ids) - sum(map(len, expected))
    assert late > ROWS / 4


def test_weights_stay_with_their_ids():
    found = decoded([[1, 2, 3]], [[NOW - 1, NOW, NOW - 9]], [NOW], weights="w")
    assert [(one["id"], one["weight"]) for one in found[0]] == [(1, 0.5), (3, 1.5)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_are_compared_in_whole_seconds_of_utc(unit):
    moments = [datetime.fromtimestamp(NOW + seconds, UTC) for seconds in (-1, 0, 1)]
    times = pa.array([moments], pa.list_(pa.timestamp(unit, "Europe/Berlin")))
    assert decoded([[7, 8, 9]], times, pa.array([NOW])) == [[7]]
    now = pa.array([moments[1].replace(microsecond=999_000 if unit != "s" else 0)], pa.timestamp(unit, "UTC"))
    assert decoded([[7, 8, 9]], times, now) == [[7]]
    assert decoded(pa.array([None], pa.list_(pa.int64())), pa.nulls(1), now) == [[]]


def batches(folder, data, rank, ranks, steps):
    files = find_files("data.train", data.train, data)
    loader = Loader(files, data, Lanes(files.rows, 4, 16), rank, ranks, 3, True)
    return [batch.sparse["seen"].to_dense() for batch in loader.batches(steps.start, steps.stop)]


def test_a_step_has_the_same_ids_on_any_number_of_ranks_and_when_resumed(tmp_path):
    ids, at, now = histories()
    columns = {"seen": ids, "at": at, "now": now, "label": [0.0] * ROWS}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=20)
    data = config(max_ids=4, within_seconds=40).model_copy(update={"train": [str(tmp_path)]})
    whole = batches(tmp_path, data, 0, 1, range(12))
    parts = [batches(tmp_path, data, rank, 4, range(12)) for rank in range(4)]
    for step, expected in enumerate(whole):
        found = [row.tolist() for part in parts for row in part[step]]
        assert found == [row.tolist() for row in expected]
    resumed = batches(tmp_path, data, 0, 1, range(5, 12))
    assert [[row.tolist() for row in step] for step in resumed] == [
        [row.tolist() for row in step] for step in whole[5:]
    ]


WRONG_VALUES = {
    "too few times": ([[1, 2]], [[NOW]], [NOW], "here, row 1, column 'at': 1 time for 2 ids of 'seen'; each id needs"),
    "no list of times": ([[4]], [None], [NOW], "here, row 1, column 'at': 0 times for 1 id of 'seen'"),
    "milliseconds": ([[4]], [[NOW * 1000]], [NOW], "here, row 1, column 'at': 1700000000000 is no time in seconds"),
    "a row of milliseconds": ([[4]], [[NOW]], [NOW * 1000], "here, row 1, column 'now': 1700000000000 is no time"),
    "a row without a time": ([[4]], [[NOW]], [None], "here, row 1, column 'now': null is not allowed for the time of"),
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_a_wrong_value_is_named(case):
    ids, at, now, says = WRONG_VALUES[case]
    with pytest.raises(InputError) as raised:
        decoded(pa.array([[1], *ids]), pa.array([[NOW], *at]), pa.array([NOW, *now]))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


WRONG_TYPES = {
    "single ids": (
        [1],
        [[NOW]],
        [NOW],
        "column 'seen' is of type int64, but data.sparse.seen.times is 'at'; it must be",
    ),
    "single times": (
        [[1]],
        [NOW],
        [NOW],
        "column 'at' is of type int64, but data.sparse.seen.times is 'at'; it must be",
    ),
    "texts": ([[1]], [["noon"]], [NOW], "column 'at' is of type list<item: string>"),
    "a list for the row": ([[1]], [[NOW]], [[NOW]], "column 'now' is of type list"),
    "fractions": ([[1]], [[NOW]], [0.5], "column 'now' is of type double, but data.sparse.seen.times is 'at'; it must"),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_a_wrong_type_is_named(case):
    ids, at, now, says = WRONG_TYPES[case]
    with pytest.raises(InputError) as raised:
        decoded(ids, pa.array(at), pa.array(now))
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("feature", "says"),
    [
        (
            {"before": None},
            "data.sparse.seen.times is 'at' and data.sparse.seen.before is None; name a column for both",
        ),
        ({"times": None}, "data.sparse.seen.times is None and data.sparse.seen.before is 'now'"),
        (
            {"times": None, "before": None, "within_seconds": 9},
            "data.sparse.seen.within_seconds is 9, but data.sparse.seen.times is unset; name the column of times",
        ),
        (
            {"transform": "hour"},
            "data.sparse.seen.times is 'at', which chooses ids of a list, but data.sparse.seen.transform makes one id",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_named(feature, says):
    with pytest.raises(pydantic.ValidationError) as raised:
        config(**feature)
    assert says in str(raised.value)
