"""Fault injection on a live topic: a run over its segments ends as if undisturbed, whatever is killed.

The topic has a producer that never stops, a cutter that follows it, and trainers on 1, 2 and 4 ranks that follow the
cutter. Trainers, cutter and broker are killed at random moments.

By default there is a short case, whose trainers read the topic, and with it a long one, whose trainers read its copies;
`--all` takes long ones without copies, too. These need a quiet machine, where they take four minutes each: all trainers
read from a broker whose log is on a server written in Python, and beside other tests a row group took two minutes.
"""

import json
import random
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command import write_config
from disturbed_stream import Chaos, Job
from jobs import config, losses
from kafka_broker import Broker, broker
from live_topic import AVRO, COLUMNS, PARTITIONS, RECORDS, TOPIC, Log, Producer, table_of
from row_recorder import RowLog
from test_chaos import evaluations, text_of
from trainer_process import committed

from torchx_recsys.apps.runs.saved_tensors import read_tensors
from trainer.config.root import load_config
from trainer.data.readers.formats import make_reader
from trainer.data.stream.manifest import Manifest

STEPS = 3  # of a segment
SAVE_EVERY = 4
FIRST_TWO = ["000000000000", "000000000001"]
# A reader that reads far ahead would keep the server with the broker's log busy, which is written in Python.
OPTIONS = "fetch.message.max.bytes = 20000\nqueued.min.messages = 100\n"
KINDS = {"kill a trainer": 7, "stop a trainer": 3, "kill the cutter": 5, "kill the broker": 3, "stop the broker": 2}


@dataclass(frozen=True)
class Case:
    """A topic, and what happens to the jobs on it."""

    format: str
    archive: bool
    seed: int
    segments: int = 30
    ranks: tuple[int, ...] = (1, 2, 4)
    kinds: dict[str, int] = field(default_factory=lambda: KINDS)
    pause: float = 0.25  # seconds between bursts of events

    def __str__(self) -> str:
        return f"{self.format}-{'archive-' * self.archive}{self.seed}"


SHORT = Case("json", False, 0, 8, (2,), {"kill a trainer": 2, "kill the cutter": 2, "kill the broker": 1}, 0.1)
LONG = Case("avro", True, 2)
WITHOUT_COPIES = [Case("json", False, 1), Case("arrow", False, 3)]


