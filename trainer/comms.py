"""The exchange of embeddings between ranks: its precision, and how many bytes it sends."""

from typing import Literal

from torch import nn
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs
from torchrec.distributed.types import CommOp, QuantizedCommCodecs, ShardingPlan

from trainer.data.schema import DataConfig
from trainer.distributed import Ranks
from trainer.plan_file import table_plans
from trainer.planning import table_shapes
from trainer.section import Section

Precision = Literal["fp32", "fp16", "bf16", "int8"]
BYTES_PER_VALUE: dict[str, float] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1.25}  # int8: 8 bytes of scale per 32
REDUCING = ("row_wise", "table_row_wise", "grid_shard")  # these add up partial sums on their way, in a reduce-scatter


class CommsConfig(Section):
    """Precision of embeddings on their way between ranks."""

    forward: Precision = "fp32"
    """Of the pooled embeddings."""
    backward: Precision = "fp32"
    """Of their gradients."""


def codecs(comms: CommsConfig) -> dict[str, QuantizedCommCodecs] | None:
    """Returns a pair of codecs for each operation, or None for none.

    TorchRec's own registry is not asked, as it would turn bf16 into fp16 on Gloo, which can do bf16.
    """
    if comms.forward == comms.backward == "fp32":
        return None
    config = QCommsConfig(CommType(comms.forward), CommType(comms.backward))
    return {operation.name: get_qcomm_codecs(config) for operation in CommOp}


def check_comms(comms: CommsConfig, plan: ShardingPlan) -> None:
    """Refuses a precision that the plan's sharding types cannot use.

    Raises:
        ValueError: The message names the direction, the table and the reason.
    """
    for direction in ("forward", "backward"):
        if getattr(comms, direction) != "int8":
            continue
        for name, table in table_plans(plan).items():
            if table.sharding_type in REDUCING:
                raise ValueError(
                    f"comms.{direction} is 'int8', but table '{name}' is sharded {table.sharding_type}, which adds up "
                    f"embeddings on their way between ranks, and int8 values with scales of their own cannot be added; "
                    f"use fp16 or bf16, or other planner.sharding_types, such as table_wise and column_wise"
                )


def exchanged_bytes(
    plan: ShardingPlan, model: nn.Module, data: DataConfig, comms: CommsConfig, ranks: Ranks
) -> dict[str, float]:
    """Returns the bytes of embeddings that all ranks together send to one another in one full step.

    Returns:
        `forward` and `backward` as configured, and `fp32`, what either direction would send unquantized.
    """
    shapes, values = table_shapes(model), 0.0
    for name, table in table_plans(plan).items():
        features = sum(data.table_of(feature) == name for feature in data.sparse)
        pooled = data.global_batch_size * features * shapes[name][1]
        values += pooled * _copies_sent(table.sharding_type, ranks)
    sent = {direction: values * BYTES_PER_VALUE[getattr(comms, direction)] for direction in ("forward", "backward")}
    return {**sent, "fp32": values * BYTES_PER_VALUE["fp32"]}


def _copies_sent(sharding_type: str, ranks: Ranks) -> float:
    """Returns how often a pooled embedding of the global batch leaves a rank, on average."""
    world, local = ranks.world_size, ranks.local_world_size
    nodes = world // local
    if sharding_type == "data_parallel":
        return 0.0
    if sharding_type == "row_wise":
        return world - 1.0  # every rank holds a partial sum of every embedding
    if sharding_type in REDUCING:
        return (local - 1.0) + (nodes - 1) / nodes  # partial sums inside a node, then whole ones between nodes
    return (world - 1) / world
