"""The machine that something is measured on."""

import os
import platform
import re
from pathlib import Path
from typing import Any

import psutil
import torch


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe_machine() -> dict[str, Any]:
    """Returns the properties of the machine that rates depend on."""
    # platform.processor() is the architecture on Linux, and psutil does not know the model.
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "system": platform.platform(),
        "processor": model[1] if model else platform.machine(),
        "cores": available_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "torch_threads": torch.get_num_threads(),
    }
