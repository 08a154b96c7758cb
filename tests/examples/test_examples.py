"""The examples: what their pages say to type works, in a copy of each, and does what the page says."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pyarrow.dataset as ds
import pytest
import schemas
from ports import free_port
from shell import typed
from torchx.runner import get_runner

from torchx_recsys.apps.export.load import load

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(folder.name for folder in EXAMPLES.iterdir() if (folder / "README.md").exists())
LEAST_AUC = 0.6


def commands(name: str) -> list[str]:
    """Returns the lines of the page of an example that are to be typed."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (EXAMPLES / name / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def evaluated(run: Path) -> dict:
    """Returns the last evaluation of a run."""
    return json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])


@pytest.fixture
def typing(tmp_path, path):
    """Types what the page of an example says, in a copy of it, and returns the copy."""

    def typing(name: str, *left_out: str) -> Path:
        folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
        for command in commands(name):
            if not command.startswith(left_out):
                typed(command, folder, PATH=path)
        return folder

    return typing


def test_every_example_has_a_page_that_the_overview_names():
    overview = (EXAMPLES / "README.md").read_text()
    assert sorted(re.findall(r"\]\((\w+)/README\.md\)", overview)) == NAMES
    assert {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()} == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_links_of_a_page_lead_somewhere(name):
    page = EXAMPLES / name / "README.md"
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.more("test_custom.py trains a model of one's own")
def test_own_model(typing):
    run = typing("own_model") / "runs/gated"
    assert evaluated(run)["auc"] > LEAST_AUC
    assert (json.loads((run / "run.json").read_text()))["world_size"] == 2


def losses(printed: str) -> list[str]:
    """Returns the losses that the loop of one's own printed, in the order of their steps."""
    return re.findall(r"^step \d+: loss (\S+)$", printed, re.MULTILINE)


@pytest.mark.more("seven interpreters that import torch")
def test_own_loop_takes_the_steps_of_the_trainer_and_resumes_exactly(tmp_path, path):
    folder = shutil.copytree(EXAMPLES / "own_loop", tmp_path / "own_loop")
    make, alone, on_two, trained = commands("own_loop")
    typed(make, folder, PATH=path)
    whole = losses(typed(on_two, folder, PATH=path))
    assert len(losses(typed(alone, folder, PATH=path))) == len(whole) == 30
    typed(f"{trained} --report.interval_steps 1", folder, PATH=path)
    steps = [json.loads(line)["loss"] for line in (folder / "runs/two/metrics.jsonl").read_text().splitlines()]
    assert [f"{loss:.6f}" for loss in steps] == whole
    (folder / "checkpoints/two/step-000030/.metadata").unlink()  # a save that did not end
    assert losses(typed(on_two, folder, PATH=path)) == whole[20:]


@pytest.mark.more("one example stands for all")
def test_multi_task(typing):
    folder = typing("multi_task")
    found = evaluated(folder / "runs/shop")
    assert found["auc/clicked"] > LEAST_AUC
    assert found["auc/bought"] > LEAST_AUC
    predictions = ds.dataset(folder / "runs/shop-predictions", exclude_invalid_files=True).schema.names
    assert {"clicked", "bought", "seconds"} <= {*predictions}


@pytest.mark.more("one example stands for all")
def test_retrieval(typing):
    pytest.importorskip("faiss", reason="pip install faiss-cpu")
    folder = typing("retrieval", "uvicorn")
    assert evaluated(folder / "runs/tastes")["recall@10"] > 0.1
    (serve,) = [command for command in commands("retrieval") if command.startswith("uvicorn")]
    words = [sys.executable, "-m", *serve.replace("8000", str(free_port())).split()]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        address = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+", line)))
        answers = [json.load(urlopen(f"{address}/?user={user}")) for user in range(20)]
        server.terminate()
    (directory,) = (folder / "exports/tastes").glob("step-*")
    queries = load(directory)({"user": [*range(20)], "item": [0] * 20, "genre": [0] * 20})["liked_query"].numpy()
    items = ds.dataset(folder / "runs/tastes-items", exclude_invalid_files=True).to_table()
    best = items["id"].to_numpy()[np.argsort(-(queries @ np.array(items["vector"].to_pylist()).T), axis=1)[:, :10]]
    found = [len({*answer["items"]} & {*exact}) / 10 for answer, exact in zip(answers, best.tolist(), strict=True)]
    assert np.mean(found) > 0.9  # an index is approximate


@pytest.mark.parametrize("name", ["sweep", "pipeline"])
def test_jobs_are_right(name, tmp_path, path):
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
    dry_runs = [command for command in commands(name) if "--dryrun" in command]
    assert len(dry_runs) == 2
    for command in dry_runs:
        typed(command, folder, PATH=path)


@pytest.mark.parametrize("command", commands("kubernetes"))
def test_overlays_reach_the_pods(command, tmp_path, monkeypatch):
    folder = shutil.copytree(EXAMPLES / "kubernetes", tmp_path / "kubernetes")
    monkeypatch.chdir(folder)
    words = shlex.split(command)
    place = words.index("dlrm.multi_node")
    with get_runner() as runner:
        resource = runner.dryrun_component(words[place], words[place + 1 :], "jobset", {}).request.resource
    (job,) = resource["spec"]["replicatedJobs"]
    template = job["template"]["spec"]["template"]
    schemas.validate_pod(template)
    (container,) = template["spec"]["containers"]
    if "kubernetes=efa.yaml" in words:
        assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] == "32"
        assert container["resources"]["limits"]["nvidia.com/gpu"]
        assert {"name": "FI_PROVIDER", "value": "efa"} in container["env"]
    else:
        assert any("topology" in name for name in template["metadata"]["annotations"])


def cells() -> list[str]:
    """Returns the code of the notebook."""
    notebook = json.loads((EXAMPLES / "notebook/read_run.ipynb").read_text())
    assert all(not cell.get("outputs") for cell in notebook["cells"])
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_python():
    assert all(ast.parse(cell) for cell in cells())


@pytest.mark.more("one example stands for all")
def test_the_notebook_reads_a_run(typing, monkeypatch):
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    monkeypatch.chdir(typing("notebook"))
    names = {}
    for cell in cells():
        exec(cell, names)
    assert names["steps"]["loss"].iloc[-1] < names["steps"]["loss"].iloc[0]
    assert isinstance(names["tables"], pandas.DataFrame)
    assert len(names["tables"]) == 26
