"""Jobs that a job waits for: the options `after` and `after_any` of a scheduler, and messages about them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schedulers.errors import SchedulerError

# Names of TorchX's states, without TorchX, which a supervisor does not import.
SUCCEEDED, ENDED = "SUCCEEDED", ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Predecessor:
    """A job to wait for.

    Attributes:
        handle: Its handle.
        any_end: Whether any end suffices, not only success.
    """

    handle: str
    any_end: bool

    @property
    def option(self) -> str:
        """The option that names it, with its handle."""
        return f"-cfg {'after_any' if self.any_end else 'after'}={self.handle}"

    @property
    def app_id(self) -> str:
        """Its id, as its scheduler knows it."""
        return self.handle.rpartition("/")[2]

    def is_done(self, state: str | None) -> bool:
        """Returns whether the job has ended as required."""
        return state == SUCCEEDED or (self.any_end and self.has_ended(state))

    def is_missed(self, state: str | None) -> bool:
        """Returns whether the job can no longer end as required."""
        return self.has_ended(state) and not self.is_done(state)

    @staticmethod
    def has_ended(state: str | None) -> bool:
        """Returns whether the job has ended, or is gone."""
        return state is None or state in ENDED


Look = Callable[[str], tuple[str | None, str]]
"""Returns the name of a job's state by the job's id, None if it is gone, and how far the job is, if that is known."""


def predecessors(backend: str, after: Sequence[str] | None, after_any: Sequence[str] | None) -> list[Predecessor]:
    """Returns the jobs that the options name.

    Raises:
        SchedulerError: A handle is of another scheduler.
    """
    found = []
    for option, handles in (("after", after), ("after_any", after_any)):
        for handle in handles or ():
            match = re.fullmatch(rf"{backend}://[^/]*/[^/]+", handle)
            if not match:
                raise SchedulerError(
                    f"-cfg {option}={handle}: must be the handle of a job of this scheduler, {backend}://SESSION/ID, as"
                    f" `torchx run -s {backend}` and `torchx list -s {backend}` print it"
                )
            found.append(Predecessor(handle, any_end=option == "after_any"))
    return found


def outstanding(found: Sequence[Predecessor], look: Look) -> list[Predecessor]:
    """Returns the jobs to wait for that have not ended when a job is submitted.

    Raises:
        SchedulerError: A job does not exist, or has ended otherwise than required.
    """
    left = []
    for one in found:
        state, _ = look(one.app_id)
        if state is None:
            raise SchedulerError(f"{one.option}: no such job; nothing was submitted")
        if one.is_missed(state):
            raise SchedulerError(
                f"{one.option}: this job has ended as {state}; nothing was submitted: run it again,"
                " or use after_any to start all the same"
            )
        if not one.is_done(state):
            left.append(one)
    return left


def waits_for(found: Sequence[Predecessor], look: Look) -> str:
    """Describes what a job waits for; empty if all of it is done."""
    waiting = []
    for one in found:
        state, how_far = look(one.app_id)
        if not one.is_done(state):
            waiting.append(f"{one.handle} ({', '.join(filter(None, [state, how_far]))})")
    return f"waits for {', '.join(waiting)}" if waiting else ""


def missed(found: Sequence[Predecessor], look: Look) -> str:
    """Describes the jobs that can no longer end as required; empty if all still can."""
    for one in found:
        state, _ = look(one.app_id)
        if one.is_missed(state):
            how = f"ended as {state}" if state else "is gone"
            return f"not started: {one.handle} {how}"
    return ""
