"""Data with a catalogue, and two towers that are trained and evaluated on it by hand: float64, loops, no batches.

The item of a sample is `s1`. Its features are `s1` itself, the list `tags` and the number `price`; the query's are
`d0` and `s0`.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jobs import config, write_rows
from plain_model import plain_model
from torch import Tensor

from trainer.config.root import Config
from trainer.data.epoch_order import Lanes
from trainer.models.two_tower import two_tower

ITEMS, DRAWN, HARD = 101, 5, 2
HAD = {"column": "avoided", "rows": 1_000, "pooling": "raw", "max_ids": 9}  # which the model does not read
TASK = {"label": "label", "prediction": "vectors", "group": "s1", "temperature": 0.5}
LOSSES = {
    "sampled": {"loss": "sampled_softmax", "log_q": True},
    "plain": {"loss": "sampled_softmax"},
    "in_batch": {"loss": "in_batch_softmax", "log_q": True, "weight": 0.5},
}


def write_data(folder: Path) -> Path:
    """Writes `train` and `validation`, the same rows, with weights and hard negatives, and `items.parquet`."""
    table = pq.read_table(write_rows(folder / "plain", [250]) / "part-00.parquet")
    random = np.random.default_rng(1)
    tags = [list(random.integers(0, 7, random.integers(0, 4))) for _ in range(ITEMS)]
    price = random.standard_normal(ITEMS).astype(np.float32)
    count = random.integers(0, 9, ITEMS).astype(np.int64)
    item = table["s1"].to_numpy()
    columns = {
        "tags": pa.array([tags[one] for one in item], pa.list_(pa.int32())),
        "price": price[item],
        "weight": (random.random(len(item)) * (random.random(len(item)) > 0.2)).astype(np.float32),
        "avoided": pa.array([[*random.integers(0, ITEMS, n % 4)] if n % 5 else None for n in range(len(item))]),
    }
    for name, column in columns.items():
        table = table.append_column(name, pa.array(column))
    for split in ("train", "validation"):
        (folder / split).mkdir()
        pq.write_table(table, folder / split / "part.parquet", row_group_size=64)
    order = random.permutation(ITEMS)  # the catalogue need not be sorted
    items = {"s1": np.arange(ITEMS), "tags": pa.array(tags, pa.list_(pa.int32())), "price": price, "count": count}
    pq.write_table(pa.table(items).take(order), folder / "items.parquet", row_group_size=40)
    return folder


def settings(
    data: Path,
    across: str = "lane",
    losses: tuple[str, ...] = tuple(LOSSES),
    without_had: bool = False,
    **changes: object,
) -> dict:
    """Returns a configuration of two towers, whose negatives are `without_had` items if set."""
    tree = config(data / "train", optimizer__dense={"name": "sgd", "learning_rate": 0.2}, **changes)
    tree["data"] |= {
        "validation": [str(data / "validation")],
        "shuffle": False,
        "weight": "weight",
        "groups": ["s1"],
        "dense": {"d0": {}, "price": {}},
        "sparse": {"s0": {"rows": 100}, "s1": {"rows": ITEMS}, "tags": {"rows": 7, "pooling": "mean"}, "had": HAD},
        "catalogue": {
            "items": [str(data / "items.parquet")],
            "id": "s1",
            "weight": "count",
            "negatives": DRAWN,
            "hard_negatives": "avoided",
            "hard_negatives_per_sample": HARD,
            "exclude": ["had"],
            **({"negatives_not_in": ["had"]} if without_had else {}),
        },
    }
    tree["model"] = {
        "name": "two_tower",
        "embedding_dim": 16,
        "tower_layers": [8],
        "vector_dim": 6,
        "item_features": ["s1", "price", "tags"],
        "item_bias": True,
    }
    tree["tasks"] = {name: TASK | LOSSES[name] | {"across": across} for name in losses}
    tree["tasks"][losses[0]]["metrics"] = ["recall@5", "hit_rate@20", "mrr"]
    return tree


class ByHand:
    """Two towers in one process, in float64.

    Args:
        data: What `write_data` wrote.
        config: The configuration.
    """

    def __init__(self, data: Path, config: Config) -> None:
        self.config, self.model = config, plain_model(config, two_tower).double()
        self.samples = pq.read_table(data / "train").to_pylist()
        self.items = {item["s1"]: item for item in pq.read_table(data / "items.parquet").to_pylist()}
        self.bags = self.model.tables.embedding_bags
        self.weight = sum(item["count"] for item in self.items.values())
        self.vectors: dict[int, Tensor] = {}  # of the items that a step has needed so far

    def query(self, sample: dict) -> Tensor:
        """Returns the vector of a query."""
        features = torch.cat([torch.tensor([sample["d0"]]).double(), self.bags["s0"].weight[sample["s0"]]])
        return torch.cat([torch.ones(1), self._unit(self.model.network.query(features)[1:])])

    def item(self, item: int) -> Tensor:
        """Returns the vector of an item."""
        if item not in self.vectors:
            self.vectors[item] = self._item(item)
        return self.vectors[item]

    def _item(self, item: int) -> Tensor:
        values = self.items[item]
        tags = self.bags["tags"].weight[values["tags"]]
        mean = tags.mean(0) if len(tags) else torch.zeros(16).double()
        features = [torch.tensor([values["price"]]).double(), self.bags["s1"].weight[item], mean]
        vector = self.model.network.item(torch.cat(features))
        return torch.cat([vector[:1], self._unit(vector[1:])])

    @staticmethod
    def _unit(vector: Tensor) -> Tensor:
        return vector / vector.square().sum().sqrt()

    def draws(self, epoch: int, lane: int, step: int) -> list[int]:
        """Returns the items drawn for a lane in a step."""
        raw = np.random.Philox(counter=[0, 1, step, lane], key=[self.config.train.seed, epoch]).random_raw(DRAWN)
        ids = sorted(self.items)
        found = []
        for number in raw.tolist():
            left = (number >> 11) / 2**53 * self.weight
            for one in ids:
                left -= self.items[one]["count"]
                if left < 0:
                    found.append(one)
                    break
        return found

    def losses(self, steps: int) -> list[float]:
        """Trains by SGD and returns the loss of every step."""
        curve, rate = [], self.config.optimizer.dense.learning_rate
        tables = {id(weight) for weight in self.model.tables.parameters()}
        for epoch, step, lanes in self._steps(steps):
            units = lanes if self.config.named_tasks()["sampled"].across == "lane" else [[*chain(*lanes)]]
            drawn = [self.draws(epoch, lane, step) for lane in range(len(lanes))]
            shared = drawn if len(units) > 1 else [[*chain(*drawn)]]
            parts = [self._unit_loss(*unit) for unit in zip(units, shared, strict=True)]
            loss = torch.stack(parts).sum() / sum(map(len, lanes))
            self.model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for weight in self.model.parameters():
                    own = self.config.optimizer.sparse.learning_rate if id(weight) in tables else rate
                    weight -= own * weight.grad
            self.vectors = {}
            curve.append(loss.item())
        return curve

    def _steps(self, steps: int) -> Iterator[tuple[int, int, list[list[dict]]]]:
        lanes = Lanes(len(self.samples), 8, self.config.data.global_batch_size)
        for number in range(steps):
            epoch, step = divmod(number, lanes.steps)
            found = []
            for lane in range(lanes.lanes):
                first, end = lanes.bounds(lane)
                start = first + step * lanes.samples_per_step
                found.append(self.samples[start : min(start + lanes.samples_per_step, end)])
            yield epoch, step, found

    def _unit_loss(self, unit: list[dict], drawn: list[int]) -> Tensor:
        present = [sample for sample in unit if sample["weight"] > 0]
        total = torch.zeros(()).double()
        for sample in present:
            if sample["label"] > 0:
                for name, task in self.config.named_tasks().items():
                    loss = self._loss(name, sample, [one["s1"] for one in present if one is not sample], drawn)
                    total = total + sample["weight"] * task.weight * loss
        return total

    def _loss(self, name: str, sample: dict, in_batch: list[int], drawn: list[int]) -> Tensor:
        query, own, weight = self.query(sample), sample["s1"], self.weight

        def odds(item: int, times: float) -> Tensor:
            return torch.exp(query @ self.item(item) / 0.5) / times

        draws = in_batch if name == "in_batch" else drawn
        had = (sample["avoided"] or []) if self.config.data.catalogue.negatives_not_in else []
        others = torch.zeros(()).double()
        for item in draws:
            count = self.items[item]["count"]
            if item != own and item not in had and (name == "plain" or count):
                others = others + odds(item, 1 if name == "plain" else len(draws) * count / weight)
        if name != "in_batch":
            for item in (sample["avoided"] or [])[:HARD]:
                if item != own:
                    others = others + odds(item, 1)
        return torch.log(1 + others / odds(own, 1))

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """Returns the metrics over all items, by sorting them for every sample of label 1."""
        ids = sorted(self.items)
        vectors = torch.stack([self.item(item) for item in ids])
        sums = {"recall@5": 0.0, "hit_rate@20": 0.0, "mrr": 0.0}
        weight = 0.0
        for sample in self.samples:
            if sample["label"] > 0 and sample["weight"] > 0:
                order = (vectors @ self.query(sample)).argsort(descending=True)
                had = {*(sample["avoided"] or [])} - {sample["s1"]}
                rank = 1 + [ids[place] for place in order if ids[place] not in had].index(sample["s1"])
                found = {"recall@5": rank <= 5, "hit_rate@20": rank <= 20, "mrr": 1 / rank}
                sums = {name: value + sample["weight"] * found[name] for name, value in sums.items()}
                weight += sample["weight"]
        return {name: value / weight for name, value in sums.items()}
