"""Speed of the update of replicated tables."""

import torch
from torch import nn
from torchrec.optim import RowWiseAdagrad

from apps.calibrate.timing import nanoseconds

COLUMNS = 32


def replicated_speed(table_bytes: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Returns the nanoseconds of a byte of a replicated table, by its name in `Speeds`.

    Args:
        table_bytes: Bytes of the table.
        device: Where to measure.
        repeats: Updates of it.
    """
    table = nn.Parameter(torch.zeros(max(1, table_bytes // (4 * COLUMNS)), COLUMNS, device=device))
    optimizer = RowWiseAdagrad([table])

    def update() -> None:
        table.grad = torch.zeros_like(table)
        optimizer.step()

    return {"replicated_byte": nanoseconds(update, device, repeats) / table.nbytes}
