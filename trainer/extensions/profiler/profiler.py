"""Profiles steps of training with torch.profiler, by key or on request: traces, and the split of a step.

A request is a file in the run directory that rank 0 looks for. Why not a signal: pods of a JobSet cannot be sent any,
Slurm sends signals to every node, and all signals that reach every rank request a stop.
"""

import gzip
import json
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, profile

from trainer.config.root import Config
from trainer.config.train import ProfileConfig
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.section import validate
from trainer.extensions.profiler.step_split import StepSplit, describe, render, split_steps
from trainer.training.watchers import RunView, Watcher

FOLDER = "traces"
REQUEST_FILE = "profile.request"
POLL_SECONDS = 5.0  # interval of looking for the file; each look is a small request to storage
MEMORY_ENTRIES = 100_000  # number of the newest allocations and releases in a snapshot


def check(config: Config, context: DistributedContext) -> None:
    """Refuses a configuration whose profile this job cannot make.

    Raises:
        InputError: As for `check_profile`.
    """
    check_profile(config.report.profile, context)


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
    """Requests to profile this job, noticed by a thread of rank 0."""

    def __init__(self) -> None:
        self._pending: ProfileConfig | None = None
        self._is_begun, self._closed = False, threading.Event()

    @property
    def pending(self) -> bool:
        """Whether there is a request; on rank 0."""
        return self._pending is not None

    def take(self) -> ProfileConfig:
        """Returns the request and clears it."""
        taken, self._pending = self._pending, None
        assert taken is not None
        return taken

    def begin(self, run: RunDirectory) -> None:
        """Begins to look for the file in a run directory, until `close`; a second call does nothing."""
        if not self._is_begun:
            self._is_begun = True
            threading.Thread(target=self._look, args=(run,), name="profile requests", daemon=True).start()

    def close(self) -> None:
        """Ends looking."""
        self._closed.set()

    def _look(self, run: RunDirectory) -> None:
        """Looks for the file, and removes it when it is read."""
        while not self._closed.wait(POLL_SECONDS):
            try:
                if text := run.read(REQUEST_FILE):
                    run.fs.rm_file(run.path(REQUEST_FILE))
                    self._pending = validate(ProfileConfig, json.loads(text), lambda _: "")
            except OSError:  # storage that is away for a while
                continue
            except (InputError, json.JSONDecodeError) as error:
                print(f"{REQUEST_FILE} cannot be used: {error}", file=sys.stderr, flush=True)


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


class Profiler(Watcher):
    """Profiles windows of steps, on all ranks at once.

    All ranks are measured, also those that write no trace: if the profiler slowed down only one rank, that rank would
    seem to be the slow one.
    """

    def __init__(self) -> None:
        self._requests = ProfileRequests()
        self._windows: list[ProfiledSteps] = []
        self._recording: Recording | None = None
        self._last_step = 0

    def begin(self, run: RunView, step: int, last_step: int) -> None:
        """Looks for requests from here on, and begins the window of the configuration if it is due."""
        if run.context.is_rank0:
            self._requests.begin(run.directory)
        self._windows, self._last_step = [], last_step
        config = run.config.report.profile
        if config.first_step is not None:
            self._add(config.first_step, config)
        self._begin_if_due(run, step)

    def after_step(self, run: RunView, step: int) -> None:
        """Goes on to the next step, or ends a profile."""
        if self._recording is None:
            self._begin_if_due(run, step)
        elif step < self._recording.last:
            self._recording.next_step()
        else:
            self._finish(run, step)
            self._begin_if_due(run, step)
            run.resume_clock()

    def asks(self) -> bool:
        """Returns whether there is a request that can begin; on rank 0."""
        return self._requests.pending and self._recording is None

    def asked(self, run: RunView, step: int) -> None:
        """Begins the profile that rank 0 has a request for, if it is that which was asked for."""
        options = broadcast_from_rank0(run.context, lambda: self._requests.take() if self.asks() else None)
        if options is None:
            return
        try:
            check_profile(options, run.context)
        except InputError as error:
            run.log(f"the requested profile cannot be made: {error}")
            return
        # The next step warms the profiler up.
        self._add(step + 2, options)
        self._begin_if_due(run, step)

    def at_end(self, run: RunView, step: int, state: str) -> None:
        """Ends a profile before its last step, as training has stopped."""
        self._requests.close()
        if self._recording is not None:
            self._finish(run, step)

    def _add(self, first: int, options: ProfileConfig) -> None:
        self._windows.append(ProfiledSteps(first, min(first + options.steps - 1, self._last_step), options))

    def _begin_if_due(self, run: RunView, step: int) -> None:
        """Begins a window whose warm-up is the next step, or the rest of a window that began before a resume."""
        due = next((window for window in self._windows if window.first <= step + 2 <= window.last), None)
        if due and self._recording is None:
            self._recording = Recording(step + 2, due.last, due.options, run.context)

    def _finish(self, run: RunView, step: int) -> None:
        recording, self._recording = self._recording, None
        assert recording is not None
        if step < recording.first:  # it was warming up
            recording.discard()
            return
        results = gather_to_all(recording.finish(run.directory, step), run.context)
        if run.context.is_rank0:
            _report(run, recording.first, [split for split, _ in results], [line for _, line in results if line])


def _report(run: RunView, first_step: int, splits: list[StepSplit], written: list[str]) -> None:
    name = f"step-{first_step}.json"
    try:
        run.directory.write_json(f"{FOLDER}/{name}", describe(first_step, splits))
    except OSError as error:
        written = [*written, f"{name} could not be written: {error}"]
    run.log("\n".join([f"\n{render(first_step, splits)}\n", *written, ""]))
