"""Measures exchange speeds between the ranks of a host, and between hosts."""

import torch
import torch.distributed as dist
from torch import Tensor

from torchx_recsys.apps.calibrate.timing import nanoseconds
from trainer.core.distributed import DistributedContext

SMALL = 16  # how many times smaller the second message is; the time common to both does not depend on bytes


def exchange_speeds(size: int, context: DistributedContext, repeats: int) -> dict[str, float]:
    """Returns the nanoseconds of a byte that leaves a rank, by the names in `Speeds`.

    Args:
        size: Bytes that a rank sends.
        context: This process among the ranks.
        repeats: Runs of each exchange.

    Returns:
        The speeds; none between ranks if each host has one rank, none between hosts if there is one host.
    """
    local, found = context.local_world_size, {}
    hosts = context.world_size // local
    groups = [list(range(host * local, (host + 1) * local)) for host in range(hosts)]
    inside, _ = dist.new_subgroups_by_enumeration(groups)
    across, _ = dist.new_subgroups_by_enumeration([list(column) for column in zip(*groups, strict=True)])
    assert isinstance(inside, dist.ProcessGroup)
    assert isinstance(across, dist.ProcessGroup)
    if local > 1:
        found |= {
            f"{name}_byte": _of_byte(name, size, inside, context, repeats)
            for name in ("all_to_all", "reduce_scatter", "all_gather", "all_reduce")
        }
    if hosts > 1:
        found["network_byte"] = _of_byte("all_to_all", size, across, context, repeats)
    return found


def _of_byte(name: str, size: int, group: dist.ProcessGroup, context: DistributedContext, repeats: int) -> float:
    ranks = dist.get_world_size(group)
    rounds = 2 if name == "all_reduce" else 1  # an all-reduce scatters sums, then gathers them
    times = []
    for of_size in (size // SMALL, size):
        values = torch.ones(max(1, of_size // (4 * ranks)) * ranks, device=context.device)
        part = values[: len(values) // ranks].clone()
        times.append(
            (values.nbytes, nanoseconds(lambda v=values, p=part: _exchange(name, v, p, group), context.device, repeats))
        )
    (small, of_small), (large, of_large) = times
    return max(0.0, of_large - of_small) / ((large - small) * rounds * (ranks - 1) / ranks)


def _exchange(name: str, values: Tensor, part: Tensor, group: dist.ProcessGroup) -> None:
    if name == "all_to_all":
        dist.all_to_all_single(torch.empty_like(values), values, group=group)
    elif name == "reduce_scatter":
        dist.reduce_scatter_tensor(torch.empty_like(part), values, group=group)
    elif name == "all_gather":
        dist.all_gather_into_tensor(torch.empty_like(values), part, group=group)
    else:
        dist.all_reduce(values, group=group)
