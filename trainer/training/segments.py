"""Training on segments of data, such as days: the model is evaluated on each, then trained on it once, in their order.

The position of such a run is a segment and a step, and both are in every checkpoint. What is known of a segment that is
done follows from its checkpoint and from evaluations.jsonl, so that `segments.jsonl` does not depend on where jobs were
killed.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tabulate import tabulate

from trainer.checkpoint.store import Checkpoints
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, broadcast_when_done
from trainer.core.errors import InputError, NoRows
from trainer.core.outcome import FINISHED_WORD, SAVED_WORD, STOPPED_WORD, write_outcome
from trainer.core.run_directory import JsonLines
from trainer.core.secrets import without_secrets
from trainer.data.catalogue import Catalogue
from trainer.data.dataset import FileSet
from trainer.data.loader import Loader
from trainer.data.negatives import Negatives
from trainer.data.segments import Segment, look_at_segment, names_of_segments
from trainer.data.selected_files import find_training_files
from trainer.run.page import segments_table, write_page
from trainer.run.preemption import Action, Stopped
from trainer.training.evaluate import Evaluator, open_catalogue
from trainer.training.finish import require_saved
from trainer.training.resume import Resume, check_start
from trainer.training.session import EpochOrder, SegmentPlace, Session
from trainer.training.setup import (
    Job,
    announce,
    begin_job,
    continue_chain,
    first_step_state,
    plan_lanes,
    restore_or_finetune,
    session_of,
)
from trainer.training.sharded_model import ShardedModel, build_sharded_model
from trainer.training.take_steps import take_steps

LEDGER = "segments.jsonl"
LOOKED_AT_AGAIN = 30  # of the segments that are done, for changes; each takes a listing
TICK_SECONDS = 1.0  # between two looks for a signal
SHOWN = 10  # segments at the end


def train_on_segments(config: Config, out: str, resume: Resume, context: DistributedContext) -> None:
    """Trains on the segments that are complete and not done yet; with `follow`, waits for further ones.

    Raises:
        InputError: The configuration, the data or the run directory cannot be used.
        Stopped: A signal requested a stop.
    """
    with begin_job(config, out, resume, context) as job:
        Chain(job).run()


class Chain:
    """A run over segments, from the position of its newest checkpoint on.

    Args:
        job: What the job holds.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._context, self._config = job, job.claimed.context, job.claimed.config
        self._directory, start = job.claimed.directory, job.claimed.start
        self._start, self._steps = start, start.step if start else 0
        self._place = SegmentPlace(**start.train_state["segment"]) if start else None
        self._after = self._place.name if self._place else None  # the last segment that was looked at
        self._step_state = first_step_state(job.claimed)
        self._model: ShardedModel | None = None
        self._catalogue: Catalogue | None = None
        self._done = 0  # segments, by this job

    def run(self) -> None:
        """Trains on each segment until there is no more."""
        broadcast_when_done(self._context, self._begin)
        while self._wanted() and (segment := self._next()):
            order = self._plan(segment)
            if order is None:
                self._pass_over(segment)
                continue
            self._train(order)
        self._end()

    def _begin(self) -> None:
        """Notes a segment that was done when a job was killed, and tells which trained data changed; on rank 0."""
        if self._place and self._steps == self._place.last_step:
            self._note(self._place)
        for what in self._changes(JsonLines(self._directory, LEDGER, self._steps).records()):
            if self._config.data.segments.changed == "stop":
                raise InputError(f"{what}; data.segments.changed = 'tell' goes on without it")
            self._say(f"warning: {what}; training goes on without it")

    def _changes(self, done: Sequence[Mapping[str, Any]]) -> list[str]:
        """Returns what is new or different of the segments up to the last that was trained on."""
        if not self._place:
            return []
        there = [name for name in names_of_segments(self._config.data.segments) if name <= self._place.name]
        known = {line["segment"]: line["fingerprint"] for line in done} | {self._place.name: None}
        after = f"came after segment {self._place.name} was trained on"
        found = [f"segment {name} {after}" for name in there if name not in known]
        for name, fingerprint in [*known.items()][-LOOKED_AT_AGAIN:]:
            if fingerprint and name in there and look_at_segment(self._config.data, name).fingerprint != fingerprint:
                found.append(f"the files of segment {name} changed after it was trained on")
        return found

    def _pass_over(self, segment: Segment) -> None:
        self._say(f"segment {segment.name} has no rows, and is passed over")
        self._after = segment.name
        broadcast_from_rank0(self._context, lambda: self._note(self._place_of(segment, samples=0, steps=0)))

    @property
    def _under_way(self) -> SegmentPlace | None:
        """The segment that was trained on in part when the checkpoint was saved."""
        return self._place if self._place and self._steps < self._place.last_step else None

    def _place_of(self, segment: Segment, samples: int, steps: int) -> SegmentPlace:
        """Returns the place of a segment: that which is under way, or the next."""
        number = self._place.number + 1 if self._place else 0
        first_step = self._steps
        if under_way := self._under_way:
            number, first_step = under_way.number, under_way.first_step
        return SegmentPlace(
            name=segment.name,
            number=number,
            first_step=first_step,
            last_step=first_step + steps,
            samples=samples,
            files=len(segment.files),
            fingerprint=segment.fingerprint,
        )

    def _wanted(self) -> bool:
        most = self._config.data.segments.most
        return most is None or self._done < most

    def _next(self) -> Segment | None:
        """Returns the segment to train on, None if there is none and the job does not wait for one.

        Raises:
            Stopped: A signal requested a stop.
        """
        told = False
        while True:
            found = broadcast_when_done(self._context, self._look)
            if found and not found.lacks:
                return found
            config = self._config.data.segments
            lacks = f"segment {found.name} {found.lacks}" if found else f"there is no segment{self._after_words()}"
            if not config.follow or (config.until is not None and self._after == config.until):
                self._say(lacks)
                return None
            if not told:
                self._say(f"{lacks}; waiting, and looking every {config.poll_seconds:,.0f} s")
            told = True
            self._wait(config.poll_seconds)

    def _look(self) -> Segment | None:
        """Returns the segment that is under way or the one after it, complete or not; on rank 0."""
        if self._under_way:
            return look_at_segment(self._config.data, self._under_way.name)
        names = names_of_segments(self._config.data.segments)
        name = next((name for name in names if self._after is None or name > self._after), None)
        return None if name is None else look_at_segment(self._config.data, name)

    def _wait(self, seconds: float) -> None:
        self._job.watchdog.note("the wait for the next segment")
        deadline = time.monotonic() + seconds
        # Rank 0's clock counts, or ranks would ask each other different numbers of times.
        while broadcast_from_rank0(self._context, lambda: time.monotonic() < deadline):
            if self._job.stop_requests.all_reduce() is Action.STOP:
                url = Checkpoints(self._directory).url(self._steps)
                saved = f"{SAVED_WORD} {url}" if self._steps else "nothing saved"
                self._record("stopped", f"{STOPPED_WORD} at step {self._steps}, {saved}")
                raise Stopped
            time.sleep(min(TICK_SECONDS, seconds))

    def _plan(self, segment: Segment) -> EpochOrder | None:
        """Decides the order of a segment's samples; None if it has none.

        Raises:
            InputError: The data cannot be used, or changed since the checkpoint.
        """
        config, context, seed = self._config, self._context, self._config.train.seed
        data = config.data.model_copy(update={"train": [*segment.files]})

        def find() -> FileSet | None:
            try:
                return find_training_files(data, seed)
            except NoRows:
                if self._under_way:
                    raise
                return None

        if (files := broadcast_when_done(context, find)) is None:
            return None
        lanes = plan_lanes(config, files, self._start, context)
        if self._start:
            check_start(self._start, lanes.lanes, config, files if self._under_way else None)
        place = self._place_of(segment, files.rows, lanes.steps)
        if config.data.catalogue.items and self._catalogue is None:
            self._catalogue = open_catalogue(config, context, files.files[0], self._start)
        negatives = Negatives(self._catalogue, config.data, seed) if self._catalogue else None
        rank, world = context.rank, context.world_size
        return EpochOrder(
            files=files,
            lanes=lanes,
            loader=Loader(files, config.data, lanes, rank, world, seed, config.data.shuffle, negatives),
            catalogue=self._catalogue,
            steps_done=self._steps,
            last_step=place.last_step,
            segment=place,
        )

    def _train(self, order: EpochOrder) -> None:
        """Evaluates on a segment, unless that is done, trains on it, saves, and notes it."""
        assert order.segment
        config, place = self._config, order.segment
        urls = [file.url for file in order.files.files]
        data = config.data.model_copy(update={"validation": urls})
        evaluator = Evaluator(config.model_copy(update={"data": data}), self._context, order.catalogue)
        is_first, origin = self._model is None, {}
        if self._model is None:
            self._model = build_sharded_model(config, self._context, order.lanes, self._directory)
            origin = restore_or_finetune(self._job.claimed, self._model, order)
            continue_chain(self._job, self._model)
        with session_of(self._job, order, evaluator, self._model, self._step_state) as session:
            if is_first:
                announce(session, origin)
            samples = plural(place.samples, "sample")
            self._say(f"segment {place.name}: {samples}, steps {place.first_step + 1:,} to {place.last_step:,}")
            self._evaluate_and_train(session, place)
            self._steps, self._place, self._after = place.last_step, place, place.name
        self._done += 1
        broadcast_from_rank0(self._context, lambda: self._note(place))

    def _evaluate_and_train(self, session: Session, place: SegmentPlace) -> None:
        training_step = session.training_step()
        if self._steps == place.first_step and not session.is_validated(self._steps):
            session.evaluate(self._steps, training_step.detach(), "validation")
        take_steps(session, training_step)
        training_step.detach()
        session.model.managed.end()
        require_saved(session, place.last_step)
        session.reporter.close()

    def _note(self, place: SegmentPlace) -> None:
        """Adds the line of a segment that is done, unless it is there; on rank 0."""
        ledger = JsonLines(self._directory, LEDGER, self._steps)
        if any(line["segment"] == place.name for line in ledger.records()):
            return
        evaluated = {
            line["step"]: {name: value for name, value in line.items() if name not in ("step", "split")}
            for line in self._directory.read_records("evaluations.jsonl")
            if line["split"] == "validation"
        }
        facts = asdict(place)
        line = {"step": facts.pop("last_step"), "segment": facts.pop("name"), **facts}
        ledger.add(line | {"before": evaluated.get(place.first_step) if place.samples else None})
        ledger.flush()

    def _end(self) -> None:
        if not self._steps:
            raise InputError(
                f"data.segments.path is '{self._config.data.segments.path}', where no segment is there to train on; "
                "check the path, or wait for one with data.segments.follow"
            )
        after = f" after segment {self._place.name}" if self._place else ""
        self._record("finished", f"{FINISHED_WORD} at step {self._steps}{after}")
        if self._context.is_rank0:
            header, *rows = segments_table(self._directory.read_records(LEDGER)[-SHOWN:])
            table = tabulate(rows, header, disable_numparse=True)
            self._say(f"\n{table}\n\nThe same command goes on with the next.")

    def _record(self, state: str, outcome: str) -> None:
        if self._context.is_rank0:
            facts = self._directory.read_json("run.json") or {}
            self._directory.write_json("run.json", facts | {"state": state, "step": self._steps, "outcome": outcome})
            write_outcome(without_secrets(outcome))
            write_page(self._directory)

    def _after_words(self) -> str:
        return f" after {self._after}" if self._after else ""

    def _say(self, text: str) -> None:
        if self._context.is_rank0:
            print(without_secrets(text), flush=True)
