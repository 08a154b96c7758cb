"""Evaluation counts every row once, on any number of ranks, and its metrics are what they are called."""

import json
import math

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from command import run_trainer, write_config
from evaluated import metrics_of, outputs
from jobs import config, launch_rounds, saved_tensors, write_rows
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.__main__ import main as trainer
from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.metrics.registry import DEFAULTS
from trainer.models.base import ModelInputs
from trainer.models.dlrm import dlrm
from trainer.models.embeddings import table_configs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run on 1, 2 and 4 ranks, evaluated twice on the way and at the end, on splits that no batch divides."""
    folder = tmp_path_factory.mktemp("evaluate")
    data = write_rows(folder / "data", [400])
    test = write_rows(folder / "test", [3, 0, 170, 38], seed=1)
    splits = {"validation": [str(test / "part-02.parquet")], "test": [str(test)]}
    settings = config(data, train__steps=12, evaluate={"every_steps": 5, "global_batch_size": 64})
    settings["data"] |= splits | {"groups": ["s0"]}
    settings["tasks"] = {"label": {"group": "s0", "metrics": [*DEFAULTS["probability"], "gauc", "recall@1"]}}
    launch_rounds([(ranks, [{"config": settings, "out": str(folder / str(ranks))}]) for ranks in (1, 2, 4)], folder)
    return folder


def evaluations(out):
    return [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("ranks", [2, 4])
def test_metrics_do_not_depend_on_the_number_of_ranks(runs, ranks):
    alone, several = evaluations(runs / "1"), evaluations(runs / str(ranks))
    assert [(line["step"], line["split"]) for line in alone] == [
        (5, "validation"),
        (10, "validation"),
        (12, "validation"),
        (12, "test"),
    ]
    for one, other in zip(alone, several, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"split", "auc", "auc_error"}:
            assert other[key] == pytest.approx(one[key], rel=1e-5)
        assert other["auc"] == pytest.approx(one["auc"], abs=1e-3)  # two of 200 rows may change places


def predictions(folder):
    """Unsharded, in float64, from the files themselves."""
    settings = Config.model_validate(config(folder / "data"))
    tables = EmbeddingBagCollection(tables=table_configs(settings.data, settings.model))
    model = dlrm(ModelInputs(tables, 2, list(settings.data.sparse), ["label"], torch.device("cpu"), settings.model))
    tensors = saved_tensors(folder / "2", 12)
    model.load_state_dict({n.removeprefix("model.model."): v for n, v in tensors.items() if n.startswith("model.")})
    rows = pq.read_table(folder / "test")
    columns = {name: torch.tensor(rows[name].to_pylist()) for name in rows.column_names}
    ids = [columns[f"s{i}"] for i in range(6)]
    sparse = KeyedJaggedTensor(
        [f"s{i}" for i in range(6)], torch.cat(ids).long(), lengths=torch.ones(6 * len(rows), dtype=torch.int64)
    )
    dense = torch.stack([columns["d0"], columns["d1"]], dim=1).double()
    with torch.no_grad():
        logits = model.double()(dense, sparse)[:, 0].numpy()
    return logits, columns["label"].double().numpy(), columns["s0"].numpy()


def exact_metrics(logits, labels, weights):
    p = 1 / (1 + np.exp(-logits))
    above = (logits[:, None] > logits[None, :]) + 0.5 * (logits[:, None] == logits[None, :])
    pairs = (weights * labels)[:, None] * (weights * (1 - labels))[None, :]
    rate = (weights * labels).sum() / weights.sum()
    loss = -(weights * (labels * np.log(p) + (1 - labels) * np.log(1 - p))).sum() / weights.sum()
    return {
        "auc": (above * pairs).sum() / pairs.sum(),
        "log_loss": loss,
        "normalized_entropy": loss / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)),
        "calibration": (weights * p).sum() / (weights * labels).sum(),
        "label_rate": rate,
    }


def test_metrics_are_those_of_plain_numpy(runs):
    logits, labels, _ = predictions(runs)
    reported = evaluations(runs / "2")[-1]
    assert reported["samples"] == 211 == len(labels)
    for name, value in exact_metrics(logits, labels, np.ones(211)).items():
        assert reported[name] == pytest.approx(value, abs=reported["auc_error"] + 1e-4 if name == "auc" else 1e-5), name


def test_metrics_within_groups_are_those_of_plain_numpy(runs):
    logits, labels, groups = predictions(runs)
    aucs, recalls = [], []
    for group in set(groups):
        few, relevant = logits[groups == group], labels[groups == group]
        if 0 < relevant.sum() < len(few):
            aucs.append(exact_metrics(few, relevant, np.ones(len(few)))["auc"])
        if relevant.any():
            recalls.append(relevant[few.argmax()] / relevant.sum())
    reported = evaluations(runs / "2")[-1]
    assert len(aucs) > 20
    assert reported["gauc"] == pytest.approx(np.mean(aucs), rel=1e-9)
    assert reported["recall@1"] == pytest.approx(np.mean(recalls), rel=1e-9)


def test_weights_several_labels_and_many_batches():
    random = np.random.default_rng(0)
    logits = random.normal(size=(1000, 2)) * 3
    labels = (random.random((1000, 2)) < 1 / (1 + np.exp(-logits))).astype(float)
    weights = random.integers(0, 4, 1000).astype(float)
    metrics = metrics_of(DEFAULTS["probability"], ["click", "buy"])
    for part in np.array_split(np.arange(1000), 7):
        few, *rest = (torch.tensor(values[part]) for values in (logits, labels, weights))
        metrics.update(outputs({"click": few[:, 0], "buy": few[:, 1]}, *rest))
    with process_group() as context:
        result = metrics.compute(context)
    assert result["samples"] == (weights > 0).sum()
    for t, label in enumerate(["click", "buy"]):
        assert result[f"auc_error/{label}"] < 1e-3
        for name, value in exact_metrics(logits[:, t], labels[:, t], weights).items():
            assert result[f"{name}/{label}"] == pytest.approx(value, rel=1e-3 if name == "auc" else 1e-9), (name, label)


def test_one_class_has_no_auc():
    metrics = metrics_of(DEFAULTS["probability"], ["label"])
    metrics.update(outputs({"label": torch.zeros(3)}, torch.ones(3, 1), torch.ones(3)))
    with process_group() as context:
        result = metrics.compute(context)
    assert math.isnan(result["auc"])
    assert math.isnan(result["normalized_entropy"])
    assert result["label_rate"] == 1


def test_the_evaluate_command_reads_the_newest_checkpoint(runs):
    done = run_trainer("evaluate", runs / "2/config.toml", "--out", runs / "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    written = json.loads((runs / "2/evaluation-test.json").read_text())
    trained = evaluations(runs / "2")[-1]
    assert written["step"] == 12
    for name in ("log_loss", "calibration", "samples"):
        assert written[name] == pytest.approx(trained[name], rel=1e-6)


def test_the_evaluate_command_refuses_metrics_in_one_line(runs):
    done = run_trainer("evaluate", runs / "2/config.toml", "--out", runs / "2", "--tasks.label.metrics", "ndcg")
    assert done.returncode == 2
    assert done.stderr.startswith("error: tasks.label.metrics has 'ndcg'; write ndcg@k")
    assert done.stderr.count("\n") == 1


def test_a_split_that_is_not_there_is_named_with_those_that_are(tmp_path, capfd):
    rows = pq.read_table(write_rows(tmp_path / "rows", [70]))
    pyarrow.csv.write_csv(rows, tmp_path / "rows.csv")
    settings = config(tmp_path / "rows.csv", data__reader="csv", data__validation=[str(tmp_path / "rows.csv")])
    file = write_config(tmp_path / "config.toml", settings)
    assert trainer(["evaluate", str(file), "--out", str(tmp_path / "run")]) == 2
    assert capfd.readouterr().err == (
        "error: --split is test, but data.test is empty; name at least one CSV file, glob or directory, or use "
        "--split validation\n"
    )


def test_a_single_rank_gathers_from_nobody(rows, tmp_path, monkeypatch):
    """In Gloo's threads an evaluation would start OpenMP's threads again, which slows down all steps after it."""

    def refuse(*_, **__):
        raise AssertionError("a single rank has nobody to talk to")

    for collective in ("all_gather", "all_gather_object", "all_reduce", "broadcast", "broadcast_object_list"):
        monkeypatch.setattr(dist, collective, refuse)
    tree = config(rows, train__steps=4, data__validation=[str(rows)], evaluate__every_steps=2)
    file = write_config(tmp_path / "config.toml", tree)
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 0
    assert len((tmp_path / "out/evaluations.jsonl").read_text().splitlines()) == 2
