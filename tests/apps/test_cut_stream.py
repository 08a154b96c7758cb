"""Segments of a topic: where they end and begin, what their manifests have, and how a job goes on."""

import io
import json
import re
import time

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer
from cut_topics import (
    BEGAN,
    Following,
    check_copies,
    check_whole,
    click,
    clicks,
    cut,
    log_of,
    manifests,
    stream_config,
)
from kafka_broker import broker
from object_store import object_store

from torchx_recsys.apps.cut_stream.topic import CutTopic
from trainer.config.stream import StreamConfig
from trainer.core.progress import of_log, read_progress
from trainer.data.stream.manifest import GROUP_RECORDS


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A broker for tests that leave it as it is."""
    with broker(tmp_path_factory.mktemp("broker")) as found:
        yield found


@pytest.fixture
def topic(shared, request):
    """A topic of the test's own with three partitions."""
    name = re.sub(r"\W", "-", request.node.name)
    shared.create(name, 3)
    return name


def test_segments_by_count_have_that_many_records_and_the_rest_waits(shared, topic, tmp_path):
    shared.produce(topic, clicks(range(3500)))
    file = stream_config(tmp_path, shared.address, topic=topic, every_records=1000)
    output = cut(file)
    found = manifests(tmp_path)
    offsets = [sum(part.end - part.start for part in one.partitions.values()) for one in found.values()]
    assert offsets == [1000, 1000, 1000]
    assert sum(one.rows for one in found.values()) + sum(one.tombstones for one in found.values()) == 3000
    assert [one.behind for one in found.values()][-1] == 500
    assert f"topic '{topic}' of {shared.address}: 3 partitions; segment 000000000000 begins" in output
    assert "3 segments" in output
    assert "500 records of the topic are in no segment yet" in output
    assert output.endswith(f"Next:  python -m trainer train {file} --out runs/live\n")

    assert "segment 000000000003: 500 records" in cut(file, "--rest", "True")
    assert check_whole(manifests(tmp_path), log_of(shared.address, topic=topic)) == 3500
    before = {one.name: one.read_bytes() for one in (tmp_path / "stream").iterdir()}
    assert "0 records of the topic are in no segment" in cut(file, "--rest", "True")
    assert {one.name: one.read_bytes() for one in (tmp_path / "stream").iterdir()} == before


def test_segments_of_a_topic_that_has_waited_follow_its_time(shared, topic, tmp_path):
    """Brokers send what they have of one partition, then of the next: 4,000 records of each here."""
    count = 12_000
    shared.produce(topic, ({**one, "value": one["value"] or b"{}"} for one in clicks(range(count))))
    output = cut(stream_config(tmp_path, shared.address, topic=topic, every_records=1500))
    found = [*manifests(tmp_path).values()]
    assert len(found) == count // 1500
    spans = [(one.first_event, one.last_event) for one in found]
    seconds = [(BEGAN / 1000 + 1500 * number, BEGAN / 1000 + 1500 * number + 1499) for number in range(len(found))]
    assert spans == seconds
    assert "late" not in output


def test_row_groups_are_full_whatever_their_segment_has(shared, topic, tmp_path):
    shared.produce(topic, ({"partition": 0, "value": click(number)} for number in range(3 * GROUP_RECORDS)))
    cut(stream_config(tmp_path, shared.address, topic=topic, every_records=2 * GROUP_RECORDS + 100), "--rest", "True")
    groups = [[group.records for group in one.groups] for one in manifests(tmp_path).values()]
    assert groups == [[GROUP_RECORDS, GROUP_RECORDS, 100], [GROUP_RECORDS - 100]]
    check_whole(manifests(tmp_path), log_of(shared.address, topic=topic))


@pytest.mark.parametrize("start", ["earliest", "latest", "a time"])
def test_the_first_segment_begins_where_start_says(shared, topic, tmp_path, start):
    for first in (0, 30):  # two batches for each partition: the broker of the tests finds times by batches
        shared.produce(topic, clicks(range(first, first + 30)))
    moment = "2025-11-24T16:00:30Z"  # of number 30
    value = moment if start == "a time" else start
    file = stream_config(tmp_path, shared.address, topic=topic, every_records=30, start=value)
    cutter = Following(tmp_path, file, "--most", "1")
    cutter.wait_for("begins")
    shared.produce(topic, clicks(range(60, 90)))
    assert cutter.wait() == 0
    begin = {"earliest": 0, "a time": 10, "latest": 20}[start]
    (manifest,) = manifests(tmp_path).values()
    assert {part.start for part in manifest.partitions.values()} == {begin}
    assert sum(part.end for part in manifest.partitions.values()) == 3 * begin + 30


