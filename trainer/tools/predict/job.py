"""A prediction: finds out which parts are missing, makes them on all ranks, and commits them."""

from dataclasses import dataclass

import pyarrow as pa

from trainer.checkpoint.choice import find_checkpoint
from trainer.checkpoint.store import Checkpoint
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.outcome import FINISHED_WORD, STOPPED_WORD, write_outcome
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import named
from trainer.data.dataset import FileSet, find_files
from trainer.data.kept import kept_schema
from trainer.run.lock import locked
from trainer.run.preemption import Request, Stopped, StopRequests, stop_on_signals
from trainer.tools.predict.arguments import Arguments, chosen_outputs
from trainer.tools.predict.part_files import PartFiles
from trainer.tools.predict.record import Record, begin, find_earlier, make_record
from trainer.tools.predict.steps import Predictor, predict_parts
from trainer.training.evaluate import restore_evaluated

WORDS = (
    "the prediction stops after this step, and keeps the parts that are written",
    "the prediction ends at once; the same command continues it",
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is left of a prediction.

    Attributes:
        record: What decides the contents of its parts.
        checkpoint: The checkpoint.
        files: The files to predict.
        kept: The columns to keep.
        missing: Numbers of the parts to make.
    """

    record: Record
    checkpoint: Checkpoint
    files: FileSet
    kept: pa.Schema
    missing: list[int]


def predict_files(config: Config, arguments: Arguments, context: DistributedContext) -> None:
    """Makes the parts of a prediction that are missing, and the manifest.

    Raises:
        InputError: An argument or the data cannot be used, or the directory holds parts of another job.
    """
    broadcast_from_rank0(context, arguments.check)
    directory = broadcast_from_rank0(context, lambda: RunDirectory(arguments.to, "--to"))
    with stop_on_signals(context, WORDS) as stop_requests, locked(directory, context):
        job = broadcast_from_rank0(context, lambda: _claim(config, arguments, directory))
        parts = PartFiles(directory, job.files.rows, job.record["rows_per_part"], arguments.names)
        if context.is_rank0:
            _announce(job, parts, context)
        summary = (
            _make(config, arguments, job, parts, context, stop_requests) if job.missing else "nothing is left to do"
        )
        gather_to_all(None, context)  # every rank has written its parts
        if context.is_rank0:
            with named("--to", directory.url):
                parts.commit({key: job.record[key] for key in ("checkpoint", "kept_columns", "outputs")})
            print(summary)
            say_next(directory, parts)
            write_outcome(f"{FINISHED_WORD}: {parts.parts[-1][1]:,} rows in {parts}")


def _claim(config: Config, arguments: Arguments, directory: RunDirectory) -> Job:
    """Finds everything that a job needs and writes its record, or compares it with that of the job to continue."""
    earlier = find_earlier(directory)
    files = find_files(arguments.source_key, arguments.source, arguments.data(config))
    kept = kept_schema(arguments.keep_key, arguments.keep_columns, files, config.data)
    outputs = chosen_outputs(config, arguments.outputs, kept)
    choice = earlier.choice(arguments.checkpoint)
    checkpoint = find_checkpoint(RunDirectory(arguments.out), "--out", choice, "--checkpoint")
    record = make_record(config, arguments, checkpoint, files, kept, outputs)
    record, missing = begin(directory, earlier, record, files.rows)
    return Job(record=record, checkpoint=checkpoint, files=files, kept=kept, missing=missing)


def _announce(job: Job, parts: PartFiles, context: DistributedContext) -> None:
    there = len(parts.parts) - len(job.missing)
    print(
        f"step {job.checkpoint.step:,} of {without_secrets(job.checkpoint.run_url)}: {job.files.rows:,} rows in "
        f"{parts}, {there:,} of which are there; ranks: {context.world_size}, "
        f"rows at once: {job.record['batch_size']:,}",
        flush=True,
    )


def _make(
    config: Config,
    arguments: Arguments,
    job: Job,
    parts: PartFiles,
    context: DistributedContext,
    stop_requests: StopRequests,
) -> str:
    def give_up() -> bool:
        return stop_requests.all_reduce() is Request.STOP

    batch_size = job.record["batch_size"]
    evaluate = config.evaluate.model_copy(update={"global_batch_size": batch_size * context.world_size})
    config = config.model_copy(update={"evaluate": evaluate})
    data = arguments.data(config)
    outputs = chosen_outputs(config, arguments.outputs, job.kept)
    model = restore_evaluated(config, job.checkpoint, context)
    try:
        with model.averaged():
            predictor = Predictor(model, outputs, data, config.data, context.device)
            return predict_parts(predictor, job.files, data, job.missing, batch_size, job.kept, parts, context, give_up)
    except Stopped:
        if context.is_rank0:
            print("\nThe same command continues it.", flush=True)
            write_outcome(f"{STOPPED_WORD}, parts are in {without_secrets(arguments.to)}")
        raise


def say_next(directory: RunDirectory, parts: PartFiles) -> None:
    """Prints where the parts of a job are, and how they are read."""
    url = without_secrets(directory.url)
    print(f"{parts.parts[-1][1]:,} rows are in {parts} in {url}")
    print(f"\nNext:  pyarrow.dataset.dataset('{url}', exclude_invalid_files=True).head(5)")
