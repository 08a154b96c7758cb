"""Every table optimizer and option computes what it is defined as, under every plan and on any number of ranks.

By default every optimizer and option comes under one plan and number of ranks; `--all` takes all of them.
"""

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from custom import SumOfSequences
from jobs import config, launch_rounds, saved_tensors
from table_reference import ReferenceTable
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.models.base import ModelInputs
from trainer.models.embeddings import collections
from trainer.models.table_init import initialize_tables

pytestmark = pytest.mark.more("test_sharding.py trains tables as plain torch does, too")

STEPS, BATCH, RANKS = 20, 64, (1, 2, 4)
SHARDED = ("table_wise", "row_wise", "column_wise", "table_row_wise", "grid_shard")
COLUMN_SHARDED = ("column_wise", "grid_shard")
# With a smaller eps, Adagrad and Adam turn rounding of gradients near zero into steps of full size.
EPS = {"eps": 1e-3}
TRUST = {"eta": 0.05}  # small for the same reason: LARS gives every gradient the norm of its row
MOMENTS = EPS | {"beta1": 0.8, "beta2": 0.95}
CASES = {
    "sgd": {"name": "sgd"},
    "adagrad": {"name": "adagrad", **EPS},
    "adagrad that starts higher": {"name": "adagrad", "initial_accumulator": 0.1, **EPS},
    "rowwise_adagrad": {"name": "rowwise_adagrad", **EPS},
    "rowwise_adagrad that starts higher": {"name": "rowwise_adagrad", "initial_accumulator": 0.1, **EPS},
    "rowwise_adagrad, decoupled": {"name": "rowwise_adagrad", "weight_decay": 0.1, **EPS},
    "rowwise_adagrad, l2": {"name": "rowwise_adagrad", "weight_decay": 0.1, "weight_decay_mode": "l2", **EPS},
    "adam": {"name": "adam", **MOMENTS},
    "adam with decay": {"name": "adam", "weight_decay": 0.1, **MOMENTS},
    "partial_rowwise_adam": {"name": "partial_rowwise_adam", **MOMENTS},
    "partial_rowwise_adam with decay": {"name": "partial_rowwise_adam", "weight_decay": 0.1, **MOMENTS},
    "lamb": {"name": "lamb", **MOMENTS},
    "lamb with decay": {"name": "lamb", "weight_decay": 0.1, **MOMENTS},
    "partial_rowwise_lamb": {"name": "partial_rowwise_lamb", **MOMENTS},
    "partial_rowwise_lamb with decay": {"name": "partial_rowwise_lamb", "weight_decay": 0.1, **MOMENTS},
    "lars_sgd": {"name": "lars_sgd", "momentum": 0.5, **TRUST},
    "lars_sgd with decay": {"name": "lars_sgd", "momentum": 0.8, **TRUST, "weight_decay": 0.1},
}
REPLICABLE = ("sgd", "adagrad", "adagrad that starts higher", "rowwise_adagrad", "rowwise_adagrad that starts higher")
RATE = 0.02
TABLES = {"wide": 16, "mean": 16, "narrow": 8, "few": 16, "shared": 16, "sequences": 16}
POOLING = {"grid_shard": "sum"}
SHARING = {"shared": ["first", "second"], "sequences": ["past", "target"]}
LONGEST = 3  # of the 4 ids in a list at most
OF_SEQUENCES = {"table_row_wise": "row_wise", "grid_shard": "column_wise"}


def write_bags(folder: Path, size: int) -> Path:
    """Writes bags of 0 to 4 ids, some of them twice, and weights of which some are 0."""
    folder.mkdir()
    generator = np.random.default_rng(0)

    def bags(rows: int) -> list[list[int]]:
        return [generator.integers(0, rows, generator.integers(0, 5)).tolist() for _ in range(size)]

    features = [feature for table in TABLES for feature in SHARING.get(table, [table])]
    columns = {name: pa.array(bags(5 if name == "few" else 60), pa.list_(pa.int32())) for name in features}
    weights = generator.choice([0.0, 0.5, 2.0], size).astype(np.float32)
    labels = generator.integers(0, 2, size).astype(np.float32)
    pq.write_table(
        pa.table({**columns, "label": labels, "importance": weights}), folder / "part.parquet", row_group_size=64
    )
    return folder