def test_segments_by_time(shared, topic, tmp_path):
    file = stream_config(tmp_path, shared.address, topic=topic, every_seconds=0.5)
    cutter = Following(tmp_path, file, "--most", "2")
    cutter.wait_for("begins")
    produced = 0
    while cutter.process.poll() is None:
        shared.produce(topic, clicks(range(produced, produced + 10)))
        produced += 10
    assert cutter.wait() == 0
    assert len(manifests(tmp_path)) == 2
    assert check_whole(manifests(tmp_path), log_of(shared.address, topic=topic)) <= produced


def test_a_marker_ends_a_segment_in_each_partition(shared, topic, tmp_path):
    records, ends, counts = [], [], [0, 0, 0]
    for segment in range(4):
        for partition in range(3):
            size = 2000 * ((segment + partition) % 3)  # some have nothing but the marker
            keys = [None] * size + [b"end"]
            records += [{"partition": partition, "value": click(number), "key": key} for number, key in enumerate(keys)]
            counts[partition] += size + 1
        ends.append([*counts])
    records += [{"partition": partition, "value": click(partition)} for partition in range(2)]
    shared.produce(topic, sorted(records, key=lambda one: one["partition"]))
    output = cut(stream_config(tmp_path, shared.address, topic=topic, marker="end"))
    found = manifests(tmp_path)
    assert [[part.end for part in one.partitions.values()] for one in found.values()] == ends
    assert sum(one.rows for one in found.values()) == len(records) - 12 - 2
    assert "2 records of the topic are in no segment yet" in output
    check_whole(found, log_of(shared.address, topic=topic), b"end")


def test_a_segment_without_values_goes_on_until_there_are_columns(shared, topic, tmp_path):
    marker = [{"partition": number, "value": None, "key": b"end"} for number in range(3)]
    shared.produce(topic, marker)
    file = stream_config(tmp_path, shared.address, topic=topic, marker="end")
    assert "segment 000000000000 goes on after its markers" in cut(file)
    assert not manifests(tmp_path)
    shared.produce(topic, [{"partition": 1, "value": click(7)}, *marker, *marker])
    cut(file)
    found = manifests(tmp_path)
    assert [one.rows for one in found.values()] == [1, 0]
    assert [[part.end for part in one.partitions.values()] for one in found.values()] == [[2, 3, 2], [3, 4, 3]]
    assert all(one.schema.names[:3] == ["label", "user", "word"] for one in found.values())


def test_partitions_that_lack_a_marker_are_named(shared, topic, tmp_path):
    shared.produce(topic, [{"partition": 1, "value": click(1)}, {"partition": 1, "value": None, "key": b"end"}])
    cutter = Following(
        tmp_path, stream_config(tmp_path, shared.address, topic=topic, marker="end", timeout_seconds=1.0), "--most", "1"
    )
    cutter.wait_for("segment 000000000000 waits for the marker 'end' in 2 partitions: 0, 2")
    shared.produce(topic, ({"partition": number, "value": b"", "key": b"end"} for number in (0, 2)))
    assert cutter.wait() == 0
    (manifest,) = manifests(tmp_path).values()
    assert (manifest.rows, manifest.tombstones) == (1, 0)


def test_columns_are_those_of_the_first_segment_and_other_records_are_poison(shared, topic, tmp_path):
    good = [click(number) for number in range(20)]
    shared.produce(topic, ({"partition": 0, "value": value} for value in good))
    file = stream_config(tmp_path, shared.address, topic=topic, every_records=20)
    cut(file)
    poison = [b"{", click(1, user="x"), click(2)[:-1] + b"}}", b"\xff"]
    values = [poison[0], *good[:8], *poison[1:], *good[8:16]]
    shared.produce(topic, ({"partition": 0, "value": value} for value in values))
    done = run_trainer("cut-stream", file)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"offset 20 of partition 0 of topic '{topic}'" in done.stderr
    assert "data.stream.poison" in done.stderr
    assert len(manifests(tmp_path)) == 1

    output = cut(stream_config(tmp_path, shared.address, topic=topic, every_records=20, poison="skip"))
    manifest = manifests(tmp_path)["000000000001"]
    assert [group.left_out for group in manifest.groups] == [(20, 29, 30, 31)]
    assert (manifest.left_out, manifest.rows) == (4, 16)
    assert f"4 records of partition 0 of topic '{topic}' are left out, at offset 20: " in output
    assert "4 left out" in output
    assert manifest.schema == manifests(tmp_path)["000000000000"].schema
    check_whole(manifests(tmp_path), log_of(shared.address, topic=topic))


