"""Embedding tables: their configuration, initial values, and names in a model, which no other file knows."""

import re
import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from trainer.config.data import DataConfig
from trainer.config.model import ModelConfig
from trainer.core.arrays import splitmix64
from trainer.core.errors import InputError

# TorchRec's names of parameters: `embedding_bags.TABLE.weight` of pooled features, `embeddings.TABLE.weight` of
# sequences. Models have dense layers called `embeddings`, too, so that a collection has to be `sequences`.
TABLE_WEIGHT = re.compile(r"(?:.+\.)?(?:embedding_bags|sequences\.embeddings)\.(?P<table>[^.]+)\.weight")
# Tables and predictions are keys of a ModuleDict. These must not contain dots, which columns of nested data have, and
# must not be its attributes, such as `type` and `values`, or part of a pattern above. A dot becomes `%2E`; a name that
# looks escaped is escaped once more.
ESCAPED = "%"
LIKE_A_DOT, DOT = re.compile("%(?=(?:25)*2E)"), re.compile("%(?:25)?((?:25)*2E)")


def table_configs(data: DataConfig, model: ModelConfig) -> list[EmbeddingBagConfig]:
    """Returns the tables of pooled features alone."""
    return [
        EmbeddingBagConfig(pooling=_pooling(data, names[0]), **options)
        for names, options in _tables(data, model)
        if data.sequences.keys().isdisjoint(names)
    ]


def _pooling(data: DataConfig, feature: str) -> PoolingType:
    # A batch's weights make weighted sums of means, too.
    return PoolingType.SUM if data.has_id_weights else PoolingType[data.sparse[feature].pooling.upper()]


def sequence_configs(data: DataConfig, model: ModelConfig) -> list[EmbeddingConfig]:
    """Returns the tables of sequences, some of which serve pooled features, too."""
    return [
        EmbeddingConfig(**options)
        for names, options in _tables(data, model)
        if not data.sequences.keys().isdisjoint(names)
    ]


def _tables(data: DataConfig, model: ModelConfig) -> list[tuple[list[str], dict[str, Any]]]:
    """Returns the features of every table, with the options that both kinds of tables share."""
    return [
        (
            names,
            {
                "name": name_in_model(table),
                "num_embeddings": data.sparse[names[0]].rows,
                "embedding_dim": data.sparse[names[0]].dimension or model.embedding_dim,
                "feature_names": names,
                "data_type": DataType[model.table_precision.upper()],
            },
        )
        for table, names in data.features_of_tables().items()
    ]


def collections(
    data: DataConfig, model: ModelConfig, device: torch.device
) -> tuple[EmbeddingBagCollection, EmbeddingCollection | None]:
    """Returns the tables of pooled features, `NoTables` without any, and those of sequences, None without any."""
    # One collection of each kind, as TorchRec fuses the lookups and the exchanges of its tables.
    tables = table_configs(data, model)
    kind = EmbeddingBagCollection if tables else NoTables
    pooled = kind(tables=tables, is_weighted=data.has_id_weights, device=device)
    unpooled = sequence_configs(data, model)
    return pooled, EmbeddingCollection(tables=unpooled, device=device) if unpooled else None


class NoTables(EmbeddingBagCollection):
    """The tables of pooled features where there are none. TorchRec does not shard this class: no sharder names it."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Returns no embeddings, `[B, 0]`."""
        return KeyedTensor([], [], torch.empty(features.stride(), 0, device=features.lengths().device))


def check_names(model: nn.Module) -> None:
    """Refuses a model whose tables of sequences would be mistaken for dense weights.

    Raises:
        InputError: The model keeps their collection under another name than `sequences`.
    """
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingCollection) and path.rpartition(".")[2] != "sequences":
            raise InputError(
                f"model.name: the model keeps ModelInputs.sequences as '{path}', and checkpoints know tables by the "
                "name 'sequences'; keep it as self.sequences"
            )


def table_of_weight(name: str) -> str | None:
    """Returns the table that a parameter is the weight of, None for a dense parameter."""
    found = TABLE_WEIGHT.fullmatch(name)
    return table_of_name(found["table"]) if found else None


