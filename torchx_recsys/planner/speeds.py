"""Speeds of a rank: the figures by which a step's time is forecast."""

from dataclasses import dataclass

# Dense operations of an unknown GPU: the A100's in fp32.
DENSE_FLOPS_PER_SECOND = 19.5e12
# Bytes moved to exchange, permute and sort an id, and to find the bounds of a bag.
BYTES_PER_ID, BYTES_PER_BAG = 80, 16
BYTES_PER_BUCKETED_ID = 32  # counted, then moved; each time read and written
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
        replicated_byte: A byte of a replicated table, all of which every step updates.
        flop: A floating-point operation of the dense part's matrix products.
        batched_flop: An operation of products of many small matrices, one per sample.
        dense_byte: A byte that an operation of the dense part reads or writes.
        step: A step without any of these.
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
