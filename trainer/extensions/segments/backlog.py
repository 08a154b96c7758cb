"""Notes how far a run over the segments of a topic is behind it: on the console, and for `torchx status`."""

from collections.abc import Callable, Sequence

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.core.progress import PROGRESS, backlog_line
from trainer.data.segments import is_left_out, names_of_segments
from trainer.data.stream.lag import Lag, Manifests, lag_behind

Trained = Callable[[], Sequence[str]]
"""Returns the segments that a run was trained on, from its ledger."""


class Backlog:
    """What has been cut, or is in the topic, and is not trained on; only rank 0 uses it.

    Args:
        data: The data section.
        log: Prints a line.
    """

    def __init__(self, data: DataConfig, log: Callable[[str], None]) -> None:
        self._config, self._log = data.segments, log
        is_topic = data.reader == "kafka" and data.segments.path is not None
        self._manifests = Manifests(data.segments.path or "") if is_topic else None
        self._names: Sequence[str] = ()

    def found(self, names: Sequence[str]) -> None:
        """Takes the names of the segments that storage has now."""
        self._names = names

    def begin(self, segment: str, trained: Trained, what: str) -> None:
        """Notes that training on a segment begins.

        Args:
            segment: Its name.
            trained: Returns the names of the segments before; called for a topic only.
            what: What there is to say about it.
        """
        if found := self._lag(trained, segment):
            lag, _ = found
            self._log(backlog_line(segment, what, lag.words, lag.newest_event))
            PROGRESS.behind(f"segment {segment}, {lag.words}", lag.newest_event)
        else:
            self._log(f"segment {segment}: {what}")

    def wait(self, trained: Trained) -> None:
        """Notes that the job waits for another segment; the argument is that of `begin`."""
        if (found := self._lag(trained, None)) and found[1]:
            lag, done = found
            PROGRESS.behind(f"segment {done}, {lag.words}", lag.newest_event)

    def _lag(self, trained: Trained, under_way: str | None) -> tuple[Lag, str | None] | None:
        """Returns how far the run is behind, and the last segment that it was trained on.

        None of other data, or if the ledger or a manifest cannot be read now.
        """
        if not self._manifests:
            return None
        try:
            done = max(trained(), default=None)
            names = self._names or names_of_segments(self._config)
            ahead = [name for name in names if not is_left_out(self._config, name)]
            lag = lag_behind(self._manifests, ahead, done, under_way)
        except (InputError, OSError) as error:  # training itself ends with it when it reads that file
            self._log(f"warning: how far this run is behind the topic is not known: {error}")
            return None
        return (lag, done) if lag else None
