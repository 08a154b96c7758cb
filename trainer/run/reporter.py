"""Reports of a run: the console, metrics.jsonl, evaluations.jsonl, TensorBoard and the TorchX tracker."""

import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torchx.tracker import app_run_from_env
from tqdm import tqdm

from trainer.config.train import ReportConfig
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, sum_over_ranks
from trainer.core.progress import PROGRESS, TrainingProgress, shown
from trainer.core.run_directory import JsonLines, RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import os_errors

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

T = TypeVar("T")
NOT_FINITE = (
    "warning: the loss is {loss}, and later steps do not mend the weights; with train.nonfinite = 'error' the job ends "
    "at the first such step and names the samples, with 'skip' it leaves the step out (docs/guides/what_to_do_when.md)"
)
# The loss of samples with a weight is never exactly 0, so no sum of weights over the ranks is needed.
ZERO_LOSS = "warning: the loss is exactly 0, so nothing is learned; does every sample have weight 0 (data.weight)?"


@contextmanager
def tolerate_failed_writes(run: RunDirectory, log: Callable[[str], None]) -> Iterator[None]:
    """Logs a failure of storage inside the block, because it must not end training."""
    try:
        with os_errors():
            yield
    except OSError as error:
        log(f"{run.url} cannot be written to: {error}; training continues, and the next write is tried")


