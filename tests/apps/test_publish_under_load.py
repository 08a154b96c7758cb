"""Versions that are published under readers, by publishers that are killed, and by two at once."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from command import run_trainer, start_trainer
from exported import parity_of
from row_store import fields_in, first_export, needs_redis, next_export, redis_server, rows_in, rows_of, write_manifest
from store_reader import as_text, asked, guide_reader, module_of, of_rows, wanted_rows

from torchx_recsys import StoredModel, load

pytestmark = [needs_redis, pytest.mark.more("test_publish_rows.py has the same promises without load")]
VERSIONS = 20
PER_SECOND = (40, 100, 40, 100)  # reads of each reader, of which every other uses plain commands
KILLS = 15
ROWS = 60_000  # of a table, so that a publisher can be killed in the midst of it


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Directories of exports with other rows and other weights."""
    folders = [first_export(tmp_path_factory.mktemp("exports"))]
    for number in range(1, VERSIONS + 1):
        folders.append(next_export(folders[-1], 10 * number, number, share=0.5))
    return folders


@pytest.fixture
def store():
    with redis_server() as one, one.client() as client:
        one.at = client
        yield one


def words(export, store, *flags):
    return ["publish", "--export", export, "--to", store.url, *flags]


def test_no_reader_sees_two_versions_in_one_answer(exports, store, tmp_path):
    """Neither a model nor plain commands: each answer is, bit for bit, that of the export of its version."""
    columns, file = parity_of(exports[0])["columns"], guide_reader(tmp_path)
    (tmp_path / "questions.json").write_text(json.dumps(columns))
    places = range(len(next(iter(columns.values()))) - 1)
    of_model, of_commands = {}, {}
    for version, export in enumerate(exports, 1):
        model, rows = load(export), rows_of(export)
        of_model |= {(version, place): as_text(model(asked(columns, place))) for place in places}
        of_commands |= {(version, place): of_rows([rows[row] for row in wanted_rows(place)]) for place in places}
    assert len({*of_model.values()}) == len(of_model)  # no two versions have the same answer to anything
    assert len({*of_commands.values()}) == len(of_commands)

    assert run_trainer(*words(exports[0], store)).returncode == 0
    readers = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "store_reader", store.url, tmp_path / "questions.json"),
                *(str(per_second), tmp_path / f"{number}.json", file if number % 2 else ""),
            ]
        )
        for number, per_second in enumerate(PER_SECOND)
    ]
    wait_until(lambda: len([*tmp_path.glob("*.ready")]) == len(readers))
    for export in exports[1:]:
        done = run_trainer(*words(export, store, "--keep", 8))
        assert done.returncode == 0, done.stderr
    for number in range(len(readers)):
        (tmp_path / f"{number}.json.stop").write_text(str(VERSIONS + 1))
    assert [reader.wait(120) for reader in readers] == [0] * len(readers)

    found = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(len(readers))]
    for number, one in enumerate(found):
        expected = of_commands if number % 2 else of_model
        assert [text for _, text, _ in one["answers"]] == [
            expected[version, place] for place, _, version in one["answers"]
        ]
        versions = [version for _, _, version in one["answers"]]
        assert versions == sorted(versions)
        assert len({*versions}) > (VERSIONS - 2 if number % 2 else 3)
    rate = sum(len(one["answers"]) / one["seconds"] for one in found)
    seen = [len({version for _, _, version in one["answers"]}) for one in found]
    print(f"{sum(len(one['answers']) for one in found):,} answers, {rate:.0f} a second, of {seen} versions")
    assert rows_in(store.at, VERSIONS + 1) == rows_of(exports[-1])


def test_rows_that_plain_commands_read_are_of_one_version(exports, store, tmp_path):
    """By the reader of the guide, as fast as it can, which every version expires under."""
    reader, rows = module_of(guide_reader(tmp_path)), [rows_of(export) for export in exports]
    assert run_trainer(*words(exports[0], store)).returncode == 0
    wanted, seen = [row for row in rows[0] if row[1] % 3 == 0], Counter()
    for export in exports[1:8]:
        errors = tmp_path / "errors"
        process = start_trainer(words(export, store, "--keep", 1), tmp_path / "output", errors, 0)
        while process.poll() is None:
            version, found = reader.read_rows(store.at, "model", wanted)
            assert found == [rows[version - 1][row] for row in wanted]
            seen[version] += 1
        assert process.wait() == 0, errors.read_text()
    assert len(seen) >= 7
    table = reader.tables(store.at, "model", 8)["s0"]
    assert (table["columns"], table["dtype"], table["features"]) == (16, "float32", ["s0"])


