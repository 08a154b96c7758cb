"""Precision of the dense part: autocast, and TF32 on a GPU."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from trainer.config.train import TrainConfig
from trainer.core.errors import InputError

DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device_type: str, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    """Returns a block that computes in a precision; None: in the precision of the parameters."""
    return nullcontext() if dtype is None else torch.autocast(device_type, dtype)


def allow_tf32(config: TrainConfig, device: torch.device) -> None:
    """Lets float32 products be computed from factors rounded to TF32, if the configuration allows it.

    Raises:
        InputError: The configuration allows it, but there is no GPU.
    """
    if not config.tf32:
        return
    if device.type != "cuda":
        raise InputError("train.tf32 is true, but this machine has no GPU, and a CPU has no TF32; leave it out")
    # Not by `allow_tf32`, the older switch: reading it once these are set is an error.
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # pyrefly: ignore[missing-attribute]