class StallTimer(Iterator[T]):
    """An iterator that measures how long its consumer waits for items.

    Args:
        items: The iterator.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self.stalled_seconds = 0.0

    def __next__(self) -> T:
        start = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self.stalled_seconds += time.perf_counter() - start


class Reporter:
    """Reports steps, averaged over intervals, and evaluations.

    Args:
        run: The run directory, for files.
        config: The interval.
        context: This process; only rank 0 prints and writes.
        last_step: The step that training ends with.
        start_step: Steps done before; lines of later steps, from an earlier attempt, are dropped.
        running: `state()` in the checkpoint that training resumes from.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: ReportConfig,
        context: DistributedContext,
        last_step: int,
        start_step: int = 0,
        running: dict[str, float] | None = None,
    ) -> None:
        self._run, self._config, self._context = run, config, context
        self._first_step, self._last_step = start_step, last_step
        running = running or {"loss": 0.0, "steps": 0}
        # Each rank resumes with an equal part of the sum, so that the number of ranks does not matter. In float64, as a
        # float32 sum of a long interval would lose digits of the loss.
        self._sums = {
            name: torch.tensor(value / context.world_size, dtype=torch.float64, device=context.device)
            for name, value in running.items()
            if name != "steps"
        }
        self._steps_taken = int(running["steps"])
        self._step_seconds: list[float] = []
        self._stalled_before, self._samples = 0.0, 0
        self._is_finite = True
        self._clock = time.perf_counter()
        self._started = self._clock
        if context.is_rank0:
            self._metrics = JsonLines(run, "metrics.jsonl", start_step)
            # The last step has its evaluation after its checkpoint, so a resume may have to repeat it.
            self._evaluations = JsonLines(run, "evaluations.jsonl", min(start_step, last_step - 1))
            # In a log file every update of a bar would be another line.
            self._bar = tqdm(total=last_step, initial=start_step, unit="step", disable=not sys.stderr.isatty())
        self._evaluated = broadcast_from_rank0(context, lambda: self._evaluations.records())

    def state(self) -> dict[str, float]:
        """Returns the loss of the current interval, summed over its steps; the same on every rank."""
        sums = {name: sum_over_ranks(value, self._context).item() for name, value in self._sums.items()}
        return {**sums, "steps": self._steps_taken}

    def step(
        self,
        step: int,
        epoch: int,
        means: dict[str, Tensor],
        samples: int,
        stalled_seconds: float,
        counts: dict[str, float] | None = None,
    ) -> None:
        """Records one step.

        Args:
            step: Its number; the first is 1.
            epoch: The epoch that it belongs to; the first is 0.
            means: This rank's `loss` and other values whose mean over the ranks is that of the global batch, to be
                reported as means over the steps of an interval; empty if the step was skipped.
            samples: Samples of the global batch.
            stalled_seconds: Time that this rank has waited for batches since its start.
            counts: Values at the end of an interval, which are reported as they are.
        """
        now = time.perf_counter()
        self._step_seconds.append(now - self._clock)
        self._clock = now
        for name, value in means.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(self._sums["loss"])
            self._sums[name] += value  # stays on the device: to read it every step would wait for the GPU
        self._steps_taken += bool(means)
        self._samples += samples
        PROGRESS.step(step)
        if self._context.is_rank0:
            self._bar.update()
        if self.due(step):
            self._report_interval(step, epoch, stalled_seconds, counts or {})

    def due(self, step: int) -> bool:
        """Returns whether a report interval ends with a step."""
        return step % self._config.interval_steps == 0 or step == self._last_step

    def _report_interval(self, step: int, epoch: int, stalled_seconds: float, counts: dict[str, float]) -> None:
        total = self.state()
        taken = total.pop("steps") * self._context.world_size
        means = {
            name: value / taken if taken else None for name, value in total.items()
        }  # None: every step was skipped
        seconds = sum(self._step_seconds)
        stalled = sum_over_ranks(torch.tensor(stalled_seconds - self._stalled_before), self._context).item()
        p50, p99 = np.percentile(self._step_seconds, [50, 99])
        record = {
            "step": step,
            "epoch": epoch,
            **means,
            **counts,
            "samples_per_second": self._samples / seconds,
            "samples_per_second_per_rank": self._samples / seconds / self._context.world_size,
            # The input stall; readers of metrics.jsonl know it by this key.
            "data_wait": stalled / self._context.world_size / seconds,
            "step_seconds_p50": float(p50),
            "step_seconds_p99": float(p99),
            "memory_gib": memory_gib(self._context),
            "time": round(time.time(), 3),
        }
        for value in self._sums.values():
            value.zero_()
        self._steps_taken, self._samples, self._step_seconds, self._stalled_before = 0, 0, [], stalled_seconds
        if self._context.is_rank0:
            self._write(self._metrics, "train", record)
            PROGRESS.report(reported := self._progress(record))
            self.log(reported.line(_details(record)))
            if means["loss"] == 0 and step - self._first_step <= self._config.interval_steps:
                self.log(ZERO_LOSS)
            if self._is_finite and means["loss"] is not None and not math.isfinite(means["loss"]):
                self._warn_not_finite(step, means["loss"])

    def _warn_not_finite(self, step: int, loss: float) -> None:
        """Reports the first loss that is not finite, on the console and in run.json."""
        self._is_finite = False
        self.log(NOT_FINITE.format(loss=loss))
        with self.tolerate_failed_writes():
            self._run.write_json("run.json", self._run.facts() | {"not_finite_at": step})

    def _progress(self, record: dict[str, Any]) -> TrainingProgress:
        seconds = (time.perf_counter() - self._started) / max(1, record["step"] - self._first_step)
        return TrainingProgress(
            step=record["step"],
            last_step=self._last_step,
            loss=record["loss"],
            samples_per_second=record["samples_per_second"],
            end=record["time"] + (self._last_step - record["step"]) * seconds,
            interval=record["step_seconds_p99"],
            time=record["time"],
        )

    @cached_property
    def _board(self) -> "SummaryWriter | None":
        """The writer of TensorBoard's files, made by the first report, as its import takes 0.1 s of a start."""
        if not self._config.tensorboard:
            return None
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard would show the steps after the checkpoint twice.
        return SummaryWriter(self._run.url_of("tensorboard"), purge_step=self._first_step + 1)

    def draw(self, write: "Callable[[SummaryWriter], None]") -> None:
        """Calls `write` with the writer of TensorBoard's files, only on rank 0, if they are written."""
        if self._context.is_rank0:
            with self.tolerate_failed_writes():
                if self._board:
                    write(self._board)

    def evaluation(self, step: int, split: str, metrics: dict[str, float]) -> None:
        """Records an evaluation and replaces an earlier one of this step; its time counts for no step."""
        self.resume_clock()
        record = {"step": step, "split": split, **metrics}
        self._evaluated = [one for one in self._evaluated if (one["step"], one["split"]) != (step, split)] + [record]
        if not self._context.is_rank0:
            return
        with self.tolerate_failed_writes():
            self._evaluations.discard(step=step, split=split)
        self._write(self._evaluations, split, record)
        self.log(f"step {step:,}  {split}: " + format_metrics(metrics))

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns the lines of evaluations.jsonl; from memory, as training goes on while storage fails."""
        return [*self._evaluated]

    def resume_clock(self) -> None:
        """Starts the clock of the next step."""
        self._clock = time.perf_counter()

    def log(self, text: str) -> None:
        """Prints a line on the console, above the progress bar, on rank 0."""
        if self._context.is_rank0:
            tqdm.write(without_secrets(text), file=sys.stdout)
            sys.stdout.flush()

    def flush(self) -> None:
        """Writes the lines that could not be appended."""
        if self._context.is_rank0:
            with self.tolerate_failed_writes():
                self._metrics.flush()
                self._evaluations.flush()

    @contextmanager
    def tolerate_failed_writes(self) -> Iterator[None]:
        """Logs a failure of storage in the block, as it must not end training; `flush` writes the rest later."""
        with tolerate_failed_writes(self._run, self.log):
            yield

    def close(self) -> None:
        """Writes what is left and closes the files."""
        if not self._context.is_rank0:
            return
        self.flush()
        self._bar.close()
        with self.tolerate_failed_writes():
            if self._board:
                self._board.close()

    def track(self, step: int, checkpoint_url: str) -> None:
        """Passes the metrics of a step, each as `SPLIT_METRIC`, and its checkpoint to the TorchX tracker of the job."""
        if not self._context.is_rank0:
            return
        final = {
            f"{line['split']}_{name}": value
            for line in self.evaluations()
            for name, value in line.items()
            if line["step"] == step and name not in ("step", "split")
        }
        try:
            tracked = app_run_from_env()
            tracked.add_metadata(**final)
            tracked.add_artifact("checkpoint", checkpoint_url)
        except Exception as error:  # trackers are plugins and may raise anything; the run is saved
            self.log(f"the TorchX tracker did not record this run: {type(error).__name__}: {error}")

    def _write(self, file: JsonLines, group: str, record: dict[str, Any]) -> None:
        with self.tolerate_failed_writes():
            file.add(record)
            for name, value in record.items():
                if self._board and name not in ("step", "split", "time") and value is not None:
                    self._board.add_scalar(_tag(group, name), value, record["step"])


def _tag(group: str, name: str) -> str:
    """Returns a number's name in TensorBoard, which sorts groups by name: the loss comes first."""
    if name.startswith("rate/"):
        return name
    return f"loss/{group}" if name == "loss" else f"{group}/{name}"


