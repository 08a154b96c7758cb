"""Profiles steps of training with torch.profiler, by key or on request: traces, and the split of a step."""

from collections.abc import Callable
from dataclasses import dataclass

from trainer.config.report import ProfileConfig
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.run.profile_requests import ProfileRequests
from trainer.run.profile_table import describe, render
from trainer.run.recording import FOLDER, Recording
from trainer.run.step_split import Split


@dataclass(frozen=True)
class Window:
    """Steps to profile.

    Attributes:
        first: The first of them; the step before it warms the profiler up.
        last: The last of them.
        options: What to record.
    """

    first: int
    last: int
    options: ProfileConfig


class Profiler:
    """Profiles windows of steps, on all ranks at once.

    All ranks are measured, also those that write no trace: a rank that alone was slowed down by the profiler would
    seem to be the slow one.

    Args:
        run: The run directory.
        config: The window to profile without a request.
        requests: Requests for others.
        context: This process among the ranks.
        first_step: Steps done before.
        last_step: The step that training ends with.
        log: Prints on rank 0.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: ProfileConfig,
        requests: ProfileRequests,
        context: DistributedContext,
        first_step: int,
        last_step: int,
        log: Callable[[str], None],
    ) -> None:
        self._run, self._requests, self._context, self._log = run, requests, context, log
        self._last_step = last_step
        self._windows: list[Window] = []
        self._recording: Recording | None = None
        if config.first_step is not None:
            self._add(config.first_step, config)
        self._begin_if_due(first_step)

    @property
    def requested(self) -> bool:
        """Whether there is a request that can begin; on rank 0."""
        return self._requests.pending and self._recording is None

    def begin_requested(self, step: int) -> None:
        """Takes the request that rank 0 has, after a step; all ranks have to call it."""
        options = broadcast_from_rank0(self._context, self._requests.take)
        try:
            check_profile(options, self._context)
        except InputError as error:
            self._log(f"the requested profile cannot be made: {error}")
            return
        # The next step warms the profiler up.
        self._add(step + 2, options)
        self._begin_if_due(step)

    def after(self, step: int) -> bool:
        """Goes on to the step after one; returns whether a profile ended, which took time of its own."""
        if self._recording is None:
            self._begin_if_due(step)
            return False
        if step < self._recording.last:
            self._recording.next_step()
            return False
        self._finish(step)
        self._begin_if_due(step)
        return True

    def stop(self, step: int) -> None:
        """Ends a profile before its last step, because training stops after a step."""
        if self._recording is not None:
            self._finish(step)

    def _add(self, first: int, options: ProfileConfig) -> None:
        self._windows.append(Window(first, min(first + options.steps - 1, self._last_step), options))

    def _begin_if_due(self, step: int) -> None:
        """Begins a window whose warm-up is the next step; of one that began before a resume, the rest."""
        due = next((window for window in self._windows if window.first <= step + 2 <= window.last), None)
        if due and self._recording is None:
            self._recording = Recording(step + 2, due.last, due.options, self._context)

    def _finish(self, step: int) -> None:
        recording, self._recording = self._recording, None
        assert recording is not None
        if step < recording.first:  # it was warming up
            recording.discard()
            return
        results = gather_to_all(recording.finish(self._run, step), self._context)
        if self._context.is_rank0:
            self._report(recording.first, [split for split, _ in results], [line for _, line in results if line])

    def _report(self, first_step: int, splits: list[Split], written: list[str]) -> None:
        name = f"step-{first_step}.json"
        try:
            self._run.write_json(f"{FOLDER}/{name}", describe(first_step, splits))
        except OSError as error:
            written = [*written, f"{name} could not be written: {error}"]
        self._log("\n".join([f"\n{render(first_step, splits)}\n", *written, ""]))


def check_profile(config: ProfileConfig, context: DistributedContext) -> None:
    """Refuses a profile that this job cannot make.

    Raises:
        InputError: It names a rank that there is not, or a GPU's memory without a GPU.
    """
    if config.memory and context.device.type != "cuda":
        raise InputError(
            f"report.profile.memory is true, but this job runs on {context.device.type}, and it is a GPU's memory that "
            "is recorded; leave it out"
        )
    if unknown := [rank for rank in config.ranks if rank >= context.world_size]:
        raise InputError(
            f"report.profile.ranks has {unknown[0]}, but the ranks of this job are 0 to {context.world_size - 1}; "
            "leave it out"
        )
