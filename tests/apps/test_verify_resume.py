"""`verify-resume` passes where resume is exact, and fails where something is forgotten.

By default it proves one of the ready-made configurations; `--all` takes every one. One case runs `tools.verify_resume`.
"""

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import tomllib

import pytest
import torch
import torch.distributed.checkpoint as dcp
from command import run_trainer, write_config
from jobs import config, saved_tensors
from managed import settings as managed
from managed import write_ids

from torchx_recsys.apps.runs.differences import difference, differences
from trainer.__main__ import main as trainer
from trainer.config.root import READY_MADE, load_config

NAMES = sorted(path.stem for path in READY_MADE.glob("*.toml"))
SAMPLED = ["criteo_terabyte"]  # the one with all that rounds, which is proven in fp32, too
STEPS = 8
FORGETFUL = """
from torch import nn


class Forgetful(nn.Module):
    '''Scales its logits by how often it was called, which no checkpoint knows.'''

    def __init__(self, inputs):
        super().__init__()
        self.tables, self.calls = inputs.tables, 0
        self.over = nn.Linear(16 * len(inputs.sparse_features), inputs.labels, device=inputs.device)

    def forward(self, dense, sparse):
        self.calls += 1
        return self.over(self.tables(sparse).values()) * (1 + self.calls / 100)
"""


def verify(file, *flags):
    """Runs the command: on one rank, resumed on one and on two."""
    return run_trainer("verify-resume", file, "--steps", STEPS, "--ranks", 1, "--other-ranks", 2, *flags)


def verify_by_component(file, path):
    """The same by the component."""
    command = ["torchx", "run", "-s", "local_cwd", "tools.verify_resume", "--config", file]
    command += ["--steps", STEPS, "--ranks", 1, "--other_ranks", 2]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PATH": path}
    return subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)


def make(*arguments):
    done = run_trainer(*arguments)
    assert done.returncode == 0, done.stderr


def click_log(path, rows):
    """Writes lines of the shape of Criteo's, some fields empty."""
    chance = random.Random(str(path.name))
    with path.open("w") as file:
        for _ in range(rows):
            dense = [str(chance.randrange(1000)) if chance.random() < 0.9 else "" for _ in range(13)]
            sparse = [f"{chance.getrandbits(32):08x}" if chance.random() < 0.9 else "" for _ in range(26)]
            file.write("\t".join([str(int(chance.random() < 0.3)), *dense, *sparse]) + "\n")


DATA = {
    "criteo_kaggle": "criteo --source train.txt --out data/criteo_kaggle",
    "criteo_terabyte": "criteo --source day_0 day_23 --layout terabyte --out data/criteo_terabyte",
    "dlrmv4": "yambda --users 80 --days 12",
    "movielens": "movielens",
    "synthetic": "synthetic --rows 2000 --files 2 --validation-rows 9 --test-rows 9",
}


def data_of(name: str) -> str:
    """Returns the ready-made configuration of the same data that has the data set's name."""
    return next(source for source in DATA if name.startswith(source))


MATRIX = "name", lambda whole: NAMES if whole else SAMPLED


@pytest.fixture(scope="module")
def folder(matrix, tmp_path_factory):
    """A directory with a small data set for every ready-made configuration."""
    folder = tmp_path_factory.mktemp("verify")
    for name in ("train.txt", "day_0", "day_23"):
        click_log(folder / name, 350)
    with contextlib.chdir(folder):
        for source in {data_of(name) for name in matrix}:
            make(*DATA[source].split())
    return folder


def shrunk(name):
    """The flags that make a ready-made configuration small: batches, layers, and tables of more than 1,000 rows."""
    if name == "movielens_segments":
        return ["--data.segments.path", "None", "--data.train", "data/movielens/segments/*.parquet"]
    if name.startswith("movielens"):
        return []
    if name.startswith("dlrmv4"):
        return shrunk_histories(name)
    flags = ["--data.global-batch-size", "64"]
    if name.startswith("criteo"):
        features = tomllib.loads((READY_MADE / f"{name}.toml").read_text())["data"]["sparse"]
        flags += [f"--data.sparse.{feature}.rows=1000" for feature, keys in features.items() if keys["rows"] > 1000]
        flags += ["--model.dense-layers", "32", "--model.over-layers", "64", "32"]
    if name == "criteo_terabyte":
        flags += ["--model.cross-rank", "8"]
    return flags


def shrunk_histories(name):
    """The same for DLRMv4, whose crosses are of the published tables."""
    features = load_config(name).data.sparse
    flags = ["--data.segments.path", "None", "--data.train", "data/yambda/train", "--data.global-batch-size", "64"]
    flags += ["--data.validation", "[]", "--data.history.length", "48", "--data.history.among", "48"]
    for feature, keys in features.items():
        if keys.pooling == "none" and keys.rows > 2000:
            flags += [f"--data.sparse.{feature}.rows=1000", f"--data.sparse.{feature}.ids=modulo"]
    return [*flags, "--model.embedding-dim", "32"]


@pytest.fixture(scope="module")
def verified(matrix, folder, rows, path):
    """How the command ended for ready-made configurations and managed ids, and the component for a forgetful model."""
    (folder / "forgetful.py").write_text(FORGETFUL)
    write_config(folder / "forgetful.toml", config(rows, model__name="forgetful:Forgetful"))
    write_config(folder / "managed.toml", managed(write_ids(folder / "ids"), "row_wise"))
    write_config(folder / "plain.toml", config(rows, optimizer__sparse__name="rowwise_adagrad"))
    with contextlib.chdir(folder):
        ready_made = {name: verify(name, "--keep", f"kept-{name}", *shrunk(name)) for name in matrix}
        others = {"managed": verify("managed.toml"), "forgetful": verify_by_component("forgetful.toml", path)}
        others["plain"] = verify("plain.toml", "--keep", "kept-plain")
        return ready_made | others


