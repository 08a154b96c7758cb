"""A prediction: finds out what to make of which files, and makes the missing parts on all ranks."""

from dataclasses import dataclass

import pyarrow as pa

from apps.predict.arguments import Arguments, chosen_outputs
from apps.predict.claim import WORDS, Claim, Job, choose_checkpoint, claimed
from apps.predict.record import make_record
from apps.predict.steps import Predictor, predict_parts
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_when_done
from trainer.core.run_directory import RunDirectory
from trainer.data.dataset import FileSet, find_files
from trainer.data.kept import kept_schema
from trainer.run.preemption import stop_on_signals
from trainer.training.evaluate import restore_evaluated


@dataclass(frozen=True, kw_only=True)
class Prediction(Job):
    """A job whose parts are predictions.

    Attributes:
        files: The files to predict.
        kept: The columns to keep.
    """

    files: FileSet
    kept: pa.Schema


def predict_files(config: Config, arguments: Arguments, context: DistributedContext) -> None:
    """Makes the parts of a prediction that are missing, and the manifest.

    Raises:
        InputError: An argument or the data cannot be used, or the directory holds parts of another job.
    """
    with stop_on_signals(context, WORDS) as stop_requests:
        job = broadcast_when_done(context, lambda: _find(config, arguments))
        with claimed(job, stop_requests, context) as claim:
            if claim.missing:
                summary = _make(config, arguments, job, claim, context)
                if context.is_rank0:
                    print(summary)


def _find(config: Config, arguments: Arguments) -> Prediction:
    """Finds everything that a prediction needs, and writes nothing."""
    arguments.check()
    directory = RunDirectory(arguments.to, "--to")
    files = find_files(arguments.source_key, arguments.source, arguments.data(config))
    kept = kept_schema(arguments.keep_key, arguments.keep_columns, files)
    outputs = chosen_outputs(config, arguments.outputs, kept)
    checkpoint = choose_checkpoint(directory, arguments.out, arguments.checkpoint)
    return Prediction(
        directory=directory,
        checkpoint=checkpoint,
        record=make_record(config, arguments, checkpoint, files, kept, outputs),
        rows=files.rows,
        names=arguments.names,
        files=files,
        kept=kept,
    )


def _make(config: Config, arguments: Arguments, job: Prediction, claim: Claim, context: DistributedContext) -> str:
    batch_size = claim.record["batch_size"]
    evaluate = config.evaluate.model_copy(update={"global_batch_size": batch_size * context.world_size})
    config = config.model_copy(update={"evaluate": evaluate})
    data = arguments.data(config)
    outputs = chosen_outputs(config, arguments.outputs, job.kept)
    model = restore_evaluated(config, job.checkpoint, context)
    with model.averaged():
        predictor = Predictor(model, outputs, data, config.data, context.device)
        return predict_parts(
            predictor, job.files, data, claim.missing, batch_size, job.kept, claim.parts, context, claim.give_up
        )
