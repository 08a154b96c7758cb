"""Ranks on this machine, forked from the process of a benchmark, which has all imports."""

import uuid
from collections.abc import Callable

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def run_on_ranks(ranks: int, function: Callable[..., None], *arguments: object) -> None:
    """Calls a function on each of several ranks, as torchrun calls a script."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, function)(*arguments)
