"""The progress bar of jobs that read data."""

import sys

from tqdm import tqdm


def progress_bar(total: int | None, unit: str) -> tqdm:
    """Returns a bar on stderr, with the remaining time, for jobs of seconds; in a log, a line every half minute.

    Args:
        total: The work to do, in units. Unset: the bar is never shown.
        unit: Bytes (`B`), rows.
    """
    return tqdm(
        total=total,
        unit=unit,
        unit_scale=True,
        mininterval=0.1 if sys.stderr.isatty() else 30,
        delay=5,
        file=sys.stderr,
        disable=total is None,
    )
