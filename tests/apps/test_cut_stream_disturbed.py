"""Cutters that are stopped or killed, brokers that go away, two cutters at once, and large segments."""

import os
import random
import re
import subprocess
import sys
import threading
import time

import pytest
from command import run_trainer
from cut_topics import (
    TOPIC,
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


def test_a_stop_request_leaves_no_part_of_a_segment(shared, topic, tmp_path):
    shared.produce(topic, clicks(range(1500)))
    file = stream_config(tmp_path, shared.address, topic=topic, every_records=1000)
    cutter = Following(tmp_path, file)
    cutter.wait_for("segment 000000000000: ")
    assert cutter.end() == 75
    assert [one.name for one in (tmp_path / "stream").iterdir()] == ["000000000000.json"]
    assert "stopped: 500 records of the topic are in no segment yet; the same command goes on" in cutter.output
    shared.produce(topic, clicks(range(1500, 2000)))
    cut(file)
    assert check_whole(manifests(tmp_path), log_of(shared.address, topic=topic)) == 2000


def test_copies_of_a_killed_cutter_are_removed_and_others_are_not(shared, topic, tmp_path):
    shared.produce(topic, clicks(range(200)))
    archive = tmp_path / "archive"
    file = stream_config(tmp_path, shared.address, topic=topic, every_records=100, archive=str(archive))
    cut(file, "--most", "1")
    (tmp_path / "stream" / "000000000000.json").unlink()  # as if the cutter had been killed before it wrote that
    (tmp_path / "stream" / "000000000000.json.0123abcd.partial").write_text("{")
    left = [*(archive / "000000000000").iterdir()]
    left[0].rename(left[0].with_name("00000-0-7.parquet"))
    output = cut(file, "--most", "1")
    assert re.search(r"removed [123] files? of segment 000000000000 ", output), output
    assert not (archive / "000000000000" / "00000-0-7.parquet").exists()
    assert [one.name for one in (tmp_path / "stream").iterdir()] == ["000000000000.json"]
    check_copies(manifests(tmp_path), log_of(shared.address, topic=topic))

    other = tmp_path / "other"
    other.mkdir()
    before = {path: path.read_bytes() for path in archive.rglob("*.parquet")}
    done = run_trainer(
        "cut-stream", stream_config(other, shared.address, topic=topic, every_records=100, archive=str(archive))
    )
    assert done.returncode == 2
    assert "of something else; name another directory" in done.stderr
    assert {path: path.read_bytes() for path in archive.rglob("*.parquet")} == before


def test_a_broker_that_does_not_answer_for_a_while_changes_nothing(tmp_path):
    with broker(tmp_path) as own:
        own.create(TOPIC, 3)
        own.produce(TOPIC, clicks(range(1000)))
        file = stream_config(tmp_path, own.address, every_records=1000)
        cutter = Following(tmp_path, file, "--most", "2")
        cutter.wait_for("segment 000000000000: ")
        own.stop()
        cutter.wait_for("do not answer")
        own.go_on()
        own.produce(TOPIC, clicks(range(1000, 2000)))
        assert cutter.wait() == 0
        assert "answer again" in cutter.output
        assert check_whole(manifests(tmp_path), log_of(own.address)) == 2000


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_brokers_that_stay_away_end_the_job_in_one_line(tmp_path, how):
    with broker(tmp_path) as own:
        own.create(TOPIC, 3)
        own.produce(TOPIC, clicks(range(1500)))
        cutter = Following(tmp_path, stream_config(tmp_path, own.address, every_records=1000, timeout_seconds=3.0))
        cutter.wait_for("segment 000000000000: ")
        getattr(own, how)()
        assert cutter.wait() == 1
        assert cutter.errors.count("\n") == 1
        assert (
            f"data.stream.brokers is '{own.address}': no broker has answered for data.stream.timeout_seconds (3)"
            in cutter.errors
        )
        assert "do not answer" in cutter.output
        assert len(manifests(tmp_path)) == 1
        own.kill()


def test_kills_at_any_moment_leave_each_record_in_one_segment(tmp_path, request):
    kills = 20 if request.config.getoption("all") else 5
    with broker(tmp_path) as own:
        own.create(TOPIC, 3)
        ended, produced = threading.Event(), [0]

        def produce():
            while not ended.is_set():
                own.produce(TOPIC, clicks(range(produced[0], produced[0] + 500)))
                produced[0] += 500
                time.sleep(0.05)

        producer = threading.Thread(target=produce)
        producer.start()
        archive = tmp_path / "archive"
        file = stream_config(tmp_path, own.address, every_records=700, archive=str(archive))
        chance = random.Random(7)
        for _ in range(kills):
            cutter = Following(tmp_path, file)
            time.sleep(chance.uniform(0.0, 1.5))
            assert cutter.process.poll() is None, cutter.errors
            cutter.process.kill()
            assert cutter.wait() < 0
        assert manifests(tmp_path)  # on a busy machine a cutter may be killed before its first cut
        ended.set()
        producer.join()
        cut(file, "--rest", "True")
        log, found = log_of(own.address), manifests(tmp_path)
        assert check_whole(found, log) == produced[0] == sum(map(len, log.values()))
        assert check_copies(found, log) == sum(one.rows for one in found.values())
        there = {str(path.relative_to(archive)) for path in archive.rglob("*.parquet")}
        assert there == {f"{name}/{group.copy}" for name, one in found.items() for group in one.groups}


def test_a_stop_request_does_not_wait_for_brokers(tmp_path):
    with broker(tmp_path) as own:
        own.create(TOPIC, 1)
        cutter = Following(tmp_path, stream_config(tmp_path, own.address, every_records=10, timeout_seconds=60.0))
        cutter.wait_for("begins")
        own.stop()
        cutter.wait_for("do not answer")
        assert cutter.end() == 75
        own.kill()
        (tmp_path / "again").mkdir()
        cutter = Following(
            tmp_path / "again", stream_config(tmp_path, own.address, every_records=10, timeout_seconds=60.0)
        )
        cutter.wait_for("do not answer")
        assert cutter.end() == 75
        assert "stopped: nothing was read" in cutter.output


def test_a_broker_that_is_killed_and_comes_back_changes_nothing(tmp_path):
    with broker(tmp_path, keeps_log=True) as own:
        own.create(TOPIC, 3)
        own.produce(TOPIC, clicks(range(1000)))
        cutter = Following(tmp_path, stream_config(tmp_path, own.address, every_records=700), "--most", "3")
        for again in range(1, 3):
            cutter.wait_for("segment 000000000000: ")
            own.kill()
            own.start()
            own.produce(TOPIC, clicks(range(1000 * again, 1000 * again + 1000)))
        assert cutter.wait() == 0
        assert check_whole(manifests(tmp_path), log_of(own.address)) == 2100


@pytest.mark.more("the lock's own tests show it")
def test_one_cutter_at_a_time(shared, topic, tmp_path):
    shared.produce(topic, clicks(range(100)))
    file = stream_config(tmp_path, shared.address, topic=topic, every_records=100)
    first = Following(tmp_path, file)
    first.wait_for("segment 000000000000: ")
    second = run_trainer("cut-stream", file)
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert "data.segments.path is '" in second.stderr
    assert "is writing to" in second.stderr
    assert first.end() == 75
    assert len(manifests(tmp_path)) == 1


@pytest.mark.more("many records")
def test_memory_does_not_grow_with_a_segment(shared, topic, tmp_path):
    peaks, value = [], click(1, text="x" * 500)
    for records in (100_000, 500_000):
        shared.produce(topic, ({"partition": number % 3, "value": value} for number in range(records)))
        folder = tmp_path / str(records)
        folder.mkdir()
        file = stream_config(folder, shared.address, topic=topic, every_records=10_000_000, archive=f"{folder}/archive")
        peaks.append(peak_of("cut-stream", file, "--rest", "True"))
        (manifest,) = manifests(folder).values()
    assert sum(part.end for part in manifest.partitions.values()) == 600_000
    assert sum(group.bytes for group in manifest.groups) > 300e6
    assert peaks[1] - peaks[0] < 50e6, peaks


def peak_of(*words):
    """Runs a command in a fresh process, and returns the largest memory that it has had."""
    process = subprocess.Popen([sys.executable, "-m", "trainer", *map(str, words)], stdout=subprocess.DEVNULL)
    _, code, used = os.wait4(process.pid, 0)
    assert code == 0
    return used.ru_maxrss * 1024
