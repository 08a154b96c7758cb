"""The end of training on an order of samples: the final evaluations and the last save."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from trainer.checkpoint.choice import best_checkpoint
from trainer.checkpoint.restore import restore
from trainer.checkpoint.store import Checkpoints
from trainer.checkpoint.verify import verify_together
from trainer.core.outcome import FAILED
from trainer.core.progress import PROGRESS
from trainer.run.reporter import Reporter
from trainer.training.session import Session
from trainer.training.sharded_model import ShardedModel
from trainer.training.step import TrainingStep


@dataclass(frozen=True)
class Finished:
    """How training on an order of samples ended.

    Attributes:
        model: The model, to continue with on the next order.
        step: Steps done.
        early: Why training ended early; None if it reached the last step of the order.
        evaluated_step: The step whose weights were evaluated last.
        measured: Step times and memory, for run.json; empty if no step was taken.
        reporter: The reports, already closed.
    """

    model: ShardedModel
    step: int
    early: str | None
    evaluated_step: int
    measured: dict[str, Any]
    reporter: Reporter


def finish(session: Session, step: int, training_step: TrainingStep) -> Finished:
    """Evaluates the result of training on an order of samples, and waits until it is saved.

    Args:
        session: The session.
        step: Steps done.
        training_step: The pipeline that took the steps.

    Raises:
        Stopped: A signal requested a stop.
        SystemExit: The last step could not be saved.
    """
    model = training_step.detach()
    measured, early = training_step.clock.measured(session.context), None
    if reason := session.reason_to_stop(step):
        session.reporter.log(f"step {step:,}  training ends early: {reason}")
        _save_unless_saved(session, step)
        early = f"before {session.order.last_step}: {reason}"
    session.model.id_map.end()
    evaluated_step = _evaluate(session, step, model)
    _require_saved(session, step)
    session.reporter.close()
    return Finished(session.model, step, early, evaluated_step, measured, session.reporter)


def _require_saved(session: Session, step: int) -> None:
    """Waits for the checkpoint of the last step. Without it the job fails, so that no scheduler counts it as a success.

    Raises:
        SystemExit: The checkpoint could not be saved.
    """
    PROGRESS.doing("the last save")
    session.saver.wait()
    if session.saver.saved_step != step:
        lost = session.saved(step)
        session.reporter.log(f"error: the last step could not be saved; {lost}; the same command resumes it")
        raise SystemExit(FAILED)


def _save_unless_saved(session: Session, step: int) -> None:
    session.saver.wait()
    if session.saver.saved_step != step:
        session.save(step)


def _evaluate(session: Session, step: int, model: nn.Module) -> int:
    """Runs the final evaluations and returns the step whose weights were evaluated on data.test."""
    splits, order = session.evaluator.splits, session.order
    # A segment is not the end of the run, which has no end of its own.
    is_wanted = not order.evaluated_first and (order.ends is None or session.evaluation_due(step))
    if "validation" in splits and is_wanted and not session.is_validated(step):
        session.evaluate(step, model, "validation")
    evaluated_step = _restore_best(session, step) if session.config.evaluate.final == "best" else step
    if "test" in splits:
        session.evaluate(step, model, "test", of_step=evaluated_step)
    return evaluated_step


def _restore_best(session: Session, step: int) -> int:
    """Fills the model from the best checkpoint and returns its step."""
    session.saver.wait()  # the best checkpoint may be the last, which is still being written
    metric, checkpoints = session.config.checkpoint.keep.best or "", Checkpoints(session.directory)
    best = verify_together(
        session.context, lambda find: best_checkpoint(checkpoints, metric, session.reporter.evaluations(), find)
    )
    # If the last step could not be saved, a stop request would save the best weights under the last step's number.
    if best is None or best.step == step or session.saver.saved_step != step:
        return step
    grows = session.config.checkpoint.grow_tables
    tensors = session.model.restoring_evaluated(best.train_state)
    restore(best, tensors, session.context, partial=True, grown=grows)
    return best.step
