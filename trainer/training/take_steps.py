"""The steps of a session: takes, reports, saves and evaluates, until the last or until a signal."""

from trainer.run.preemption import Action
from trainer.training.session import Session
from trainer.training.step import TrainingStep


def take_steps(session: Session, training_step: TrainingStep) -> int:
    """Takes the steps that are left and returns the last.

    Raises:
        Stopped: A signal requested a stop.
    """
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
    return step
