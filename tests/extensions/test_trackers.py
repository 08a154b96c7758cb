"""Runs that are sent to experiment trackers: what these have is what the run's files say, each line once."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
from command import run_trainer, write_config
from jobs import config, launch, losses, write_rows
from tracker_faults import Way, full, hung, nobody
from trainer_process import Gate, Training

pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs mlflow-skinny")
SERVER = Path(sys.prefix) / "mlflow"  # the packages of a whole MLflow, which .ci/run installs beside ours
STEPS = 8


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def tree_of(folder, **report):
    tree = config(folder / "data", train__steps=STEPS, evaluate={"every_steps": 3}, checkpoint={"every_steps": 4})
    tree["data"] |= {"validation": [str(folder / "data")], "test": [str(folder / "data")]}
    tree["report"] |= {"trackers": ["mlflow"]} | report
    return tree


def wanted(out):
    """Returns what a tracker should have: by name, step and value of each line of the run's files, with its time."""
    found = {}
    for line in lines(out / "metrics.jsonl"):
        for name, value in line.items():
            if name not in ("step", "time"):
                key = name if name.startswith("rate/") else f"train/{name}"
                found.setdefault(key, []).append((line["step"], value, int(line["time"] * 1000)))
    for line in lines(out / "evaluations.jsonl"):
        for name, value in line.items():
            if name not in ("step", "split"):
                found.setdefault(f"{line['split']}/{name}", []).append((line["step"], value, None))
    return found


def the_run(uri, experiment="torchx-recsys"):
    """Returns MLflow's client and its only run."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return client, run


def check_mlflow(uri, out):
    """Reads the only run back by MLflow's own client, and compares it with the files of the run."""
    client, run = the_run(uri)
    expected = wanted(out)
    assert run.data.metrics.keys() == expected.keys()
    for name, points in expected.items():
        history = sorted(client.get_metric_history(run.info.run_id, name), key=lambda point: point.step)
        assert [(point.step, point.value) for point in history] == [(step, value) for step, value, _ in points], name
        times = [point.timestamp for point in history]
        assert all(there == here for there, (_, _, here) in zip(times, points, strict=True) if here), name
    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracked")
    write_rows(folder / "data", [200])
    return folder


@pytest.fixture(scope="module")
def store(folder):
    """A store whose tables are there: making them takes longer than a run waits at its end."""
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{folder / 'store.db'}"
    assert MlflowClient(uri).search_experiments()
    return uri