def wait_until(holds, seconds=60):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Exports of a larger table."""
    sparse = {f"s{i}": {"rows": ROWS if i == 0 else 110} for i in range(6)}
    folders = [first_export(tmp_path_factory.mktemp("large"), data__sparse=sparse)]
    for number in range(1, 4):
        folders.append(next_export(folders[-1], 10 * number, number, share=0.9))
    return folders


def test_a_publisher_that_is_killed_leaves_the_old_version_or_the_new(large, store, tmp_path):
    chance, outcomes = random.Random(0), Counter()
    answers = [load(export)(parity_of(large[0])["columns"]) for export in large]
    assert run_trainer(*words(large[0], store)).returncode == 0
    current = 0  # place of the export that the store has
    for number in range(KILLS):
        target = (current + 1 + chance.randrange(len(large) - 1)) % len(large)
        flags = ["--keep", chance.choice([1, 2, 3]), "--all-rows", chance.random() < 0.2]
        process = start_trainer(words(large[target], store, *flags), tmp_path / "output", tmp_path / "errors", 0)
        before = store.at.get("model:version")
        if number % 5:
            wait_until(lambda process=process: store.at.exists("model:writing") or process.poll() is not None)
        time.sleep(chance.random() * (1.5 if number % 5 == 0 else 0.3))
        was_writing = bool(store.at.exists("model:writing"))
        process.kill()
        process.wait()
        is_new = store.at.get("model:version") != before
        current = target if is_new else current
        outcomes[was_writing, is_new] += 1
        assert rows_in(store.at, int(store.at.get("model:version"))) == rows_of(large[current])
        found = StoredModel(store.url)(parity_of(large[0])["columns"])
        assert all(torch.equal(found[name], answers[current][name]) for name in found)
    print(f"killed {KILLS} times: {dict(outcomes)} (was writing, is new)")
    assert outcomes[True, False] > KILLS / 4

    target = (current + 1) % len(large)
    done = run_trainer(*words(large[target], store, "--keep", 1))
    assert done.returncode == 0, done.stderr
    assert rows_in(store.at, int(store.at.get("model:version"))) == rows_of(large[target])
    assert fields_in(store.at) == len(rows_of(large[target]))
    assert not store.at.exists("model:leftovers", "model:writing", "model:lock")
    assert [*store.at.scan_iter("model:changed:*")] == []


@contextmanager
def paused(process):
    """Stops a process during the block."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_publisher_that_was_paused_writes_nothing_more(large, store, tmp_path):
    """Another one takes over meanwhile, and removes what it wrote."""
    assert run_trainer(*words(large[0], store)).returncode == 0
    process = start_trainer(words(large[1], store), tmp_path / "output", tmp_path / "errors", 0)
    wait_until(lambda: store.at.exists("model:changed:2"))
    with paused(process):
        done = run_trainer(*words(large[2], store))
    assert done.returncode == 0, done.stderr
    assert "publishes there, or was killed a moment ago; waiting" in done.stdout
    assert "version 2 was not completed; removing what there is of it" in done.stdout
    assert process.wait() == 1
    line = (tmp_path / "errors").read_text()
    assert "another publisher took over" in line
    assert line.count("\n") == 1
    assert store.at.get("model:version") == b"3"
    assert rows_in(store.at, 3) == rows_of(large[2])
    old, new = rows_of(large[0]), rows_of(large[2])
    assert fields_in(store.at) == len(new) + sum(old[row] != new[row] for row in new)


def test_of_two_publishers_at_once_one_waits_and_the_newer_step_stays(large, store, tmp_path):
    assert run_trainer(*words(large[0], store)).returncode == 0
    first = start_trainer(words(large[3], store), tmp_path / "output", tmp_path / "errors", 0)
    wait_until(lambda: store.at.exists("model:writing"))
    output = tmp_path / "output2"
    with paused(first):  # for so short a time that it stays the publisher
        second = start_trainer(words(large[1], store), output, tmp_path / "errors2", 0)
        wait_until(lambda: output.exists() and "waiting for it to end" in output.read_text())
    assert (first.wait(), second.wait()) == (0, 0), (tmp_path / "errors").read_text()
    assert "step 30 was published meanwhile, and stays the current one" in (tmp_path / "output2").read_text()
    assert rows_in(store.at, 2) == rows_of(large[3])


def test_the_memory_of_the_store_stays_the_same(exports, store):
    used = []
    for export in exports:
        assert run_trainer(*words(export, store, "--keep", 2)).returncode == 0
        used.append(store.at.info("memory")["used_memory"])
    print(f"bytes after each of {len(used)} versions: {used}")
    assert max(used[4:]) < 1.05 * max(used[2:4])


def test_the_memory_of_a_publisher_does_not_grow_with_a_table(exports, store, tmp_path):
    peaks = []
    for rows in (100_000, 1_000_000):
        folder = with_rows(exports[0], tmp_path / str(rows) / "step-4", rows)
        words = [sys.executable, "-c", PUBLISH_AND_PRINT_PEAK, "publish", "--export", folder, "--to", store.url]
        done = subprocess.run([*words, "--prefix", str(rows)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.split()[-1]))
        assert store.at.hget(f"{rows}:row:s0:{rows - 1}", "1") == bytes(64)
    print(f"peaks in KiB: {peaks}")
    assert peaks[1] < peaks[0] + 10_000


PUBLISH_AND_PRINT_PEAK = """
import re, sys
from trainer.__main__ import main

assert main(sys.argv[1:]) == 0
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def with_rows(export, folder, rows):
    """Makes an export whose table s0 has so many rows, all zeros."""
    shutil.copytree(export, folder)
    index = json.loads((folder / "tables.json").read_text())["tables"]
    name = "tables/s0-00000-of-00001.bin"
    (folder / name).write_bytes(bytes(64 * rows))
    index["s0"] |= {"rows": rows, "files": [{"name": name, "first_row": 0, "rows": rows}]}
    (folder / "tables.json").write_text(json.dumps({"tables": index}))
    write_manifest(folder, str(rows))
    return folder


def test_connections_that_are_cut_in_the_midst_of_it(large, store, tmp_path):
    assert run_trainer(*words(large[0], store)).returncode == 0
    output, errors = tmp_path / "output", tmp_path / "errors"
    process = start_trainer(words(large[1], store), output, errors, 0)
    wait_until(lambda: store.at.exists("model:changed:2"))
    cuts = 0
    while process.poll() is None and cuts < 4:
        cuts += store.at.client_kill_filter(_type="normal", skipme=True) > 0
        time.sleep(0.005)
    assert process.wait() == 0, errors.read_text()
    assert "the store does not answer: " in output.read_text()
    assert "attempt 2 of 6 in 0.5 s" in output.read_text()
    assert rows_in(store.at, 2) == rows_of(large[1])