@pytest.mark.more("managed ids pass")
def test_a_ready_made_configuration_passes(folder, verified, name):
    done = verified[name]
    assert done.returncode == 0, done.stderr[-3000:]
    verdicts = re.findall(r"(PASS|FAIL) on (.*): (\d+) things compared, (.*)", done.stdout)
    in_fp32 = ", in fp32" if name == "criteo_terabyte" else ""
    assert [verdict[:2] for verdict in verdicts] == [("PASS", "1 rank again"), ("PASS", f"2 ranks{in_fp32}")]
    assert verdicts[0][3] == "all are equal"
    assert re.search(r"interrupted with SIGKILL after step [4-8], on 1 rank", done.stdout)
    kept = folder / f"kept-{name}" / ("fp32" if in_fp32 else "")
    tensors = saved_tensors(kept / "baseline", STEPS)
    assert int(verdicts[0][2]) == len(tensors) + STEPS + len(json.loads(state(kept / "baseline").read_text())) - 1
    assert json.loads((kept / "resumed-on-2/run.json").read_text())["world_size"] == 2


@pytest.mark.more("test_managed_ids.py resumes them")
def test_managed_ids_pass(verified):
    done = verified["managed"]
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"(PASS|FAIL) on ([^:]*):", done.stdout) == [("PASS", "1 rank again"), ("PASS", "2 ranks")]
    assert re.search(r"rows of managed ids +equal \(8\) +equal \(8\)", done.stdout), done.stdout[-3000:]


def state(run):
    return run / f"checkpoints/step-{STEPS:09d}/state.json"


def test_a_model_with_a_hidden_state_fails(verified):
    done = verified["forgetful"]
    assert done.returncode == 1
    found = re.findall(
        r"FAIL on (.*): \d+ of \d+ things differ, the largest difference is (\S+), ([\w .]+)", done.stderr
    )
    assert [title for title, *_ in found] == ["1 rank again", "2 ranks"]
    assert all(float(size) > 1e-3 for _, size, _ in found)
    assert re.search(r"\d\.\de-\d\d  losses: loss of step 8", done.stderr)


@pytest.fixture
def copies(folder, verified, tmp_path):
    """A baseline and a resumed run, bit by bit the same, that can be tampered with."""
    for name in ("baseline", "resumed-on-1"):
        shutil.copytree(folder / "kept-plain" / name, tmp_path / name)
    return tmp_path / "baseline", tmp_path / "resumed-on-1"


def apart(baseline, other):
    return {found.name: found.size for found in differences(str(baseline), str(other), STEPS) if found.size}


def test_every_tensor_is_compared(copies):
    baseline, other = copies
    assert apart(baseline, other) == {}
    before, tensors, expected = saved_tensors(baseline, STEPS), saved_tensors(other, STEPS), {}
    for place, (name, value) in enumerate(tensors.items()):
        value.view(-1)[place % value.numel()] += 1e-3
        expected[name] = pytest.approx(1e-3 / before[name].norm().item(), rel=1e-2)
    dcp.save(tensors, checkpoint_id=other / f"checkpoints/step-{STEPS:09d}", no_dist=True)
    assert apart(baseline, other) == expected


def test_missing_tensors_progress_and_losses_count(copies):
    baseline, other = copies
    tensors = saved_tensors(other, STEPS)
    left_out = next(name for name in tensors if name.startswith("table."))
    dcp.save(
        {name: value for name, value in tensors.items() if name != left_out},
        checkpoint_id=other / f"checkpoints/step-{STEPS:09d}",
        no_dist=True,
    )
    state(other).write_text(json.dumps(json.loads(state(other).read_text()) | {"epoch": 7}))
    lines = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert apart(baseline, other) == dict.fromkeys((left_out, "epoch", f"loss of step {STEPS}"), torch.inf)


@pytest.mark.parametrize(
    ("baseline", "other", "expected"),
    [
        ([3.0, -4.0], [3.0, -4.0], 0.0),
        ([3.0, -4.0], [3.0, -4.5], 0.1),
        ([0.0, 0.0], [0.0, 1e-9], torch.inf),
        ([1.0, 2.0], [1.0, torch.nan], torch.inf),
        ([1.0, 2.0], [1.0], torch.inf),
    ],
)
def test_a_difference_is_one_of_norms(baseline, other, expected):
    assert difference(torch.tensor(baseline), torch.tensor(other)) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "3"], "--steps is 3; it must be 4 or more"),
        (["--ranks", "0"], "--ranks is 0; it must be 1 or more"),
        (["--ranks", "1"], "--other-ranks is 1, and so is --ranks; they must differ"),
        (
            ["--data.segments.path", "logs/{segment}"],
            "from one set of files; add --data.segments.path None --data.train",
        ),
        (["--keep", "."], "--keep is '.', which cannot be made"),
        (["--keep", "~"], "--keep is '~', which cannot be made: [Errno 17] File exists: '/"),
        (["--ranks", "1", "--other-ranks", "2"], "data.train: no Parquet file at 'nowhere'"),  # the job's own error
    ],
)
def test_wrong_input_is_said_in_one_line(tmp_path, capsys, flags, message):
    file = write_config(tmp_path / "config.toml", config("nowhere"))
    assert trainer(["verify-resume", str(file), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
