"""Reads the trained or averaged weights of a checkpoint, tables in blocks of rows."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torchx_recsys.apps.runs.saved_tensors import SavedRows, read_tensors
from trainer.checkpoint.restore import ColumnShards
from trainer.checkpoint.state_dict import is_table
from trainer.checkpoint.store import Checkpoint
from trainer.config.optimizer import AverageConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.columns import RecordedTypes
from trainer.models.builder import build_model

MODEL = "model.model."  # prefix of the model without its loss
STEPS = "ema_steps"
BLOCK_BYTES = 1 << 24  # size of the blocks in which a table is read


class SavedWeights:
    """The weights of a model in a checkpoint, without losses; named by path in the model.

    Args:
        checkpoint: The checkpoint.
        ema: The averages.
        averages: Whether to take averages, for weights that have averages.

    Attributes:
        shapes: The shape of each weight.
        types: The types of the columns that they were trained on.

    Raises:
        InputError: Averages are wanted, and the checkpoint has none.
    """

    def __init__(self, checkpoint: Checkpoint, ema: AverageConfig, averages: bool) -> None:
        self.url = checkpoint.url
        self.types = RecordedTypes.of_checkpoint(checkpoint.url, checkpoint.train_state)
        self._saved = SavedRows(checkpoint.url)
        entries, self._decay = self._saved.entries, ema.decay
        self._names = {name.removeprefix(MODEL): name for name in entries if name.startswith(MODEL)}
        self.shapes = {path: entries[name].size for path, name in self._names.items()}
        averaged = {path: f"ema.{name.removeprefix('model.')}" for path, name in self._names.items()}
        self._averages = {path: name for path, name in averaged.items() if averages and name in entries}
        if averages and not (self._averages and self._decay):
            raise InputError(
                f"--averages is True, but the checkpoint {self.url} has none; train with optimizer.ema.decay"
            )
        self._steps = read_tensors(self.url, STEPS.__eq__).get(STEPS)  # only averaged tables have step counts

    def dense(self) -> dict[str, Tensor]:
        """Returns all weights but the tables."""
        sources = {path: self._averages.get(path, name) for path, name in self._names.items() if not is_table(name)}
        found = read_tensors(self.url, {*sources.values()}.__contains__)
        weights = {path: found[name] for path, name in sources.items()}
        return {path: one.to(self._saved.entries[self._names[path]].properties.dtype) for path, one in weights.items()}

    def table(self, path: str) -> Tensor:
        """Returns a whole table."""
        table = torch.empty(self.shapes[path], dtype=self.dtype(path))
        for start, block in self.blocks(path, 0, len(table)):
            table[start : start + len(block)] = block
        return table

    def dtype(self, path: str) -> torch.dtype:
        """Returns the type of a weight."""
        return self._saved.entries[self._names[path]].properties.dtype

    def blocks(self, path: str, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """Yields the rows of a table from `start` to `stop` in blocks, each with the number of its first row."""
        rows = max(1, BLOCK_BYTES // (self.shapes[path][1] * self.dtype(path).itemsize))
        for first in range(start, stop, rows):
            yield first, self._rows(path, first, min(first + rows, stop))

    def _rows(self, path: str, start: int, stop: int) -> Tensor:
        name = self._names[path]
        rows = self._saved.rows(name, start, stop)
        if path not in self._averages:
            return rows
        assert self._steps is not None
        assert self._decay is not None
        # A column shard has the average of a row as of the last step that looked the row up.
        shards = ColumnShards.of_saved(self._saved.entries[name])
        averages = self._saved.rows(self._averages[path], start, stop)
        touched = f"ema_touched.{name.split('.')[-2]}.steps"
        parts = (tensor.split(shards.widths, dim=1) for tensor in (rows, averages))
        for number, (now, then) in enumerate(zip(*parts, strict=True)):
            offset = number * shards.rows
            missed = self._steps - self._saved.rows(touched, offset + start, offset + stop)
            left = (self._decay ** missed.double()).float()
            now.copy_(torch.lerp(now.float(), then, left[:, None]))
        return rows


def load_model(config: Config, weights: SavedWeights) -> nn.Module:
    """Returns the model with the weights of a checkpoint, in evaluation mode. Takes the memory of the weights."""
    model = load_dense(config, weights)
    tables = {path: weights.table(path) for path in weights.shapes if is_table(f"{MODEL}{path}")}
    model.load_state_dict(tables, strict=False, assign=True)
    return model


def load_dense(config: Config, weights: SavedWeights) -> nn.Module:
    """Returns the model with the weights of a checkpoint, and with tables on the meta device.

    Raises:
        InputError: The checkpoint is another model's.
    """
    model = build_model(config.data, config.model, config.predictions(), torch.device("cpu"))
    here = {name: tensor.shape for name, tensor in model.state_dict().items()}
    there = weights.shapes
    if wrong := sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name)):
        name = wrong[0]
        raise InputError(
            f"--out: the checkpoint {weights.url} is another model's: '{name}' is {_shape(there.get(name))} there, and "
            f"{_shape(here.get(name))} by the configuration; use the run's own config.toml"
        )
    model.load_state_dict(weights.dense(), strict=False, assign=True)
    return model.eval()


def _shape(shape: torch.Size | None) -> str:
    return "missing" if shape is None else str([*shape])


def read_managed(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Returns the state of managed ids, by name in the checkpoint."""
    return read_tensors(checkpoint.url, lambda name: name.startswith("managed."))