def name_in_model(table: str) -> str:
    """Returns a table's name in a model, its plan and checkpoints, where some names are not allowed."""
    name = LIKE_A_DOT.sub("%25", table).replace(".", "%2E")
    taken = table.startswith(ESCAPED) or table == "embedding_bags" or hasattr(nn.ModuleDict(), table)
    return ESCAPED + name if taken else name


def table_of_name(name: str) -> str:
    """Returns the table with this name in a model."""
    return DOT.sub(lambda found: "." if found[0] == "%2E" else f"%{found[1]}", name).removeprefix(ESCAPED)


def table_shapes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns rows and columns of every table of an unsharded model, by table."""
    return {
        table: (parameter.shape[0], parameter.shape[1])
        for name, parameter in model.named_parameters()
        if (table := table_of_weight(name))
    }


def value_bytes(model: nn.Module) -> int:
    """Returns the bytes of each value of the tables, which all have one precision; of float32 without tables."""
    of_tables = (value.element_size() for name, value in model.named_parameters() if table_of_weight(name))
    return next(of_tables, torch.float32.itemsize)


STEP_FACTOR = 0x9E3779B97F4A7C15  # odd, so that no two steps have the same product
# Values that are drawn at once. Their counters and bits take four times 8 bytes for each value: 2 MiB, less than a
# processor's cache, where blocks of a fixed number of rows took more than the tables of a wide model.
BLOCK_VALUES = 1 << 16


def initialize_tables(model: nn.Module, seed: int, bound: float | None = None) -> None:
    """Sets every weight of every table as a function of `(seed, table, row, column)`, whatever the plan.

    Weights are uniform in plus or minus the bound; None: `1 / sqrt(rows)`, the range that TorchRec uses.
    """
    # A torch generator yields a sequence: a rank would have to draw whole tables to find the values of its shards, and
    # CPU and GPU draw different ones. TorchRec draws each shard by itself, so that weights depend on the plan.
    for name, value in model.state_dict().items():
        table = table_of_weight(name)
        if table and isinstance(value, ShardedTensor):
            for local_shard in value.local_shards():
                _fill(local_shard.tensor, value.size(), local_shard.metadata.shard_offsets, table, seed, bound)
        elif table:
            _fill(value, value.size(), [0, 0], table, seed, bound)


def _fill(
    local_shard: Tensor, whole: torch.Size, offsets: list[int], table: str, seed: int, bound: float | None
) -> None:
    columns = torch.arange(offsets[1], offsets[1] + local_shard.shape[1], device=local_shard.device)
    block_rows = max(1, BLOCK_VALUES // len(columns))
    for start in range(0, local_shard.shape[0], block_rows):
        block = local_shard[start : start + block_rows]
        rows = torch.arange(offsets[0] + start, offsets[0] + start + len(block), device=local_shard.device)
        block.copy_(initial_rows(rows, columns, whole, table, seed, bound=bound))


def initial_rows(
    rows: Tensor,
    columns: Tensor,
    whole: torch.Size,
    table: str,
    seed: int,
    step: int = 0,
    bound: float | None = None,
) -> Tensor:
    """Returns initial values of rows `[N]` and columns `[C]` of a table of size `whole`; other steps give others."""
    key = zlib.crc32(table.encode()) << 32 ^ seed ^ (step * STEP_FACTOR) % 2**64
    unit = _uniform(rows[:, None] * whole[1] + columns, key)
    return (2 * unit - 1) * (whole[0] ** -0.5 if bound is None else bound)


def _uniform(counter: Tensor, key: int) -> Tensor:
    """Returns numbers in [0, 1) for counters, by two rounds of splitmix64 (Steele et al., OOPSLA 2014)."""
    key = key - (1 << 64) if key >= 1 << 63 else key
    bits = splitmix64(splitmix64(counter) ^ key)
    return ((bits >> 40) & 0xFFFFFF).float() / (1 << 24)  # as many bits as a float32 holds exactly
