"""The guide on streams as it is typed: events are sent, cut, trained on, watched, exported, and a run goes back."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from command import run_trainer, start_trainer
from kafka_broker import broker
from torchx.specs.builders import materialize_appdef
from torchx.specs.finder import get_component

from trainer.data.stream.manifest import Manifest

pytestmark = pytest.mark.more("the segments' own tests are quicker; this types the whole guide")

PAGE = (Path(__file__).parents[2] / "docs/guides/streams.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SEGMENTS, EVENTS, PARTITIONS = 4, 20_000, 3
WAIT_SECONDS = 240


def command(begins, number=0):
    """The words of `python -m trainer` that a command of the guide stands for."""
    texts = [block.replace("\\\n", " ") for language, block in FENCE.findall(PAGE) if language == "text"]
    found = [line for text in texts for line in text.splitlines() if line.startswith(begins)]
    words = shlex.split(found[number])
    component = words[2]
    role = materialize_appdef(get_component(component).fn, words[3:]).roles[0]
    line = shlex.split(role.args[1]) if role.entrypoint == "bash" else role.args
    return line[line.index("trainer") + 1 :]


def wait_for(condition, what, *processes):
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert all(process.poll() is None for process in processes), what()
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reader's directory, with a run over the first segments, after cutter and training were stopped."""
    folder = tmp_path_factory.mktemp("guide")
    with pytest.MonkeyPatch.context() as patch, broker(folder) as kafka:
        patch.chdir(folder)
        kafka.create("watched", PARTITIONS)
        for _, block in FENCE.findall(PAGE):
            if name := re.match(r"# (\w+\.\w+)\n", block):
                (folder / name[1]).write_text(block.replace("localhost:9092", kafka.address))
        send = next(line for line in PAGE.splitlines() if line.startswith("python produce.py localhost"))
        assert send.endswith(f" {EVENTS}")
        words = send.replace("localhost:9092", kafka.address).split()[1:]
        subprocess.run([sys.executable, *words], cwd=folder, check=True)
        output, errors = folder / "output", folder / "errors"
        cutter = start_trainer(command("torchx run data.cut_stream"), folder / "cut", folder / "cut-errors", 0)
        training = start_trainer(command("torchx run dlrm.multi_node"), output, errors, ranks=2)

        def what():
            return "".join((folder / name).read_text()[-3000:] for name in ("cut", "cut-errors", "output", "errors"))

        run = folder / "runs/stream/run"
        wait_for(lambda: len(lines_of(run / "segments.jsonl")) >= SEGMENTS, what, cutter, training)
        wait_for(lambda: "; waiting" in output.read_text(), what, cutter, training)
        for process in (training, cutter):
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_SECONDS)
        yield folder


def test_each_event_is_in_one_segment_and_trained_on_once(folder):
    seen, samples = Counter(), 0
    for file in sorted((folder / "runs/stream/segments").glob("*.json"))[:SEGMENTS]:
        manifest = Manifest.from_json(file.read_text())
        for group in manifest.groups:
            seen.update((group.partition, offset) for offset in range(group.start, group.end))
        samples += manifest.rows
    assert {*seen.values()} == {1}
    for partition in range(PARTITIONS):
        offsets = [offset for one, offset in seen if one == partition]
        assert sorted(offsets) == [*range(len(offsets))]
    lines = lines_of(folder / "runs/stream/run/segments.jsonl")[:SEGMENTS]
    assert sum(line["samples"] for line in lines) == samples == len(seen)
    assert lines[-1]["before"]["auc"] > 0.6 > lines[0]["before"]["auc"]


def test_the_jobs_report_how_far_behind_they_are(folder):
    reported = re.findall(r"segment \d{12}: .*; .* behind", (folder / "output").read_text())
    assert len(reported) >= SEGMENTS
    assert re.search(r"segment \d{12}: .*behind", (folder / "cut").read_text())


def test_it_is_exported_watched_and_taken_back(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for begins in ("torchx run tools.export", "torchx run tools.segments", "torchx run tools.rewind"):
        done = run_trainer(*command(begins))
        assert done.returncode == 0, done.stderr
        if "segments" in begins:
            for title in ("cut, seconds after", "trained, seconds after", "published, seconds after"):
                assert title in done.stdout
    words = command("torchx run dlrm.multi_node", 1)
    done = run_trainer(*words, "--data.segments.follow", "False", ranks=2)
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = words[words.index("--data.segments.skip") + 1]
    mended, run = (lines_of(folder / "runs" / name / "segments.jsonl") for name in ("mended", "stream/run"))
    place = next(place for place, line in enumerate(run) if line["segment"] == skipped)
    assert mended[:place] == run[:place]
    assert skipped not in [line["segment"] for line in mended]
    assert len(mended) >= SEGMENTS - 1
