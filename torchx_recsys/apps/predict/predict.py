"""Batch inference: a model's outputs for every row of a data set, in files.

python -m trainer predict runs/movielens/config.toml --out runs/movielens --source data/movielens/test --to predictions
"""

import hashlib
import json
from dataclasses import dataclass

import pyarrow as pa

from torchx_recsys.apps.predict.inference import Predictor, predict_parts
from torchx_recsys.apps.predict.kept_columns import kept_schema
from torchx_recsys.apps.predict.resume import (
    ON_STOP,
    Claim,
    PartsJob,
    Record,
    choose_checkpoint,
    claimed,
    in_words,
    record_of_checkpoint,
)
from trainer.batches.batch import features_only
from trainer.checkpoint.choice import NEWEST
from trainer.checkpoint.store import Checkpoint, FindDamage
from trainer.checkpoint.verify import verify_together
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_when_done, process_group
from trainer.core.errors import InputError, nearest
from trainer.core.run_directory import RunDirectory
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import FileSet, find_files
from trainer.models.outputs import ModelOutput, model_outputs
from trainer.run.preemption import stop_on_signals
from trainer.training.evaluate import restore_evaluated

LATER = ("options", "admit_after")  # keys of sparse features that later versions added


def predict(
    config: Config,
    out: str,
    source: tuple[str, ...],
    to: str,
    checkpoint: str = NEWEST,
    keep_columns: tuple[str, ...] = ("*",),
    outputs: tuple[str, ...] = (),
    rows_per_part: int = 262_144,
    batch_size: int = 4096,
) -> None:
    """Writes a model's outputs for every row of a data set, in order. CONFIG is a TOML file: RUN_DIR/config.toml.

    The rows of all files, sorted by URL, are cut into parts of a fixed size: TO/part-00003-of-00007.parquet. Each has
    the columns to keep, then one for each output. TO/manifest.json, written last, lists the parts. An interrupted
    job continues when it is started again, on any number of ranks: existing parts are not made again.

    The data may lack labels, weights and groups.

    Args:
        config: The configuration; its planner section may differ from the run's.
        out: The run directory, any fsspec URL.
        source: Files, globs or directories to predict, on any fsspec URL, read by data.reader.
        to: Directory for the parts, on any fsspec URL.
        checkpoint: newest, best (by checkpoint.keep.best of RUN_DIR/config.toml), or the number of a step.
        keep_columns: Columns of the data to keep, of any type; `*` stands for all. Without a name: none.
        outputs: Outputs of the model to write. Unset: all.
        rows_per_part: Rows of a part, a multiple of the batch size.
        batch_size: Rows that a rank computes at once. A job that continues keeps the size of its first start, as matrix
            products of another shape are rounded differently.

    Raises:
        InputError: There is no such checkpoint, column or output, it is another model's, the data cannot be used, or TO
            holds the parts of another job.
    """
    arguments = PredictArguments(
        out=out,
        source=source,
        source_key="--source",
        to=to,
        checkpoint=checkpoint,
        keep_columns=keep_columns,
        outputs=outputs,
        rows_per_part=rows_per_part,
        batch_size=batch_size,
    )
    with process_group(config.train.collective_timeout_seconds) as context:
        predict_files(config, arguments, context)


@dataclass(frozen=True, kw_only=True)
class PredictArguments:
    """The arguments of a prediction: its data, checkpoint and output.

    Attributes:
        out: The run directory.
        source: The files to predict.
        source_key: The flag that names the files.
        to: Directory for the parts.
        checkpoint: newest, best, or the number of a step.
        keep_columns: Columns to keep.
        outputs: Names of outputs; empty for all.
        rows_per_part: Rows of a part.
        batch_size: Rows of a rank in a batch.
        features: The features in the data; None for all. Other features count as empty.
        keep_key: The flag that names the columns to keep.
        names: Names of the columns in the parts; empty to keep the names of the data and the outputs.
    """

    out: str
    source: tuple[str, ...]
    source_key: str
    to: str
    checkpoint: str
    keep_columns: tuple[str, ...]
    outputs: tuple[str, ...]
    rows_per_part: int
    batch_size: int
    features: tuple[str, ...] | None = None
    keep_key: str = "--keep-columns"
    names: tuple[str, ...] = ()

    def data(self, data: DataConfig) -> DataConfig:
        """Returns the columns to read."""
        return features_only(data, self.features)

    def check(self) -> None:
        """Refuses unusable numbers.

        Raises:
            InputError: The message names the flag.
        """
        for flag, value in (("rows-per-part", self.rows_per_part), ("batch-size", self.batch_size)):
            if value < 1:
                raise InputError(f"--{flag} is {value}; it must be at least 1")
        if self.rows_per_part % self.batch_size:
            raise InputError(
                f"--rows-per-part is {self.rows_per_part}, which is no multiple of --batch-size, {self.batch_size}; "
                f"use {-(-self.rows_per_part // self.batch_size) * self.batch_size}, or another --batch-size"
            )