class Live:
    """The runs of a case, and what they were trained on.

    Args:
        case: The case.
        broker: Has the topic.
        folder: For all files.
    """

    def __init__(self, case: Case, broker: Broker, folder: Path) -> None:
        self.case, self.broker, self.folder = case, broker, folder
        self.manifests_in = self.out("live", case.ranks[0]) / "stream"
        self.last = f"{case.segments - 1:012d}"

    def out(self, kind: str, ranks: int) -> Path:
        """Returns the directory of a run: `live`, `undisturbed`, `parquet`, or `archive` for its files as such."""
        return self.folder / f"{kind}-{ranks}"

    def file(self, kind: str) -> Path:
        """Writes the configuration of runs, which they share."""
        tree = config(Path(), checkpoint__every_steps=SAVE_EVERY, checkpoint__full_every=3)
        tree["data"].pop("train")
        tree["train"].pop("steps")
        tree["data"]["dense"]["row_id"] = {}
        tree["model"]["name"] = "row_recorder:build"
        tree["optimizer"]["sparse"] = {"name": "rowwise_adagrad", "learning_rate": 0.05}
        tree["optimizer"]["dense"] = {"name": "adamw", "learning_rate": 0.01}
        tree["checkpoint"]["keep"] = {"newest": 9}
        paths = {"parquet": self.folder / "parquet/{segment}.parquet", "archive": self.folder / "archive/{segment}"}
        path = str(paths.get(kind, self.manifests_in / "{segment}.json"))
        tree["data"]["segments"] = {"path": path, "until": self.last, "poll_seconds": 0.2}
        if kind == "live":
            tree["data"]["segments"]["follow"] = True
        if kind not in paths:
            tree["data"]["reader"], tree["data"]["stream"] = "kafka", self._stream()
        return write_config(self.folder / f"{kind}.toml", tree)

    def _stream(self) -> dict:
        (self.folder / "kafka.options").write_text(OPTIONS)
        stream = {
            "brokers": self.broker.address,
            "topic": TOPIC,
            "options": str(self.folder / "kafka.options"),
            "format": self.case.format,
            "event_time": "happened",
            "every_records": RECORDS,
            "poison": "skip",
            "timeout_seconds": 240.0,  # this broker is slow beside other work; test_stream_log.py has the bound
        }
        if self.case.format == "json":
            stream["columns"] = COLUMNS
        if self.case.format == "avro":
            (self.folder / "event.avsc").write_text(json.dumps(AVRO))
            stream["schema_file"] = str(self.folder / "event.avsc")
        return stream | ({"archive": str(self.folder / "archive")} if self.case.archive else {})

    def trainer(self, kind: str, ranks: int) -> Job:
        """Returns a job that trains."""
        out = self.out(kind, ranks)
        words = ["train", self.file(kind), "--out", out]
        return Job(words, Path(f"{out}.log"), ranks, RECORDED_RUN=str(out))

    def train(self, kind: str) -> None:
        """Trains to the end, at the same time on all numbers of ranks."""
        jobs = [self.trainer(kind, ranks) for ranks in self.case.ranks]
        for job in jobs:
            job.start()
        for job in jobs:
            job.end()

    def begin(self, cutter: Job) -> None:
        """Cuts, lets a second cutter try it while the first lives, and trains on two segments without `follow`."""
        cutter.start()
        while len(self.segments()) < 2:
            assert cutter.goes_on(), cutter.output()
        self.second = self.cutter("second")
        self.second.start()
        job = self.trainer("live", self.case.ranks[0])
        job.words += ["--data.segments.follow", "false", "--data.segments.until", FIRST_TWO[-1]]
        job.start()
        job.end()
        self.trained_without_following = [line["segment"] for line in ledger(self.out("live", self.case.ranks[0]))]
        self.second.code()  # before the first is killed, as it would take over then

    def cutter(self, name: str) -> Job:
        """Returns a job that cuts, and follows the topic."""
        return Job(["cut_stream", self.file("live"), "--follow"], self.folder / f"{name}.log")

    def segments(self) -> list[str]:
        """Returns the names of the segments that are cut."""
        return sorted(file.stem for file in self.manifests_in.glob("*.json") if not file.name.startswith("."))

    def steps(self, ranks: int) -> int:
        """Returns how many steps a live run has reported."""
        return text_of(self.out("live", ranks) / "metrics.jsonl").count("\n")

    @cached_property
    def manifests(self) -> dict[str, Manifest]:
        """The manifests of all segments that were cut, also of those after the last that is trained on."""
        return {name: Manifest.from_json((self.manifests_in / f"{name}.json").read_bytes()) for name in self.segments()}

    @cached_property
    def trained(self) -> dict[str, Manifest]:
        """Those that are trained on."""
        return {name: manifest for name, manifest in self.manifests.items() if name <= self.last}

    @cached_property
    def log(self) -> Log:
        """What the topic has."""
        return Log(self.broker)

    def tables(self, manifest: Manifest) -> list[pa.Table]:
        """Returns the rows of each row group of a segment, made from the numbers of its events."""
        return [
            table_of(self.log.between(one.partition, one.start, one.end), self.case.format, manifest.schema)
            for one in manifest.groups
        ]

    def write_parquet(self) -> None:
        """Writes a file for each segment, with its row groups."""
        (self.folder / "parquet").mkdir()
        for name, manifest in self.trained.items():
            with pq.ParquetWriter(self.folder / f"parquet/{name}.parquet", manifest.schema) as writer:
                for table in self.tables(manifest):
                    writer.write_table(table, row_group_size=max(1, len(table)))