def _details(record: dict[str, Any]) -> str:
    return (
        f"({record['samples_per_second_per_rank']:,.0f} per rank)  input stall {record['data_wait']:.1%}  "
        f"step {record['step_seconds_p50'] * 1e3:,.1f} ms (p99 {record['step_seconds_p99'] * 1e3:,.1f})  "
        f"{record['memory_gib']:.2f} GiB  {_extras(record)}"
    )


def _extras(record: dict[str, Any]) -> str:
    norm = f"gradient norm {shown(record['gradient_norm'], '.4g')}  " if "gradient_norm" in record else ""
    scale = f"loss scale {record['loss_scale']:,.4g}  " if "loss_scale" in record else ""
    return norm + scale + (f"{plural(record['skipped_steps'], 'step')} skipped  " if "skipped_steps" in record else "")


def format_metrics(metrics: dict[str, float]) -> str:
    """Returns metrics for a console line, without their error bounds."""
    return "  ".join(
        f"{name} {value:,.0f}" if name == "samples" else f"{name} {value:.5f}"
        for name, value in metrics.items()
        if "_error" not in name or name.replace("_error", "", 1) not in metrics
    )


def memory_gib(context: DistributedContext) -> float:
    """Returns this rank's peak memory in GiB: the GPU's, or the process's without one."""
    if context.device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
