"""Records steps with torch.profiler on this rank, and writes them as a trace for Perfetto."""

import gzip
import json
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, profile, record_function

from trainer.config.report import ProfileConfig
from trainer.core.distributed import DistributedContext
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.run.step_split import Split, split_steps

FOLDER = "traces"
MEMORY_ENTRIES = 100_000  # of allocations and releases before the snapshot, the newest


def part(name: str) -> AbstractContextManager[object]:
    """Names the block in traces; nothing is done while none is recorded."""
    return record_function(f"## {name} ##") if torch.autograd.profiler._is_profiler_enabled else nullcontext()


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

    def finish(self, run: RunDirectory, step: int) -> tuple[Split, str]:
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
