"""What is planned: embedding tables, the ranks that hold them, and the dense part of the model beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.speeds import Speeds
from planner.systems import System

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
    """What ids are drawn from, as Zipf has it.

    Attributes:
        exponent: How fast they get rarer from the most popular on; 0 if all are as popular.
        ids: How many different ones there are.
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
        hotness: Average number of ids in a sample, of each of its features.
        is_pooled: Whether the embeddings of a sample are pooled, not a sequence.
        value_bytes: Bytes of each of its values.
        state_per_value: Values of the optimizer's state, of 4 bytes, for each value of the table.
        state_per_row: The same for each row of each shard.
        averages_per_value: Bytes of averages for each value.
        averages_per_row: The same for each row of each shard.
        kinds: Sharding types that it can have.
        kernels: Compute kernels that it can have.
        min_columns: Least columns of a column shard.
        skew: What the ids of each of its features are drawn from; empty if all rows are as popular.
        weight_bytes: Bytes of the weight of an id; 0 if ids have none.
        has_plain_update: Whether its update on a CPU is not FBGEMM's, which needs no copies of the rows.
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
    """The ranks, which are all alike, and the links between them.

    Attributes:
        ranks: Number of ranks.
        per_host: Ranks of each host.
        on_gpu: Whether they have GPUs.
        gpu_bytes: GPU memory per rank; 0 without GPUs.
        host_bytes: Host memory per rank.
        gpu_bandwidth: Bandwidth of GPU memory; all bandwidths are in bytes per millisecond.
        host_bandwidth: Bandwidth of host memory.
        pcie_bandwidth: Bandwidth between GPU and host memory.
        intra_bandwidth: Bandwidth between two ranks of a host.
        inter_bandwidth: Bandwidth from a rank to other hosts.
        batch_size: Samples of a rank in a step.
        bytes_of_value: Bytes of an exchanged value: of all-to-all forward and backward, of partial sums forward and
            backward; None for the bytes of the table's values.
        speeds: The speeds that times are counted with; None for TorchRec's estimate, which takes the bandwidths.
        speeds_source: Where the speeds are from, in words to print.
        system: The system that reaches these speeds; None where speeds were measured, or are a usual CPU's.
    """

    ranks: int
    per_host: int
    on_gpu: bool
    gpu_bytes: int
    host_bytes: int
    gpu_bandwidth: float
    host_bandwidth: float
    pcie_bandwidth: float
    intra_bandwidth: float
    inter_bandwidth: float
    batch_size: int
    bytes_of_value: tuple[float, float, float, float] | None = None
    speeds: Speeds | None = None
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
        gradients: Gradients of the weights that train, in the buckets of DistributedDataParallel from the build on.
        state: State of their optimizers.
        averages: Averages of the weights.
        activations: The most that a step has beside these at once: the embeddings that the dense part gets, with their
            gradients, what backward needs, and temporaries.
        sample: Values of a sample beside its ids: dense features, labels, groups, weights.
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
        """Bytes that are there between steps."""
        return self.weights + self.gradients + self.state + self.averages


@dataclass(frozen=True, kw_only=True)
class DenseWork:
    """What the dense part of a rank does in a step, forward, backward and update.

    Attributes:
        flops: Floating-point operations of products of matrices.
        batched_flops: The same of products of many small matrices, one for each sample.
        bytes: Bytes that operations read and write.
        gradients: Bytes of gradients, which ranks sum up.
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
