"""Speed of dense work: products of matrices, and the update of replicated tables."""

import torch
from torch import nn
from torchrec.optim import RowWiseAdagrad

from trainer.plan.step_time import FLOPS_PER_WEIGHT
from trainer.tools.calibrate.timing import nanoseconds

COLUMNS = 32
LAYER = 512


def dense_speeds(samples: int, table_bytes: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Returns the speeds of the dense part, by the names that they have in `Speeds`.

    Args:
        samples: Samples of a product.
        table_bytes: Bytes of a replicated table.
        device: Where to measure.
        repeats: Runs of each.
    """
    layer = nn.Linear(LAYER, LAYER, bias=False, device=device)
    values = torch.randn(samples, LAYER, device=device, requires_grad=True)
    of_products = nanoseconds(lambda: layer(values).sum().backward(), device, repeats)
    table = nn.Parameter(torch.zeros(max(1, table_bytes // (4 * COLUMNS)), COLUMNS, device=device))
    optimizer = RowWiseAdagrad([table])

    def update() -> None:
        table.grad = torch.zeros_like(table)
        optimizer.step()

    of_update = nanoseconds(update, device, repeats)
    flops = FLOPS_PER_WEIGHT * samples * LAYER * LAYER
    return {"flop": of_products / flops, "replicated_byte": of_update / table.nbytes}
