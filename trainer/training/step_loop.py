"""The loop over the steps of a session: takes, reports, saves and evaluates, until the last step or a signal."""

from trainer.run.preemption import Action
from trainer.training.session import Session
from trainer.training.step import TrainingStep


def take_steps(session: Session, training_step: TrainingStep) -> int:
    """Takes the steps that are left and returns the last.

    Raises:
        Stopped: A signal requested a stop.
    """
    step, last = session.order.steps_done, session.order.last_step

    # If a stop interrupted an evaluation, it is repeated, so that the files of a resumed run lack no line.
    if session.lacks_evaluation():
        session.evaluate(step, training_step.detach(), "validation")
    for step in session.steps():
        # The order matters. All ranks agree on the action before a save, so that they save together. The save comes
        # before the evaluation, so that a failure or a stop during the evaluation loses no steps.
        result = training_step.take(step, session.batches)
        session.record(step, result)
        session.tune(step)
        action = session.requested_action(step)
        if session.save_due(step) or step == last or action is Action.SAVE:
            session.save(step)
        if session.evaluation_due(step) and step < last:
            session.evaluate(step, training_step.detach(), "validation")
        if action is Action.STOP:
            session.stop(step)  # always raises Stopped
    return step
