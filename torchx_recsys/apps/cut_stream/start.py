"""Where the first segment of a topic begins."""

import time
from datetime import datetime

from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError


def start_seconds(config: StreamConfig) -> float:
    """Returns the time in data.stream.start, in seconds since 1970; 0 for earliest and latest.

    Raises:
        InputError: It is no time, or in the future.
    """
    if config.start in ("earliest", "latest"):
        return 0.0
    try:
        at = datetime.fromisoformat(config.start)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise InputError(
            f"data.stream.start is '{config.start}'; write earliest, latest, or a time with its zone, such as "
            "2026-11-28T06:00:00Z"
        )
    if at.timestamp() > time.time():
        raise InputError(
            f"data.stream.start is '{config.start}', which is in the future; name an earlier time, or latest"
        )
    return at.timestamp()