@pytest.mark.parametrize("event_time", [None, "at", "when"])
def test_late_records_are_counted(shared, topic, tmp_path, event_time):
    seconds = [*range(100, 110), *range(90, 99), 109, *range(85, 95)]  # of segments of ten records
    times = [BEGAN // 1000 + second for second in seconds]
    values = [click(number, at=at + 0.5, when=at) for number, at in enumerate(times)]
    stamps = [BEGAN if event_time else at * 1000 for at in times]
    records = [
        {"partition": 1, "value": value, "timestamp": stamp} for value, stamp in zip(values, stamps, strict=True)
    ]
    shared.produce(topic, records)
    columns = {"when": "timestamp[s]"} if event_time == "when" else {}
    if event_time == "when":
        columns = {"when": "int64"}
    file = stream_config(
        tmp_path, shared.address, topic=topic, every_records=10, event_time=event_time, columns=columns
    )
    output = cut(file)
    half = 0.5 if event_time == "at" else 0.0
    found = [*manifests(tmp_path).values()]
    assert [one.late for one in found] == [0, 9, 10]
    assert [one.first_event for one in found] == [BEGAN // 1000 + second + half for second in (100, 90, 85)]
    assert [one.last_event for one in found] == [BEGAN // 1000 + 109 + half] * 3
    assert "10 late" in output


def test_a_partition_that_is_new_begins_with_its_first_record(shared, topic, tmp_path):
    shared.produce(topic, ({"partition": number % 2, "value": click(number)} for number in range(100)))
    file = stream_config(tmp_path, shared.address, topic=topic, every_records=100)
    cut(file)
    manifest = tmp_path / "stream" / "000000000000.json"
    tree = json.loads(manifest.read_text())
    del tree["partitions"]["2"]  # as of a time when the topic had two
    manifest.write_text(json.dumps(tree))
    shared.produce(topic, clicks(range(300)))
    output = cut(file)
    assert "the topic has a new partition, 2: segment 000000000001" in output
    found = [*manifests(tmp_path).values()]
    assert [[*one.partitions] for one in found] == [[0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    assert found[1].partitions[2].start == 0
    assert sum(part.end for part in found[-1].partitions.values()) == 400


def test_a_partition_that_is_got_while_others_are_read(shared, topic):
    shared.produce(topic, clicks(range(3000)))
    log = CutTopic(StreamConfig(brokers=shared.address, topic=topic), lambda: None)
    log.begin({0: 0, 1: 700})
    assert log.new_partitions() == [2]
    offsets = {0: [], 1: [], 2: []}
    for added in (None, 2):
        if added is not None:
            log.add(added, 0)
        while not all(log.positions[number] == 1000 for number in log.positions):
            for record in log.poll():
                offsets[record.partition].append(record.offset)
    log.close()
    assert offsets == {0: [*range(1000)], 1: [*range(700, 1000)], 2: [*range(1000)]}


def test_poison_ends_a_job_that_copies_in_one_line(shared, topic, tmp_path):
    values = [*map(click, range(8)), b"{"]
    shared.produce(topic, [{"partition": int(place > 5), "value": value} for place, value in enumerate(values)])
    file = stream_config(tmp_path, shared.address, topic=topic, every_records=9, archive=str(tmp_path / "archive"))
    done = run_trainer("cut_stream", file)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "offset 2 of partition 1" in done.stderr


def test_poison_does_not_decide_columns(shared, topic, tmp_path):
    values = [b"{", b"[1]", *(click(number) for number in range(8))]
    shared.produce(topic, ({"partition": 0, "value": value} for value in values))
    cut(stream_config(tmp_path, shared.address, topic=topic, every_records=10, poison="skip"))
    (manifest,) = manifests(tmp_path).values()
    assert manifest.schema.names[:3] == ["label", "user", "word"]
    assert (manifest.rows, manifest.groups[0].left_out) == (8, (0, 1))


def test_copies_are_what_the_topic_has(shared, topic, tmp_path):
    shared.produce(topic, clicks(range(20_000)))
    with object_store() as store:
        store.fs.mkdir("archive")
        file = stream_config(tmp_path, shared.address, topic=topic, every_records=9000, archive="s3://archive/clicks")
        done = run_trainer("cut-stream", file, "--rest", "True", **store.environment)
        assert done.returncode == 0, done.stderr
        log, found = log_of(shared.address, topic=topic), manifests(tmp_path)
        assert check_whole(found, log) == 20_000
        place = store.environment
        keys = {"key": place["AWS_ACCESS_KEY_ID"], "secret": place["AWS_SECRET_ACCESS_KEY"]}
        rows = check_copies(found, log, endpoint_url=place["AWS_ENDPOINT_URL"], **keys)
        assert rows == 18_000
        there = {path.removeprefix("archive/clicks/") for path in store.fs.find("archive/clicks")}
        named = {f"{name}/{group.copy}" for name, one in found.items() for group in one.groups}
        assert there == named


@pytest.mark.parametrize("count", [0, 7])
def test_values_of_arrow_have_any_number_of_rows(shared, topic, tmp_path, count):
    schema = pa.schema([("user", pa.int64()), ("at", pa.float64())])
    tables = [pa.table({"user": range(size), "at": [float(size)] * size}, schema) for size in (3, count, 5, 2)]
    shared.produce(topic, ({"partition": 0, "value": streamed(table)} for table in tables))
    archive = tmp_path / "archive"
    settings = {"format": "arrow", "event_time": "at", "archive": str(archive)}
    cut(stream_config(tmp_path, shared.address, topic=topic, every_records=2, **settings))
    first, second = manifests(tmp_path).values()
    assert (first.rows, second.rows) == (3 + count, 7)
    assert (first.first_event, first.last_event) == (3.0, max(3.0, count))
    assert second.late == (2 if count else 1)  # records, of 5 and 2
    copies = [pq.read_table(f"{one.archive}/{one.groups[0].copy}") for one in (first, second)]
    assert pa.concat_tables([one.select(["user", "at"]) for one in copies]).equals(pa.concat_tables(tables))
    assert copies[1]["_offset"].to_pylist() == [2] * 5 + [3] * 2


def streamed(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_values_of_avro(shared, topic, tmp_path):
    fields = [{"name": "label", "type": "int"}, {"name": "user", "type": "long"}, {"name": "word", "type": "string"}]
    schema = {"type": "record", "name": "click", "fields": fields}
    (tmp_path / "click.avsc").write_text(json.dumps(schema))
    parsed = fastavro.parse_schema(schema)
    values = [json.loads(click(number)) for number in range(30)]
    written = []
    for value in values:
        file = io.BytesIO()
        fastavro.schemaless_writer(file, parsed, value)
        written.append(file.getvalue())
    shared.produce(topic, ({"partition": 2, "value": value} for value in written))
    settings = {"format": "avro", "schema_file": f"{tmp_path}/click.avsc", "archive": f"{tmp_path}/archive"}
    cut(stream_config(tmp_path, shared.address, topic=topic, every_records=15, **settings))
    found = manifests(tmp_path)
    check_whole(found, log_of(shared.address, topic=topic))
    rows = [row for one in found.values() for row in pq.read_table(f"{one.archive}/{one.groups[0].copy}").to_pylist()]
    assert [{name: row[name] for name in ("label", "user", "word")} for row in rows] == values


def test_manifests_on_an_object_store(shared, topic, tmp_path):
    shared.produce(topic, clicks(range(400)))
    with object_store() as store:
        store.fs.mkdir("run")
        path = "s3://run/stream/{segment}.json"
        file = stream_config(tmp_path, shared.address, path, topic=topic, every_records=100)
        # The answer to the first write is lost, so that the library writes again.
        with store.faults({"fault": "mute", "method": "PUT", "path": "0000.json", "times": 1}) as count:
            done = run_trainer("cut-stream", file, "--most", "2", **store.environment)
            assert count() == 1
        assert done.returncode == 0, done.stderr
        done = run_trainer("cut-stream", file, **store.environment)
        assert done.returncode == 0, done.stderr
        store.fs.get("run/stream/", f"{tmp_path}/stream/", recursive=True)
        assert sorted(store.fs.ls("run/stream", detail=False)) == [
            f"run/stream/{number:012}.json" for number in range(4)
        ]
    assert check_whole(manifests(tmp_path), log_of(shared.address, topic=topic)) == 400


def test_status_shows_how_far_the_cutter_is_behind(shared, topic, tmp_path):
    shared.produce(topic, clicks(range(250)))
    progress = tmp_path / "training.json"
    file = stream_config(tmp_path, shared.address, topic=topic, every_records=100)
    done = run_trainer("cut-stream", file, TORCHX_PROGRESS_FILE=str(progress))
    assert done.returncode == 0
    found = read_progress(progress)
    assert found.backlog == "segment 000000000001, 50 records behind"
    assert 0 < found.newest_event - BEGAN / 1000 < 250
    line = next(line for line in done.stdout.splitlines() if line.startswith("segment 000000000001: "))
    assert of_log([(time.time(), line)]).backlog == found.backlog


def test_training_takes_what_was_cut(shared, topic, tmp_path):
    records = [{"partition": number % 3, "value": click(number % 50)} for number in range(600)]
    marker = [{"partition": number, "value": None, "key": b"end"} for number in range(3)]
    shared.produce(topic, records[:300] + marker)
    shared.produce(topic, marker)  # a segment without rows
    shared.produce(topic, records[300:] + marker)
    file = stream_config(tmp_path, shared.address, data={"global_batch_size": 48}, topic=topic, marker="end")
    output = cut(file)
    words = output.rstrip().partition("Next:  python -m trainer ")[2].replace("runs/live", f"{tmp_path}/run").split()
    done = run_trainer(*words)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "segments.jsonl").read_text().splitlines()]
    assert [(line["segment"], line["samples"]) for line in lines if line["samples"]] == [
        ("000000000000", 300),
        ("000000000002", 300),
    ]
