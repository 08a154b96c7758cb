"""Everything that one training run holds, made ready: what `loop.train` only has to set in motion."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from tabulate import tabulate
from torch import Tensor, nn

from trainer.checkpoint import Checkpoint, Checkpoints
from trainer.config import Config, TrainConfig
from trainer.core.outcome import FINISHED_WORD, STOPPED_WORD, write_outcome
from trainer.data.files import FileSet, find_files
from trainer.data.lanes import Lanes, check_lanes, default_lanes
from trainer.data.loader import Loader
from trainer.distributed import Ranks, from_main
from trainer.evaluate import Evaluator
from trainer.finetune import finetune
from trainer.job import Job, build_job
from trainer.lock import RunLock, locked
from trainer.preemption import Stopped, StopRequest, Wish, stop_on_signals
from trainer.report import Report, Stopwatch
from trainer.restore import restore
from trainer.run import Resume, check_start, describe_data, describe_run, digest, find_start, open_run, to_toml
from trainer.run_directory import RunDirectory
from trainer.saving import Saver
from trainer.state import all_tensors
from trainer.watchdog import Watchdog, watched


@dataclass(frozen=True)
class Session:
    """One training run, ready to go.

    Attributes:
        config: The configuration.
        ranks: This process among the ranks.
        run: The run directory.
        files: The training data.
        lanes: How its rows fall into steps.
        job: The sharded model and its optimizers.
        saver: What saves its state.
        evaluator: What evaluates the model.
        report: What tells of it.
        batches: The batches to train on, in order.
        stop: Whether training was asked to stop.
        watchdog: What notices when nothing happens any more.
        first_step: Steps done before.
        last_step: The step that training ends with.
    """

    config: Config
    ranks: Ranks
    run: RunDirectory
    files: FileSet
    lanes: Lanes
    job: Job
    saver: Saver
    evaluator: Evaluator
    report: Report
    batches: Stopwatch
    stop: StopRequest
    watchdog: Watchdog
    first_step: int
    last_step: int

    def note(self, step: int, loss: Tensor) -> None:
        """Reports a step."""
        self.watchdog.note(f"the work after step {step}")
        epoch, epoch_step = divmod(step - 1, self.lanes.steps)
        self.report.step(step, epoch, loss, self.lanes.rows_in_step(epoch_step), self.batches.waited_seconds)

    def evaluate(self, step: int, model: nn.Module, splits: list[str]) -> dict[str, float]:
        """Evaluates splits, reports them and returns the metrics, each named `SPLIT_METRIC`.

        Raises:
            Stopped: A signal asked training to stop.
        """
        found: dict[str, float] = {}
        for split in splits:
            metrics = self.evaluator.evaluate(model, split, partial(self._give_up, step, split))
            if metrics is None:
                self.leave(step)
            self.report.evaluation(step, split, metrics)
            found |= {f"{split}_{name}": value for name, value in metrics.items()}
        return found

    def lacks_evaluation(self) -> bool:
        """Tells whether the run goes on from a step that was saved but not evaluated any more."""
        step = self.first_step
        due = 0 < step < self.last_step and self.evaluator.due(step)
        return due and not from_main(self.ranks, lambda: self._is_evaluated(step))

    def _is_evaluated(self, step: int) -> bool:
        return any(line["step"] == step for line in self.report.evaluations())

    def save(self, step: int) -> None:
        """Begins to save a checkpoint."""
        progress: dict[str, Any] = {
            "epoch": step // self.lanes.steps,
            "lanes": self.lanes.lanes,
            "seed": self.config.train.seed,
            "running": self.report.state(),
            "data": describe_data(self.files),
        }
        texts = {"config.toml": to_toml(self.config), "plan.json": json.dumps(self.job.plan_json, indent=2)}
        self.report.flush()
        self.saver.save(step, all_tensors(self.job.model, self.job.optimizers), progress, texts)
        self.report.resume_clock()

    def _give_up(self, step: int, split: str) -> bool:
        self.watchdog.note(f"the evaluation on {split} after step {step}")
        return self.stop.agree() is Wish.STOP

    def leave(self, step: int) -> NoReturn:
        """Saves if the step is not saved and the time is enough for it, and ends training.

        Raises:
            Stopped: Always.
        """
        self.saver.wait()
        left = self.config.checkpoint.grace_seconds - self.stop.waiting_seconds
        if self.saver.saved_step != step and from_main(self.ranks, lambda: self.saver.save_seconds < left):
            self.save(step)
            self.saver.wait()
        word = f"{STOPPED_WORD} at step {step}, {self._saved()}"
        self._end("stopped", step, word)
        self.report.say(f"{word}\n\nThe same command goes on from there.")
        raise Stopped

    def _saved(self) -> str:
        return f"saved {self.saver.newest_url}" if self.saver.newest_url else "nothing saved"

    def _end(self, state: str, step: int, word: str) -> None:
        self.report.close()
        if self.ranks.is_main:
            with self.report.or_later():
                about = json.loads(self.run.read("run.json") or "{}")
                self.run.write_json("run.json", about | {"state": state, "step": step})
            write_outcome(word)

    def finish(self, metrics: dict[str, float]) -> None:
        """Ends the report, and prints where everything is and what to type next."""
        self.saver.wait()
        if self.saver.saved_step != self.last_step:
            self.report.say(f"error: the last step could not be saved, {self._saved()}; the same command goes on")
            raise SystemExit(1)
        checkpoint = self.saver.newest_url or ""
        self.report.track(metrics, checkpoint)
        self._end("finished", self.last_step, f"{FINISHED_WORD} at step {self.last_step}")
        url, config = self.run.url, self.run.url_of("config.toml")
        self.report.say(
            "\n"
            + tabulate(
                [
                    ["run directory", url],
                    ["checkpoint", checkpoint],
                    ["configuration", config],
                    ["metrics", self.run.url_of("metrics.jsonl")],
                    ["evaluations", self.run.url_of("evaluations.jsonl")],
                    *([["TensorBoard", self.run.url_of("tensorboard")]] if self.config.report.tensorboard else []),
                ],
                tablefmt="plain",
            )
            + f"\n\nNext:  torchx run tools.tensorboard --logdir {url}"
            + f"\n       torchx run dlrm.evaluate --config {config} --out {url}"
        )


@contextmanager
def open_session(config: Config, out: str, resume: Resume, ranks: Ranks) -> Iterator[Session]:
    """Opens the run directory, reads the data's footers, shards the model, and restores it if there is a checkpoint.

    Raises:
        ValueError: The configuration, the data or the run directory cannot be used.
    """
    run = from_main(ranks, lambda: RunDirectory(out))
    with (
        watched(ranks, config.train.stuck_seconds) as watchdog,
        stop_on_signals(ranks) as stop,
        locked(run, ranks) as lock,
    ):
        session = _prepare(config, run, resume, ranks, stop, watchdog, lock)
        yield session
        session.saver.close()


def _prepare(
    config: Config,
    run: RunDirectory,
    resume: Resume,
    ranks: Ranks,
    stop: StopRequest,
    watchdog: Watchdog,
    lock: RunLock,
) -> Session:
    from_main(ranks, lambda: open_run(run, config))
    checkpoints = Checkpoints(run)
    from_main(ranks, lambda: _clean_up(checkpoints))
    clock = time.monotonic()
    start = from_main(ranks, lambda: find_start(checkpoints, resume, run.url))
    restore_seconds = time.monotonic() - clock
    files = from_main(ranks, lambda: find_files("train", config.data.train, config.data))
    lanes = _make_lanes(config, files, ranks, start)
    evaluator = Evaluator(config, ranks)
    job = build_job(config, ranks)
    first, last = start.step if start else 0, _last_step(config.train, lanes)
    if first > last:
        raise ValueError(
            f"--out is '{run.url}', where {first} steps are done already, more than the {last} of train.steps or "
            "train.epochs; raise them or choose another --out"
        )
    loader = Loader(files, config.data, lanes, ranks.rank, ranks.world_size, config.train.seed, config.data.shuffle)

    def rehearse() -> None:
        job.rehearse(next(loader.batches(0, 1)).to(ranks.device))

    if start:
        rehearse()
        clock = time.monotonic()
        restore(start, all_tensors(job.model, job.optimizers), ranks)
        restore_seconds += time.monotonic() - clock
        origin = from_main(ranks, lambda: json.loads(run.read("run.json") or "{}").get("finetune"))
    else:
        origin = finetune(config.finetune, config.data, job, rehearse, ranks)
    report = Report(run, config.report, ranks, last, first, start.progress["running"] if start else None)
    batches = Stopwatch(loader.batches(first, last))
    saver = Saver(checkpoints, config.checkpoint, ranks, first, report.say, report.evaluations, lock.check)
    session = Session(
        config, ranks, run, files, lanes, job, saver, evaluator, report, batches, stop, watchdog, first, last
    )
    _introduce(session, start, restore_seconds, origin)
    return session


def _clean_up(checkpoints: Checkpoints) -> None:
    try:
        for name in checkpoints.remove_leftovers():
            print(f"checkpoint {name} was never committed; what was left of it is deleted", flush=True)
    except OSError as error:
        print(f"what a save left that was never committed cannot be deleted: {error}", flush=True)


def _last_step(config: TrainConfig, lanes: Lanes) -> int:
    return config.steps if config.steps is not None else (config.epochs or 0) * lanes.steps


def _make_lanes(config: Config, files: FileSet, ranks: Ranks, start: Checkpoint | None) -> Lanes:
    recorded = start.progress["lanes"] if start else default_lanes(ranks.world_size)
    number = config.data.lanes or recorded
    check_lanes(number, ranks.world_size, config.data.global_batch_size)
    lanes = Lanes(files.rows, number, config.data.global_batch_size, config.data.last_batch == "keep")
    if lanes.steps == 0:
        raise ValueError(
            f"data.global_batch_size is {lanes.global_batch_size}, more than the {files.rows} rows to train on, and "
            "data.last_batch is 'drop'; use a smaller batch or 'keep'"
        )
    if start:
        check_start(start, number, config, files)
    return lanes


def _introduce(
    session: Session, start: Checkpoint | None, restore_seconds: float, origin: dict[str, Any] | None
) -> None:
    """Prints what is about to happen, and writes plan.json and run.json."""
    job, report, sent = session.job, session.report, session.job.sent_bytes
    if session.ranks.is_main:
        facts = {
            "plan": digest(job.plan_json),
            "data": session.files.fingerprint,
            "lanes": session.lanes.lanes,
            "sent_bytes_per_step": sent,
            **({"restore_seconds": round(restore_seconds, 3)} if start else {}),
            **({"finetune": origin} if origin else {}),
            "state": "running",
        }
        session.run.write_json("plan.json", job.plan_json)
        session.run.write_json("run.json", describe_run(session.ranks, **facts))
    report.say(f"{job.plan_table}\n")
    report.say(
        f"{session.files.rows:,} rows in {len(session.files.files):,} files, {session.lanes.steps:,} steps per epoch, "
        f"{session.ranks.world_size} ranks on {session.ranks.device.type}"
    )
    report.say(
        "embeddings sent between ranks per step: "
        + ", ".join(
            f"{direction} {sent[direction] / 2**20:,.2f} MiB ({precision}; {sent['fp32'] / 2**20:,.2f} in fp32)"
            for direction, precision in (
                ("forward", session.config.comms.forward),
                ("backward", session.config.comms.backward),
            )
        )
    )
    if start:
        report.say(f"going on after step {start.step:,} from {start.url}, restored in {restore_seconds:.1f} s")
    report.say(f"run directory {session.run.url}; watch: torchx run tools.tensorboard --logdir {session.run.url}\n")