def predict_files(config: Config, arguments: PredictArguments, context: DistributedContext) -> None:
    """Makes the missing parts of a job, and the manifest.

    Raises:
        InputError: An argument or the data cannot be used, or the directory holds parts of another job.
    """
    with stop_on_signals(context, ON_STOP) as stop_requests:
        source = broadcast_when_done(context, lambda: _find_source(config, arguments))
        checkpoint, record = verify_together(context, lambda find: _find_checkpoint(config, arguments, source, find))
        job = PredictionJob(
            directory=source.directory,
            origin=in_words(checkpoint),
            checkpoint=checkpoint,
            record=record,
            rows=source.files.rows,
            names=arguments.names,
            files=source.files,
            kept=source.kept,
        )
        with claimed(job, stop_requests, context) as claim:
            if claim.missing:
                summary = _make(config, arguments, job, claim, context)
                if context.is_rank0:
                    print(summary)


@dataclass(frozen=True, kw_only=True)
class PredictionJob(PartsJob):
    """A job whose parts are predictions.

    Attributes:
        checkpoint: The checkpoint.
        files: The files to predict.
        kept: The columns to keep.
    """

    checkpoint: Checkpoint
    files: FileSet
    kept: pa.Schema


@dataclass(frozen=True)
class Source:
    """The data and the output of a prediction.

    Attributes:
        directory: The directory of the parts.
        files: The files to predict.
        kept: The columns to keep.
        outputs: Names of the outputs.
    """

    directory: RunDirectory
    files: FileSet
    kept: pa.Schema
    outputs: list[str]


def _find_source(config: Config, arguments: PredictArguments) -> Source:
    """Finds the data, without writing anything."""
    arguments.check()
    directory = RunDirectory(arguments.to, "--to")
    files = find_files(arguments.source_key, arguments.source, arguments.data(config.data))
    kept = kept_schema(arguments.keep_key, arguments.keep_columns, files)
    outputs = _chosen_outputs(config, arguments.outputs, kept)
    return Source(directory, files, kept, [output.name for output in outputs])


def _find_checkpoint(
    config: Config, arguments: PredictArguments, source: Source, find: FindDamage
) -> tuple[Checkpoint, Record]:
    """Finds the checkpoint, and everything that decides the contents of the parts."""
    checkpoint = choose_checkpoint(source.directory, arguments.out, arguments.checkpoint, find)
    types = RecordedTypes.of_checkpoint(checkpoint.url, checkpoint.train_state)
    types.check(arguments.data(config.data), source.files.files)
    return checkpoint, {
        "checkpoint": record_of_checkpoint(checkpoint),
        "model": model_fingerprint(config),
        "data": {
            "fingerprint": source.files.fingerprint,
            "files": len(source.files.files),
            "rows": source.files.rows,
        },
        "rows_per_part": arguments.rows_per_part,
        "batch_size": arguments.batch_size,
        "kept_columns": source.kept.names,
        "outputs": source.outputs,
    }


def _chosen_outputs(config: Config, names: tuple[str, ...], kept: pa.Schema) -> list[ModelOutput]:
    """Returns the outputs by their names, or all outputs if `names` is empty.

    Args:
        config: The configuration.
        names: Names of outputs.
        kept: The columns to keep.

    Raises:
        InputError: There is no such output, or a kept column has the name of one.
    """
    known = {output.name: output for output in model_outputs(config)}
    for name in names:
        if name not in known:
            raise InputError(f"--outputs has '{name}', which the model does not give{nearest(name, known)}")
    chosen = [known[name] for name in names or known]
    for output in chosen:
        if output.name in kept.names:
            raise InputError(
                f"the data has a column '{output.name}', as the model has an output; leave it out of --keep-columns"
            )
    return chosen


def model_fingerprint(config: Config) -> str:
    """Returns a text that changes with the computation of a model from its weights and a row."""
    tasks = {name: (task.prediction, task.output, task.loss) for name, task in config.named_tasks().items()}
    # Without later keys that are unset, so that jobs from before the keys existed can continue.
    rules = {
        kind: {
            name: {key: value for key, value in keys.items() if key not in LATER or value} for name, keys in of.items()
        }
        for kind, of in config.data.rules().items()
    }
    about = (rules, config.model.model_dump(mode="json"), tasks)
    evaluated = config.optimizer.ema.model_dump(mode="json")
    text = json.dumps([about, evaluated, config.train.precision], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _make(
    config: Config, arguments: PredictArguments, job: PredictionJob, claim: Claim, context: DistributedContext
) -> str:
    batch_size = claim.record["batch_size"]
    evaluate = config.evaluate.model_copy(update={"global_batch_size": batch_size * context.world_size})
    config = config.model_copy(update={"evaluate": evaluate})
    data = arguments.data(config.data)
    outputs = _chosen_outputs(config, arguments.outputs, job.kept)
    model = restore_evaluated(config, job.checkpoint, context)
    with model.averaged():
        predictor = Predictor(model, outputs, data, config.data, context.device)
        return predict_parts(
            predictor, job.files, data, claim.missing, batch_size, job.kept, claim.parts, context, claim.give_up
        )
