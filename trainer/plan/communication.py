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

BLOCKS = {"int8": 32, "fp8": 128, "mx4": 32}  # number of values that share a scale
BYTES_PER_VALUE: dict[str, float] = {
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "int8": 1 + 8 / BLOCKS["int8"],  # with a scale and an offset
    "fp8": 1 + 8 / BLOCKS["fp8"],  # with a scale, and 4 bytes that FBGEMM leaves empty
    "mx4": 1 / 2 + 1 / BLOCKS["mx4"],  # with an exponent
}
REDUCING = ("row_wise", "table_row_wise", "grid_shard")  # the types whose ranks add partial sums by a reduce-scatter


def codecs(comms: CommsConfig) -> dict[str, QuantizedCommCodecs] | None:
    """Returns the forward and backward codec of each operation; None if nothing is quantized."""
    # TorchRec's get_qcomm_codecs_registry would warn and replace bf16 by fp16 on Gloo, although Gloo supports bf16.
    if comms.forward == comms.backward == "fp32":
        return None
    # Without a number of values that share a scale, FBGEMM's fp8 has no scale, and cuts values off at 0.94.
    fp8, fp8_backward = (BLOCKS["fp8"] if one == "fp8" else None for one in (comms.forward, comms.backward))
    mx4, mx4_backward = (BLOCKS["mx4"] if one == "mx4" else None for one in (comms.forward, comms.backward))
    config = QCommsConfig(
        CommType(comms.forward),
        CommType(comms.backward),
        fp8_quantize_dim=fp8,
        fp8_quantize_dim_bwd=fp8_backward,
        mx4_quantize_dim=mx4,
        mx4_quantize_dim_bwd=mx4_backward,
    )
    return {operation.name: get_qcomm_codecs(config) for operation in CommOp}


def check_comms(
    comms: CommsConfig, plan: ShardingPlan, data: DataConfig, batch_rows: Iterable[int], device_type: str
) -> None:
    """Refuses a precision that the device or the plan's sharding types cannot use.

    Args:
        comms: The precision of each direction.
        plan: The placement of the tables.
        data: The features of each table.
        batch_rows: Samples of a local batch, in training and in evaluation.
        device_type: cpu or cuda.

    Raises:
        InputError: A precision cannot be used. The message names the direction, the reason, and the table if there is
            one.
    """
    batch_rows = [*batch_rows]
    for direction in ("forward", "backward"):
        precision = getattr(comms, direction)
        if precision == "fp8" and device_type == "cpu":
            raise InputError(
                f"comms.{direction} is 'fp8', which needs GPUs, as FBGEMM has no such kernels for CPUs; use int8, mx4, "
                "fp16 or bf16"
            )
        for name, table in table_plans(plan).items() if precision in BLOCKS else ():
            refused = f"comms.{direction} is '{precision}', but table '{name}'"
            if data.holds_sequences(name):
                _check_columns(f"{refused} sends sequences", table, BLOCKS[precision])
            else:
                _check_pooled(refused, precision, table, batch_rows)


def _check_columns(refused: str, table: ParameterSharding, block: int) -> None:
    """Refuses shards whose rows are no whole blocks."""
    for columns in (shard.shard_sizes[1] for shard in shards_of(table)):
        if columns % block:
            raise InputError(
                f"{refused} of {columns} columns, which is no multiple of {block}, the values that share a scale; "
                "change model.embedding_dim, or use fp16 or bf16"
            )


def _check_pooled(refused: str, precision: str, table: ParameterSharding, batch_rows: Iterable[int]) -> None:
    if table.sharding_type in REDUCING:
        raise InputError(
            f"{refused} is sharded {table.sharding_type}, which adds up embeddings on their way between ranks, and "
            f"{precision} values with scales of their own cannot be added; use fp16 or bf16, or planner.sharding_types "
            "of table_wise, column_wise and table_column_wise"
        )
    if precision == "mx4":  # TorchRec would fill a rank's columns up, and send more bytes than are reported
        _check_columns(f"{refused} sends embeddings", table, BLOCKS[precision])
    for rows, columns in ((rows, shard.shard_sizes[1]) for rows in batch_rows for shard in shards_of(table)):
        if rows * columns % BLOCKS[precision]:
            raise InputError(
                f"{refused} sends {plural(rows, 'row')} of {columns} columns from a rank, which is no multiple of "
                f"{BLOCKS[precision]}, the values that share a scale; change data.global_batch_size or "
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
