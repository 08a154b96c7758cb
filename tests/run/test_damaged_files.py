"""Small files of runs and exports with another bit, with NULs, or torn: what checkpoints hold is not lost for it.

`make test` flips a few bits, `--all` 500. Each case runs, in this process, every command that reads such a file.
"""

import json
import random
import shutil
from contextlib import suppress

import pytest
from command import run_trainer, write_config
from jobs import config, losses, write_rows

from torchx_recsys.apps.export.load import load
from torchx_recsys.apps.export.source import Source
from trainer.__main__ import main as trainer
from trainer.core import run_directory
from trainer.core.errors import InputError

FLIPS = 500
DAYS = {"a": 200, "b": 90, "c": 64, "d": 150}
ENDS = {"a": 4, "b": 6, "c": 7, "d": 10}
"""Steps of 64 samples at the end of each day."""
TENSORS = {".distcp", ".pt2", ".bin", ".metadata"}
FORMS = {"torn": lambda content: content[: len(content) // 2], "NULs": lambda content: bytes(len(content))}


@pytest.fixture(scope="module")
def origin(tmp_path_factory):
    """A run that was killed after three of four days, with two exports, the second of what changed."""
    folder = tmp_path_factory.mktemp("damaged")
    for seed, (name, size) in enumerate(DAYS.items()):
        write_rows(folder / "days" / name, [size], seed, sparse_features=2)
    saved = {"keep": {"newest": 9}, "full_every": 2}
    tree = config(folder, data__segments={"path": f"{folder}/days/{{segment}}"}, checkpoint=saved)
    tree["data"] |= {"sparse": {"s0": {"rows": 20_000}, "s1": {"rows": 101}}}
    del tree["data"]["train"], tree["train"]["steps"]
    file, out, to = write_config(folder / "config.toml", tree), folder / "run", folder / "exports"
    succeed("train", file, "--out", out, "--data.segments.until", "c")
    for step in (6, 7):
        flags = ["--checkpoint", step, "--delta", step == 7]
        succeed("export", file, "--out", out, "--to", to, *flags)
    assert (to / "step-7/changes.bin").exists()
    succeed("segments", file, "--out", out)
    assert (out / "segments-shift.jsonl").exists()
    holder = {"token": "x", "job": "a", "host": "b", "pids": "", "pid": 7, "started": "1", "renewed": 1.5}
    (out / "lock.json").write_text(json.dumps(holder))
    return folder


@pytest.fixture(scope="module")
def undisturbed(origin, tmp_path_factory):
    """The losses of the run when nothing is damaged."""
    out = shutil.copytree(origin / "run", tmp_path_factory.mktemp("undisturbed") / "run")
    (out / "lock.json").unlink()
    succeed("train", origin / "config.toml", "--out", out)
    return losses(out)


def succeed(*words):
    done = run_trainer(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def small_files(folder):
    """Returns the small files of a run and of exports; of equal ones in the checkpoints, those of the last two."""
    files = [file for name in ("run", "exports") for file in (folder / name).rglob("*") if file.is_file()]
    named = [
        file for file in files if {file.name, file.suffix}.isdisjoint(TENSORS) and file.suffix not in (".py", ".html")
    ]
    return sorted(file for file in named if "tensorboard" not in file.parts)


@pytest.fixture
def copy(origin, tmp_path, monkeypatch):
    """A copy of run and exports, whose locks nobody waits for."""
    monkeypatch.setattr("trainer.run.lock.STALE_SECONDS", 0.0)
    monkeypatch.setattr("trainer.run.lock.POLL_SECONDS", 0.0)
    monkeypatch.setattr("trainer.run.lock.SETTLE_SECONDS", 0.0)
    run_directory._say_once.cache_clear()
    for name in ("run", "exports"):
        shutil.copytree(origin / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def tried(capfd):
    """Runs a command in this process; returns its exit code and output. An error is one line, and no traceback."""

    def tried(*words, codes=(0, 1, 2)):
        capfd.readouterr()
        try:
            code = trainer([str(word) for word in words])
        except SystemExit as leaving:
            code = leaving.code
        output, errors = capfd.readouterr()
        said = [line for line in errors.splitlines() if "WARNING" not in line]
        assert code in codes, (words, output, errors)
        assert "Traceback" not in errors
        assert len(said) <= 1, errors
        return code, output, errors

    return tried


def read_all(origin, copy, tried):
    """Runs the commands that read a run."""
    out, to = copy / "run", copy / "exports"
    tried("checkpoints", "--out", out, "--verify", True)
    tried("compare", "--runs", out)
    tried("segments", origin / "config.toml", "--out", out, "--to", to)
    tried("plan", "--run", out)
    tried("rewind", "--out", out, "--segment", "b", "--to", copy / "back")


def train_on(origin, copy, tried):
    """Goes on with the run, and returns the step that it was resumed from."""
    _, output, _ = tried("train", origin / "config.toml", "--out", copy / "run", codes=(0,))
    (line,) = [line for line in output.splitlines() if line.startswith("resumed after step ")]
    return int(line.split()[3])


def use_exports(origin, copy, tried):
    """Reads the exports in every way, and exports anew."""
    out, to = copy / "run", copy / "exports"
    for read in (lambda: Source(str(to), compiled=False).first(follow=True), lambda: load(to / "step-7")):
        with suppress(InputError, ValueError):  # in a line, or no damage at all
            read()
    words = ["export", origin / "config.toml", "--out", out, "--to", to]
    tried(*words, "--checkpoint", 7, "--delta", True)
    tried(*words, "--checkpoint", 4, "--delta", True)
    tried("rollback", "--to", to)


def try_all(origin, copy, file, tried, undisturbed):
    if file.is_relative_to(copy / "exports"):
        use_exports(origin, copy, tried)
        tried("segments", origin / "config.toml", "--out", copy / "run", "--to", copy / "exports")
        return
    read_all(origin, copy, tried)
    step = train_on(origin, copy, tried)
    assert step == ENDS["c"] or "checkpoints" in file.parts
    assert step >= ENDS["a"]
    found = losses(copy / "run") if file.name != "metrics.jsonl" else undisturbed
    assert found == undisturbed


@pytest.mark.few(3, "three stand for all")
@pytest.mark.parametrize("case", range(FLIPS))
@pytest.mark.sample(12)
def test_another_bit_in_a_small_file_costs_no_checkpoint_and_ends_in_no_traceback(
    case, origin, copy, tried, undisturbed
):
    choice = random.Random(case)
    file = choice.choice(small_files(copy))
    content = bytearray(file.read_bytes())
    content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
    file.write_bytes(content)
    try_all(origin, copy, file, tried, undisturbed)


RUN = ("run.json", "lock.json", "config.toml", "plan.json", "evaluations.jsonl", "segments.jsonl", "metrics.jsonl")
FILES = [*(f"run/{name}" for name in RUN), "run/checkpoints/step-000000007/manifest.json"]
FILES += ["exports/current.json", "exports/step-7/manifest.json", "exports/step-6/signature.json"]


@pytest.mark.few(2, "two stand for all")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.sample(6)
def test_a_file_that_a_power_cut_has_torn_costs_no_checkpoint(name, form, origin, copy, tried, undisturbed):
    file = copy / name
    file.write_bytes(FORMS[form](file.read_bytes()))
    try_all(origin, copy, file, tried, undisturbed)
