"""The files and the output of a run, from outside."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import tomli_w
from command import run_trainer
from forked import run_forked
from jobs import config, write_rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one rank, through the command line, with everything on."""
    folder = tmp_path_factory.mktemp("report")
    data = write_rows(folder / "data", [300])
    settings = config(data, train__steps=10, report={"interval_steps": 4}, evaluate={"every_steps": 5})
    settings["data"] |= {"validation": [str(data)], "test": [str(data)]}
    (folder / "config.toml").write_text(tomli_w.dumps(settings))
    tracker = {"TORCHX_JOB_ID": "local_cwd://torchx/job", "TORCHX_TRACKERS": "fsspec"}
    (folder / "tracked").mkdir()
    (folder / "tracker.conf").write_text(f"protocol=file\nroot_path={folder / 'tracked'}\n")
    tracker["TORCHX_TRACKER_FSSPEC_CONFIG"] = str(folder / "tracker.conf")
    done = run_trainer("train", folder / "config.toml", "--out", folder / "out", **tracker)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_have_a_line_for_each_interval_and_the_end(run):
    records = lines(run[0] / "out/metrics.jsonl")
    assert [record["step"] for record in records] == [4, 8, 10]
    assert [record["epoch"] for record in records] == [0, 1, 1]
    for record in records:
        assert record["samples_per_second"] > 0
        assert 0 <= record["data_wait"] <= 1
        assert record["step_seconds_p50"] <= record["step_seconds_p99"]
    assert (run[0] / "out/config.toml").stat().st_mtime < records[0]["time"] <= records[1]["time"] <= records[2]["time"]


def test_the_console_has_a_line_for_each_interval(run):
    output = run[1].splitlines()
    steps = [line for line in output if line.startswith("step ") and " loss " in line and "/10" in line]
    assert [line.split()[1] for line in steps] == ["4/10", "8/10", "10/10"]
    for word in ("loss", "samples/s", "per rank", "input stall", "p99", "GiB", "ETA"):
        assert word in steps[0]
    assert sum("validation: auc" in line for line in output) == 2
    assert sum("test: auc" in line for line in output) == 1


def test_the_summary_names_files_and_the_next_command(run):
    folder, output = run
    for name in ("checkpoints/step-000000010", "config.toml", "metrics.jsonl", "evaluations.jsonl", "tensorboard"):
        assert (folder / "out" / name).exists()
        assert str(folder / "out" / name) in output
    assert f"torchx run tools.tensorboard --logdir {folder / 'out'}" in output


def test_tensorboard_has_the_same_numbers(run):
    board = EventAccumulator(str(run[0] / "out/tensorboard")).Reload()
    losses = {event.step: event.value for event in board.Scalars("loss/train")}
    assert losses == pytest.approx({record["step"]: record["loss"] for record in lines(run[0] / "out/metrics.jsonl")})
    assert [event.step for event in board.Scalars("validation/auc")] == [5, 10]
    # The page shows them in this order.
    assert min(board.Tags()["scalars"]) == "loss/train"


def test_the_tracker_gets_final_metrics_and_checkpoint(run):
    files = [path for path in (run[0] / "tracked").rglob("*") if path.is_file()]
    tracked = " ".join(path.read_text() for path in files)
    assert "test_auc" in tracked
    assert "validation_log_loss" in tracked
    assert "step-000000010" in tracked


def test_run_json_describes_the_run(run):
    about = json.loads((run[0] / "out/run.json").read_text())
    assert about["versions"]["torch"] == version("torch")
    assert about["world_size"] == 1
    assert about["lanes"] == 8
    assert "-m trainer train" in about["command"]


def test_the_written_configuration_runs_and_gives_the_same_losses(run, tmp_path):
    assert run_trainer("train", run[0] / "out/config.toml", "--out", tmp_path / "again").returncode == 0
    again, before = lines(tmp_path / "again/metrics.jsonl"), lines(run[0] / "out/metrics.jsonl")
    assert [record["loss"] for record in again] == [record["loss"] for record in before]


def test_a_run_on_object_storage_leaves_the_same_files(tmp_path):
    """All of it in one process, for fsspec's memory storage ends with it."""
    data = write_rows(tmp_path / "data", [300])
    script = f"""
import fsspec
from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.training.loop import train
from trainer.core.console import quiet_libraries
quiet_libraries()
settings = {config(data, train__steps=4, checkpoint={"every_steps": 2})!r}
train(Config.model_validate(settings), "memory://runs/one", "auto")
settings["train"]["steps"] = 6
train(Config.model_validate(settings), "memory://runs/one", "must")
print(*sorted(fsspec.filesystem("memory").find("/runs/one")), sep="\\n")
print(fsspec.filesystem("memory").cat("/runs/one/metrics.jsonl").decode().count("step\\":"))
"""
    printed = run_forked(exec, script, folder=tmp_path).splitlines()
    assert "/runs/one/checkpoints/step-000000006/manifest.json" in printed
    assert printed[-1] == "6"
    assert not Path("runs").joinpath("one").exists()
