"""The input of planning: embedding tables, the topology, and the dense part of the model."""

from collections.abc import Sequence
from dataclasses import dataclass

from torchx_recsys.planner.speeds import Speeds
from torchx_recsys.planner.systems import System

# The values of TorchRec's ShardingType.
SHARDING_TYPES = (
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)


@dataclass(frozen=True)
class Zipf:
    """A Zipf distribution of ids.

    Attributes:
        exponent: How fast ids get rarer after the most popular; 0 if all are equally popular.
        ids: Number of different ids.
    """

    exponent: float
    ids: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """An embedding table and how it is used.

    Attributes:
        name: Its name.
        rows: Its rows.
        columns: Its columns.
        hotness: Average number of ids in a sample, per feature.
        is_pooled: Whether the embeddings of a sample are pooled, not a sequence.
        value_bytes: Bytes of a value.
        state_per_value: 4-byte values of optimizer state for each value of the table.
        state_per_row: 4-byte values of optimizer state for each row of each shard.
        averages_per_value: Bytes of averages for each value.
        averages_per_row: Bytes of averages for each row of each shard.
        kinds: Sharding types that the table can have.
        kernels: Compute kernels that the table can have.
        min_columns: Minimum columns of a column shard.
        skew: Distribution of each feature's ids; empty if all rows are equally popular.
        weight_bytes: Bytes of an id's weight; 0 if ids have no weights.
        has_plain_update: Whether its CPU update is not FBGEMM's; FBGEMM's needs no copies of the rows.
    """

    name: str
    rows: int
    columns: int
    hotness: Sequence[float]
    is_pooled: bool
    value_bytes: int
    state_per_value: int
    state_per_row: int
    averages_per_value: int
    averages_per_row: int
    kinds: Sequence[str]
    kernels: Sequence[str]
    min_columns: int
    skew: Sequence[Zipf] = ()
    weight_bytes: int = 0
    has_plain_update: bool = False


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Identical ranks, and the links between them.

    Attributes:
        ranks: Number of ranks.
        per_host: Ranks of each host.
        on_gpu: Whether the ranks have GPUs.
        gpu_bytes: GPU memory per rank; 0 without GPUs.
        host_bytes: Host memory per rank.
        gpu_bandwidth: Bandwidth of GPU memory, in bytes per millisecond.
        pcie_bandwidth: Bandwidth between GPU and host memory, in the same unit.
        batch_size: Samples of a rank in a step.
        speeds: The speeds to forecast times by.
        bytes_of_value: Bytes of an exchanged value: all-to-all forward and backward, then partial sums forward and
            backward; None for the bytes of the table's values.
        speeds_source: Source of the speeds, as text to print.
        system: The system that reaches these speeds; None if speeds were measured, or are a usual CPU's.
    """

    ranks: int
    per_host: int
    on_gpu: bool
    gpu_bytes: int
    host_bytes: int
    gpu_bandwidth: float
    pcie_bandwidth: float
    batch_size: int
    speeds: Speeds
    bytes_of_value: tuple[float, float, float, float] | None = None
    speeds_source: str = ""
    system: System | None = None

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.ranks // self.per_host


@dataclass(frozen=True, kw_only=True)
class DenseMemory:
    """Bytes of the dense part of a model, the same on every rank.

    Attributes:
        weights: Its weights.
        gradients: Gradients of the trained weights, counted from the build on, as a GPU has buckets for them.
        state: State of the optimizers.
        averages: Averages of the weights.
        activations: The most that a step adds at once: the embeddings that the dense part receives, with their
            gradients, values saved for backward, and temporaries.
        sample: Values of a sample without its ids: dense features, labels, groups, weights.
        build: Temporaries that initialize tables.
    """

    weights: int
    gradients: int
    state: int
    averages: int
    activations: int
    sample: int
    build: int

    @property
    def kept(self) -> int:
        """Bytes that stay between steps."""
        return self.weights + self.gradients + self.state + self.averages


@dataclass(frozen=True, kw_only=True)
class DenseWork:
    """Work of a rank's dense part in a step: forward, backward and update.

    Attributes:
        flops: Floating-point operations of matrix products.
        batched_flops: Operations of products of many small matrices, one for each sample.
        bytes: Bytes that operations read and write.
        gradients: Bytes of gradients that ranks sum.
    """

    flops: float
    batched_flops: float
    bytes: float
    gradients: float


@dataclass(frozen=True)
class DensePart:
    """The dense part of a model.

    Attributes:
        memory: Its memory.
        work: Its work.
    """

    memory: DenseMemory
    work: DenseWork
