"""A reader's first half hour: commands of README and the first tutorials, and those that they print."""

import json
import os
import re
import shutil
import subprocess

import pytest
from reader import ACTIVATE, FENCE, ROOT, Reader, evaluations_in
from shell import typed

PAGES = ("README.md", "docs/tutorials/first_run.md", "docs/tutorials/your_data.md")

pytestmark = pytest.mark.more("five processor minutes of commands; test_main_job.py types the first")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def half_hour(tmp_path_factory, path):
    """The directory of the reader, and all commands with what each printed, in order."""
    reader = Reader(tmp_path_factory.mktemp("reader") / "torchx-recsys", path)
    for page in PAGES:
        reader.read(page)
    return reader.folder, reader.transcript


def test_the_first_half_hour_prints_no_error(half_hour):
    for command, printed in half_hour[1]:
        said = printed.replace("Structured Error Msg: <NONE>", "")  # `torchx status` of a job that has none
        assert not re.search(r"\b(error|traceback|warning|fatal)\b", said, re.IGNORECASE), f"$ {command}\n{said}"


def test_the_first_half_hour_prints_what_is_there(half_hour):
    folder, transcript = half_hour
    named = r"(?:run directory|checkpoint|configuration|metrics|evaluations|TensorBoard)  +(\S+)|written to (\S+)$"
    paths = {
        path for _, text in transcript for found in re.findall(named, text, re.MULTILINE) for path in found if path
    }
    assert len(paths) > 20
    assert [path for path in paths if not (folder / path).exists()] == []


def test_an_evaluation_prints_what_training_did(half_hour):
    trained, compared = {}, 0
    for command, printed in half_hour[1]:
        out = (re.findall(r"run directory +(\S+)", printed) or re.findall(r"--out (\S+)", command) or [None])[-1]
        for which, metrics in evaluations_in(printed).items():
            if "dlrm.evaluate" in command:
                assert metrics == pytest.approx(trained[out, which], abs=2e-5), command
                compared += 1
            trained[out, which] = metrics
    assert compared >= 5


@pytest.mark.parametrize(("run", "done", "steps"), [("longer", 237, 316), ("synthetic", 50, 80), ("mine", 47, 94)])
def test_the_same_command_with_more_steps_resumes(half_hour, run, done, steps):
    folder, transcript = half_hour
    assert [text for _, text in transcript if f"resumed after step {done} from runs/{run}/" in text]
    found = [record["step"] for record in lines(folder / f"runs/{run}/metrics.jsonl")]
    assert found == sorted(set(found))
    assert found[-1] == steps


def test_days_are_trained_on_as_the_pages_show_it(half_hour, path):
    folder, _ = half_hour
    pages = "".join((ROOT / f"docs/guides/{name}.md").read_text() for name in ("continuous", "publishing"))
    for language, block in FENCE.findall(pages):
        if name := re.match(r"# (\w+\.\w+)\n", block):
            (folder / name[1]).write_text(block)
        for command in block.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if command != "torchx run data.movielens":
                printed = typed(f"{ACTIVATE}PATH={path}; {command}", folder)
                assert not re.search("traceback|error:", printed, re.IGNORECASE), f"{command}\n{printed}"
    done = [line["segment"] for line in lines(folder / "runs/days/segments.jsonl")]
    assert done == [f"{segment:02d}" for segment in range(12)]
    mended = [line["segment"] for line in lines(folder / "runs/mended/segments.jsonl")]
    assert mended == [segment for segment in done if segment != "09"]
    nights = lines(folder / "runs/movielens-segments/train/segments.jsonl")
    assert [line["segment"] for line in nights] == done
    assert all(line["before"]["normalized_entropy"] < 1 for line in nights[1:])
    assert (folder / "exports/days/current.json").exists()
    exports = folder / "runs/movielens-segments/exports"
    first, second = (f"step-{line['step']}" for line in nights[-2:])
    assert {export.name for export in exports.iterdir()} == {first, second, "current.json"}
    assert json.loads((exports / "current.json").read_text()) == {"directory": first}  # after the rollback


def test_two_nodes_train_as_one_does(half_hour, tmp_path, path):
    """Two agents on this machine meet at a port of their own, and so do those of another job at the same time."""
    folder, _ = half_hour
    shutil.copytree(folder / "data", tmp_path / "data")
    job = ["torchx", "run", "-s", "local_cwd", "dlrm.multi_node", "--config", "movielens"]
    started = [
        subprocess.Popen(
            [*job, "-j", "2x1", "--out", out, "--", "--train.steps", "20"],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for out in ("one", "two")
    ]
    for process in started:
        output = process.communicate()[1]
        assert process.returncode == 0, output[-4000:]
    about = json.loads((tmp_path / "one/run.json").read_text())
    assert (about["world_size"], about["local_world_size"]) == (2, 1)
    reference = lines(folder / "runs/movielens/metrics.jsonl")[0]
    for out in ("one", "two"):
        assert lines(tmp_path / out / "metrics.jsonl")[0]["loss"] == pytest.approx(reference["loss"], rel=1e-5)


def test_data_parallel_is_the_same_training(half_hour, tmp_path, path):
    """Up to the first evaluation, which is that of another number of steps than a whole run's."""
    folder, _ = half_hour
    shutil.copytree(folder / "data", tmp_path / "data")
    job = "torchx run -s local_cwd dlrm.data_parallel --config movielens -j 1x2 --out runs/replicated"
    typed(f"{job} -- --train.steps 81", tmp_path, PATH=path)
    plan = (tmp_path / "runs/replicated/plan.json").read_text()
    assert plan.count('"data_parallel"') == 4
    replicated, sharded = (
        lines(run / "evaluations.jsonl")[0] for run in (tmp_path / "runs/replicated", folder / "runs/movielens")
    )
    assert (replicated["step"], replicated["split"]) == (sharded["step"], sharded["split"]) == (80, "validation")
    assert replicated["auc"] == pytest.approx(sharded["auc"], abs=2e-3)
