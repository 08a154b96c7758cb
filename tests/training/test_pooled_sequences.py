"""A table of sequences that serves pooled features, too, trains as plain embeddings do in float64.

`test_id_weights.py` has the same of ids with weights, and predictions.
"""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from exported import ask, export, parity_of
from jobs import launch_rounds, losses, saved_tensors
from sequences import ITEMS, sequence_config, write_histories
from torch.nn import functional
from torchrec.sparse.jagged_tensor import JaggedTensor

from torchx_recsys.apps.export.features import Sequence
from torchx_recsys.planner.hardware import Cluster
from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.models.builder import build_model
from trainer.models.pooled_sequences import PooledSequences
from trainer.models.table_init import initial_rows
from trainer.plan.make_plan import problem_of
from trainer.training.sharded_model import build_unsharded_model

STEPS, HALF, BATCH, DIMENSION = 10, 5, 64, 16
SGD = {"name": "sgd", "learning_rate": 0.2}
LENGTHS = [2, 0, 1, 3, 0]
FILMS = "sequences.embeddings.films.weight"
POOLED = {"seen": "mean", "newest": "sum", "number": "sum"}  # of films: lists, the last two of each, and single ids


def settings(data, kind="table_wise", model="din", **changes):
    changes = {"planner__sharding_types": [kind], "data__test": [str(data)], "train__steps": STEPS} | changes
    tree = sequence_config(data, model, optimizer__sparse=SGD, optimizer__dense=SGD, **changes)
    films = {"rows": ITEMS, "table": "films"}
    tree["data"]["sparse"] = {
        "seen": films | {"column": "history", "pooling": "mean", "hotness": 4.5},
        **tree["data"]["sparse"],
        "newest": films | {"column": "history", "max_ids": 2, "hotness": 1.9},
        "number": films,
    }
    return tree


def managed(data, kind="row_wise"):
    """Returns the same with managed ids."""
    tree = settings(data, kind, model__table_init=0.1)
    for feature in tree["data"]["sparse"].values():
        if feature.get("table") == "films":
            feature |= {"ids": "managed", "rows": ITEMS + 10}
    return tree


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pooled")
    data = write_histories(folder / "data", 640)
    halves = [settings(data, "row_wise", train__steps=steps) for steps in (HALF, STEPS)]
    trees = {
        1: [("1", settings(data)), ("hstu-1", settings(data, model="hstu")), ("managed-1", managed(data))],
        2: [
            ("2", settings(data, "row_wise")),
            ("halves", halves[0]),
            ("halves", halves[1]),
            ("micro", settings(data, "table_wise", train__micro_batches=2)),
            ("counted", settings(data, "row_wise", data__test=[])),
            ("hstu-2", settings(data, "row_wise", "hstu")),
            ("managed-2", managed(data)),
            ("copies-2", settings(data, "data_parallel")),
            ("micro-copies", settings(data, "data_parallel", train__micro_batches=2)),
            ("managed-copies", managed(data, "data_parallel")),
            ("hstu-copies", settings(data, "data_parallel", "hstu")),
            ("moved", settings(data, "data_parallel", train__steps=HALF)),
            ("moved", settings(data, "row_wise")),
        ],
        4: [("4", settings(data, "column_wise")), ("copies-4", settings(data, "data_parallel"))],
    }
    jobs = {
        ranks: [{"config": tree, "out": str(folder / name), "count": name == "counted"} for name, tree in named]
        for ranks, named in trees.items()
    }
    launch_rounds([*jobs.items()], folder)
    return folder


def lists(sparse, name):
    return [one.tolist() for one in sparse[name].values().long().split(sparse[name].lengths().tolist())]


def matrix(ids, pooling):
    """Returns the matrix whose product with a table is the pooled embedding of each sample, `[B, R]` float64."""
    found = torch.zeros(len(ids), ITEMS).double()
    for place, given in enumerate(ids):
        for one in given:
            found[place, one] += 1 / len(given) if pooling == "mean" else 1
    return found


