"""A trained model with outputs of every kind, data to predict that has no labels, and the outputs by hand."""

import decimal
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jobs import config, launch, saved_tensors, write_rows
from plain_model import plain_model
from task_models import Heads
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.root import Config

STEPS, TAGS = 6, 7
TASKS = {
    "score": {"label": "label"},
    "product": {"label": "label", "output": "log_probability"},
    "classes": {"label": "kind", "loss": "softmax"},
    "length": {"label": "seconds", "prediction": "score", "loss": "huber"},
    "pair": {"label": "label", "loss": "jrc", "group": "user"},
    "items": {"label": "label", "prediction": "vectors", "loss": "in_batch_softmax", "group": "s1"},
}
OUTPUTS = [
    "score_probability",
    "product_probability",
    "classes_probabilities",
    "score_value",
    "pair_probability",
    "vectors_query",
    "vectors_item",
]


def write_data(folder: Path) -> Path:
    """Writes `train`, with labels, and `new`: the same rows without labels, in files of which one is empty."""
    write_rows(folder / "plain", [300, 0, 340])
    random = np.random.default_rng(1)
    for name in ("train", "new"):
        (folder / name).mkdir()
    for file in sorted((folder / "plain").glob("*.parquet")):
        table = pq.read_table(file)
        rows = len(table)
        tags = [[*random.integers(0, TAGS, n % 4)] if n % 5 else None for n in range(rows)]
        table = table.append_column("tags", pa.array(tags, pa.list_(pa.int32())))
        pq.write_table(table.drop_columns("label"), folder / "new" / file.name, row_group_size=70)
        for label, values in {"kind": 3, "seconds": 5, "user": 9}.items():
            table = table.append_column(label, pa.array(random.integers(0, values, rows), pa.int32()))
        table = table.append_column("weight", pa.array(random.random(rows), pa.float32()))
        pq.write_table(table, folder / "train" / file.name, row_group_size=64)
    return folder


def settings(data: Path, **changes: object) -> dict:
    """Returns the configuration of a model with averaged weights."""
    tree = config(data / "train", train__steps=STEPS, checkpoint__every_steps=2, **changes)
    tree["data"] |= {
        "labels": ["label", "kind", "seconds"],
        "numeric_labels": ["kind", "seconds"],
        "groups": ["user", "s1"],
        "weight": "weight",
        "validation": [str(data / "train")],
    }
    tree["data"]["sparse"]["tags"] = {"rows": TAGS, "pooling": "mean"}
    tree["model"]["name"] = "task_models:Heads"
    tree["tasks"] = TASKS
    tree["planner"]["tables"] = {"tags": {"sharding_types": ["table_wise"]}}
    tree["optimizer"]["ema"] = {"decay": 0.8, "tables": True}
    tree["checkpoint"]["keep"] = {"newest": 9, "best": "log_loss/score"}
    tree["evaluate"] = {"every_steps": 2}
    return tree


def train(data: Path, folder: Path) -> Path:
    """Trains the model and returns its run directory, with config.toml."""
    launch([{"config": settings(data), "out": str(folder / "run")}], 1, folder)
    return folder / "run"


def by_hand(data: Path, run: Path, step: int = STEPS) -> dict[str, np.ndarray]:
    """Returns the outputs for all rows of `new`, unsharded, in float64, from the averaged weights."""
    settings_of_run = Config.model_validate(settings(data))
    model = plain_model(settings_of_run, Heads).double()
    tensors = saved_tensors(run, step)
    model.load_state_dict({name: _average(name, tensors) for name in model.state_dict()})
    table = pq.read_table(data / "new")
    sparse, lengths = [], []
    for name in settings_of_run.data.sparse:
        bags = [one if isinstance(one, list) else [] if one is None else [one] for one in table[name].to_pylist()]
        sparse += [id for bag in bags for id in bag]
        lengths += map(len, bags)
    ids = KeyedJaggedTensor(
        [*settings_of_run.data.sparse], torch.tensor(sparse), lengths=torch.tensor(lengths, dtype=torch.int32)
    )
    with torch.no_grad():
        found = model(None, ids)
    pair, classes = found["pair"], found["classes"].exp()
    values = {
        "score_probability": 1 / (1 + (-found["score"]).exp()),
        "product_probability": found["product"].exp(),
        "classes_probabilities": classes / classes.sum(1, keepdim=True),
        "score_value": found["score"],
        "pair_probability": 1 / (1 + (pair[:, 0] - pair[:, 1]).exp()),
        "vectors_query": found["vectors"][:, 0],
        "vectors_item": found["vectors"][:, 1],
    }
    return {name: value.numpy() for name, value in values.items()}


def _average(name: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the average of a weight; that of a row which was not touched goes on towards its weight."""
    weight, average = tensors[f"model.model.{name}"].double(), tensors[f"ema.model.{name}"].double()
    if "embedding_bags" not in name:
        return average
    idle = tensors["ema_steps"] - tensors[f"ema_touched.{name.split('.')[-2]}.steps"]
    return weight + 0.8 ** idle.double()[:, None] * (average - weight)


def parts(folder: Path) -> list[Path]:
    """Returns the files that the manifest lists, which have to be all there are."""
    manifest = json.loads((folder / "manifest.json").read_text())
    names = [part["file"] for part in manifest["parts"]]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*names, "job.json", "manifest.json"])
    for part in manifest["parts"]:
        assert pq.read_metadata(folder / part["file"]).num_rows == part["rows"]
    return [folder / name for name in names]


def read(folder: Path) -> pa.Table:
    """Returns all parts in order."""
    return pa.concat_tables([pq.read_table(part) for part in parts(folder)])


def columns_of_every_type(rows: int) -> pa.Table:
    """Returns a column of each Arrow type that Parquet can store, with nulls."""
    n = [None if i % 7 == 3 else i for i in range(rows)]

    def of(make: object, dtype: pa.DataType) -> pa.Array:
        return pa.array([None if i is None else make(i) for i in n], dtype)

    return pa.table(
        {
            **{str(t): of(lambda i: i % 100, t) for t in (pa.int8(), pa.uint16(), pa.int64(), pa.uint64())},
            **{str(t): of(lambda i: i / 3, t) for t in (pa.float32(), pa.float64())},
            "half": of(lambda i: np.float16(i % 9), pa.float16()),
            "bool": of(lambda i: i % 2 == 0, pa.bool_()),
            "null": pa.nulls(rows),
            "string": of(str, pa.string()),
            "large_string": of(str, pa.large_string()),
            "binary": of(lambda i: bytes([i % 256]), pa.binary()),
            "fixed_binary": of(lambda i: bytes([i % 256] * 3), pa.binary(3)),
            "decimal": of(lambda i: decimal.Decimal(i) / 4, pa.decimal128(12, 2)),
            "date": of(lambda i: i, pa.date32()),
            "time": of(lambda i: i, pa.time64("us")),
            "timestamp": of(lambda i: i, pa.timestamp("ns", "Europe/Berlin")),
            "duration": of(lambda i: i, pa.duration("ms")),
            "list": of(lambda i: [i, None][: i % 3], pa.list_(pa.int16())),
            "large_list": of(lambda i: [str(i)] * (i % 3), pa.large_list(pa.string())),
            "vector": of(lambda i: [i, 1.5], pa.list_(pa.float32(), 2)),
            "struct": of(
                lambda i: {"a": i, "b": [None, "x"]}, pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())})
            ),
            "map": of(lambda i: [("k", i)], pa.map_(pa.string(), pa.int32())),
            "dictionary": of(lambda i: f"w{i % 5}", pa.string()).dictionary_encode(),
        }
    )