def settings(data: Path, kind: str, sparse: dict, tables: dict) -> dict:
    """Returns a configuration in which a table has mean pooling, but where no table can have it."""
    tree = config(
        data,
        planner__sharding_types=[kind],
        planner__tables={"sequences": {"sharding_types": [OF_SEQUENCES.get(kind, kind)]}},
        model={"name": "custom:SumOfSequences", "embedding_dim": 16},
        train__steps=STEPS,
    )
    shapes = {name: {"rows": 5 if name == "few" else 60, "dimension": columns} for name, columns in TABLES.items()}
    sparse_features = {
        feature: shapes[table] | ({"table": table} if table in SHARING else {})
        for table in TABLES
        for feature in SHARING.get(table, [table])
    }
    sparse_features["mean"]["pooling"] = POOLING.get(kind, "mean")
    for feature in SHARING["sequences"]:
        sparse_features[feature] |= {"pooling": "none", "max_ids": LONGEST}
    tree["data"] |= {"global_batch_size": BATCH, "dense": {}, "sparse": sparse_features, "weight": "importance"}
    tree["optimizer"] |= {"sparse": sparse, "tables": tables}
    return tree


# Each table's own section, and what it amounts to.
BY_TABLE = {
    "wide": ({"learning_rate": 0.05}, {"name": "adam", "learning_rate": 0.05, **MOMENTS}),
    "mean": ({"frozen": True}, {"name": "sgd", "learning_rate": 0.0}),
    "narrow": ({"name": "rowwise_adagrad", "eps": 1e-2}, {"name": "rowwise_adagrad", "eps": 1e-2}),
    "few": ({"schedule": {"warmup_steps": 15, "decay": "constant"}}, {"name": "adam", "warmup": 15, **MOMENTS}),
    "sequences": (
        {"name": "adagrad", "learning_rate": 0.05, "eps": 1e-3},
        {"name": "adagrad", "learning_rate": 0.05, **EPS},
    ),
    "shared": ({"weight_decay": 0.2}, {"name": "adam", "weight_decay": 0.2, **MOMENTS}),
}


def sections(case: str) -> tuple[dict, dict]:
    """Returns `optimizer.sparse` and `optimizer.tables` of a case."""
    if case == "by table":
        return {"learning_rate": RATE, **CASES["adam"]}, {table: own for table, (own, _) in BY_TABLE.items()}
    return {"learning_rate": RATE, **CASES[case]}, {}


def amounts_to(case: str, table: str) -> dict:
    return BY_TABLE[table][1] if case == "by table" else CASES[case]


def combinations(whole: bool) -> list[tuple[str, str, int]]:
    """Returns cases with plans and numbers of ranks: all, or one for each case, each of them about as often."""
    chosen = []
    for number, case in enumerate((*CASES, "by table")):
        kinds = (*SHARDED, "data_parallel") if case in REPLICABLE else SHARDED
        every = list(product(kinds, RANKS))
        random.Random(0).shuffle(every)
        chosen += [(case, *one) for one in (every if whole else [every[number % len(every)]])]
    return chosen


MATRIX = "case, kind, ranks", combinations


def place(folder: Path, case: str, kind: str, ranks: int) -> Path:
    return folder / f"{case}-{kind}-{ranks}".replace(" ", "_")


