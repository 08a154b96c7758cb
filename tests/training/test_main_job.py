"""The main job, from outside: a reader's first half hour in a real shell, on real ratings and on a known truth."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import run_trainer
from shell import free_port, hints, typed

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "trainer/config/presets"
PAGES = ("README.md", "docs/tutorials/first_run.md", "docs/tutorials/your_data.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ACTIVATE = "source .venv/bin/activate; "


def torchx(*arguments, cwd, path):
    job = ["torchx", "run", "-s", "local_cwd", *arguments]
    done = subprocess.run(job, cwd=cwd, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stderr


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def half_hour(tmp_path_factory, path):
    """The directory of a reader of README and the first tutorials, and all commands with what each printed, in order.

    The reader types what stands there and follows each command that is printed. Cloning and installing is done already.
    """
    folder = tmp_path_factory.mktemp("reader") / "torchx-recsys"
    _check_out(folder)
    transcript = []
    for language, block in (found for page in PAGES for found in FENCE.findall((ROOT / page).read_text())):
        if name := re.match(r"# (\w+\.\w+)\n", block):
            (folder / name[1]).write_text(block)
        for command in block.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if command.startswith(("git clone ", "cd ", "source ", "make test")):
                continue
            _follow(command, folder, path, transcript)
    return folder, transcript


def _check_out(folder):
    """Makes a directory that looks like the project's, with its environment installed."""
    folder.mkdir()
    for name in (
        "Makefile",
        "pyproject.toml",
        "requirements-cpu.txt",
        "components",
        "schedulers",
        "torchx_recsys",
        "trainer",
    ):
        (folder / name).symlink_to(ROOT / name)
    # At another port, as other tests look at curves, too; and on one core, as two threads that share a core with other
    # tests wait for each other at every operation.
    own = f"[component:tools.tensorboard]\nport = {free_port()}\n[component:dlrm.evaluate]\ncpu = 1\n"
    own += "[component:data.baselines]\ncpu = 1\n"
    (folder / ".torchxconfig").write_text((ROOT / ".torchxconfig").read_text() + own)
    (folder / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != "ready":
            (folder / ".venv" / path.name).symlink_to(path)
    (folder / ".venv/ready").touch()


def _follow(command, folder, path, transcript):
    """Types a command, and those that it prints for its user, but for what was typed before of another job."""

    def without_job(words):
        return re.sub(r"local_cwd://\S+", "", words)

    def type_in(words):
        # `make` finds the environment by itself, and a `make` that runs this test tells nothing to that of the reader.
        elsewhere = [each for each in os.environ["PATH"].split(os.pathsep) if each != f"{sys.prefix}/bin"]
        shell = {"PATH": os.pathsep.join(elsewhere), "MAKEFLAGS": "", "MAKELEVEL": ""}
        return typed(words if words.startswith("make ") else f"{ACTIVATE}PATH={path}; {words}", folder, **shell)

    printed = type_in(command)
    transcript.append((command, printed))
    for hint in hints(printed):
        if without_job(hint) not in [without_job(earlier) for earlier, _ in transcript]:
            transcript.append((hint, type_in(hint)))


def evaluations_in(text):
    """Returns the metrics of the evaluations that were printed, by step and split."""
    found = re.findall(r"step (\d+)  (validation|test): (.*)", text)
    return {(step, split): dict(zip(line.split()[::2], figures(line), strict=True)) for step, split, line in found}


def figures(line):
    return [float(word.replace(",", "")) for word in line.split()[1::2]]


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


def test_the_demo_is_as_the_first_run_shows_it(half_hour):
    first, *again = [printed for command, printed in half_hour[1] if command == "make demo"]
    assert [int(step) for step in re.findall(r"step (\d+)/237", first)] == [*range(20, 237, 20), 237]
    assert [step for step, split in evaluations_in(first) if split == "validation"] == ["80", "160", "237"]
    shown = evaluations_in((ROOT / PAGES[1]).read_text())
    assert shown[("237", "test")] == pytest.approx(evaluations_in(first)[("237", "test")], abs=2e-3)
    assert len(again) == 1
    for printed in again:
        assert "resumed after step 237" in printed
        assert "/237" not in printed
        assert evaluations_in(printed)[("237", "test")] == pytest.approx(shown[("237", "test")], abs=2e-3)


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


def test_movielens_reaches_its_auc(half_hour):
    test = lines(half_hour[0] / "runs/movielens/evaluations.jsonl")[-1]
    assert test["split"] == "test"
    assert test["samples"] == 10_000
    assert test["auc"] > 0.72


def test_movielens_leaves_a_committed_checkpoint_and_tensorboard_files(half_hour):
    out = half_hour[0] / "runs/movielens"
    assert (out / "checkpoints/step-000000237/manifest.json").exists()
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(("run", "done", "steps"), [("longer", 237, 316), ("synthetic", 50, 80), ("mine", 47, 94)])
def test_the_same_command_with_more_steps_resumes(half_hour, run, done, steps):
    folder, transcript = half_hour
    assert [text for _, text in transcript if f"resumed after step {done} from runs/{run}/" in text]
    found = [record["step"] for record in lines(folder / f"runs/{run}/metrics.jsonl")]
    assert found == sorted(set(found))
    assert found[-1] == steps


@pytest.mark.more("test_segments.py trains on days")
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


@pytest.mark.more("test_sharding.py compares numbers of ranks")
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


@pytest.mark.more("test_sharding.py compares plans")
def test_data_parallel_is_the_same_training(half_hour, tmp_path, path):
    """Up to the first evaluation, which is that of another number of steps than a whole run's."""
    folder, _ = half_hour
    shutil.copytree(folder / "data", tmp_path / "data")
    torchx(
        *("dlrm.data_parallel", "--config", "movielens", "-j", "1x2", "--out", "runs/replicated"),
        *("--", "--train.steps", "81"),
        cwd=tmp_path,
        path=path,
    )
    plan = (tmp_path / "runs/replicated/plan.json").read_text()
    assert plan.count('"data_parallel"') == 4
    replicated, sharded = (
        lines(run / "evaluations.jsonl")[0] for run in (tmp_path / "runs/replicated", folder / "runs/movielens")
    )
    assert (replicated["step"], replicated["split"]) == (sharded["step"], sharded["split"]) == (80, "validation")
    assert replicated["auc"] == pytest.approx(sharded["auc"], abs=2e-3)


@pytest.mark.more("a minute; MovieLens reaches its AUC")
def test_synthetic_comes_close_to_the_best_possible_auc(tmp_path, path, request):
    """The more rows, the closer."""
    rows, distance = (1_000_000, 0.01) if request.config.getoption("all") else (200_000, 0.02)
    torchx("data.synthetic", "--rows", str(rows), cwd=tmp_path, path=path)
    torchx(
        "dlrm.single_node", "--config", "synthetic", "--out", "runs/synthetic", "--cpu", "1", cwd=tmp_path, path=path
    )
    best = json.loads((tmp_path / "data/synthetic/summary.json").read_text())["splits"]["test"]["best_auc"]
    test = lines(tmp_path / "runs/synthetic/evaluations.jsonl")[-1]
    assert test["split"] == "test"
    assert best - distance < test["auc"] <= best


@pytest.mark.few(2, "two stand for all")
@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [path.stem for path in CONFIGS.glob("*.toml")])
def test_every_preset_can_be_planned(name):
    done = run_trainer("plan", name, "--world-size", 8, "--planner.host-memory-gib", 64)
    assert done.returncode == 0, done.stderr
    assert "proven" in done.stdout


def test_every_preset_begins_with_its_commands():
    for path in CONFIGS.glob("*.toml"):
        head = path.read_text().split("\n\n")[0]
        assert f"--config {path.stem}" in head
        assert "torchx run data." in head
