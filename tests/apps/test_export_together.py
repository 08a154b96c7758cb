"""Several exports into one directory at a time: each is whole or refused, and of two steps the newer is current."""

import json
import time
from contextlib import contextmanager

import pytest
from command import start_trainer
from deltas import command, copied, export, train, wide_config
from object_store import object_store

from torchx_recsys.apps.export.directory import LOCK
from torchx_recsys.apps.export.load import load
from torchx_recsys.apps.export.source import Source
from trainer.core.run_directory import RunDirectory
from trainer.run.lock import RunLock

pytestmark = pytest.mark.more("two exports at the same moment are rare")

INT8 = ("--quantize", "int8")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    train(folder, {"run": wide_config(folder, 500)})
    return folder / "run"


@pytest.fixture(scope="module")
def made(run):
    """Directories of exports by their flags, and of the others by their steps."""
    found = {name: run.parent / name for name in ("whole", "int8")}
    for step in (5, 10, 20):
        export(run, found["whole"], step)
    export(run, found["int8"], 10, *INT8)
    return found


def current(to):
    return json.loads((to / "current.json").read_text())["directory"]


def times(directory):
    return {file.name: file.stat().st_mtime_ns for file in directory.iterdir()}


@pytest.fixture
def held(run, tmp_path):
    """Yields, for a directory, a process that exports step 10 to it and waits for the lock, and lets it go after."""

    @contextmanager
    def held(to):
        lock = RunLock(RunDirectory(str(to), "--to"), file=LOCK)
        lock.take()
        output, errors = tmp_path / "output", tmp_path / "errors"
        output.touch()
        process = start_trainer(command(run, to, 10), output, errors, 0)
        end = time.monotonic() + 600
        while "waiting for it to end" not in output.read_text():
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield process
        lock.release()

    return held


@pytest.fixture
def export_late(held, tmp_path):
    """Exports step 10 to a directory that another command holds until it has acted; returns how it ended."""

    def export_late(to, act):
        with held(to) as process:
            act()
        code = process.wait(600)
        assert not (to / LOCK).exists()
        load(to / "step-10", verify=True)
        load(to / current(to), verify=True)
        return code, (tmp_path / "output").read_text(), (tmp_path / "errors").read_text()

    return export_late


def test_the_same_export_is_left_as_it_is(made, export_late, tmp_path):
    to, written = tmp_path / "to", {}

    def act():
        copied(made["whole"], to, 10)
        written.update(times(to / "step-10"))

    code, _, errors = export_late(to, act)
    assert (code, errors) == (0, "")
    assert times(to / "step-10") == written
    assert current(to) == "step-10"


def test_another_export_of_the_step_is_left_as_it_is(made, export_late, tmp_path):
    to = tmp_path / "to"
    code, _, errors = export_late(to, lambda: copied(made["int8"], to, 10))
    assert code == 2
    assert "holds step-10 already: made of another checkpoint or configuration, or with other flags" in errors
    assert load(to / "step-10", verify=True).signature["tables"] == "int8"


@pytest.mark.parametrize(("other", "stays"), [(20, "step-20"), (5, "step-10")])
def test_of_two_steps_the_newer_is_current(made, export_late, tmp_path, other, stays):
    to = tmp_path / "to"
    code, output, _ = export_late(to, lambda: copied(made["whole"], to, other))
    assert (code, current(to)) == (0, stays)
    assert ("step-20 was published meanwhile, and stays the current one" in output) == (stays == "step-20")


def test_an_older_step_that_is_asked_for_later_is_current(made, run, tmp_path):
    to = copied(made["whole"], tmp_path / "to", 20)
    export(run, to, 10)
    assert current(to) == "step-10"


def test_the_lock_of_a_killed_export_is_taken_over(made, run, held, tmp_path):
    to = copied(made["whole"], tmp_path / "to", 5)
    with held(to) as process:
        pass
    while not (to / "step-10").exists():  # it writes
        time.sleep(0.001)
    process.kill()
    process.wait(600)
    load(to / current(to), verify=True)
    export(run, to, 10)
    load(to / "step-10", verify=True)
    assert current(to) == "step-10"


def test_two_at_once_on_an_object_store(run, tmp_path, monkeypatch):
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.fs.mkdir("bucket")
        processes = [
            start_trainer(command(run, "s3://bucket/to", 10, *flags), tmp_path / f"{n}.out", tmp_path / f"{n}.err", 0)
            for n, flags in enumerate(((), INT8))
        ]
        assert sorted(process.wait(600) for process in processes) == [0, 2]
        Source("s3://bucket/to", compiled=False).first(follow=True)
        assert not store.fs.exists(f"bucket/to/{LOCK}")
