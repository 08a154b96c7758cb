"""Facts of a run that run.json records: command, versions, ranks and their memory."""

import platform
import shlex
import sys
from importlib.metadata import version
from typing import Any

import torch

from torchx_recsys.planner.hardware import GIB
from trainer.core.distributed import DistributedContext
from trainer.core.outcome import code_digest
from trainer.core.secrets import without_secrets
from trainer.plan.topology import host_memory_bytes


def describe_run(context: DistributedContext, **facts: Any) -> dict[str, Any]:
    """Returns the content of run.json: command, versions, ranks, and the given facts."""
    packages = ("torchx-recsys", "torch", "torchrec", "torchx-nightly", "pyarrow", "fsspec")
    return {
        "command": without_secrets(shlex.join([sys.executable, "-m", "trainer", *sys.argv[1:]])),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "world_size": context.world_size,
        "local_world_size": context.local_world_size,
        "device": context.device.type,
        "rank_memory": _rank_memory(context),
        **({"code": digest} if (digest := code_digest()) else {}),
        **facts,
    }


def _rank_memory(context: DistributedContext) -> dict[str, float]:
    """Returns the memory of rank 0 under the keys of `planner`, with which a plan can be made on another machine."""
    found = {"host_memory_gib": host_memory_bytes() / context.local_world_size / GIB}
    if context.device.type == "cuda":
        found["memory_gib"] = torch.cuda.get_device_properties(context.device).total_memory / GIB
    return {key: round(size, 3) for key, size in found.items()}
