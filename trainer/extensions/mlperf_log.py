"""Writes MLPerf's log lines of a run, `:::MLLOG`, into its directory: its settings, its evaluations and its times.

The package mlperf-logging would write the same lines, to stdout, and needs pandas; its checker tests these.
"""

import json
import time
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Literal

import psutil
import torch

from trainer.config.files import NAME
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.errors import InputError
from trainer.data.row_groups import find_evaluated_files, find_training_files
from trainer.data.segments import is_left_out, names_of_segments
from trainer.metrics.registry import higher_is_better, result_name
from trainer.training.watchers import RunView, Watcher

KEY = "report.mlperf_log.organization"
LOG = "mlperf.log"
TOKEN = ":::MLLOG "
POINT, START, END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
Event = Literal["POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"]
NAMES = {"adam": "Adam", "rowwise_adagrad": "RowWiseAdagrad"}
PRECISIONS = {"bf16": "bfloat16"}


def check(config: Config, context: DistributedContext) -> None:
    """Refuses a log of a run without evaluations or without a target.

    Raises:
        InputError: The message names the key that is not set.
    """
    needs = {
        "train.stop_early.target": config.train.stop_early.target is not None,
        "data.validation": bool(config.data.validation),
    }
    if lacks := [key for key, is_set in needs.items() if not is_set]:
        raise InputError(
            f"{KEY} is '{config.report.mlperf_log.organization}', but {lacks[0]} is not set; MLPerf's log tells when a "
            "run reaches its target in an evaluation; set it, or leave the log out"
        )
    if not (config.evaluate.every_samples or config.evaluate.every_steps):
        raise InputError(
            f"{KEY} is '{config.report.mlperf_log.organization}', but neither evaluate.every_samples nor "
            "evaluate.every_steps is set; MLPerf's log counts evaluations in samples; set one, or leave the log out"
        )


