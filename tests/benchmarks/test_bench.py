"""The benchmark from end to end, on little data; the rates are not judged here."""

import contextlib
import functools
import json
import operator
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from command import run_trainer, write_config
from jobs import config
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from benchmarks.bench.bench import bench
from benchmarks.bench.comparison import Comparison, render_comparisons
from benchmarks.bench.models import compare_models
from benchmarks.bench.setting import WARM_STEPS, make_config, make_data
from benchmarks.bench.training import BASELINE, FEATURES, changed, compare_loops
from benchmarks.costs import render
from torchx_recsys.apps.calibrate.steps import MEMORY_BATCHES
from torchx_recsys.planner.step_time import PARTS
from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.models.builder import MODELS
from trainer.models.tasks import ModelWithLoss
from trainer.plan.dense_part import dense_part
from trainer.training.setup import open_session

pytestmark = pytest.mark.slow

SETTINGS = {"rows": 3000, "global_batch_size": 64, "steps": 3, "repeats": 1}
FLAGS = ["--rows", "3000", "--global-batch-size", "64", "--steps", "3", "--repeats", "1"]


@pytest.mark.more("a tool of contributors")
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("what", "targets"),
    [
        (
            "training",
            {
                ("loader, one core", "pyarrow, same columns"): 0.6,
                ("loader of nulls, modulo", "pyarrow, same columns"): 0.45,
                ("loader, one core", "a Python object per value"): None,
                ("training from Parquet", "training from memory"): 0.95,
                ("training from memory", "a loop written by hand"): 0.98,
            },
        ),
        (
            "csv",
            {
                ("loader of CSV, one core", "pyarrow.csv, same columns"): 0.4,
                ("loader of CSV in gz, one core", "pyarrow.csv on gz"): 0.4,
                ("index of CSV, one core", "pyarrow.csv, same columns"): None,
            },
        ),
        (
            "check",
            {
                ("check, figures of 50,000 rows", "pyarrow, same columns"): 0.5,
                ("check, figures of 10,000 rows", "pyarrow, same columns"): 0.5,
            },
        ),
        ("features", {(name, BASELINE): None for name in FEATURES}),
        ("predict", {("predictions, all columns kept", "evaluation"): 0.9}),
        ("models", {(name, "a bare torch loop"): 0.9 for name in MODELS}),
        (
            "checkpoint",
            {
                ("steps during saves, a core to spare", "steps without saves"): 1 / 1.1,
                ("saving a checkpoint", "writing files with fsync"): 0.7,
                ("saving a checkpoint", "writing files without fsync"): None,
                ("restoring a checkpoint", "reading files"): 0.7,
            },
        ),
    ],
)
def test_bench(tmp_path, what, targets):
    done = run_trainer("bench", what, "--out", tmp_path, *FLAGS)
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout

    written = json.loads((tmp_path / f"bench-{what}.json").read_text())
    assert written["settings"] == SETTINGS
    assert written["versions"]["torchrec"]
    assert written["machine"]["cores"] >= 1
    assert {(one["what"], one["baseline"]): one["target"] for one in written["comparisons"]} == targets
    for one in written["comparisons"]:
        assert len(one["measured"]) == len(one["compared"]) == 1
        assert min(*one["measured"], *one["compared"], one["ratio"]) > 0
    assert [(one["ranks"], len(one["seconds"])) for one in written.get("restores", [])] == [(1, 1), (2, 1), (4, 1)] * (
        what == "checkpoint"
    )
    assert not (tmp_path / "scratch-run").exists()


