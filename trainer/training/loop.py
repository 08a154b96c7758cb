"""The training loop: from a configuration to a finished run.

Read it from top to bottom. `train` starts the process group, `run` goes through the orders of samples, `_train_on`
trains on a single order. The steps themselves are in `step_loop.py`.
"""

from trainer.config.root import Config, check_training
from trainer.core.distributed import DistributedContext, process_group
from trainer.training.driver import Driver, OneOrder
from trainer.training.epochs import EpochOrder
from trainer.training.extensions import check_extensions, found
from trainer.training.finish import Finished, finish
from trainer.training.resume import Resume
from trainer.training.setup import Job, begin_job, session_of
from trainer.training.sharded_model import ShardedModel
from trainer.training.step_loop import take_steps


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
    check_extensions(config)
    with process_group(config.train.collective_timeout_seconds) as context:
        for start in found(config, "start"):
            start(config, context)
        _train(config, out, resume, context)


def _train(config: Config, out: str, resume: Resume, context: DistributedContext) -> None:
    # A function of its own because its frame holds the job and the model: both must be gone before the process group
    # ends.
    with begin_job(config, out, resume, context) as job:
        run(job)


def run(job: Job) -> None:
    """Trains on each order of samples that is left, and records how the run ended."""
    driver: Driver = next(found(job.claimed.config, "driver"), OneOrder)(job)
    finished: Finished | None = None
    for order in driver.orders():
        finished = _train_on(job, order, finished.model if finished else None)
        if finished.early:
            break
    driver.end(finished)


def _train_on(job: Job, order: EpochOrder, model: ShardedModel | None) -> Finished:
    with session_of(job, order, model) as session:
        training_step = session.training_step()
        step = take_steps(session, training_step)
        return finish(session, step, training_step)
