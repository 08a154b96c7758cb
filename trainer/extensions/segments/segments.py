"""Training on segments of data, such as days: the model is evaluated on each, then trained on it once, in their order.

With data.validation, which lies ahead of all segments, it is evaluated on that in between instead.

The position of such a run is a segment, a step and the last name reached, and all three are in every checkpoint.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from tabulate import tabulate

from trainer.batches.catalogue import Catalogue
from trainer.checkpoint.retention import named_ends
from trainer.checkpoint.store import Checkpoints
from trainer.core.console import plural
from trainer.core.distributed import broadcast_from_rank0, broadcast_when_done
from trainer.core.errors import InputError, NoRows, some_of
from trainer.core.outcome import FINISHED_WORD, SAVED_WORD, STOPPED_WORD
from trainer.core.progress import PROGRESS
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import FileSet
from trainer.data.row_groups import find_training_files
from trainer.data.segments import Segment, contents_of, is_left_out, look_at_segment, names_of_segments
from trainer.extensions.segments.backlog import Backlog
from trainer.extensions.segments.ledger import LEDGER, Ledger, Line, SegmentPlace, fingerprints
from trainer.pages.segments import segments_table
from trainer.run.preemption import Action, Stopped
from trainer.training.epochs import EpochOrder, held_types, open_loader, plan_lanes
from trainer.training.evaluate import open_catalogue
from trainer.training.finish import Finished
from trainer.training.resume import check_start
from trainer.training.session import record_end
from trainer.training.setup import Job

LOOKED_AT_AGAIN = 30  # number of finished segments that are checked for changes; each takes a listing
TICK_SECONDS = 1.0  # interval of looking for a signal
SHOWN = 10  # number of segments in the table at the end, and of names in a line
GO_BACK = "tools.rewind goes back to the end of a segment before"


class Segments:
    """Drives a run over the segments that are complete and not done yet; with `follow`, waits for further ones.

    Args:
        job: What the job holds.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._context, self._config = job, job.claimed.context, job.claimed.config
        self._log = job.claimed.log
        self._directory, start = job.claimed.directory, job.claimed.start
        self._start, self._steps = start, start.step if start else 0
        saved = start.train_state["segment"] if start else None
        self._place = SegmentPlace(**{"reached": saved["name"]} | saved) if saved else None  # once it was not saved
        self._evaluates_each = not self._config.data.validation
        self._ledger = Ledger(self._directory, self._evaluates_each)
        self._backlog = Backlog(self._config.data, self._log)
        self._looks_for_changes = True  # in the segments that are done
        self._told: set[str] = set()
        self._catalogue: Catalogue | None = None
        self._types: RecordedTypes | None = None
        self._done = 0  # segments, by this job

    def orders(self) -> Iterator[EpochOrder]:
        """Yields the order of each segment's samples until there is no more, and notes the segments that are done.

        Raises:
            InputError: The data cannot be used.
            Stopped: A signal requested a stop.
        """
        broadcast_when_done(self._context, self._begin)
        while self._wanted() and (segment := self._next()):
            order = self._plan(segment)
            if isinstance(order, str):
                self._pass_over(segment, order)
                continue
            place = SegmentPlace(**order.state["segment"])
            steps = f"steps {place.first_step + 1:,} to {place.last_step:,}"
            if self._context.is_rank0:
                self._backlog.begin(place.name, self._trained, f"{plural(place.samples, 'sample')}, {steps}")
            yield order
            self._steps, self._place = place.last_step, place
            self._done += 1
            broadcast_from_rank0(self._context, lambda place=place: self._ledger.note(place))

    def end(self, finished: Finished | None) -> None:
        """Records how the run ended, and prints the evaluations on the last segments.

        Raises:
            InputError: There was no segment to train on.
        """
        if not self._steps and not finished:
            raise InputError(
                f"data.segments.path is '{self._config.data.segments.path}', where no segment is there to train on; "
                "check the path, or wait for one with data.segments.follow"
            )
        if finished and finished.early:  # inside of a segment, which stays under way
            outcome = f"{FINISHED_WORD} at step {finished.step}, {finished.early}"
            record_end(self._job.claimed, "finished", finished.step, outcome)
            return
        after = f" after segment {self._place.name}" if self._place else ""
        record_end(self._job.claimed, "finished", self._steps, f"{FINISHED_WORD} at step {self._steps}{after}")
        if self._context.is_rank0:
            header, *rows = segments_table(self._directory.read_records(LEDGER)[-SHOWN:])
            table = tabulate(rows, header, disable_numparse=True)
            self._log(f"\n{table}\n\nThe same command goes on with the next.")

    def _begin(self) -> None:
        """Brings the ledger to the step of the checkpoint, and checks it and `skip` against that; on rank 0.

        Raises:
            InputError: The ledger lacks segments, or `skip` leaves out the segment that is under way.
        """
        self._ledger.cut(self._steps if self._place else -1)
        if not self._place:
            return
        if not self._under_way:
            self._ledger.note(self._place)
        config, done = self._config.data.segments, self._place.number + (not self._under_way)
        if len(trained := self._trained()) != done:
            self._restore_ledger()
            trained = self._trained()
        if config.changed == "train" and len(trained) != done:
            raise InputError(
                f"data.segments.changed is 'train', but '{self._directory.url_of(LEDGER)}' has {len(trained)} of "
                f"{plural(done, 'segment')} that the run was trained on, and the others would be again; put the file "
                "back, or use 'tell'"
            )
        if self._under_way and is_left_out(config, self._under_way.name):
            raise InputError(
                f"data.segments.skip leaves out segment {self._under_way.name}, which is trained on up to step "
                f"{self._steps:,} of {self._under_way.last_step:,}; {GO_BACK}"
            )
        if left_out := [name for name in dict.fromkeys(trained) if is_left_out(config, name)]:
            self._tell(f"data.segments.skip leaves out {_listed(left_out)}, already trained on; {GO_BACK}")

    def _trained(self) -> list[str]:
        return [line["segment"] for line in self._ledger.lines() if line["samples"]]

    def _restore_ledger(self) -> None:
        """Adds the lines that are lost of segments whose ends have checkpoints, which are committed before the line."""
        checkpoints = self._job.claimed.checkpoints
        for step in checkpoints.steps():
            if step <= self._steps and step in named_ends(checkpoints, [step]):
                self._ledger.note(SegmentPlace(**{"reached": ""} | checkpoints.at(step).train_state["segment"]))

    def _pass_over(self, segment: Segment, why: str) -> None:
        self._log(f"segment {segment.name} has {why}, and is passed over")
        broadcast_from_rank0(self._context, lambda: self._ledger.note(self._place_of(segment, samples=0, steps=0)))

    @property
    def _under_way(self) -> SegmentPlace | None:
        """The segment that was trained on in part when the checkpoint was saved."""
        return self._place if self._place and self._steps < self._place.last_step else None

    @property
    def _reached(self) -> str | None:
        """The last name among the segments that were trained on, and the one that is under way."""
        return self._place.reached if self._place else None

    def _place_of(self, segment: Segment, samples: int, steps: int, contents: str = "") -> SegmentPlace:
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
            reached=max(segment.name, self._reached or ""),
            contents=contents,
        )

    def _wanted(self) -> bool:
        most = self._config.data.segments.most
        return most is None or self._done < most

    def _next(self) -> Segment | None:
        """Returns the segment to train on, None if there is none and the job does not wait for one.

        Raises:
            Stopped: A signal requested a stop.
        """
        config, told = self._config.data.segments, ""
        while True:
            found, is_over = broadcast_when_done(self._context, self._look)
            if found and not found.lacks:
                return found
            after = f" after {self._reached}" if self._reached else ""
            lacks = f"segment {found.name} {found.lacks}" if found else f"there is no segment{after}"
            if is_over or not config.follow:
                self._log(lacks)
                return None
            if lacks != told:
                self._log(f"{lacks}; waiting, and looking every {config.poll_seconds:,.0f} s")
            told = lacks
            self._wait(config.poll_seconds)

    def _look(self) -> tuple[Segment | None, bool]:
        """Returns the next segment, complete or not, and whether there is none because `until` is passed; on rank 0."""
        data, config = self._config.data, self._config.data.segments
        if self._under_way:
            return look_at_segment(data, self._under_way.name), False
        names, lines = names_of_segments(config), self._ledger.lines()
        self._backlog.found(names)
        if again := self._late_or_changed(names, lines):
            return again, False
        reached, known = self._reached or "", fingerprints(lines)
        ahead = [name for name in names if name > reached]
        for name in ahead:
            if is_left_out(config, name):
                continue
            segment = look_at_segment(data, name)
            if known.get(name) != segment.fingerprint:  # or it is known to be empty
                self._tell_left_out(one for one in ahead if one < name)
                return segment, False
        self._tell_left_out(ahead)
        return None, config.until is not None and (config.until in names or reached >= config.until)

    def _late_or_changed(self, names: Sequence[str], lines: Sequence[Line]) -> Segment | None:
        """Returns the first segment to train on late or again, and reports segments that are left as they are.

        Raises:
            InputError: There is one, and `changed` is "stop".
        """
        asked_for = self._config.data.segments.changed
        for name, what in self._changes(names, lines):
            if asked_for == "stop":
                raise InputError(f"{what}; data.segments.changed = 'tell' goes on without it")
            if asked_for == "tell":
                self._tell(f"{what}; training goes on without it")
                continue
            segment = look_at_segment(self._config.data, name)
            if not segment.lacks:
                self._log(f"{what}; it is trained on now")
                return segment
            self._tell(f"{what}, but it {segment.lacks}; training goes on, and it is looked at again")
        self._looks_for_changes = False
        return None

    def _changes(self, names: Sequence[str], lines: Sequence[Line]) -> Iterator[tuple[str, str]]:
        """Yields the segments up to the last name reached that are late or changed, with a description of each."""
        data, known = self._config.data, fingerprints(lines)
        looked_at = {line["segment"] for line in lines[-LOOKED_AT_AGAIN:] if self._looks_for_changes}
        for name in names:
            if name > (self._reached or "") or is_left_out(data.segments, name):
                continue
            if name not in known:
                yield name, f"segment {name} came after a later segment was trained on"
            elif name in looked_at and look_at_segment(data, name).fingerprint != known[name]:
                yield name, f"the files of segment {name} changed after it was trained on"

    def _wait(self, seconds: float) -> None:
        self._job.watchdog.note("the wait for the next segment")
        self._looks_for_changes = True
        if self._context.is_rank0:
            self._backlog.wait(self._trained)
        deadline = time.monotonic() + seconds
        # Rank 0's clock counts, or ranks would ask each other different numbers of times.
        while broadcast_from_rank0(self._context, lambda: time.monotonic() < deadline):
            if self._job.stop_requests.all_reduce() is Action.STOP:
                url = Checkpoints(self._directory).url(self._steps)
                saved = f"{SAVED_WORD} {url}" if self._steps else "nothing saved"
                outcome = f"{STOPPED_WORD} at step {self._steps}, {saved}"
                record_end(self._job.claimed, "stopped", self._steps, outcome)
                raise Stopped
            PROGRESS.doing("the wait for the next segment")
            time.sleep(min(TICK_SECONDS, seconds))

    def _plan(self, segment: Segment) -> EpochOrder | str:
        """Decides the order of a segment's samples; returns in words what it has if there is nothing to train on.

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
            return "no rows"
        for reason in segment.left_out:
            self._log(f"segment {segment.name}: {reason}")
        try:
            lanes = plan_lanes(config, files, self._start, context)
        except NoRows:
            if self._under_way:
                raise
            return f"{plural(files.rows, 'sample')}, fewer than data.global_batch_size where data.last_batch is 'drop'"
        if self._start:
            check_start(self._start, lanes.lanes, config, files if self._under_way else None)
        self._types = held_types(config, files, f"segment {segment.name}", self._start, self._types)
        contents = broadcast_when_done(context, lambda: contents_of(segment.files))
        place = self._place_of(segment, files.rows, lanes.steps, contents)
        if config.data.catalogue.items and self._catalogue is None:
            self._catalogue = open_catalogue(config, context, self._types, files.files[0], self._start)
        return EpochOrder(
            files=files,
            lanes=lanes,
            loader=open_loader(config, files, lanes, self._catalogue, context),
            catalogue=self._catalogue,
            types=self._types,
            steps_done=self._steps,
            last_step=place.last_step,
            steps_before=place.first_step,
            epochs_before=place.number,
            state={"segment": asdict(place)},
            evaluated_first=self._evaluates_each,
            ends=place.name,
            unused_since=broadcast_from_rank0(context, self._unused_since),
        )

    def _unused_since(self) -> int | None:
        """Returns the last step before the newest `forget_after` segments, at the start of another; on rank 0."""
        after = self._config.data.segments.forget_after
        if after is None or self._under_way:  # then it was done at its first step
            return None
        first_steps = [line["first_step"] for line in self._ledger.lines() if line["samples"]]
        return first_steps[-after] if len(first_steps) >= after else None

    def _tell_left_out(self, names: Iterable[str]) -> None:
        left_out = [name for name in names if is_left_out(self._config.data.segments, name) and name not in self._told]
        self._told.update(left_out)
        if left_out:
            self._log(f"data.segments.skip leaves out {_listed(left_out)}")

    def _tell(self, what: str) -> None:
        """Warns once."""
        if what not in self._told:
            self._log(f"warning: {what}")
        self._told.add(what)


def _listed(names: Sequence[str]) -> str:
    """Returns segments in words, the first few by name."""
    return f"{'segment' if len(names) == 1 else 'segments'} {some_of(names, SHOWN)}"
