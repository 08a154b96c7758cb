"""The loop."""

from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from trainer.config import Config, check_length
from trainer.distributed import Ranks, process_group
from trainer.preemption import Wish
from trainer.run import Resume
from trainer.session import Session, open_session


def train(config: Config, out: str, resume: Resume) -> None:
    """Trains a model, from scratch or from the newest checkpoint of the run directory.

    Args:
        config: The configuration.
        out: The run directory, any fsspec URL.
        resume: auto goes on from a checkpoint if there is one, must refuses to start without, never refuses to start
            with one.

    Raises:
        ValueError: The configuration, the data or the run directory cannot be used.
        Stopped: A signal asked training to stop.
    """
    check_length(config)
    with process_group() as ranks:
        _train(config, out, resume, ranks)


def _train(config: Config, out: str, resume: Resume, ranks: Ranks) -> None:
    with open_session(config, out, resume, ranks) as session:
        run(session)


def run(session: Session) -> None:
    """Takes a training run from its first step to its last, and evaluates what came out."""
    model, optimizers, last = session.job.model, session.job.optimizers, session.last_step
    pipeline = TrainPipelineSparseDist(model, optimizers.combined, session.ranks.device)

    if session.lacks_evaluation():
        session.evaluate(session.first_step, pipeline.detach(), ["validation"])
    for step in range(session.first_step + 1, last + 1):
        optimizers.set_rates(step)
        loss, *_ = pipeline.progress(session.batches)
        session.note(step, loss)
        wish = session.stop.agree(save=session.saver.overdue())
        if session.saver.due(step) or step == last or wish is Wish.SAVE:
            session.save(step)
        if session.evaluator.due(step) and step < last:
            session.evaluate(step, pipeline.detach(), ["validation"])
        if wish is Wish.STOP:
            session.leave(step)

    session.finish(session.evaluate(last, pipeline.detach(), session.evaluator.splits))
