"""Profiles steps of training with torch.profiler, by key or on request: traces, and the split of a step.

A request is a file in the run directory that rank 0 looks for. A signal was weighed: pods of a JobSet can be sent none,
Slurm sends one to every node, and all that reach every rank request a stop.
"""

import gzip
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, profile

from trainer.config.train import ProfileConfig
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.section import validate
from trainer.run.profile_table import describe, render
from trainer.run.step_split import StepSplit, split_steps

FOLDER = "traces"
REQUEST_FILE = "profile.request"
POLL_SECONDS = 5.0  # one small request to storage each, beside training
MEMORY_ENTRIES = 100_000  # of allocations and releases before the snapshot, the newest


def check_profile(config: ProfileConfig, context: DistributedContext) -> None:
    """Refuses a profile that this job cannot make.

    Raises:
        InputError: The profile names a rank that does not exist, or a GPU's memory without a GPU.
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


class ProfileRequests:
    """Requests to profile this job, noticed by a thread of rank 0.

    Args:
        run: The run directory.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._pending: ProfileConfig | None = None
        self._closed = threading.Event()

    @property
    def pending(self) -> bool:
        """Whether there is a request; on rank 0."""
        return self._pending is not None

    def take(self) -> ProfileConfig:
        """Returns the request and clears it."""
        taken, self._pending = self._pending, None
        assert taken is not None
        return taken

    def watch(self) -> None:
        """Looks for the file until `close`, and removes it when it is read."""
        while not self._closed.wait(POLL_SECONDS):
            try:
                if text := self._run.read(REQUEST_FILE):
                    self._run.fs.rm_file(self._run.path(REQUEST_FILE))
                    self._pending = validate(ProfileConfig, json.loads(text), lambda _: "")
            except OSError:  # storage that is away for a while
                continue
            except (InputError, json.JSONDecodeError) as error:
                print(f"{REQUEST_FILE} cannot be used: {error}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends watching."""
        self._closed.set()


@contextmanager
def profile_requests(run: RunDirectory, context: DistributedContext) -> Iterator[ProfileRequests]:
    """Looks for requests on rank 0, as long as the block runs."""
    requests = ProfileRequests(run)
    if context.is_rank0:
        threading.Thread(target=requests.watch, name="profile requests", daemon=True).start()
    try:
        yield requests
    finally:
        requests.close()


class Recording:
    """A recording of the steps from `first` to `last`, which begins before the step that warms it up.

    Args:
        first: The first step to record; the next one to be taken is that before it.
        last: The last step to record.
        options: What to record.
        context: This process among the ranks.
    """

    def __init__(self, first: int, last: int, options: ProfileConfig, context: DistributedContext) -> None:
        self.first, self.last = first, last
        self._device, self._rank = context.device, context.rank
        self._is_traced = context.rank in options.ranks
        self._memory = options.memory and self._is_traced
        self._profile = profile(
            # Without it the first recorded step would hold the start of CUPTI.
            schedule=lambda step: ProfilerAction.WARMUP if step < first else ProfilerAction.RECORD,
            with_stack=options.stacks and self._is_traced,
            profile_memory=self._memory,
            acc_events=True,  # or else torch warns of a second cycle, which there is not
        )
        self._profile.step_num = first - 1  # so that ranges of steps have the numbers of the run
        if self._memory:
            torch.cuda.memory._record_memory_history(max_entries=MEMORY_ENTRIES)
        self._profile.start()

    def next_step(self) -> None:
        """Ends a step and begins the next."""
        if self._profile.step_num == self.first - 1:
            self._synchronize()
        self._profile.step()

    def discard(self) -> None:
        """Ends the recording before its first step."""
        self._profile.stop()
        if self._memory:
            torch.cuda.memory._record_memory_history(enabled=None)

    def finish(self, run: RunDirectory, step: int) -> tuple[StepSplit, str]:
        """Ends the recording after a step, and writes the trace if this rank is one of those that do.

        Returns:
            The split of this rank's steps, and a line about its trace; empty if it writes none.
        """
        self._synchronize()
        self._profile.stop()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            self._profile.export_chrome_trace(str(file))
            trace = file.read_bytes()
            snapshot = self._snapshot(Path(folder, "memory.pickle"))
        split = split_steps(json.loads(trace)["traceEvents"], self.first, step)
        if not self._is_traced:
            return split, ""
        name = f"step-{self.first}-rank-{self._rank}"
        files = {f"{name}.json.gz": gzip.compress(trace, compresslevel=6)}
        if snapshot:
            files[f"{name}.memory.pickle"] = snapshot
        return split, _write(run, files)

    def _snapshot(self, file: Path) -> bytes:
        """Returns a snapshot of the GPU's memory with the allocations of the recorded steps; empty if not asked for."""
        if not self._memory:
            return b""
        torch.cuda.memory._dump_snapshot(str(file))
        torch.cuda.memory._record_memory_history(enabled=None)
        return file.read_bytes()

    def _synchronize(self) -> None:
        """Waits for the GPU at both ends of the window, so that it holds all kernels of its steps and no others."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _write(run: RunDirectory, files: dict[str, Any]) -> str:
    try:
        run.fs.makedirs(run.path(FOLDER))
        for name, content in files.items():
            run.fs.write(run.path(FOLDER, name), content)
    except OSError as error:  # training goes on
        return f"a trace cannot be written: {error}"
    return f"trace: {without_secrets(run.url_of(FOLDER, next(iter(files))))} (open it in ui.perfetto.dev)"


@dataclass(frozen=True)
class ProfiledSteps:
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

    All ranks are measured, also those that write no trace: if the profiler slowed down only one rank, that rank would
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
        self._windows: list[ProfiledSteps] = []
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
        """Goes on to the next step; returns whether a profile ended, which took time of its own."""
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
        self._windows.append(ProfiledSteps(first, min(first + options.steps - 1, self._last_step), options))

    def _begin_if_due(self, step: int) -> None:
        """Begins a window whose warm-up is the next step, or the rest of a window that began before a resume."""
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

    def _report(self, first_step: int, splits: list[StepSplit], written: list[str]) -> None:
        name = f"step-{first_step}.json"
        try:
            self._run.write_json(f"{FOLDER}/{name}", describe(first_step, splits))
        except OSError as error:
            written = [*written, f"{name} could not be written: {error}"]
        self._log("\n".join([f"\n{render(first_step, splits)}\n", *written, ""]))
