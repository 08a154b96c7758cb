"""Facts of a run that run.json records: command, versions, world."""

import hashlib
import json
import platform
import shlex
import sys
from importlib.metadata import version
from typing import Any

from trainer.core.distributed import DistributedContext


def describe_run(context: DistributedContext, **facts: Any) -> dict[str, Any]:
    """Returns the content of run.json: versions, command, world, and the given facts."""
    packages = ("torchx-recsys", "torch", "torchrec", "torchx-nightly", "pyarrow", "fsspec")
    return {
        "command": shlex.join([sys.executable, "-m", "trainer", *sys.argv[1:]]),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "world_size": context.world_size,
        "local_world_size": context.local_world_size,
        "device": context.device.type,
        **facts,
    }


def digest(content: Any) -> str:
    """Returns a short name for a JSON-able value: equal values have equal names."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
