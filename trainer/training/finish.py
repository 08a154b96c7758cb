"""The end of a run, after its last step or early: the final evaluation, and the summary."""

from tabulate import tabulate
from torch import nn

from trainer.checkpoint.choice import best_checkpoint
from trainer.checkpoint.restore import restore
from trainer.checkpoint.store import Checkpoints
from trainer.checkpoint.verify import verify_together
from trainer.core.console import next_commands
from trainer.core.outcome import FAILED, FINISHED_WORD
from trainer.run.page import PAGE
from trainer.run.step_clock import in_words
from trainer.training.session import Session
from trainer.training.step import TrainingStep


def finish(session: Session, step: int, training_step: TrainingStep) -> None:
    """Ends training: evaluates the result, and prints the files of the run and the next commands.

    Args:
        session: The run.
        step: Steps done.
        training_step: The pipeline that took these steps.

    Raises:
        Stopped: A signal requested a stop.
        SystemExit: The last step could not be saved.
    """
    model = training_step.detach()
    outcome, measured = f"{FINISHED_WORD} at step {step}", training_step.clock.measured(session.context)
    if reason := session.reason_to_stop(step):
        outcome += f", before {session.order.last_step}: {reason}"
        session.reporter.log(f"step {step:,}  training ends early: {reason}")
        _save_unless_saved(session, step)
    session.model.id_map.end()
    evaluated_step = _evaluate(session, step, model)
    require_saved(session, step)
    session.reporter.track(evaluated_step, Checkpoints(session.directory).url(evaluated_step))
    if measured:
        session.reporter.log(in_words(measured))
    session.end("finished", step, outcome, measured)
    session.reporter.log(f"\n{_summary(session, step, evaluated_step)}")


def require_saved(session: Session, step: int) -> None:
    """Waits for the checkpoint of the last step, without which a run is no success to a scheduler.

    Raises:
        SystemExit: It could not be saved.
    """
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
    """Makes the final evaluations, and returns the step whose weights were evaluated on data.test."""
    if "validation" in session.evaluator.splits and not session.is_validated(step):
        session.evaluate(step, model, "validation")
    evaluated_step = _restore_best(session, step) if session.config.evaluate.final == "best" else step
    if "test" in session.evaluator.splits:
        session.evaluate(step, model, "test", of_step=evaluated_step)
    return evaluated_step


def _restore_best(session: Session, step: int) -> int:
    """Fills the model from the best checkpoint and returns its step."""
    session.saver.wait()  # the checkpoint of the last step may be the best
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


def _summary(session: Session, step: int, evaluated_step: int) -> str:
    url_of, out = session.directory.url_of, session.directory.url
    checkpoints = Checkpoints(session.directory)
    rows = [["run directory", out], ["checkpoint", checkpoints.url(step)]]
    if evaluated_step != step:
        rows.append(["best checkpoint", checkpoints.url(evaluated_step)])
    rows += [
        ["configuration", url_of("config.toml")],
        ["metrics", url_of("metrics.jsonl")],
        ["evaluations", url_of("evaluations.jsonl")],
        ["page", url_of(PAGE)],
    ]
    if session.config.report.tensorboard:
        rows.append(["TensorBoard", url_of("tensorboard")])
    commands = [
        ["torchx", "run", "tools.tensorboard", "--logdir", out],
        ["torchx", "run", "tools.plan", "--run", out],
    ]
    if splits := session.evaluator.splits:
        split = [] if "test" in splits else ["--split", "validation"]
        commands.append(["torchx", "run", "dlrm.evaluate", "--config", url_of("config.toml"), "--out", out, *split])
    return f"{tabulate(rows, tablefmt='plain')}\n\n{next_commands(*commands)}"
