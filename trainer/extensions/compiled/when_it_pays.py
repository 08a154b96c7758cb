"""`train.compile = "auto"`: compiles the dense part once a few steps show that what is left of the run pays for it.

Compiling changes rounding, so the step from which on the dense part is compiled is a fact of the run. compile.json has
it before that step is taken, and before the step that it was decided after is saved. So a job that is killed at any
moment, and resumed on any number of ranks, ends with the bits that the run would have had.
"""

import time
from collections import deque
from itertools import pairwise
from statistics import median
from typing import Any

from trainer.core.distributed import broadcast_from_rank0
from trainer.core.errors import DamagedError, first_line
from trainer.core.progress import duration
from trainer.core.run_directory import pass_over
from trainer.extensions.compiled import DECIDED
from trainer.models.tasks import ModelWithLoss
from trainer.plan.dense_part import dense_part
from trainer.run.reporter import tolerate_failed_writes
from trainer.training.session import Session

MEASURED = 30
"""Steps that the decision waits for; the first of them allocate memory and load kernels."""
SAVED_SECONDS, SAVED_SHARE = 9e-6, 0.5
"""What compiling saves for each operation of a step, and the share of a step that it saves at most.

On a core, DeepFM in batches of 1,024 took 2.15 ms a step in place of 2.9, of 82 operations. Where matrices take the
time nothing else was saved: DLRM of 26 tables has 55 operations and trained equally fast.
"""


class CompileWhenItPays:
    """Decides once, after `MEASURED` steps, and again if the run is made longer.

    Args:
        session: The run.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._times = session, deque([time.monotonic()], maxlen=MEASURED)
        self._decides_after = self._compiles_after = 0
        if session.config.train.compile != "auto":
            return
        decided = broadcast_from_rank0(session.context, self._read)
        if (first_step := decided.get("first_step")) is not None:
            self._compiles_after = first_step - 1
        elif not decided or decided["last_step"] < session.order.last_step:
            self._decides_after = decided.get("last_step", 0) + MEASURED
        self._turn_on(session.order.steps_done)

    def after_step(self, step: int) -> None:
        """Measures a step, and decides after the last step that is measured."""
        if self._decides_after:
            self._times.append(time.monotonic())
            if step >= self._decides_after:
                self._decides_after = 0
                decided = broadcast_from_rank0(self._session.context, lambda: self._decide(step))
                self._compiles_after = 0 if decided["first_step"] is None else step
        self._turn_on(step)

    def _read(self) -> dict[str, Any]:
        """Returns what was decided earlier; empty if nothing was."""
        try:
            return self._session.directory.read_json(DECIDED) or {}
        except DamagedError as error:
            pass_over(error)
            return {}

    def _decide(self, step: int) -> dict[str, Any]:
        """Returns the decision, which is in the run's files by then. On rank 0."""
        from trainer.extensions.compiled.graph_file import Costs  # an import that other starts do not need

        session = self._session
        config, steps_left = session.config, session.order.last_step - step
        seconds = median(after - before for before, after in pairwise(self._times))
        if config.data.segments.path:  # more may come: expect the run to go on for as long as it has gone
            steps_left = max(steps_left, step)
        operations = dense_part(config, session.context.world_size).work.kernels
        saved = steps_left * min(operations * SAVED_SECONDS, seconds * SAVED_SHARE)
        cost = Costs(config).seconds()
        left = duration(steps_left * seconds)
        balance = f"it takes about {cost:,.1f} s and saves about {saved:,.1f} s of the {left} left"
        if not operations:
            why_not = "not compiled, as its model takes no step without values"
        else:
            why_not = self._why_not() if saved > cost else f"not compiled, as {balance}"
        session.reporter.log(f"train.compile = auto: {why_not or f'compiled from step {step + 1:,} on, as {balance}'}")
        return self._write(None if why_not else step + 1, why_not or balance)

    def _why_not(self) -> str | None:
        from trainer.extensions.compiled.one_graph import why_not_one_graph

        why = why_not_one_graph(self._model, self._session.context, self._session.config)
        return why and f"not compiled, as one graph cannot hold the dense part, its loss and its gradients: {why}"

    def _write(self, first_step: int | None, why: str) -> dict[str, Any]:
        """Writes a decision to the run directory and returns it; what could not be written is not done."""
        session = self._session
        decided = {"first_step": first_step, "last_step": session.order.last_step, "why": why}
        with tolerate_failed_writes(session.directory, session.reporter.log):
            session.directory.write_json(DECIDED, decided)
            return decided
        return decided | {"first_step": None}

    @property
    def _model(self) -> ModelWithLoss:
        return next(one for one in self._session.model.model.modules() if isinstance(one, ModelWithLoss))

    def _turn_on(self, step: int) -> None:
        """Has the dense part compiled in the next step, if that is the first to be computed so or a later one."""
        if not self._compiles_after or step < self._compiles_after or self._model.with_gradients:
            return
        from trainer.extensions.compiled.one_graph import LossWithGradients

        self._compiles_after = 0
        try:
            graph = LossWithGradients(self._model, self._session.context, self._session.config, self._made)
        except TypeError as error:  # a part of the user's own cannot be copied
            self._made(first_line(error))
        else:
            self._model.with_gradients = graph

    def _made(self, why: str | None) -> None:
        """Goes on: without compiling, if there is a reason why that failed. All ranks call it."""
        session = self._session
        session.reporter.resume_clock()  # or the estimate of the time left would take all steps to be that slow
        if why is None:
            return
        self._model.with_gradients = None
        session.reporter.log(f"train.compile = auto: not compiled, as that failed: {why}")
        # A signal to all processes of a job ends its compiler as well: the same command is to compile then.
        if session.context.is_rank0 and not session.stop_requests.waiting_seconds:
            self._write(None, why)
