"""Segments of a real topic by their manifests: the same rows as in Parquet, or one line that names what is wrong."""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from jobs import config, launch, losses
from kafka_broker import broker, missing
from stream_segments import FIRST_TIME, Written, avro_schema, write_topic
from stream_values import json_value

from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError, StorageError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.data.stream.reader import KafkaReader

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
ROWS = 300


def rows_of(number: int, seed: int = 0) -> pa.Table:
    """Returns rows that `jobs.config` describes."""
    random = np.random.default_rng(seed)
    sparse = {f"s{i}": random.integers(0, 100 + i, number) for i in range(6)}
    dense = {f"d{i}": random.standard_normal(number) for i in range(2)}
    return pa.table({**dense, **sparse, "label": (random.random(number) < 0.4).astype(np.int64)})


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("broker")) as found:
        yield found


@pytest.fixture(scope="module")
def clicks(kafka):
    return write_topic(kafka, "clicks", rows_of(ROWS), tombstones=11)


def write_manifest(folder, manifest, name="000000000000"):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(manifest.to_json())
    return file


def stream(kafka, **changes):
    return {"brokers": kafka.address, "topic": "clicks", "timeout_seconds": 10} | changes


def data_of(file, section):
    return Config.model_validate(config(file, data__reader="kafka", data__stream=section)).data


def reader_of(kafka, file, **changes):
    return KafkaReader.from_config(data_of(file, stream(kafka, **changes)))


def read(reader, file, group, names):
    with reader.open(str(file), group, names) as column:
        return pa.table([column(name) for name in names], names=[*names])


def same(found, wanted):
    return found.column_names == wanted.column_names and found.cast(wanted.schema).equals(wanted)


def batches(data):
    files = find_files("data.train", data.train, data)
    return list(Loader(files, data, Lanes(files.rows, 8, 64), 0, 1, seed=3, shuffle=True).batches(0, 6))


@pytest.mark.parametrize("format", ["json", "avro", "arrow"])
def test_a_segment_gives_the_batches_of_the_same_rows_in_parquet(kafka, clicks, format, tmp_path):
    written = clicks if format == "json" else write_topic(kafka, f"of_{format}", rows_of(ROWS), format)
    groups = written.groups(3 if format == "arrow" else 20)
    file, section = write_manifest(tmp_path, written.manifest(groups)), {"topic": written.topic, "format": format}
    if format == "avro":
        (tmp_path / "row.avsc").write_text(json.dumps(avro_schema(rows_of(1))))
        section["schema_file"] = str(tmp_path / "row.avsc")
    parquet = written.write_parquet(tmp_path / "rows.parquet", groups)
    found = batches(data_of(file, stream(kafka, **section)))
    expected = batches(Config.model_validate(config(parquet)).data)
    assert len(found) == len(expected) == 6
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.dense, other.dense)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.sparse.values(), other.sparse.values())


def test_rows_have_the_columns_of_the_log_and_lack_tombstones_and_what_is_left_out(kafka, clicks, tmp_path):
    groups = clicks.groups(30, left_out=[3, 4, 40])
    file = write_manifest(tmp_path, clicks.manifest(groups))
    reader = reader_of(kafka, file)
    outline = reader.inspect(str(file))
    assert outline.row_groups == tuple(one.rows for one in groups)
    for number in np.random.default_rng(0).permutation(len(groups)).tolist():
        one = groups[number]
        expected = clicks.rows(one.partition, one.start, one.end, one.left_out)
        assert same(read(reader, file, number, outline.schema.names), expected)
        assert reader.place(str(file), number) == f"partition {one.partition}, offsets {one.start} to {one.end - 1}"
        offset = expected["_offset"][5].as_py()
        assert reader.place(str(file), number, 5) == f"partition {one.partition}, offset {offset}"


