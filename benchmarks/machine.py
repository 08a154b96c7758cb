"""Describes the machine of a benchmark."""

import os
import platform
from typing import Any

import psutil
import torch

from torchx_recsys.apps.calibrate.calibrate import processor_name


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe_machine() -> dict[str, Any]:
    """Returns the properties of the machine that affect rates."""
    return {
        "system": platform.platform(),
        "processor": processor_name(),
        "cores": available_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "torch_threads": torch.get_num_threads(),
    }