@pytest.mark.more("a tool of contributors")
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_roofline_counts_the_products_of_a_step_and_what_tables_move(tmp_path, rows, ranks):
    tree = config(rows, planner__sharding_types=["table_wise"], data__global_batch_size=128)
    file = write_config(tmp_path / "config.toml", tree)
    done = run_trainer("bench", "roofline", "--of", file, "--out", tmp_path / "out", *FLAGS, ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert "GFLOP/s" in done.stdout
    facts = json.loads((tmp_path / "out/bench-roofline.json").read_text())
    rates, found = facts["rates"], {one["part"]: one for one in facts["parts"]}
    assert [*found] == [*PARTS, "step"]
    work = dense_part(Config.model_validate(tree), ranks or 1).work
    counted = sum(found[part]["products"] for part in PARTS) * rates["flops"] / 1e3
    assert (
        counted
        == pytest.approx(work.flops + work.batched_flops)
        == pytest.approx(found["step"]["products"] * rates["flops"] / 1e3)
    )
    bytes_of_embeddings = 6 * 128 * 16 * 4  # of six tables, in the whole batch
    assert found["forward"]["memory"] * rates["memory"] / 1e3 > bytes_of_embeddings / max(1, ranks)
    sent = {part: found[part]["exchange"] * (rates["exchange"] or 0) / 1e3 for part in ("forward", "backward")}
    gradients = work.gradients  # half of which each of two ranks sends twice: sums, then their totals
    expected = {"forward": bytes_of_embeddings / 4, "backward": bytes_of_embeddings / 4 + gradients}
    assert sent == pytest.approx(expected if ranks else dict.fromkeys(expected, 0.0))


@pytest.fixture
def session(tmp_path):
    with process_group() as context:
        make_data(str(tmp_path), rows=3000)
        with open_session(make_config(str(tmp_path), 64), str(tmp_path / "run"), "never", context) as session:
            yield session


@contextlib.contextmanager
def recorded_batches():
    """Yields a list to which each forward pass of a sharded model adds the model and its batch."""
    passes = []

    def record(module, inputs):
        if isinstance(module, DistributedModelParallel):
            passes.append((module, *inputs))

    with register_module_forward_pre_hook(record):
        yield passes


@pytest.mark.more("a tool of contributors")
def test_the_hand_written_loop_trains_on_the_same_batches(session):
    steps = MEMORY_BATCHES - WARM_STEPS
    with recorded_batches() as passes:
        compare_loops(session, steps, repeats=1)
    ours = [batch for model, batch in passes if model is session.model.model]
    by_hand = [batch for model, batch in passes if model is not session.model.model]
    # One repeat and one that does not count, of a loop written by hand, and of ours from Parquet and from memory.
    assert (len(by_hand), len(ours)) == (2 * MEMORY_BATCHES, 4 * MEMORY_BATCHES)
    for batch, same in zip(ours, by_hand * 2, strict=True):
        assert_same(batch.dense, same.dense_features)
        assert_same(batch.sparse.values(), same.sparse_features.values())
        assert_same(batch.sparse.lengths(), same.sparse_features.lengths())
        assert_same(batch.labels.squeeze(1), same.labels)
        assert batch.sparse.keys() == same.sparse_features.keys()


@pytest.mark.more("a tool of contributors")
def test_the_bare_loop_trains_the_same_model_on_the_same_batches(tmp_path):
    """With plain tables, weights of its own, and the losses of the same tasks."""
    steps, losses = MEMORY_BATCHES - WARM_STEPS, {True: [], False: []}

    def record(module, inputs, output):
        if isinstance(module, ModelWithLoss):
            losses[any(isinstance(part, EmbeddingBagCollection) for part in module.modules())].append(inputs[0])

    with process_group() as context, register_module_forward_hook(record):
        compare_models(["mmoe"], RunDirectory(str(tmp_path)), 64, steps, 1, context)
    for ours, bare in zip(losses[False], losses[True], strict=True):
        assert_same(ours.labels, bare.labels)
        assert_same(ours.dense, bare.dense)
        assert_same(ours.sparse.values(), bare.sparse.values())


def assert_same(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_on_where_it_is_measured_and_is_in_the_table(tmp_path, name):
    config, changes = make_config(str(tmp_path), 64), FEATURES[name]
    after = changed(config, changes).model_dump()
    for path, value in changes.items():
        assert functools.reduce(operator.getitem, path.split("."), after) == value
        assert functools.reduce(operator.getitem, path.split("."), config.model_dump()) != value


def test_the_documented_costs_are_of_all_features():
    page = (Path(__file__).parents[2] / "docs/explanation/step.md").read_text()
    table = page[page.index("<!-- measured: costs -->") :]
    assert re.findall(r"^\| ([^|]+?) \| .* \| [\d.]+ \| [\d.]+ to [\d.]+ \|$", table, re.MULTILINE) == [*FEATURES]


def test_costs_are_ratios_of_times():
    bf16 = Comparison("bf16", BASELINE, "samples/s", None, [2.0, 4.0, 5.0], [4.0, 4.0, 4.0])
    measured = {
        "comparisons": [asdict(bf16) | {"ratio": bf16.ratio}],
        "settings": SETTINGS,
        "machine": {"cores": 2, "processor": "any"},
        "world_size": 1,
        "versions": {"torch": "2.13.0"},
    }
    assert '| bf16 | `train.precision = "bf16"` | 1.00 | 0.80 to 2.00 |' in render(measured)


def test_ratio_is_that_of_the_repeats():
    slow_machine_at_last = Comparison("a", "b", "samples/s", None, [10.0, 10.0, 1.0], [20.0, 20.0, 2.0])
    assert slow_machine_at_last.ratio == 0.5


def test_the_table_shows_the_spread_of_the_ratios():
    table = render_comparisons([Comparison("a", "b", "samples/s", 0.98, [1.98, 2.02, 2.04], [2.0, 2.0, 2.0])])
    assert re.split(r"\s{2,}", table.splitlines()[-1]) == [
        *("a", "2.02 samples/s", "b", "2 samples/s", "1.01 (0.99 to 1.02)", "0.98"),
    ]


@pytest.mark.parametrize(
    ("what", "arguments", "message"),
    [
        ("training", {"repeats": 0}, "--repeats is 0; it must be 1 or more"),
        ("features", {"models": ("dlrm",)}, "--models is dlrm, which `bench features` does not use"),
        ("training", {"of": "movielens"}, "--of is 'movielens', which `bench training` does not use"),
        ("models", {"models": ("dlm",)}, "--models has 'dlm', which is no built-in model; did you mean 'dlrm'?"),
    ],
)
def test_nothing_to_measure(tmp_path, what, arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        bench(what, out=str(tmp_path), **arguments)
