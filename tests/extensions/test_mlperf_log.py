"""MLPerf's log lines, checked by the rules of MLCommons' own package for dlrmv4."""

import json
import re

import pytest
from command import run_trainer, write_config
from jobs import config, write_rows
from mlperf import OF_DATA, complaints

SIZES = {"mon": 200, "thu": 90, "tue": 64}
BATCH, STEPS = 64, 7
RATE = 1e-6 * BATCH / 8192  # the rules bind the learning rate to the batch size
COUNTS = ("train_samples", "eval_samples")


def log(out):
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in (out / "mlperf.log").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function that trains on days with an evaluation each 128 samples; returns the run directory."""
    folder = tmp_path_factory.mktemp("mlperf")
    for seed, (name, size) in enumerate(SIZES.items()):
        write_rows(folder / f"day={name}", [size], seed)
    write_rows(folder / "ahead", [150], 9)

    def train(name, *flags, target=0.01, code=0):
        tree = config(folder, data__segments={"path": f"{folder}/day={{segment}}"}, checkpoint__every_steps=3)
        tree["data"] |= {"validation": [str(folder / "ahead")]}
        tree["data"].pop("train")
        tree["train"] = {"stop_early": {"metric": "auc", "target": target, "patience": 99}}
        tree["evaluate"] = {"every_samples": 2 * BATCH}
        tree["optimizer"] = {
            "dense": {"name": "adam", "learning_rate": RATE, "max_norm": 1.0},
            "sparse": {"learning_rate": RATE},
        }
        tree["report"] = tree.get("report", {}) | {"mlperf_log": {"organization": "someone", "division": "open"}}
        file = write_config(folder / f"{name}.toml", tree)
        done = run_trainer("train", file, "--out", folder / name, *flags)
        assert done.returncode == code, done.stdout + done.stderr
        return folder / name if code == 0 else done.stderr

    return train


def test_the_rules_of_the_benchmark_accept_the_log(trained, tmp_path):
    out = trained("reached")
    events = log(out)
    values = {event["key"]: event["value"] for event in events}
    assert {key: values[key] for key in COUNTS} == {"train_samples": sum(SIZES.values()), "eval_samples": 150}
    # What a small run cannot have: the published data, and its target.
    found, passes = complaints(out / "mlperf.log")
    assert (found, passes) == ({*COUNTS, "eval_accuracy"}, False)
    for event in events:
        event["value"] = OF_DATA.get(event["key"], 0.76 if event["key"] == "eval_accuracy" else event["value"])
    (tmp_path / "published.log").write_text("".join(f":::MLLOG {json.dumps(event)}\n" for event in events))
    assert complaints(tmp_path / "published.log") == (set(), True)
    for lost in ("submission_org", "run_stop", "block_start", "eval_accuracy", "config_filename"):
        lines = "".join(f":::MLLOG {json.dumps(event)}\n" for event in events if event["key"] != lost)
        (tmp_path / "lost.log").write_text(lines)
        assert not complaints(tmp_path / "lost.log")[1], lost


def test_the_log_tells_every_evaluation_and_the_end(trained):
    out = trained("short", target=1.0)
    evaluations = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    told = [event for event in log(out) if event["key"] == "eval_accuracy"]
    assert [(event["metadata"]["samples_count"], event["value"]) for event in told] == [
        (line["step"] * BATCH, line["auc"]) for line in evaluations
    ]
    assert [line["step"] for line in evaluations] == [2, 4, 6]
    course = [event["key"] for event in log(out) if re.match("block|eval_s|run", event["key"])]
    assert [key for key in course if key != "eval_samples"] == [
        *("run_start", *(["block_start", "block_stop", "eval_start", "eval_stop"] * 3)),
        *("block_start", "block_stop", "run_stop"),
    ]
    assert log(out)[-1]["metadata"] == {"samples_count": STEPS * BATCH, "status": "aborted"}
    assert [event["time_ms"] for event in log(out)] == sorted(event["time_ms"] for event in log(out))


def test_a_resumed_run_goes_on_with_its_log(trained):
    whole = trained("whole", target=1.0)
    parts = trained("parts", "--data.segments.most", "1", target=1.0)
    for _ in range(2):
        trained("parts", "--data.segments.most", "1", target=1.0)
    shown = [
        [(event["key"], event["value"], event["metadata"]) for event in log(out) if "stop" not in event["key"]]
        for out in (whole, parts)
    ]
    assert shown[0] == shown[1]
    assert log(parts)[-1]["key"] == "run_stop"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--train.stop_early.target", "None"], "train.stop_early.target is not set; MLPerf's log tells when"),
        (
            [
                "--evaluate.every_epochs",
                "1",
                "--data.segments.path",
                "None",
                "--data.train",
                "rows",
                "--train.steps",
                "9",
            ],
            "neither evaluate.every_samples nor evaluate.every_steps is set; MLPerf's log counts",
        ),
        (["--report.mlperf_log.division", "ajar"], "report.mlperf_log.division"),
    ],
)
def test_wrong_input_is_one_line(trained, flags, says):
    error = trained("wrong", *flags, code=2)
    assert says in error
    assert len(error.splitlines()) == 1