@contextmanager
def lived(case: Case, folder: Path):
    """Lets the jobs of a case run to their end; yields them while their broker still runs."""
    with broker(folder, keeps_log=True) as server:
        server.create(TOPIC, PARTITIONS)
        live = Live(case, server, folder)
        ledgers = [live.out("live", ranks) / "segments.jsonl" for ranks in case.ranks]
        producer = Producer(server, folder, case.format, case.seed, case.pause, ledgers)
        trainers = {live.trainer("live", ranks): lambda ranks=ranks: live.steps(ranks) for ranks in case.ranks}
        cutter = live.cutter("cutter")
        chaos = Chaos(server, producer, cutter, trainers, lambda: len(live.segments()), case.seed)
        try:
            live.begin(cutter)
            chaos.run([kind for kind, number in case.kinds.items() for _ in range(number)], case.segments * STEPS)
            cutter.kill(random.Random(case.seed))
            producer.stop()
            live.disturbances, live.missed, live.confirmed = chaos.done, chaos.missed, producer.confirmed()
            live.write_parquet()
            for kind in ("undisturbed", "parquet", *(["archive"] if case.archive else [])):
                live.train(kind)
            yield live
        finally:
            chaos.stop()
            producer.kill()


def pytest_generate_tests(metafunc):
    """Parametrizes tests by the cases."""
    long = [LONG, *WITHOUT_COPIES] if metafunc.config.getoption("all") else [LONG]
    more = [pytest.param(case, id=str(case), marks=pytest.mark.more("the short one is of a kind")) for case in long]
    metafunc.parametrize("live", [pytest.param(SHORT, id="short"), *more], indirect=True, scope="module")


@pytest.fixture(scope="module")
def live(request, tmp_path_factory):
    with lived(request.param, tmp_path_factory.mktemp("live")) as found:
        print(*found.disturbances, f"{found.missed} came too late", sep="\n")
        yield found


def test_disturbances_came_while_their_jobs_ran(live):
    planned = sum(live.case.kinds.values())
    assert len(live.disturbances) >= planned // 2  # all of them, unless trainers are fast


def test_every_record_is_in_exactly_one_segment(live):
    logged, counted = {(one.partition, one.offset): one for one in live.log}, Counter()
    assert {number: logged[place].number for number, place in live.confirmed.items()} == {
        number: number for number in live.confirmed
    }
    ends = dict.fromkeys(range(PARTITIONS), 0)
    assert list(live.manifests) == [f"{number:012d}" for number in range(len(live.manifests))]
    newest = None
    for name, manifest in live.manifests.items():
        records = []
        for partition, part in manifest.partitions.items():
            assert part.start == ends[partition], (name, partition)
            ends[partition] = part.end
            found = live.log.between(partition, part.start, part.end)
            records += found
            counted.update((partition, one.offset) for one in found)
            groups = [group for group in manifest.groups if group.partition == partition]
            inside = [one.offset for group in groups for one in live.log.between(partition, group.start, group.end)]
            assert inside == [one.offset for one in found if one.offset in {*inside}]
            outside = [one for one in found if one.offset not in {*inside}]
            assert not [one for one in outside if one.event.rows(live.case.format)]
        assert len(records) == RECORDS
        assert manifest.tombstones == sum(one.event.is_tombstone for one in records)
        assert manifest.left_out == sum(one.event.is_poison for one in records)
        read = [one for one in records if one.event.rows(live.case.format)]
        assert sum(group.records for group in manifest.groups) == len(read)
        assert sum(group.bytes for group in manifest.groups) == sum(one.size for one in read)
        times = [one.event.rows(live.case.format)[0]["happened"] for one in read]
        assert manifest.late == sum(newest is not None and at < newest for at in times)
        newest = max([*times, *([newest] if newest is not None else [])])
        assert (manifest.first_event, manifest.last_event) == (min(times), newest)
    assert set(counted.values()) == {1}
    assert sorted(counted) == sorted(place for place in logged if place[1] < ends[place[0]])
    twice = len(logged) - len({one.number for one in logged.values()})
    print(f"{len(logged)} records, {twice} repeated by the producer, {len(counted)} in {len(live.manifests)} segments")