@pytest.fixture(scope="module")
def tracked(folder, store):
    """A run that ends after half of its steps, and is resumed.

    What a busy machine has not sent within seconds of the end is sent then, which sends nothing twice either.
    """
    file = write_config(folder / "mine.toml", tree_of(folder, mlflow={"uri": store, "name": "first"}))
    for steps in (STEPS // 2, STEPS):
        done = run_trainer("train", file, "--out", folder / "run", "--train.steps", steps)
        assert done.returncode == 0, done.stdout + done.stderr
        assert run_trainer("track", "--out", folder / "run").returncode == 0
    return folder / "run"


def test_mlflow_has_each_line_once_and_a_resume_goes_on_with_the_same_run(tracked, store):
    run = check_mlflow(store, tracked)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["data.global_batch_size"] == "64"
    assert run.data.params.keys() == {
        ".".join(key) for key in keys_of(tomllib.loads((tracked / "config.toml").read_text()))
    }
    assert run.data.tags["checkpoint"] == str(tracked / "checkpoints/step-000000008")
    assert run.data.tags["run_directory"] == str(tracked)


def keys_of(tree, above=()):
    for key, value in tree.items():
        yield from keys_of(value, (*above, key)) if isinstance(value, dict) else [(*above, key)]


def test_to_send_a_run_again_sends_nothing_twice_and_names_an_export(tracked, store):
    done = run_trainer("track", "--out", tracked, "--export", "s3://user:hunter2@bucket/export")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"mlflow has all of '{tracked}'\n"
    assert check_mlflow(store, tracked).data.tags["export"] == "s3://***@bucket/export"


def test_a_run_without_trackers_can_be_sent_later(folder, tracked, tmp_path):
    out = tmp_path / "plain"
    tree = tree_of(folder, trackers=[])
    launch([{"config": tree, "out": str(out)}], 1, tmp_path)
    assert losses(out) == losses(tracked)
    store = f"sqlite:///{tmp_path / 'store.db'}"
    done = run_trainer("track", "--out", out, "--trackers", "mlflow", MLFLOW_TRACKING_URI=store)
    assert done.returncode == 0, done.stderr
    check_mlflow(store, out)


@pytest.mark.more("faults of servers; that every line arrives once is shown without one")
def test_a_server_that_is_gone_hung_or_full_costs_one_line_and_the_rest_is_sent_later(folder, tracked, tmp_path):
    with ExitStack() as stack:
        uris = [stack.enter_context(server()) for server in (nobody, hung, full)]
        uris[0] = uris[0].replace("http://", "http://user:hunter2@")
        jobs = [
            {"config": tree_of(folder, mlflow={"uri": uri}), "out": str(tmp_path / str(number))}
            for number, uri in enumerate(uris)
        ]
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "1"
        try:
            output = launch(jobs, 2, tmp_path)
        finally:
            del os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]
    told = [line for line in output.splitlines() if line.startswith("mlflow ")]
    assert len(told) == len(uris), output
    assert "hunter2" not in output
    for job, line in zip(jobs, told, strict=True):
        out = Path(job["out"])
        assert line.startswith("mlflow takes nothing: ")
        assert line.endswith(f"python -m trainer track --out {out} sends what is left")
        assert json.loads((out / "run.json").read_text())["state"] == "finished"
        assert losses(out) == pytest.approx(losses(tracked), abs=1e-6)
    store = f"sqlite:///{tmp_path / 'store.db'}"
    settings = Path(jobs[1]["out"], "config.toml")
    settings.write_text(settings.read_text().replace(uris[1], store))
    done = run_trainer("track", "--out", jobs[1]["out"])
    assert done.returncode == 0, done.stderr
    check_mlflow(store, Path(jobs[1]["out"]))
    done = run_trainer("track", "--out", jobs[0]["out"])
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: mlflow does not take '{jobs[0]['out']}': ")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            ("--report.trackers", "mlflo"),
            "--report.trackers.0 is 'mlflo': input should be 'mlflow', 'trackio' or 'wandb'",
        ),
        (("--report.mlflow.url", "x"), "unknown flag --report.mlflow.url; did you mean --report.mlflow.uri?"),
        (("--report.mlflow.project", ""), "--report.mlflow.project is '': "),
        ((), "report.trackers has 'mlflow', but no server is named; set report.mlflow.uri, or MLFLOW_TRACKING_URI"),
    ],
)
def test_wrong_input_is_one_line_before_the_first_step(folder, tmp_path, flags, line):
    file = write_config(tmp_path / "mine.toml", tree_of(folder))
    done = run_trainer("train", file, "--out", tmp_path / "run", *flags)
    assert done.returncode == 2
    (told,) = done.stderr.splitlines()
    assert told.startswith(f"error: {line}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--out", "nowhere"), "--out is 'nowhere'"),
        (("--out", "{tracked}", "--trackers", "mlfow"), "--trackers.0 is 'mlfow'"),
        (("--out", "{plain}"), "--out is '{plain}', whose report.trackers is empty; name some with --trackers"),
        (("--out", "{plain}", "--trackers", "mlflow"), "report.trackers has 'mlflow', but no server is named"),
    ],
)
def test_wrong_input_of_track_is_one_line(tracked, tmp_path, words, line):
    (tmp_path / "config.toml").write_text("")
    places = {"tracked": tracked, "plain": tmp_path}
    done = run_trainer("track", *(word.format(**places) for word in words))
    assert done.returncode == 2
    (told,) = done.stderr.splitlines()
    assert told.startswith(f"error: {line.format(**places)}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """MLflow's own server; returns its port and a function that ends it."""
    if not SERVER.is_dir():
        pytest.skip("needs MLflow's server, which .ci/run installs")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("server")
    words = f"server --backend-store-uri sqlite:///{folder}/s.db --host 127.0.0.1 --port {port} --workers 1".split()
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words],
            env=os.environ | {"PYTHONPATH": str(SERVER), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    while not answers(port):
        assert process.poll() is None, (folder / "log").read_text()
        time.sleep(0.1)
    yield port
    process.terminate()
    process.wait()


def answers(port):
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
    except OSError:
        return False


@pytest.mark.more("faults of servers; that every line arrives once is shown without one")
@pytest.mark.parametrize("fault", [nobody, hung, full])
def test_a_server_that_fails_in_the_middle_gets_the_rest_later(folder, tracked, server, tmp_path, fault):
    way, gate = Way(server), Gate(tmp_path / "gate", 4)
    tree = tree_of(folder, mlflow={"uri": way.url, "project": fault.__name__})
    tree["model"]["name"] = "custom:gated"
    file = write_config(tmp_path / "mine.toml", tree)
    seconds = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "2"}
    with fault() as instead:
        job = Training(file, tmp_path / "run", ranks=1, **gate.environment, **seconds)
        kept = tmp_path / "run/tracker-mlflow.json"
        job.wait_until(lambda: kept.exists() and json.loads(kept.read_text())["sent"].get("train", 0) >= 2)
        way.turn(int(instead.rpartition(":")[2]) if fault is not nobody else None)
        gate.open()
        output = job.end()
    assert job.code == 0, output
    assert losses(tmp_path / "run") == losses(tracked)
    assert len(re.findall(r"^(?:\[.*?\] ?)?mlflow ", output, re.MULTILINE)) == 1, output
    way.turn(server)
    done = run_trainer("track", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    client, run = the_run(way.url, fault.__name__)
    for name, points in wanted(tmp_path / "run").items():
        history = sorted(client.get_metric_history(run.info.run_id, name), key=lambda point: point.step)
        assert [(point.step, point.value) for point in history] == [(step, value) for step, value, _ in points], name
    assert run.info.status == "FINISHED"
