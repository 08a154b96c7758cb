"""Lines on the progress of a prediction."""

import time

from tqdm import tqdm

from trainer.core.console import plural
from trainer.core.distributed import DistributedContext

INTERVAL_SECONDS = 10.0


class Progress:
    """Prints how far a prediction is, on rank 0: all ranks take equally many steps.

    Args:
        rows: Rows to predict, over all ranks.
        context: This process among the ranks.
    """

    def __init__(self, rows: int, context: DistributedContext) -> None:
        self._rows, self._done, self._context = rows, 0, context
        self._started = self._printed = time.monotonic()

    def add(self, rows: int) -> None:
        """Counts rows that are predicted, over all ranks."""
        self._done += rows
        now = time.monotonic()
        if self._context.is_rank0 and now - self._printed >= INTERVAL_SECONDS:
            self._printed = now
            left = (now - self._started) / self._done * (self._rows - self._done)
            print(f"{self.summary()}  ETA {tqdm.format_interval(round(left))}", flush=True)

    def summary(self) -> str:
        """Returns rows, their share of all and the rate so far."""
        rate = self._done / max(1e-9, time.monotonic() - self._started)
        return f"{self._done:,} of {plural(self._rows, 'row')} ({self._done / self._rows:.0%})  {rate:,.0f} rows/s"