class MlperfLog(Watcher):
    """Writes mlperf.log. Rank 0 does all of it but for counting samples, whose errors all ranks see."""

    files = {"MLPerf's log": LOG}

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._is_in_block = self._has_reached = False

    def begin(self, run: RunView, step: int, last_step: int) -> None:
        """Begins the log, or goes on with that of the checkpoint."""
        if self._lines:  # a later segment
            return
        samples = broadcast_from_rank0(run.context, lambda: _samples(run.config))
        if not run.context.is_rank0:
            self._lines = [""]
            return
        done = step * run.config.data.global_batch_size
        earlier = (run.directory.read(LOG) or "").splitlines() if step else []
        events = [json.loads(line.removeprefix(TOKEN)) for line in earlier if line.startswith(TOKEN)]
        for event in events:
            # The same steps, and the end, come again.
            if event["key"] != "run_stop" and event["metadata"].get("samples_count", 0) <= done:
                self._lines.append(f"{TOKEN}{json.dumps(event)}")
                self._is_in_block = {"block_start": True, "block_stop": False}.get(event["key"], self._is_in_block)
        if not self._lines:
            self._describe(run, samples)
        self._write(run)

    def _describe(self, run: RunView, samples: Mapping[str, int]) -> None:
        started = int(psutil.Process().create_time() * 1000)
        self._log("cache_clear", False, at=started)  # whoever starts the job clears them
        self._log("init_start", event=START, at=started)
        for key, value in (*_submission(run), *_settings(run), *samples.items()):
            self._log(key, value)
        self._log("init_stop", event=END)
        self._log("run_start", event=START)
        self._begin_block(0)

    def after_step(self, run: RunView, step: int) -> None:
        """Ends a block of training where an evaluation follows."""
        done = step * run.config.data.global_batch_size
        if not run.context.is_rank0:
            return
        if not self._is_in_block:
            self._begin_block(done - run.config.data.global_batch_size)
        if run.config.evaluate.due(step, run.config.data.global_batch_size):
            self._end_block(done)
            self._log("eval_start", event=START, samples_count=done)

    def after_evaluation(self, run: RunView, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Logs an evaluation that was due."""
        size, watched = run.config.data.global_batch_size, run.config.train.stop_early
        is_due = split == "validation" and run.config.evaluate.due(step, size)
        if not run.context.is_rank0 or not is_due or watched.metric is None or watched.target is None:
            return
        value, sign = metrics[result_name(watched.metric)], 1 if higher_is_better(watched.metric) else -1
        self._has_reached |= sign * value >= sign * watched.target
        self._log("eval_accuracy", value, samples_count=step * size)
        self._log("eval_stop", event=END, samples_count=step * size)
        self._write(run)

    def at_end(self, run: RunView, step: int, state: str) -> None:
        """Logs the end of a run; a run that was stopped goes on."""
        done = step * run.config.data.global_batch_size
        if run.context.is_rank0 and state == "finished":
            if self._is_in_block:
                self._end_block(done)
            status = "success" if self._has_reached else "aborted"
            self._log("run_stop", event=END, samples_count=done, status=status)
        if run.context.is_rank0:
            self._write(run)

    def _begin_block(self, done: int) -> None:
        self._is_in_block = True
        self._log("block_start", event=START, samples_count=done)

    def _end_block(self, done: int) -> None:
        self._is_in_block = False
        self._log("block_stop", event=END, samples_count=done)

    def _log(
        self, key: str, value: Any = None, *, event: Event = POINT, at: int | None = None, **metadata: Any
    ) -> None:
        about = {"namespace": "", "time_ms": at or int(time.time() * 1000), "event_type": event}
        self._lines.append(f"{TOKEN}{json.dumps({**about, 'key': key, 'value': value, 'metadata': metadata})}")

    def _write(self, run: RunView) -> None:
        with run.tolerate_failed_writes():
            run.directory.write(LOG, "".join(f"{line}\n" for line in self._lines))


def _samples(config: Config) -> dict[str, Any]:
    """Returns the number of samples to train and to evaluate on, and how often that is."""
    data, segments = config.data, config.data.segments
    if segments.path:
        names = [name for name in names_of_segments(segments) if not is_left_out(segments, name)]
        data = data.model_copy(update={"train": [segments.path.replace(NAME, name) for name in names]})
    samples = find_training_files(data, config.train.seed).rows
    evaluated = find_evaluated_files("data.validation", data.validation, data).rows
    size = data.global_batch_size
    steps = (config.evaluate.every_samples or config.evaluate.every_steps * size) // size
    # Rounded as far as it gives the same number of steps, as the rules count them.
    shares = (float(f"{steps * size / samples:.{digits}g}") for digits in range(1, 18))
    share = next((one for one in shares if ceil(one * samples / size) == steps), steps * size / samples)
    return {"train_samples": samples, "eval_samples": evaluated, "eval_every_data_pct": share}


def _submission(run: RunView) -> Iterator[tuple[str, Any]]:
    config, world = run.config.report.mlperf_log, run.context.world_size
    device = torch.cuda.get_device_name() if run.context.device.type == "cuda" else "CPU"
    yield "submission_benchmark", config.benchmark
    yield "submission_org", config.organization
    yield "submission_division", config.division
    yield "submission_status", "onprem"
    yield "submission_platform", config.platform or f"{world}x{device}"
    yield "config_filename", "config.toml"


def _settings(run: RunView) -> Iterator[tuple[str, Any]]:
    config, world = run.config, run.context.world_size
    size, parts = config.data.global_batch_size, config.train.micro_batches
    # The rules look at the batch size before the learning rate.
    yield "global_batch_size", size
    yield "gradient_accumulation_steps", parts
    yield "micro_batch_size", size // (world * parts)
    yield "seed", config.train.seed
    longest = max(config.data.sequences.values(), default=1)
    yield "max_sequence_length", int(config.model.attention_divisor) if config.model.name == "dlrm_hstu" else longest
    dense, sparse = config.optimizer.dense, config.optimizer.sparse
    yield "opt_name", NAMES.get(dense.name, dense.name)
    yield "opt_base_learning_rate", dense.learning_rate
    yield "opt_adam_beta_1", dense.beta1
    yield "opt_adam_beta_2", dense.beta2
    yield "opt_adam_epsilon", dense.eps
    yield "opt_weight_decay", dense.weight_decay
    yield "opt_gradient_clip_norm", dense.max_norm
    yield "opt_learning_rate_warmup_steps", dense.schedule.warmup_steps
    yield "opt_learning_rate_warmup_start_lr", dense.learning_rate * dense.schedule.warmup_start
    yield "opt_sparse_name", NAMES.get(sparse.name, sparse.name)
    yield "opt_sparse_base_learning_rate", sparse.learning_rate
    rounds = config.train.tf32 and run.context.device.type == "cuda"
    precision = "tf32" if config.train.precision == "fp32" and rounds else config.train.precision
    sent = next((one for one in (config.comms.forward, config.comms.backward) if one != "fp32"), "fp32")
    for where, lowest in (("linear", precision), ("attn", precision), ("comm", sent)):
        yield f"lowest_numerical_precision_in_{where}", PRECISIONS.get(lowest, lowest)
    for kind in ("tensor", "pipeline", "context", "expert"):
        yield f"{kind}_parallelism", 1  # tables alone are sharded
