"""The exchange of embeddings between ranks: its precision and its communication volume."""

from collections.abc import Iterable

from torch import nn
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.types import CommOp, ParameterSharding, QuantizedCommCodecs, ShardingPlan

from trainer.config.data import DataConfig
from trainer.config.plan import CommsConfig
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext
from trainer.core.errors import InputError
from trainer.models.embeddings import table_shapes
from trainer.plan.sharding_plan import shards_of, table_plans

INT8_BLOCK = 32  # number of int8 values that share a scale and an offset, which take 8 bytes
BYTES_PER_VALUE: dict[str, float] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1 + 8 / INT8_BLOCK}
REDUCING = ("row_wise", "table_row_wise", "grid_shard")  # the types whose ranks add partial sums by a reduce-scatter


def codecs(comms: CommsConfig) -> dict[str, QuantizedCommCodecs] | None:
    """Returns the forward and backward codec of each operation; None if nothing is quantized."""
    # TorchRec's get_qcomm_codecs_registry would warn and replace bf16 by fp16 on Gloo, although Gloo supports bf16.
    if comms.forward == comms.backward == "fp32":
        return None
    config = QCommsConfig(CommType(comms.forward), CommType(comms.backward))
    return {operation.name: get_qcomm_codecs(config) for operation in CommOp}


def check_comms(comms: CommsConfig, plan: ShardingPlan, data: DataConfig, batch_rows: Iterable[int]) -> None:
    """Refuses a precision that the plan's sharding types cannot use.

    Args:
        comms: The precision of each direction.
        plan: The placement of the tables.
        data: The features of each table.
        batch_rows: Samples of a local batch, in training and in evaluation.

    Raises:
        InputError: A sharding type cannot use a precision. The message names the direction, the table and the reason.
    """
    for direction in ("forward", "backward"):
        if getattr(comms, direction) == "int8":
            for name, table in table_plans(plan).items():
                refused = f"comms.{direction} is 'int8', but table '{name}'"
                if data.holds_sequences(name):
                    _check_int8_of_sequences(refused, table)
                else:
                    _check_int8(refused, table, batch_rows)


def _check_int8_of_sequences(refused: str, table: ParameterSharding) -> None:
    """Refuses int8 for sequences whose shards cannot send every number of ids: the number is unknown before a step."""
    for columns in (shard.shard_sizes[1] for shard in shards_of(table)):
        if columns % INT8_BLOCK:
            raise InputError(
                f"{refused} sends sequences of {columns} columns, which is no multiple of {INT8_BLOCK}, the values "
                "that share a scale; change model.embedding_dim, or use fp16 or bf16"
            )


def _check_int8(refused: str, table: ParameterSharding, batch_rows: Iterable[int]) -> None:
    if table.sharding_type in REDUCING:
        raise InputError(
            f"{refused} is sharded {table.sharding_type}, which adds up embeddings on their way between ranks, and "
            "int8 values with scales of their own cannot be added; use fp16 or bf16, or planner.sharding_types of "
            "table_wise, column_wise and table_column_wise"
        )
    for rows, columns in ((rows, shard.shard_sizes[1]) for rows in batch_rows for shard in shards_of(table)):
        if rows * columns % INT8_BLOCK:
            raise InputError(
                f"{refused} sends {plural(rows, 'row')} of {columns} columns from a rank, which is no multiple of "
                f"{INT8_BLOCK}, the values that share a scale; change data.global_batch_size or "
                "evaluate.global_batch_size"
            )


def communication_volume(
    plan: ShardingPlan, model: nn.Module, data: DataConfig, comms: CommsConfig, context: DistributedContext
) -> dict[str, float]:
    """Returns the communication volume: the bytes of embeddings that all ranks together send in a full step.

    Returns:
        `forward` and `backward` at the configured precision, and `fp32`, the volume of either direction in fp32.
    """
    shapes, values = table_shapes(model), 0.0
    for name, table in table_plans(plan).items():
        features = data.features_of_tables()[name]
        in_sequences = data.holds_sequences(name)
        embeddings = sum(data.sparse[one].hotness for one in features) if in_sequences else len(features)
        sent = data.global_batch_size * embeddings * shapes[name][1]
        values += sent * _copies_sent(table.sharding_type, in_sequences, context)
    sent = {direction: values * BYTES_PER_VALUE[getattr(comms, direction)] for direction in ("forward", "backward")}
    return {**sent, "fp32": values * BYTES_PER_VALUE["fp32"]}


def _copies_sent(sharding_type: str, in_sequences: bool, context: DistributedContext) -> float:
    """Returns how often an embedding of the global batch leaves a rank, on average."""
    world, local = context.world_size, context.local_world_size
    nodes = world // local
    if sharding_type == "data_parallel":
        return 0.0
    if in_sequences:
        return (world - 1) / world
    if sharding_type == "row_wise":
        return world - 1.0  # every rank sends a partial sum of every embedding
    if sharding_type in REDUCING:
        return (local - 1.0) + (nodes - 1) / nodes  # partial sums within a node, then whole sums between nodes
    return (world - 1) / world  # each rank keeps the embeddings of its own samples
