"""The systems whose GPU times are forecast: what overlaps, and what a step takes beyond data sheets.

The figures are fitted to published runs and tested on as many other runs: benchmarks/published.py.
"""

from dataclasses import dataclass, fields, replace

from torchx_recsys.planner.speeds import Speeds

# The part of the data sheets' rates that is reached by products, memory and links. Published runs give only the time of
# a step, which does not tell these apart.
ACHIEVED = 0.51
# Nanoseconds of the shortest all-reduce: its start, then up and down a tree, a hop for each GPU of a host and for each
# doubling of the hosts. NCCL chooses its algorithms by these figures (baseLat and hwLat in its src/graph/tuning.cc).
START, HOP_IN_HOST, HOP_BETWEEN_HOSTS = 4_400.0, 520.0, 5_000.0
EXCHANGES = 4  # in a step: ids, embeddings, their gradients, gradients of the dense part


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
    """Returns the nanoseconds of a step's exchanges, however little is sent."""
    if per_host * hosts == 1:
        return 0.0
    hops = (per_host - 1) * HOP_IN_HOST + (hosts.bit_length() - 1) * HOP_BETWEEN_HOSTS
    return EXCHANGES * (START + 2 * hops)
