"""Models and metrics that do not suit the tasks lead to one line."""

from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Case:
    """A mistake: what is said about it, what the configuration changes, flags."""

    name: str
    words: list[str]
    changes: dict[str, Any] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


ESMM = {"name": "esmm", "embedding_dim": 16, "tower_layers": []}
TASKS_OF_ESMM = {"tasks": {name: {"label": "label", "output": "log_probability"} for name in ("ctr", "ctcvr")}}
VALUE = {"output": "value", "loss": "squared"}
CASES = [
    Case("no number in a metric", ["evaluate.metrics has 'ndcg@x'", "ndcg@10"], {"evaluate__metrics": ["ndcg@x"]}),
    Case("no rank of a metric", ["'recall@0'", "a whole number above 0"], {"evaluate__metrics": ["recall@0"]}),
    Case("no threshold of a metric", ["'precision@2'", "between 0 and 1"], {"evaluate__metrics": ["precision@2"]}),
    Case(
        "metric of groups without one",
        ["evaluate.metrics has 'gauc'", "tasks.label.group is not set", "data.groups"],
        {"evaluate__metrics": ["gauc"]},
    ),
    Case(
        "metric of another kind of prediction",
        ["tasks.label.metrics has 'auc'", "tasks.label gives a value", "mae, mse, rmse"],
        {"tasks": {"label": {**VALUE, "metrics": ["auc"]}}},
    ),
    Case(
        "metric of binary labels",
        ["tasks.label.metrics has 'gauc'", "labels in [0, 1]", "data.numeric_labels has 'label'"],
        {
            "tasks": {"label": {**VALUE, "metrics": ["gauc"], "group": "row_id"}},
            "data__groups": ["row_id"],
            "data__numeric_labels": ["label"],
        },
    ),
    Case(
        "sample of no groups",
        ["evaluate.group_sample is 0.5", "no task has a metric within groups"],
        {"evaluate__group_sample": 0.5},
    ),
    Case(
        "more than all groups",
        ["--evaluate.group_sample is 1.5", "less than or equal to 1"],
        flags=["--evaluate.group-sample=1.5"],
    ),
    Case(
        "key of another model",
        ["model.experts.levels is 3", "model.name 'mmoe' does not use", "use ple"],
        {"model": {"name": "mmoe", "experts": {"levels": 3}}},
    ),
    Case(
        "arguments without an own model",
        ["model.arguments.depth is 3", "model.name 'dlrm' does not use", "package.module:function"],
        {"model__arguments": {"depth": 3}},
    ),
    Case(
        "tables of unequal columns",
        ["data.sparse.s1.dimension is 8", "model.name 'deepfm'", "model.embedding_dim = 64"],
        {"model": {"name": "deepfm"}, "data__sparse__s1__dimension": 8},
    ),
    Case(
        "labels that esmm does not predict",
        ["model.name is 'esmm'", "predicts ctr, ctcvr, cvr, but not 'label'", "[tasks]"],
        {"model": {"name": "esmm"}},
    ),
    Case(
        "esmm without conversions",
        ["model.name is 'esmm'", "'ctcvr'; add [tasks.ctcvr]"],
        {"model": {"name": "esmm"}, "tasks": {"ctr": {"label": "label", "output": "log_probability"}}},
    ),
    Case(
        "logits of esmm",
        ["tasks.ctcvr.output is 'logit'", "model.name 'esmm' predicts a 'log_probability'"],
        {
            "model": {"name": "esmm"},
            "tasks": {
                "ctr": {"label": "label", "output": "log_probability"},
                "ctcvr": {"label": "label"},
            },
        },
    ),
    Case(
        "vectors of a model without",
        ["tasks.label.output is 'vectors'", "model.name 'dlrm' predicts a 'logit' or a 'value' or a 'log_value'"],
        {"tasks": {"label": {"loss": "in_batch_softmax"}}},
    ),
    Case(
        "dependency on no task",
        ["model.dependencies.label names 'clik', which no task predicts; known: label"],
        {"model": {"name": "dbmtl", "dependencies": {"label": ["clik"]}}},
    ),
    Case(
        "dropout of everything",
        ["model.dropout is 1", "less than 1"],
        {"model__dropout": 1.0},
    ),
    Case("dropout below nothing", ["--model.dropout is -0.5", "greater than"], flags=["--model.dropout=-0.5"]),
    Case(
        "dropout without a layer",
        ["model.dropout is 0.2", "model.name 'esmm' has no layer here", "leave model.dropout out"],
        {"model": ESMM | {"dropout": 0.2}, **TASKS_OF_ESMM},
    ),
    Case(
        "unknown normalization",
        ["model.normalization is 'batchnorm'", "'none', 'batch' or 'layer'"],
        {"model__normalization": "batchnorm"},
    ),
    Case(
        "normalization of parts of a batch",
        ["model.normalization is 'batch'", "train.micro_batches is 2", "use 1, or 'layer'"],
        {"model__normalization": "batch", "train__micro_batches": 2},
    ),
    Case(
        "normalization without a layer",
        ["model.normalization is 'layer'", "model.name 'esmm' has no layer here"],
        {"model": ESMM | {"normalization": "layer"}, **TASKS_OF_ESMM},
    ),
    Case(
        "unknown activation",
        ["model.activation is 'swish'", "'relu', 'gelu', 'silu' or 'leaky_relu'"],
        {"model__activation": "swish"},
    ),
    Case(
        "activation without a layer",
        ["model.activation is 'gelu'", "model.name 'esmm' has no layer here"],
        {"model": ESMM | {"activation": "gelu"}, **TASKS_OF_ESMM},
    ),
    Case(
        "no column left",
        ["model.first_order_columns is 16", "of the 16 of data.sparse.s0", "use fewer"],
        {"model": {"name": "deepfm", "embedding_dim": 16, "first_order_columns": 16}},
    ),
    Case(
        "linear part of another model",
        ["model.first_order_columns is 1", "model.name 'dlrm' does not use", "use deepfm, wide_deep, xdeepfm"],
        {"model__first_order_columns": 1},
    ),
    Case(
        "embeddings beside cross layers",
        ["model.over_embeddings is True", "model.name 'dlrm_dcn' does not use", "use dlrm"],
        {"model": {"name": "dlrm_dcn", "over_embeddings": True}},
    ),
    Case("tables of zeros", ["model.table_init is 0", "greater than 0"], {"model__table_init": 0.0}),
    Case(
        "dependency on itself",
        ["model.dependencies form a cycle: label <- label; leave one of them out"],
        {"model": {"name": "dbmtl", "dependencies": {"label": ["label"]}}},
    ),
    Case(
        "gate of no feature",
        ["model.gates.domain names 's7', which neither data.dense nor data.sparse has", "s0"],
        {"model": {"name": "pepnet", "gates": {"domain": ["s7"]}}},
    ),
    Case(
        "gate of a feature twice",
        ["model.gates.first names 's0' 2 times", "once"],
        {"model": {"name": "finalmlp", "gates": {"first": ["s0", "s0"]}}},
    ),
    Case(
        "gate of another model",
        ["model.gates.personal is ['s0']", "model.name 'finalmlp' does not use", "use pepnet"],
        {"model": {"name": "finalmlp", "gates": {"personal": ["s0"]}}},
    ),
    Case(
        "pepnet without gates",
        ["model.gates.domain and model.gates.personal are empty", "dbmtl"],
        {"model": {"name": "pepnet"}},
    ),
    Case(
        "gates of no hidden layer",
        ["model.tower_layers is empty", "model.gates.personal to scale"],
        {"model": {"name": "pepnet", "tower_layers": [], "gates": {"personal": ["s0"]}}},
    ),
    Case(
        "heads that do not divide",
        ["model.attention_heads is 3, which does not divide model.attention_dim 64; use a divisor"],
        {"model": {"name": "autoint", "attention_heads": 3}},
    ),
    Case(
        "heads of a fusion that do not divide",
        ["model.fusion_heads is 3, which does not divide 8, the last of model.second_layers"],
        {"model": {"name": "finalmlp", "over_layers": [6], "second_layers": [8], "fusion_heads": 3}},
    ),
    Case(
        "stream without a layer",
        ["model.over_layers is empty; name at least one hidden layer"],
        {"model": {"name": "finalmlp", "over_layers": []}},
    ),
    Case(
        "normalization of attention alone",
        ["model.normalization is 'batch'", "model.name 'autoint' has no layer here"],
        {"model": {"name": "autoint", "over_layers": [], "normalization": "batch"}},
    ),
    Case(
        "no mask",
        ["model.mask_layers is []", "at least 1 item"],
        {"model": {"name": "masknet", "mask_layers": []}},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_line(refusal, case):
    line = refusal(case.changes, *case.flags)
    assert all(words in line for words in case.words), line