def reference(data):
    """Returns loss by loss the training with plain embeddings in float64, and the table of the films at its end."""
    found = Config.model_validate(settings(data))
    torch.manual_seed(found.train.seed)
    network = build_model(found.data, found.model, found.predictions(), torch.device("cpu")).network.double()
    tables = {
        name: initial_rows(torch.arange(rows), torch.arange(DIMENSION), torch.Size((rows, DIMENSION)), name, 0)
        .double()
        .requires_grad_()
        for name, rows in {"films": ITEMS, "city": 20}.items()
    }
    parameters, curve = [*tables.values(), *network.parameters()], []
    files = find_files("data.train", found.data.train, found.data)
    for batch in Loader(files, found.data, Lanes(files.rows, 8, BATCH), 0, 1, found.train.seed, True).batches(0, STEPS):
        sparse = batch.sparse
        pooled = [matrix(lists(sparse, name), pooling) @ tables["films"] for name, pooling in POOLED.items()]
        vector = torch.cat([batch.dense.double(), functional.embedding(sparse["city"].values(), tables["city"])], 1)
        past = functional.embedding(sparse["history"].values(), tables["films"])
        past = JaggedTensor(past, lengths=sparse["history"].lengths())
        item = Sequence((matrix(lists(sparse, "item"), "sum") @ tables["films"])[:, None], sparse["item"].lengths())
        logits = network(torch.cat([vector, *pooled], 1), [item], {"history": past})[:, 0]
        each = functional.binary_cross_entropy_with_logits(logits, batch.labels[:, 0].double(), reduction="none")
        loss = (each * batch.weights).sum() / batch.weights.sum()
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter -= SGD["learning_rate"] * gradient
        curve.append(loss.item())
    return curve, tables["films"].detach()


def test_training_is_that_of_plain_embeddings_on_any_number_of_ranks(runs):
    curve, films = reference(runs / "data")
    assert np.mean(curve[-3:]) < np.mean(curve[:3])
    for name in ("1", "2", "4", "micro", "copies-2", "copies-4", "micro-copies", "moved"):
        np.testing.assert_allclose(losses(runs / name), curve, rtol=1e-5)
        found = saved_tensors(runs / name, STEPS)[f"model.model.{FILMS}"]
        np.testing.assert_allclose(found, films, rtol=1e-4, atol=1e-5, err_msg=name)
        assert "copies" not in name or (runs / name / "plan.json").read_text().count('"data_parallel"') == 2


def test_a_resume_is_bit_for_bit(runs):
    whole, halves = (saved_tensors(runs / name, STEPS) for name in ("2", "halves"))
    assert losses(runs / "2") == losses(runs / "halves")
    assert [name for name in whole if not torch.equal(whole[name], halves[name])] == []


@pytest.mark.parametrize("name", ["hstu", "managed"])
def test_models_with_weights_and_managed_ids_do_not_depend_on_ranks_and_plan(runs, name):
    alone, both, copies = (losses(runs / f"{name}-{plan}") for plan in ("1", "2", "copies"))
    assert len({*alone}) == STEPS
    np.testing.assert_allclose(both, alone, rtol=1e-5)
    np.testing.assert_allclose(copies, alone, rtol=1e-5)


