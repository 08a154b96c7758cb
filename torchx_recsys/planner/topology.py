"""The ranks to plan for: their memory, the links between them, and the speeds by which a step's time is forecast.

The figures of the systems are fitted to published runs and tested on as many other runs: benchmarks/published.py.
"""

from dataclasses import dataclass, fields, replace

# Dense operations of an unknown GPU: the A100's in fp32.
DENSE_FLOPS_PER_SECOND = 19.5e12
# Bytes moved to exchange, permute and sort an id, and to find the bounds of a bag.
BYTES_PER_ID, BYTES_PER_BAG = 80, 16
BYTES_PER_BUCKETED_ID = 32  # ids are counted, then moved; both read and write them
# Intra-host bandwidths count both directions of a link, as data sheets do.
DIRECTIONS = 2
# Bytes per millisecond to nanoseconds per byte.
NANOSECONDS = 1e6


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Nanoseconds of each piece of a rank's work in a step.

    Exchanges count the bytes that leave a rank.

    Attributes:
        bag: A bag that is looked up, without the bytes of its embeddings.
        lookup_byte: A byte of an embedding that is read.
        id: An id that is sent to its shard and sorted there.
        bucketed_id: An id of a rank's own batch that is sorted by row shard.
        unique_row: A row that is updated, without its bytes.
        update_byte: A byte of a gradient, or of a row that is updated.
        all_to_all_byte: A byte of an all-to-all between the ranks of a host.
        reduce_scatter_byte: A byte of a reduce-scatter between these.
        all_gather_byte: A byte of an all-gather between these.
        all_reduce_byte: A byte of an all-reduce between these.
        network_byte: A byte from a rank to other hosts.
        replicated_byte: A byte of a replicated table; every step updates all bytes.
        flop: A floating-point operation of the dense part's matrix products.
        batched_flop: An operation of products of many small matrices, one per sample.
        dense_byte: A byte that an operation of the dense part reads or writes.
        step: The fixed time of a step.
    """

    bag: float
    lookup_byte: float
    id: float
    bucketed_id: float
    unique_row: float
    update_byte: float
    all_to_all_byte: float
    reduce_scatter_byte: float
    all_gather_byte: float
    all_reduce_byte: float
    network_byte: float
    replicated_byte: float
    flop: float
    batched_flop: float
    dense_byte: float
    step: float


def data_sheet_speeds(
    memory_bandwidth: float,
    intra_bandwidth: float,
    inter_bandwidth: float,
    flops_per_second: float = DENSE_FLOPS_PER_SECOND,
) -> Speeds:
    """Returns the speeds of an ideal GPU that reaches the bandwidths of its data sheet; no GPU does.

    Args:
        memory_bandwidth: Of GPU memory; bandwidths are in bytes per millisecond.
        intra_bandwidth: Between two ranks of a host, both directions together.
        inter_bandwidth: From a rank to other hosts.
        flops_per_second: Of the dense part.
    """
    memory, link = NANOSECONDS / memory_bandwidth, NANOSECONDS / intra_bandwidth * DIRECTIONS
    return Speeds(
        bag=BYTES_PER_BAG * memory,
        lookup_byte=memory,
        id=BYTES_PER_ID * memory,
        bucketed_id=BYTES_PER_BUCKETED_ID * memory,
        unique_row=0.0,
        update_byte=memory,
        all_to_all_byte=link,
        reduce_scatter_byte=link,
        all_gather_byte=link,
        all_reduce_byte=link,
        network_byte=NANOSECONDS / inter_bandwidth,
        replicated_byte=5 * memory,  # a gradient is zeroed and read, weight and state are read and written
        flop=1e9 / flops_per_second,
        batched_flop=1e9 / flops_per_second,
        dense_byte=memory,
        step=0.0,
    )


def cpu_speeds(inter_bandwidth: float) -> Speeds:
    """Returns the speeds of one core of a server, measured with Gloo between two ranks of a host.

    Args:
        inter_bandwidth: From a rank to other hosts, in bytes per millisecond.
    """
    return Speeds(
        bag=19.0,
        lookup_byte=0.062,
        id=0.0,
        bucketed_id=16.0,
        unique_row=46.0,
        update_byte=0.079,
        all_to_all_byte=0.54,
        reduce_scatter_byte=1.4,
        all_gather_byte=1.1,
        all_reduce_byte=0.72,
        network_byte=NANOSECONDS / inter_bandwidth,
        replicated_byte=0.34,
        flop=0.013,
        batched_flop=0.12,
        dense_byte=0.042,
        step=8e6,
    )


# The fraction of the data sheets' rates that products, memory and links reach: one figure, as published runs give only
# the time of a step.
ACHIEVED = 0.51
# Nanoseconds of the shortest all-reduce: its start, then up and down a tree, a hop for each GPU of a host and for each
# doubling of the hosts. NCCL chooses its algorithms by these figures (baseLat and hwLat in its src/graph/tuning.cc).
START, HOP_IN_HOST, HOP_BETWEEN_HOSTS = 4_400.0, 520.0, 5_000.0
# Nanoseconds in which the host starts a kernel of PyTorch, autograd's part included: by assumption, for a fast core.
KERNEL = 5_000.0
EXCHANGES = 4  # exchanges in a step: ids, embeddings, their gradients, gradients of the dense part


@dataclass(frozen=True, kw_only=True)
class System:
    """A training system.

    Attributes:
        name: Its name.
        milliseconds: Time of a step beyond counted work: gaps between kernels, and the host that starts kernels.
        is_fused: Whether the dense part's other operations are fused with its products, so that their bytes do not
            count.
        overlaps_gradients: Whether ranks sum the dense part's gradients while it computes.
        assumption: Assumptions about it, as text to print.
    """

    name: str
    milliseconds: float
    is_fused: bool
    overlaps_gradients: bool
    assumption: str


SYSTEMS = {
    "torchrec": System(
        name="TorchRec",
        milliseconds=7.2,
        is_fused=False,
        overlaps_gradients=False,
        assumption="TorchRec, as this trainer runs it: the exchange of ids overlaps with the step before, nothing else "
        "does, and every operation of the dense part is a kernel of its own",
    ),
    "hugectr": System(
        name="HugeCTR",
        milliseconds=0.7,
        is_fused=True,
        overlaps_gradients=True,
        assumption="HugeCTR, as in MLPerf: the exchange of ids overlaps with the step before, the sum of the dense "
        "part's gradients with its computation, and its kernels are fused and in a CUDA graph",
    ),
}


def speeds_of(system: System, data_sheet: Speeds) -> Speeds:
    """Returns the speeds that a system reaches, given a data sheet's."""
    reached = {field.name: getattr(data_sheet, field.name) / ACHIEVED for field in fields(Speeds)}
    hidden = {"id": 0.0, "bucketed_id": 0.0} | ({"dense_byte": 0.0} if system.is_fused else {})
    return replace(data_sheet, **{**reached, **hidden, "step": 1e6 * system.milliseconds})


def latency(per_host: int, hosts: int) -> float:
    """Returns the fixed nanoseconds of a step's exchanges, independent of their size."""
    if per_host * hosts == 1:
        return 0.0
    hops = (per_host - 1) * HOP_IN_HOST + (hosts.bit_length() - 1) * HOP_BETWEEN_HOSTS
    return EXCHANGES * (START + 2 * hops)


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
