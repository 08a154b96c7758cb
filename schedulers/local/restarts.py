"""When a local job restarts: how often, and after how long a wait."""

from dataclasses import dataclass

from trainer.core.outcome import is_stopped, saved_step

FIRST_WAIT_SECONDS = 2
DOUBLINGS = 5  # how often the first wait doubles, to about a minute


@dataclass(kw_only=True)
class Restarts:
    """The restarts of a job so far.

    A restart after a stop request is free: it consumes no retry. Consecutive free restarts without progress are
    limited, as a job that stops at every start would never end.
    """

    max_retries: int
    max_free: int
    retries: int = 0
    newest_step: int = 0
    without_gain: int = 0  # consecutive restarts that gained no step
    free_without_gain: int = 0  # the free ones among them

    def allowed(self, outcome: str) -> bool:
        """Returns whether a job may restart after an attempt with this outcome."""
        if is_stopped(outcome):
            return self._gains(outcome) or self.free_without_gain < self.max_free
        return self.retries < self.max_retries

    def count(self, outcome: str) -> None:
        """Counts the restart after an attempt with this outcome."""
        free = is_stopped(outcome)
        self.retries += not free
        if self._gains(outcome):
            self.newest_step, self.without_gain, self.free_without_gain = saved_step(outcome), 0, 0
        else:
            self.without_gain += 1
            self.free_without_gain += free

    @property
    def wait_seconds(self) -> int:
        """The wait before the restart that was counted last: none if it gained a step, else longer each time."""
        return FIRST_WAIT_SECONDS * 2 ** min(self.without_gain - 1, DOUBLINGS) if self.without_gain else 0

    def _gains(self, outcome: str) -> bool:
        return saved_step(outcome) > self.newest_step
