"""The training loop."""

from trainer.config.root import Config, check_training
from trainer.core.distributed import DistributedContext, process_group
from trainer.training.extensions import check_extensions, found
from trainer.training.finish import finish
from trainer.training.resume import Resume
from trainer.training.segments import train_on_segments
from trainer.training.session import Session
from trainer.training.setup import open_session
from trainer.training.take_steps import take_steps


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
        if config.data.segments.path:
            train_on_segments(config, out, resume, context)
        else:
            _train(config, out, resume, context)


def _train(config: Config, out: str, resume: Resume, context: DistributedContext) -> None:
    with open_session(config, out, resume, context) as session:
        run(session)


def run(session: Session) -> None:
    """Trains from the first step to the last, and evaluates the result."""
    training_step = session.training_step()
    step = take_steps(session, training_step)
    finish(session, step, training_step)