def test_the_rows_of_a_segment_are_those_of_its_records(live):
    data = load_config(str(live.folder / "undisturbed.toml")).data
    reader = make_reader(data)
    for name, manifest in live.manifests.items():
        url = str(live.manifests_in / f"{name}.json")
        contents, expected = reader.inspect(url), live.tables(manifest)
        assert contents.row_groups == tuple(map(len, expected)), name
        assert contents.schema.equals(manifest.schema)
        if contents.index is not None:
            reader.use_index(url, contents.index)
        for number, table in enumerate(expected):
            with reader.open(url, number, table.column_names) as column:
                for field in table.schema:
                    assert column(field.name).equals(table[field.name]), (name, number, field.name)


def test_a_disturbed_run_ends_bit_for_bit_as_the_undisturbed_one(live):
    for ranks in live.case.ranks:
        out, there = live.out("live", ranks), live.out("undisturbed", ranks)
        assert text_of(out / "segments.jsonl") == text_of(there / "segments.jsonl")
        assert ledger(out)[-1]["segment"] == live.last
        assert_equal_training(out, there)


def test_the_same_records_as_parquet_give_the_same_run(live):
    for kind in ("parquet", *(["archive"] if live.case.archive else [])):
        for ranks in live.case.ranks:
            out, there = live.out(kind, ranks), live.out("undisturbed", ranks)
            assert list(map(of_samples, ledger(out))) == list(map(of_samples, ledger(there)))
            assert_equal_training(out, there)


def test_numbers_of_ranks_agree_but_for_rounding(live):
    first = live.case.ranks[0]
    for ranks in live.case.ranks[1:]:
        out, there = live.out("undisturbed", ranks), live.out("undisturbed", first)
        np.testing.assert_allclose(losses(out), losses(there), rtol=1e-5, atol=0)
        assert [line | {"before": None} for line in ledger(out)] == [line | {"before": None} for line in ledger(there)]
        assert samples_of(out) == samples_of(there)


def test_every_sample_is_trained_on_once_and_in_the_same_steps(live):
    for ranks in live.case.ranks:
        steps, undisturbed = (samples_of(live.out(kind, ranks)) for kind in ("live", "undisturbed"))
        assert steps == undisturbed
        for line in ledger(live.out("live", ranks)):
            trained = [row for step in range(line["first_step"] + 1, line["step"] + 1) for row in steps[step]]
            there = [row for table in live.tables(live.trained[line["segment"]]) for row in table["row_id"].to_pylist()]
            assert sorted(trained) == sorted(there)


def test_a_second_cutter_is_refused_while_the_first_lives(live):
    assert live.second.code() == 2
    line = live.second.output().splitlines()[-1]
    assert line.startswith("error: data.segments.path is ")
    assert "is writing to; wait for it, stop it or choose another data.segments.path" in line


def test_a_trainer_that_does_not_follow_takes_what_is_there(live):
    assert live.trained_without_following == FIRST_TWO


def samples_of(out: Path) -> dict[int, list[int]]:
    """Returns the rows that a run was trained on, by step, sorted, without those that fill up a short batch."""
    return {step: sorted(filter(None, rows)) for step, rows in RowLog(out).follow().rows.items()}


def ledger(out: Path) -> list[dict]:
    return [json.loads(line) for line in text_of(out / "segments.jsonl").splitlines()]


def of_samples(line: dict) -> dict:
    """Returns a line of the ledger but for what depends on files."""
    return {name: value for name, value in line.items() if name not in ("files", "fingerprint", "contents")}


def assert_equal_training(out: Path, there: Path) -> None:
    """Compares losses, evaluations and the last weights bit for bit."""
    assert losses(out) == losses(there)
    np.testing.assert_equal(evaluations(out), evaluations(there))
    steps = len(losses(out))
    assert committed(out)[-1] == committed(there)[-1] == steps
    found, expected = (read_tensors(f"{run}/checkpoints/step-{steps:09d}") for run in (out, there))
    assert found.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []
