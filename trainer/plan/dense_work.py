"""Work of the dense part of a model in a step: its products, and the bytes of its operations, counted as they run."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
)
BATCHED = (aten.bmm, aten.baddbmm, *ATTENTION)
# The trace is one of a CPU, whose attention torch's formulas lack; a GPU's has the same products.
ON_GPU = (aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_backward)
FORMULAS = flop_registry | {one: flop_registry[other] for one, other in zip(ATTENTION, ON_GPU, strict=True)}
WITHOUT_WORK = (aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.detach)


@dataclass(frozen=True, kw_only=True)
class DenseWork:
    """What a rank's dense part does in a step, forward, backward and update.

    Attributes:
        flops: Floating-point operations of products of matrices.
        batched_flops: Those of products of many small matrices, one of each sample.
        bytes: Bytes that operations read and write.
        gradients: Bytes of gradients, which ranks sum up.
    """

    flops: float
    batched_flops: float
    bytes: float
    gradients: float


class WorkCounter(TorchDispatchMode):
    """Counts the work of the operations that run under it. Views are none, and neither is memory that is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.batched_flops = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func.is_view and func.overloadpacket not in WITHOUT_WORK:
            self._count(func.overloadpacket, args, kwargs or {}, found)
        return found

    def _count(self, operation: Any, args: Any, kwargs: Any, found: Any) -> None:
        flops = FORMULAS[operation](*args, **kwargs, out_val=found) if operation in FORMULAS else 0
        if operation in BATCHED:
            self.batched_flops += flops
        else:
            self.flops += flops
        self.bytes += sum(value.nbytes for value in tree_leaves((args, kwargs, found)) if isinstance(value, Tensor))

    def of_steps(self, number: int, gradients: int) -> DenseWork:
        """Returns the work of so many steps such as the one that was counted, whose gradients are summed up once.

        Args:
            number: The steps, those of microbatches.
            gradients: Bytes of gradients.
        """
        return DenseWork(
            flops=number * self.flops,
            batched_flops=number * self.batched_flops,
            bytes=number * self.bytes,
            gradients=gradients,
        )