OTHER = pytest.mark.more("the first case has the pooling of an export")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("2", ()),
        pytest.param("hstu-2", (), marks=OTHER),
        pytest.param("hstu-2", ("--shard-bytes", "1000"), marks=OTHER),
    ],
)
def test_an_export_answers_as_the_model_was_evaluated(runs, tmp_path, name, flags):
    directory = export(runs, name, tmp_path, "--split", "test", *flags)
    names = [column["name"] for column in json.loads((directory / "signature.json").read_text())["columns"]]
    table = pq.read_table(runs / "data")
    parity, found = ask(
        (directory, parity_of(directory)["columns"]), (directory, {one: table[one].to_pylist() for one in names})
    )
    for output, values in parity_of(directory)["answers"].items():
        np.testing.assert_allclose(parity[output], values, rtol=0, atol=1e-6)
    p, y = np.array(found["label_probability"], np.float64), table["label"].to_numpy().astype(np.float64)
    expected = json.loads((runs / name / "evaluations.jsonl").read_text().splitlines()[-1])["log_loss"]
    assert -(y * np.log(p) + (1 - y) * np.log1p(-p)).mean() == pytest.approx(expected, rel=1e-5)


def test_the_plan_counts_every_id_that_is_exchanged(runs):
    config = Config.model_validate(settings(runs / "data"))
    model = build_unsharded_model(config, torch.device("cpu"))
    (films,) = (one for one in problem_of(model, config, Cluster(None, 1, 2, False)).tables if one.name == "films")
    assert (films.is_pooled, sorted(films.hotness)) == (False, [1.0, 1.0, 1.9, 3.2, 4.5])
    out = runs / "counted"
    reported = json.loads((out / "run.json").read_text())["communication_bytes_per_step"]["forward"]
    row_bytes, ids = 4 * DIMENSION, sum(films.hotness)
    assert reported == BATCH * row_bytes * (ids / 2 + 1)  # of a pooled city, a partial sum comes from the other rank
    calls = [json.loads((out / f"sent-{rank}.json").read_text())["all_to_all"] for rank in (0, 1)]
    sent = sum(sum(one[::2]) for one in calls) / STEPS
    assert sent == pytest.approx(BATCH * row_bytes * ids / 2, rel=0.1)  # which ids are of the other rank is chance


@pytest.mark.parametrize("pooling", ["sum", "mean", "weighted"])
def test_pooling_and_its_gradient_are_those_of_numpy(pooling):
    random = np.random.default_rng(0)
    rows, weights = random.standard_normal((2, sum(LENGTHS), 3)), random.standard_normal(sum(LENGTHS))
    values = torch.tensor(rows[0], requires_grad=True)
    poolings = {"one": pooling if pooling == "mean" else "sum", "other": "sum"}
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    ids = JaggedTensor(values.detach()[:, 0], lengths=lengths, weights=torch.tensor(weights))
    embeddings = {
        "one": JaggedTensor(values, lengths=lengths),
        "other": JaggedTensor(torch.tensor(rows[1]), lengths=lengths),
    }
    pool = PooledSequences(poolings, is_weighted=pooling == "weighted")
    found = pool(embeddings, {"one": ids, "other": ids})
    factors = weights if pooling == "weighted" else np.ones(len(weights))
    sums = np.zeros((len(LENGTHS), sum(LENGTHS)))
    for place, (stop, length) in enumerate(zip(np.cumsum(LENGTHS), LENGTHS, strict=True)):
        sums[place, stop - length : stop] = factors[stop - length : stop]
    of_one = sums / np.maximum(LENGTHS, 1)[:, None] if pooling == "mean" else sums
    np.testing.assert_allclose(found.detach(), np.concatenate([of_one @ rows[0], sums @ rows[1]], 1), atol=1e-12)
    upstream = random.standard_normal(found.shape)
    found.backward(torch.tensor(upstream))
    np.testing.assert_allclose(values.grad, of_one.T @ upstream[:, :3], atol=1e-12)


def test_a_batch_without_ids_gives_zeros_and_no_gradient():
    values = torch.zeros(0, 3, requires_grad=True)
    embeddings = {"one": JaggedTensor(values, lengths=torch.zeros(4, dtype=torch.int32))}
    found = PooledSequences({"one": "mean"}, is_weighted=False)(embeddings, {})
    assert torch.equal(found, torch.zeros(4, 3))
    found.sum().backward()
    assert values.grad.shape == (0, 3)
