"""Faults of a log of histories, planted in a clean one, are found by the data check, each as itself."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from history_logs import history_of, random_events, random_samples, write_events

from torchx_recsys.apps.check_data.check_data import check_data
from torchx_recsys.apps.sort_log.sort_log import sort_log
from trainer.config.root import Config

EVENTS = random_events(300)


def samples(shift=0, users=0):
    table = random_samples(1000)
    now = pa.array(table["now"].to_numpy() + shift)
    who = pa.array(np.array(table["who"].fill_null(0)) + users)
    return table.set_column(1, "now", now).set_column(0, "who", who)


def check(folder, table, plant=None):
    """Returns the findings about histories, by their names, as (severity, text)."""
    files = write_events(EVENTS, folder / "events.parquet")
    sort_log((*files,), str(folder / "log"), "user", "at")
    if plant:
        plant(folder / "log")
    pq.write_table(table, folder / "samples.parquet", row_group_size=100)
    keys = {"log": str(folder / "log"), "user": "who", "time": "now", "length": 20, "columns": {"items": "item"}}
    data = {"train": [str(folder / "samples.parquet")], "sparse": {"items": {"rows": 50}}, "history": keys}
    tree = check_data(Config.model_validate({"data": data}))
    names = ("log out of order", "damaged log", "users without events", "times apart", "histories")
    return {one["check"]: (one["severity"], one["found"]) for one in tree["findings"] if one["check"] in names}


def swap_two_events(log):
    """Exchanges the times of the second event of a user and a later one."""
    about = json.loads((log / "log.json").read_text())
    content = bytearray((log / "events.arrow").read_bytes())
    times = np.frombuffer(content, np.int64, about["events"], about["offsets"]["at"])
    times[[1, 20]] = times[[20, 1]]
    (log / "events.arrow").write_bytes(content)


def flip_a_bit(file, column=None):
    """Returns a function that flips a bit of a file of a log, in the values of a column or in the last ones."""

    def flip(log):
        content = bytearray((log / file).read_bytes())
        names = json.loads((log / "log.json").read_text())["offsets"]
        if column:
            content[names[column] + 100] ^= 1
        else:
            values = pa.ipc.open_file(pa.memory_map(str(log / file))).get_batch(0).column(-1).buffers()[-1]
            content[bytes(content).rindex(values.to_pybytes())] ^= 1
        (log / file).write_bytes(content)

    return flip


FAULTS = {
    "none": ({}, None, {}),
    "events in no order": ({}, swap_two_events, {"log out of order": "error"}),
    "a flipped bit of an event": ({}, flip_a_bit("events.arrow", "item"), {"damaged log": "error"}),
    "a flipped bit of a user": ({}, flip_a_bit("users.arrow"), {"damaged log": "error"}),
    "a flipped bit of a text": ({}, flip_a_bit("texts-0.arrow"), {"damaged log": "error"}),
    "other users": ({"users": 10**6}, None, {"users without events": "warning"}),
    "samples before the log": ({"shift": -(10**8)}, None, {"times apart": "error"}),
    "samples after the log": ({"shift": 10**8}, None, {"times apart": "warning"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_as_itself(fault, tmp_path, capsys):
    changed, plant, expected = FAULTS[fault]
    found = check(tmp_path, samples(**changed), plant)
    assert {name: severity for name, (severity, _) in found.items()} == {"histories": "note"} | expected


def test_the_shares_of_empty_short_and_cut_histories_are_those_of_a_loop(tmp_path, capsys):
    table = samples()
    _, text = check(tmp_path, table)["histories"]
    rows = table.select(["who", "now"]).to_pylist()
    lengths = [len(history_of(EVENTS, row["who"], row["now"], 10**6)) for row in rows]
    own = {(event["user"], event["at"]) for event in EVENTS}
    counts = [
        sum(one == 0 for one in lengths),
        sum(0 < one < 20 for one in lengths),
        sum(one > 20 for one in lengths),
    ]
    tied = sum((row["who"], row["now"]) in own for row in rows)
    shares = [float(part.split(" %")[0]) for part in text.replace("; ", ", ").split(", ") if " %" in part]
    assert shares == pytest.approx([one / 10 for one in [*counts, tied]], abs=0.51)
    mean = np.mean(np.minimum(lengths, 20))
    assert f"{mean:,.1f} events on average, 20 at most" in text
