"""Batch inference: a model's outputs for every row of a data set, in files.

python -m trainer predict runs/movielens/config.toml --out runs/movielens --source data/movielens/test --to predictions
"""

from apps.predict.arguments import Arguments
from apps.predict.job import predict_files
from trainer.checkpoint.choice import NEWEST
from trainer.config.root import Config
from trainer.core.distributed import process_group


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
    the columns to keep, then one for each output. TO/manifest.json, written last, lists the parts. A job that was
    interrupted continues when it is started again, on any number of ranks: parts that are there are not made again.

    Labels, weights and groups need not be in the data.

    Args:
        config: The configuration; its planner section may differ from the run's.
        out: The run directory, any fsspec URL.
        source: Files, globs or directories to predict, on any fsspec URL, read by data.reader.
        to: Directory for the parts, on any fsspec URL.
        checkpoint: newest, best (by checkpoint.keep.best of RUN_DIR/config.toml), or the number of a step.
        keep_columns: Columns of the data to keep, of any type; `*` stands for all. Without a name: none.
        outputs: Outputs of the model to write. Unset: all.
        rows_per_part: Rows of a part, a multiple of the batch size.
        batch_size: Rows that a rank computes at once. A job that continues keeps that of its first start, as products
            of matrices of another shape are rounded differently.

    Raises:
        InputError: There is no such checkpoint, column or output, it is another model's, the data cannot be used, or TO
            holds the parts of another job.
    """
    arguments = Arguments(
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
