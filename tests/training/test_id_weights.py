"""Weights of ids: a weighted training computes what NumPy and plain autograd do in float64, from the raw columns."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from custom import SumOfAll
from jobs import config, launch_rounds, losses, saved_tensors
from table_reference import ReferenceTable
from torch import nn

from trainer.__main__ import main as trainer
from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.models.base import ModelInputs
from trainer.models.embeddings import collections
from trainer.models.table_init import initialize_tables

ROWS, BATCH, STEPS, DIMENSION, RATE, EPS = 330, 64, 14, 16, 0.05, 1e-3
# Of each feature: its table, its weights or the factors of its weights, its pooling and the most ids of a list.
FEATURES = {
    "films": ("films", ["film_weights", "film_boosts"], "sum", 3),
    "shows": ("shows", "show_weights", "mean", None),
    "city": ("places", "city_weight", "sum", None),
    "home": ("places", None, "sum", None),
    "tags": ("tags", None, "mean", None),
    "past": ("past", None, "none", 2),
    "seen": ("past", "seen_weights", "mean", None),
    "kept": ("past", None, "sum", 3),
}
WEIGHTS = ("film_weights", "show_weights", "seen_weights")
SIZES = {"films": 40, "shows": 30, "places": 20, "tags": 10, "past": 15}
OF_SEQUENCES = {"table_row_wise": "row_wise", "grid_shard": "column_wise"}
CASES = {
    "alone": (1, "table_wise", "sgd", {}),
    "rows": (2, "row_wise", "rowwise_adagrad", {}),
    "columns": (2, "column_wise", "adam", {}),
    "host": (2, "table_row_wise", "adagrad", {}),
    "grid": (2, "grid_shard", "sgd", {}),
    "replicated": (2, "data_parallel", "adagrad", {}),
    "micro": (2, "row_wise", "rowwise_adagrad", {"train__micro_batches": 2}),
    "four": (4, "table_wise", "adam", {}),
}


def random_columns() -> dict[str, list]:
    """Returns raw columns, with nulls among ids, lists and weights, weights of 0 and, for sums, below 0."""
    random = np.random.default_rng(0)
    columns: dict[str, list] = {name: [] for name in (*FEATURES, *WEIGHTS, "film_boosts", "city_weight")}
    for row in range(ROWS):
        for name, weights in zip(("films", "shows", "seen"), WEIGHTS, strict=True):
            ids = random.integers(0, SIZES[FEATURES[name][0]], random.integers(0, 6)).tolist()
            values = random.standard_normal(len(ids)).astype(np.float32)
            values = np.where(random.random(len(ids)) < 0.2, 0, values if name == "films" else abs(values)).tolist()
            if len(ids) > 1 and row % 5 == 0:
                ids[1], values[1] = None, None
            if name == "shows" and row % 7 == 0:
                values = [None if one is None else 0.0 for one in values]
            columns[name].append(None if row % 11 == 0 else ids)
            columns[weights].append(None if row % 11 == 0 else values)
        boosts = [one and float(np.float32(random.random())) for one in columns["film_weights"][-1] or ()]
        columns["film_boosts"].append(None if row % 11 == 0 else boosts)
        columns["city"].append(None if row % 9 == 0 else int(random.integers(0, 20)))
        columns["city_weight"].append(None if row % 18 == 0 else float(np.float32(random.standard_normal())))
        columns["home"].append(None if row % 8 == 0 else int(random.integers(0, 20)))
        for name in ("tags", "past", "kept"):
            columns[name].append(random.integers(0, SIZES[FEATURES[name][0]], random.integers(0, 5)).tolist())
    columns["label"] = random.integers(0, 2, ROWS).tolist()
    columns["row"] = list(range(ROWS))
    return columns


def write(folder, columns):
    """Writes the columns as Parquet and, of the same row groups, as CSV."""
    (folder / "parquet").mkdir()
    (folder / "csv").mkdir()
    numbers = pa.list_(pa.float32())
    types = dict.fromkeys((*WEIGHTS, "film_boosts"), numbers) | {"city_weight": pa.float32()}
    table = pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})
    pq.write_table(table, folder / "parquet" / "rows.parquet", row_group_size=ROWS)
    # In text, a list has no nulls, and an empty one is null.
    texts = {
        name: ["|".join(str(one) for one in value or [] if one is not None) or None for value in values]
        if isinstance(values[1], list)
        else values
        for name, values in columns.items()
    }
    pa_csv.write_csv(pa.table(texts), folder / "csv" / "rows.csv")


def settings(folder, kind="table_wise", optimizer="sgd", reader="parquet", **changes):
    options = {"name": optimizer, "learning_rate": RATE} | ({} if optimizer == "sgd" else {"eps": EPS})
    tree = config(
        folder / reader,
        planner__sharding_types=[kind],
        planner__tables={"past": {"sharding_types": [OF_SEQUENCES.get(kind, kind)]}},
        model={"name": "custom:SumOfAll", "embedding_dim": DIMENSION},
        optimizer__sparse=options,
        train__steps=STEPS,
        **changes,
    )
    sparse = {}
    for name, (table, weights, pooling, longest) in FEATURES.items():
        keys = {"weights": weights, "max_ids": longest}
        sparse[name] = {"rows": SIZES[table], "table": table, "pooling": pooling} | {
            key: value for key, value in keys.items() if value
        }
    tree["data"] |= {"dense": {}, "sparse": sparse, "groups": ["row"], "reader": reader}
    if reader == "csv":
        lists = ["films", "shows", "tags", "past", "seen", "kept", "film_boosts", *WEIGHTS]
        tree["data"]["csv"] = {"lists": lists, "cache": str(folder / "cache")}
    return tree


@pytest.fixture(scope="module")
def columns():
    return random_columns()


@pytest.fixture(scope="module")
def runs(columns, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    write(folder, columns)
    jobs = {1: [], 2: [], 4: []}
    for name, (ranks, kind, optimizer, changes) in CASES.items():
        tree = settings(folder, kind, optimizer, **changes)
        jobs[ranks].append({"config": tree, "out": str(folder / name)})
    whole, text = (settings(folder, "row_wise", "rowwise_adagrad", reader) for reader in ("parquet", "csv"))
    half = whole | {"train": {"steps": STEPS // 2}}
    jobs[2] += [{"config": tree, "out": str(folder / "resumed")} for tree in (half, whole)]
    jobs[2].append({"config": text, "out": str(folder / "text")})
    launch_rounds([*jobs.items()], folder)
    return folder


def matrix(name: str, columns: dict, rows: list[int]) -> np.ndarray:
    """Returns the matrix whose product with a table is the pooled embedding of each row, `[B, R]` float64."""
    table, weights, pooling, longest = FEATURES[name]
    found = np.zeros((len(rows), SIZES[table]))
    for place, row in enumerate(rows):
        given = columns[name][row]
        ids = given if isinstance(given, list) else [given]
        factors = [columns[one][row] for one in (weights if isinstance(weights, list) else [weights]) if one]
        values = factors[0] if factors else [1.0] * len(ids or [])
        for factor in factors[1:]:
            values = values and [one and one * other for one, other in zip(values, factor, strict=True)]
        pairs = (
            zip(ids or [], values if isinstance(values, list) else [values], strict=True) if given is not None else []
        )
        kept = [(one, value) for one, value in pairs if one is not None][-(longest or 100) :]
        total = sum(value for _, value in kept) if pooling == "mean" else 1.0
        for one, value in kept:
            found[place, one] += value / (total or 1.0)
    return found


def reference(folder, columns: dict, kind: str, optimizer: str) -> dict[str, torch.Tensor]:
    """Returns the weights after the same training in one process."""
    found = Config.model_validate(settings(folder, kind, optimizer))
    model = initial_model(found)
    both = {**model.tables.embedding_bags, **model.sequences.embeddings}
    tables = {name: table.weight.detach().double().requires_grad_() for name, table in both.items()}
    head = model.head.double()
    shards = 2 if kind in ("column_wise", "grid_shard") else 1
    options = {} if optimizer == "sgd" else {"eps": EPS}
    steppers = {
        name: ReferenceTable(weight.data, shards, optimizer, lambda step: RATE, **options)
        for name, weight in tables.items()
    }
    files = find_files("data.train", found.data.train, found.data)
    loader = Loader(files, found.data, Lanes(files.rows, 8, BATCH), 0, 1, found.train.seed, True)
    for step, batch in enumerate(loader.batches(0, STEPS), 1):
        # Only the order of the samples is taken from the loader.
        real = batch.weights > 0
        rows = batch.groups[real, 0].tolist()
        matrices = {name: torch.from_numpy(matrix(name, columns, rows)) for name in FEATURES}
        logits = head(torch.cat([one @ tables[FEATURES[name][0]] for name, one in matrices.items()], dim=1))[:, 0]
        labels = torch.tensor([columns["label"][row] for row in rows]).double()
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        parameters = [*tables.values(), *head.parameters()]
        gradients = torch.autograd.grad(loss, parameters)
        for (name, stepper), gradient in zip(steppers.items(), gradients, strict=False):
            stepper.step(step, touched(name, columns, rows), gradient)
        with torch.no_grad():
            for parameter, gradient in zip(head.parameters(), gradients[len(tables) :], strict=True):
                parameter -= found.optimizer.dense.learning_rate * gradient
    return tables


def initial_model(found: Config) -> SumOfAll:
    device = torch.device("cpu")
    tables, sequences = collections(found.data, found.model, device)
    torch.manual_seed(found.train.seed)
    features = [name for name in found.data.pooled if name not in found.data.pooled_sequences]
    more = {"sequences": sequences, "sequence_features": found.data.sequences}
    more |= {"pooled_sequences": found.data.pooled_sequences}
    model = SumOfAll(ModelInputs(tables, 0, features, ["label"], device, found.model, **more))
    initialize_tables(model, found.train.seed)
    return model


def touched(table: str, columns: dict, rows: list[int]) -> torch.Tensor:
    """Returns the rows of a table that samples look up, those with a weight of 0 too, `[R]`."""
    found = torch.zeros(SIZES[table], dtype=torch.bool)
    for name, (of, _, _, longest) in FEATURES.items():
        for row in rows if of == table else []:
            given = columns[name][row]
            ids = [one for one in (given if isinstance(given, list) else [given]) if one is not None]
            found[ids[-(longest or 100) :]] = True
    return found


@pytest.mark.parametrize("case", CASES)
def test_weighted_pooling_trains_as_in_float64(runs, columns, case):
    _, kind, optimizer, _ = CASES[case]
    saved = saved_tensors(runs / case, STEPS)
    for name, expected in reference(runs, columns, kind, optimizer).items():
        collection = "sequences.embeddings" if name == "past" else "tables.embedding_bags"
        found = saved[f"model.model.{collection}.{name}.weight"].double()
        np.testing.assert_allclose(found, expected.detach(), rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("other", ["text", "resumed"])
def test_csv_and_a_resumed_run_are_the_same_bit_for_bit(runs, other):
    assert losses(runs / other) == losses(runs / "rows")
    expected, found = saved_tensors(runs / "rows", STEPS), saved_tensors(runs / other, STEPS)
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name


def test_predictions_are_those_of_float64(runs, columns, tmp_path):
    out = runs / "rows"
    arguments = ["predict", out / "config.toml", "--out", out, "--source", runs / "parquet", "--to", tmp_path / "parts"]
    assert trainer([str(word) for word in arguments]) == 0
    (part,) = (tmp_path / "parts").glob("*.parquet")
    found = pq.read_table(part)
    saved = {name.removeprefix("model.model."): value.double() for name, value in saved_tensors(out, STEPS).items()}
    vectors = []
    for name, (table, *_) in FEATURES.items():
        collection = "sequences.embeddings" if table == "past" else "tables.embedding_bags"
        vectors.append(matrix(name, columns, [*range(ROWS)]) @ saved[f"{collection}.{table}.weight"].numpy())
    logits = np.concatenate(vectors, axis=1) @ saved["head.weight"][0].numpy() + saved["head.bias"].numpy()
    assert found["row"].to_pylist() == columns["row"]
    np.testing.assert_allclose(found["label_probability"], 1 / (1 + np.exp(-logits)), rtol=1e-5)