def test_a_file_of_parquet_is_read_beside_a_stream(kafka, clicks, tmp_path):
    groups = clicks.groups(20)
    parquet = clicks.write_parquet(tmp_path / "rows.parquet", groups)
    found = batches(data_of(parquet, stream(kafka)))
    expected = batches(Config.model_validate(config(parquet)).data)
    assert all(torch.equal(one.dense, other.dense) for one, other in zip(found, expected, strict=True))
    assert reader_of(kafka, parquet).place(str(parquet), 1, 5) == "row group 1, row 5"


def test_many_threads_read_at_once_over_a_few_connections(kafka, clicks, tmp_path):
    groups = clicks.groups(7)
    file = write_manifest(tmp_path, clicks.manifest(groups))
    reader = reader_of(kafka, file)
    wanted = [clicks.rows(one.partition, one.start, one.end) for one in groups]

    def is_right(number):
        return same(read(reader, file, number, wanted[number].column_names), wanted[number])

    order = np.random.default_rng(1).permutation([*range(len(groups))] * 4).tolist()
    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(is_right, order))


def test_a_process_that_has_read_ends_at_once(kafka, clicks, tmp_path):
    groups = clicks.groups(20)
    file, last = write_manifest(tmp_path, clicks.manifest(groups)), len(groups) - 1
    text = f"""
import os
from trainer.config.stream import StreamConfig
from trainer.data.stream.reader import KafkaReader
reader = KafkaReader(StreamConfig(brokers={kafka.address!r}, topic="clicks"))
def rows(group):
    with reader.open({str(file)!r}, group, ["label"]) as column:
        return len(column("label"))
print(rows(0), flush=True)
if (child := os.fork()) == 0:
    print(rows({last}), flush=True)
    os._exit(0)  # as processes of multiprocessing and forked ranks end
else:
    assert os.waitpid(child, 0)[1] == 0
    print(rows(1), flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == [str(groups[number].rows) for number in (0, last, 1)]


@pytest.fixture
def own_kafka(tmp_path):
    with broker(tmp_path) as found:
        yield found


def test_a_broker_that_answers_nothing_for_a_while_is_waited_for(own_kafka, tmp_path, capfd):
    written = write_topic(own_kafka, "clicks", rows_of(ROWS))
    groups = written.groups(20)
    file = write_manifest(tmp_path, written.manifest(groups))
    reader = reader_of(own_kafka, file, timeout_seconds=20)
    assert len(read(reader, file, 0, ["label"])) == groups[0].rows
    own_kafka.stop()
    threading.Timer(8, own_kafka.go_on).start()
    for number in range(len(groups) - 1, 0, -1):
        one = groups[number]
        wanted = written.rows(one.partition, one.start, one.end).select(["s0"])
        assert same(read(reader, file, number, ["s0"]), wanted)
    first, last = capfd.readouterr().out.splitlines()
    assert first.startswith(f"brokers {own_kafka.address} do not answer: ")
    assert first.endswith("; waiting for them for 20 s")
    assert last == f"brokers {own_kafka.address} answer again"


def test_a_broker_that_does_not_come_back_is_one_line_within_the_bound(own_kafka, tmp_path):
    written = write_topic(own_kafka, "clicks", rows_of(60))
    file = write_manifest(tmp_path, written.manifest(written.groups(10)))
    reader = reader_of(own_kafka, file, timeout_seconds=2)
    read(reader, file, 0, ["label"])
    own_kafka.kill()
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"no broker has answered for data.stream.timeout_seconds \(2\).*refused"):
        read(reader, file, 3, ["label"])
    assert time.monotonic() - began < 60


def changed(written, groups, number, **changes):
    return written.manifest([replace(one, **(changes if at == number else {})) for at, one in enumerate(groups)])


def refused(kafka, file, number=0, **changes):
    with pytest.raises(InputError) as error:
        read(reader_of(kafka, file, **changes), file, number, ["label"])
    return str(error.value)


def test_records_that_are_others_than_before_are_refused(kafka, clicks, tmp_path):
    groups = clicks.groups(20)
    wrong = [
        changed(clicks, groups, 2, crc32=groups[2].crc32 ^ 1),
        changed(clicks, groups, 2, records=groups[2].records + 1),
    ]
    for place, manifest in enumerate(wrong):
        file = write_manifest(tmp_path / str(place), manifest)
        assert len(read(reader_of(kafka, file), file, 1, ["label"])) == groups[1].rows
        line = refused(kafka, file, 2)
        assert "partition 0, offsets 40 to 59: the records are others than when the segment was cut" in line
    ends = len(clicks.partitions[0])
    last = next(number for number, one in enumerate(groups) if one.partition == 0 and one.end == ends)
    file = write_manifest(tmp_path / "short", changed(clicks, groups, last, end=ends + 5))
    assert f"no record from offset {ends} on" in refused(kafka, file, last, timeout_seconds=2)
    other = write_topic(kafka, "others", rows_of(ROWS, seed=5))
    file = write_manifest(tmp_path / "anew", replace(clicks.manifest(groups), topic=other.topic))
    assert "topic 'others' was made anew or compacted" in refused(kafka, file, 1, topic=other.topic)


def test_records_that_retention_has_deleted_are_named_with_the_remedy(tmp_path):
    # The broker of librdkafka's own tests keeps 5 MB of a partition, as a topic with retention.bytes does.
    from confluent_kafka import Producer

    owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (place,) = owner.list_topics(timeout=10).brokers.values()
    rows = pa.table({"label": np.arange(120), "pad": ["x" * 100_000] * 120})
    written = Written("clicks", "json", rows.schema, [[]], [[]])
    for number in range(len(rows)):
        written.tables[0].append(rows[number : number + 1])
        written.partitions[0].append(json_value(written.tables[0][-1].to_pylist()[0]))
        owner.produce("clicks", written.partitions[0][-1], partition=0, timestamp=FIRST_TIME + 10 * number)
        assert owner.flush(10) == 0
    file = write_manifest(tmp_path, written.manifest(written.groups(20)))
    reader = KafkaReader(StreamConfig(brokers=f"{place.host}:{place.port}", topic="clicks"))
    assert same(read(reader, file, 5, ["label", "_offset"]), written.rows(0, 100, 120).select(["label", "_offset"]))
    for number in (0, 3):  # all records are gone, or only the first
        with pytest.raises(
            InputError, match=r"the records are gone: partition 0 of topic 'clicks' now begins with"
        ) as one:
            read(reader, file, number, ["label"])
        assert "data.stream.archive" in str(one.value)
        assert "\n" not in str(one.value)


def test_a_schema_that_has_changed_since_is_named(kafka, clicks, tmp_path):
    manifest = clicks.manifest(clicks.groups(20))
    schema = manifest.schema.set(manifest.schema.get_field_index("label"), pa.field("label", pa.string()))
    file = write_manifest(tmp_path, replace(manifest, schema=schema))
    assert "offset 20: column 'label' has an integer ('" in refused(kafka, file, 1)


def test_manifests_of_something_else_are_refused(kafka, clicks, tmp_path):
    manifest = clicks.manifest(clicks.groups(20))
    file = write_manifest(tmp_path, manifest)

    def line(section, file=file):
        data = data_of(file, section)
        with pytest.raises(InputError) as error:
            find_files("data.train", data.train, data)
        return str(error.value)

    assert "is a segment of topic 'clicks', but data.stream.topic is 'click'" in line(stream(kafka, topic="click"))
    assert "is a segment of format 'json', but data.stream.format is 'arrow'" in line(stream(kafka, format="arrow"))
    assert "data.stream is not set; set data.stream.topic = 'clicks'" in line({})
    torn = tmp_path / "torn.json"
    torn.write_text(manifest.to_json()[:-100])
    assert "torn.json: cannot be read as Kafka manifest" in line(stream(kafka), torn)
    (tmp_path / "list.json").write_text('{"a": 1, "b": 2}\n')
    assert "list.json: cannot be read as Kafka manifest" in line(stream(kafka), tmp_path / "list.json")


def test_copies_are_read_without_any_broker_or_client(clicks, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)  # an import of it fails
    groups = clicks.groups(20, left_out=[5])
    file = write_manifest(tmp_path, clicks.with_copies(tmp_path, groups))
    for section in ({}, {"brokers": "nowhere:1", "topic": "clicks"}):
        found = batches(data_of(file, section))
        expected = batches(Config.model_validate(config(tmp_path / "copy.parquet")).data)
        assert all(torch.equal(one.dense, other.dense) for one, other in zip(found, expected, strict=True))
    (tmp_path / "copy.parquet").unlink()
    with pytest.raises(InputError, match=r"partition \d, offsets .*: its copy .*copy.parquet is gone; put it back"):
        batches(data_of(file, {}))


def test_a_segment_without_copies_needs_the_client(clicks, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    file = write_manifest(tmp_path, clicks.manifest(clicks.groups(20)))
    with pytest.raises(InputError, match=r"pip install 'torchx-recsys\[kafka\]'"):
        batches(data_of(file, {"brokers": "nowhere:1", "topic": "clicks"}))


def test_segments_must_mean_the_same(kafka, clicks, tmp_path):
    manifest = clicks.manifest(clicks.groups(20))
    write_manifest(tmp_path, manifest)
    schema = manifest.schema.set(manifest.schema.get_field_index("s0"), pa.field("s0", pa.string()))
    write_manifest(tmp_path, replace(manifest, schema=schema), "000000000001")
    data = data_of(tmp_path, stream(kafka))
    hashed = data.model_copy(update={"sparse": {"s0": data.sparse["s0"].model_copy(update={"ids": "hash"})}})
    with pytest.raises(InputError, match=r"column 's0' has strings .*but integers in .*000000000000.json"):
        find_files("data.train", hashed.train, hashed)


def test_training_on_one_and_two_ranks_is_that_on_the_same_rows_in_parquet(kafka, clicks, tmp_path):
    groups = clicks.groups(20, left_out=[7])
    write_manifest(tmp_path / "segments", clicks.manifest(groups))
    parquet = clicks.write_parquet(tmp_path / "rows.parquet", groups)
    for ranks in (1, 2):
        jobs = [
            {"config": config(parquet, train__steps=6), "out": str(tmp_path / f"parquet-{ranks}")},
            {
                "config": config(
                    tmp_path / "segments", train__steps=6, data__reader="kafka", data__stream=stream(kafka)
                ),
                "out": str(tmp_path / f"kafka-{ranks}"),
            },
        ]
        launch(jobs, ranks, tmp_path)
        assert losses(tmp_path / f"kafka-{ranks}") == losses(tmp_path / f"parquet-{ranks}")


@pytest.mark.more("a broker that answers nothing for a while has shown the promise")
def test_a_broker_that_is_killed_again_and_again_loses_and_repeats_nothing(tmp_path):
    with broker(tmp_path, keeps_log=True) as kafka:
        written = write_topic(kafka, "clicks", rows_of(2000))
        groups = written.groups(50)
        file = write_manifest(tmp_path, written.manifest(groups))
        reader, ended = reader_of(kafka, file, timeout_seconds=60), threading.Event()

        def disturb():
            while not ended.wait(1.0):
                kafka.kill()
                time.sleep(0.5)
                kafka.start()

        disturber = threading.Thread(target=disturb)
        disturber.start()
        try:
            for number in np.random.default_rng(2).permutation(len(groups)).tolist():
                one = groups[number]
                wanted = written.rows(one.partition, one.start, one.end)
                assert same(read(reader, file, number, wanted.column_names), wanted)
        finally:
            ended.set()
            disturber.join()
