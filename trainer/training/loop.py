"""The training loop."""

from trainer.config.root import Config, check_training
from trainer.core.distributed import DistributedContext, process_group
from trainer.run.preemption import Action
from trainer.run.preflight import preflight
from trainer.training.finish import finish
from trainer.training.resume import Resume
from trainer.training.session import Session
from trainer.training.setup import open_session


def train(config: Config, out: str, resume: Resume = "auto") -> None:
    """Trains a model. CONFIG is a TOML file, or the name of a ready-made configuration.

    Args:
        config: The configuration.
        out: The run directory, any fsspec URL.
        resume: auto resumes if there is a checkpoint; must fails if there is none; never fails if there is one.

    Raises:
        InputError: The configuration, the data or the run directory cannot be used.
        Stopped: A signal requested a stop.
    """
    check_training(config)
    with process_group(config.train.collective_timeout_seconds) as context:
        if config.train.preflight_seconds:
            preflight(context, config.train.preflight_seconds)
        _train(config, out, resume, context)


def _train(config: Config, out: str, resume: Resume, context: DistributedContext) -> None:
    with open_session(config, out, resume, context) as session:
        run(session)


def run(session: Session) -> None:
    """Trains from the first step to the last, and evaluates the result."""
    training_step = session.training_step()
    step, last = session.order.steps_done, session.order.last_step

    # An evaluation that a stop interrupted is made up for, so that a resumed run has the lines of any other.
    if session.lacks_evaluation():
        session.evaluate(step, training_step.detach(), "validation")
    for step in session.steps():
        result = training_step.take(step, session.batches)
        session.record(step, result)
        action = session.requested_action(step)
        if session.saver.due(step) or step == last or action is Action.SAVE:
            session.save(step)
        if session.evaluator.due(step) and step < last:
            session.evaluate(step, training_step.detach(), "validation")
        if action is Action.STOP:
            session.stop(step)  # raises Stopped

    finish(session, step, training_step)