@pytest.fixture(scope="module")
def trained(matrix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    data = write_bags(folder / "data", 10 * BATCH)
    jobs = {ranks: [] for ranks in RANKS}
    for case, kind, ranks in matrix:
        out = place(folder, case, kind, ranks)
        jobs[ranks].append({"config": settings(data, kind, *sections(case)), "out": str(out)})
    launch_rounds([(ranks, some) for ranks, some in jobs.items() if some], folder)
    return folder


@pytest.fixture(scope="module")
def reference(trained):
    """Returns weights and slots of the same training, unsharded and in float64."""
    cache = {}

    def reference(case: str, kind: str) -> tuple[dict, dict]:
        same = kind if kind in COLUMN_SHARDED else "table_wise"
        if (case, same) not in cache:
            cache[case, same] = train(trained / "data", case, same)
        return cache[case, same]

    return reference


def train(data: Path, case: str, kind: str) -> tuple[dict, dict]:
    found = Config.model_validate(settings(data, kind, *sections(case)))
    model = initial_model(found)
    bags = {**dict(model.tables.embedding_bags.items()), **dict(model.sequences.embeddings.items())}
    optimizers = {name: optimizer_of(case, name, bag.weight, kind in COLUMN_SHARDED) for name, bag in bags.items()}
    files = find_files("data.train", found.data.train, found.data)
    loader = Loader(files, found.data, Lanes(files.rows, 8, BATCH), 0, 1, found.train.seed, True)
    for step, batch in enumerate(loader.batches(0, STEPS), 1):
        logits = model.head(torch.cat([*pooled(batch.sparse, model)], 1))
        each = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.double(), reduction="none")[:, 0]
        model.zero_grad()
        ((each * batch.weights).sum() / BATCH).backward()
        for name, optimizer in optimizers.items():
            touched = torch.zeros(len(optimizer.weight), dtype=torch.bool)
            for feature in SHARING.get(name, [name]):
                touched[batch.sparse[feature].values()] = True
            optimizer.step(step, touched, bags[name].weight.grad)
        with torch.no_grad():
            for parameter in model.head.parameters():
                parameter -= found.optimizer.dense.learning_rate * parameter.grad
    slots = {
        f"table.{name}.{slot}": value
        for name, optimizer in optimizers.items()
        for slot, value in optimizer.slots().items()
    }
    return {f"model.model.{name}": value for name, value in model.state_dict().items()}, slots


def initial_model(found: Config) -> SumOfSequences:
    device = torch.device("cpu")
    tables, sequences = collections(found.data, found.model, device)
    torch.manual_seed(found.train.seed)
    both = {"sequences": sequences, "sequence_features": found.data.sequences}
    model = SumOfSequences(ModelInputs(tables, 0, found.data.pooled, ["label"], device, found.model, **both))
    initialize_tables(model, found.train.seed)
    return model.double()


def pooled(sparse: KeyedJaggedTensor, model: SumOfSequences) -> Iterator[Tensor]:
    """Yields the pooled embeddings of every feature; TorchRec's own modules round them to float32."""
    for table in model.tables.embedding_bag_configs():
        weight, mode = model.tables.embedding_bags[table.name].weight, table.pooling.value.lower()
        yield from (pooled_feature(sparse[feature], weight, mode) for feature in table.feature_names)
    for table in model.sequences.embedding_configs():
        weight = model.sequences.embeddings[table.name].weight
        yield from (pooled_feature(sparse[feature], weight, "sum") for feature in table.feature_names)


def pooled_feature(ids: JaggedTensor, weight: Tensor, mode: str) -> Tensor:
    return nn.functional.embedding_bag(ids.values().long(), weight, ids.offsets()[:-1].long(), mode=mode)


def optimizer_of(case: str, table: str, weight: torch.Tensor, column_sharded: bool) -> ReferenceTable:
    options = dict(amounts_to(case, table))
    rate, warmup = options.pop("learning_rate", RATE), options.pop("warmup", 1)
    shards = TABLES[table] // 8 if column_sharded else 1
    return ReferenceTable(
        weight.data, shards, options.pop("name"), lambda step: rate * min(1.0, step / warmup), **options
    )


def test_a_table_optimizer_is_what_it_is_defined_as(trained, reference, case, kind, ranks):
    out = place(trained, case, kind, ranks)
    assert (out / "plan.json").read_text().count(f'"sharding_type": "{kind}"') >= len(TABLES) - 1
    weights, slots = reference(case, kind)
    found = saved_tensors(out, STEPS)
    assert found.keys() == weights.keys() | slots.keys()
    for name, value in (weights | slots).items():
        np.testing.assert_allclose(found[name].double(), value.detach(), rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_frozen_table_keeps_every_bit(trained):
    frozen = "model.model.tables.embedding_bags.mean.weight"
    model = initial_model(Config.model_validate(settings(trained / "data", "table_wise", *sections("by table"))))
    runs = [*trained.glob("by_table-*")]
    assert runs
    for out in runs:
        assert torch.equal(saved_tensors(out, STEPS)[frozen].double(), model.tables.embedding_bags["mean"].weight)
