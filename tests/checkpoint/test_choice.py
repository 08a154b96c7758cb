"""The newest checkpoint of a run, the best one, or that of a step."""

import json
import re
import shutil

import pytest
from command import run_trainer, write_config
from jobs import config, launch, write_rows

from trainer.checkpoint.choice import find_checkpoint
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.training.finetune import find_source


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with checkpoints of steps 2, 4 and 6, whose evaluations are then as the tests want them."""
    folder = tmp_path_factory.mktemp("choice")
    write_rows(folder / "data", [130])
    settings = config(
        folder / "data",
        train__steps=6,
        checkpoint={"every_steps": 2, "keep": {"newest": 3, "best": "log_loss"}},
        data__validation=[str(folder / "data")],
        evaluate__every_steps=2,
    )
    launch([{"config": settings, "out": str(folder / "run")}], 1, folder)
    losses = {2: 0.5, 3: 0.1, 4: 0.3, 6: 0.4}  # there is no checkpoint of step 3
    lines = [{"step": step, "split": "validation", "log_loss": loss} for step, loss in losses.items()]
    lines.append({"step": 2, "split": "test", "log_loss": 0.0})
    (folder / "run/evaluations.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


@pytest.fixture
def out(folder, tmp_path):
    return shutil.copytree(folder / "run", tmp_path / "run")


def found(out, choice):
    return find_checkpoint(RunDirectory(str(out)), "--out", choice, "--checkpoint").step


def damage(out, step):
    next((out / f"checkpoints/step-{step:09d}").glob("*.distcp")).write_bytes(b"")


@pytest.mark.parametrize(("choice", "step"), [("newest", 6), ("best", 4), ("2", 2)])
def test_a_checkpoint_is_found(out, choice, step):
    assert found(out, choice) == step
    assert find_source(str(out), choice).step == step


def test_a_damaged_one_is_named_and_the_next_is_taken(out, capsys):
    damage(out, 4)
    assert found(out, "best") == 6
    assert "step-000000004 is skipped" in capsys.readouterr().out
    damage(out, 6)
    assert found(out, "best") == found(out, "newest") == 2


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("bets", "--checkpoint is 'bets'; allowed: newest, best, or the number of a step"),
        ("0", "--checkpoint is '0'; allowed"),
        ("-2", "--checkpoint is '-2'; allowed"),
        ("3", "--checkpoint is 3, which is no committed checkpoint; that run has checkpoints of steps: 2, 4, 6"),
    ],
)
def test_what_is_not_there_is_refused(out, choice, says):
    with pytest.raises(InputError, match=re.escape(says)):
        found(out, choice)


def test_a_damaged_step_is_refused(out):
    damage(out, 2)
    with pytest.raises(InputError, match=r"--checkpoint is 2, which is damaged: .*; that run also has .*: 4, 6"):
        found(out, "2")


def test_best_needs_a_metric_and_an_evaluation(out):
    (out / "evaluations.jsonl").unlink()
    with pytest.raises(InputError, match="holds no evaluated checkpoint; choose another --checkpoint"):
        found(out, "best")
    (out / "config.toml").write_text("")
    with pytest.raises(InputError, match=r"--checkpoint is 'best', but the run .* has no checkpoint.keep.best"):
        found(out, "best")


def test_one_checkpoint_is_no_run_to_choose_from(out):
    url = str(out / "checkpoints/step-000000002")
    assert find_source(url).step == 2
    with pytest.raises(InputError, match=r"finetune.take is 'best', but finetune.checkpoint is '.*', one checkpoint"):
        find_source(url, "best")


def test_commands_take_it(folder, out):
    for words, says in (([], "step 6  "), (["--checkpoint", "best"], "step 4  "), (["--checkpoint=2"], "step 2  ")):
        done = run_trainer("evaluate", out / "config.toml", "--out", out, "--split", "validation", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-2].startswith(says)
    file = write_config(folder / "tuned.toml", config(folder / "data", train__steps=1))
    flags = ["--finetune.checkpoint", out, "--finetune.take", "best"]
    done = run_trainer("train", file, "--out", out.parent / "tuned", *flags)
    assert "fine-tuning from step 4, " in done.stdout, done.stderr


def test_a_flag_of_the_configuration_is_not_taken_for_the_argument(out):
    flags = ["--checkpoint", "4", "--checkpoint.keep.newest", "1"]
    done = run_trainer("evaluate", out / "config.toml", "--out", out, "--split", "validation", *flags)
    assert done.returncode == 0, done.stderr
    assert "step 4  " in done.stdout
