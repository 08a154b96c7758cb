"""Night after night a run is trained on the next segment and exported; whatever is killed, the result is the same.

By default on two ranks with one seed; `--all` takes every seed on one, two and four ranks.
"""

import json
import os
import random
import signal
import time
import zlib
from contextlib import suppress
from functools import cache
from itertools import product

import pytest
from command import run_trainer, start_trainer, write_config
from jobs import config, losses, write_rows
from trainer_process import committed

from torchx_recsys.apps.runs.saved_tensors import read_tensors
from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import RunDirectory

DAYS = {"2026-11-24": 200, "2026-11-25": 90, "2026-11-26": 150}
KILLS = 3
MATRIX = "ranks, seed", lambda whole: [*product((1, 2, 4), range(7))] if whole else [(2, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with days and a configuration."""
    folder = tmp_path_factory.mktemp("nights")
    for seed, (name, size) in enumerate(DAYS.items()):
        write_rows(folder / "days" / name, [size], seed)
    checkpoint = {"every_steps": 2, "full_every": 3}
    tree = config(folder, data__segments={"path": f"{folder}/days/{{segment}}"}, checkpoint=checkpoint)
    tree["data"]["sparse"] = {f"s{i}": {"rows": 2000} for i in range(6)}
    tree["publish"] = {"metric": "log_loss", "worse_by": 1.0}
    del tree["data"]["train"], tree["train"]["steps"]
    write_config(folder / "config.toml", tree)
    return folder


def nights(folder, out):
    """Returns the commands of all nights."""
    both = (str(folder / "config.toml"), "--out", str(out / "run"))
    export = ("export", *both, "--to", str(out / "exports"), "--delta", "True")
    return [command for day in DAYS for command in (("train", *both, "--data.segments.until", day), export)]


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory):
    """Returns the directory of nights without an accident on a number of ranks."""

    @cache
    def of(ranks):
        out = tmp_path_factory.mktemp("undisturbed")
        for command in nights(folder, out):
            done = run_trainer(*command, ranks=processes(command, ranks))
            assert done.returncode == 0, done.stderr
        return out

    return of


def processes(command, ranks):
    return ranks if command[0] == "train" and ranks > 1 else 0


def files_in(*folders):
    """Returns the number of files; they may be deleted meanwhile."""
    return sum(len(names) for folder in folders for _, _, names in os.walk(folder))


def lines_in(file):
    return file.read_text().count("\n") if file.exists() else 0


def reached(command, out, tmp):
    """Returns how far a command is: by evaluations, steps, files of checkpoints, or files of an export."""
    if command[0] == "export":
        return files_in(tmp, out / "exports")
    run = out / "run"
    return lines_in(run / "evaluations.jsonl") + lines_in(run / "metrics.jsonl") + files_in(run / "checkpoints")


def kill(command, out, ranks, dice):
    """Kills a command some way after its first sign, unless it ends before."""
    tmp, output = out / "tmp", out / "output"
    tmp.mkdir(exist_ok=True)
    before, wanted = reached(command, out, tmp), dice.randint(1, 12)
    process = start_trainer(command, output, output, processes(command, ranks), TMPDIR=str(tmp))
    while process.poll() is None and reached(command, out, tmp) < before + wanted:
        time.sleep(0.001)
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def contents(out):
    """The CRC-32 of each file of the exports; of a manifest, what it says of files."""
    exports = out / "exports"
    files = {str(file.relative_to(exports)): file.read_bytes() for file in exports.rglob("*") if file.is_file()}
    return {
        # Its fingerprint changes with the checkpoint's manifest: after a kill that may be whole in place of a delta.
        name: json.loads(content)["files"] if name.endswith("manifest.json") else zlib.crc32(content)
        for name, content in files.items()
    }


def test_whatever_is_killed_the_nights_end_the_same(folder, undisturbed, tmp_path, ranks, seed):
    dice, there = random.Random(f"{ranks} {seed}"), undisturbed(ranks)
    commands = nights(folder, tmp_path)
    killed = {dice.randrange(len(commands)) for _ in range(KILLS)}
    for number, command in enumerate(commands):
        if number in killed:
            kill(command, tmp_path, ranks, dice)
        done = run_trainer(*command, ranks=processes(command, ranks))
        assert done.returncode == 0, done.stderr
    for name in ("segments.jsonl", "evaluations.jsonl"):
        assert (tmp_path / "run" / name).read_text() == (there / "run" / name).read_text()
    assert [json.loads(line)["segment"] for line in (tmp_path / "run/segments.jsonl").open()] == [*DAYS]
    assert losses(tmp_path / "run") == losses(there / "run")
    here, expected = (
        read_tensors(Checkpoints(RunDirectory(str(one / "run"))).url(max(committed(one / "run"))))
        for one in (tmp_path, there)
    )
    assert here.keys() == expected.keys()
    assert all(here[name].equal(expected[name]) for name in here)
    assert contents(tmp_path) == contents(there)
