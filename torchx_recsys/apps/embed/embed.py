"""Writes the vectors of a whole catalogue for a vector index: outputs of a model for items, or the rows of a table.

python -m trainer embed runs/two_tower/config.toml --out runs/two_tower --output liked_item --to vectors
"""

from collections.abc import Sequence

from torchx_recsys.apps.embed.table import embed_table
from torchx_recsys.apps.predict.predict import PredictArguments, predict_files
from trainer.checkpoint.choice import NEWEST
from trainer.config.root import Config
from trainer.core.distributed import broadcast_from_rank0, process_group
from trainer.core.errors import InputError, nearest
from trainer.models.outputs import model_outputs


def embed(
    config: Config,
    out: str,
    to: str,
    output: str | None = None,
    table: str | None = None,
    source: tuple[str, ...] = (),
    id_column: str | None = None,
    checkpoint: str = NEWEST,
    rows_per_part: int = 262_144,
    batch_size: int = 4096,
) -> None:
    """Writes vectors by id, from an output of the model or from a table. CONFIG is a TOML file: RUN_DIR/config.toml.

    TO/part-00000-of-00002.parquet and so on have the columns `id` and `vector`, a list of a fixed size. As with
    `predict`, an interrupted job continues when it is started again, and TO/manifest.json is written last.

    An output, such as `liked_item`, gives a vector for each row of a data set, which needs only the features of that
    side: model.item_features for items, the others for queries.

    A table gives a vector for each id with a row of its own: the ids of a vocabulary or of managed ids, else the row
    numbers, in a column `row` if ids are hashed. Rows that ids share are left out.

    Args:
        config: The configuration; its planner section may differ from the run's.
        out: The run directory, any fsspec URL.
        to: Directory for the parts, on any fsspec URL.
        output: Output of the model, NAME_item or NAME_query. Set this or table.
        table: Embedding table. Set this or output.
        source: For an output: files, globs or directories with a row for each id. Unset: data.catalogue.items.
        id_column: For an output: column of the source with the ids. Unset: data.catalogue.id.
        checkpoint: newest, best (by checkpoint.keep.best of RUN_DIR/config.toml), or the number of a step.
        rows_per_part: Vectors of a part; for an output a multiple of the batch size.
        batch_size: For an output: rows that a rank computes at once.

    Raises:
        InputError: There is no such checkpoint, output or table, the data cannot be used, or TO holds the parts of
            another job.
    """
    with process_group(config.train.collective_timeout_seconds) as context:
        broadcast_from_rank0(context, lambda: _check(config, output, table, source, id_column))
        if table:
            embed_table(config, out, to, table, checkpoint, rows_per_part, context)
            return
        arguments = PredictArguments(
            out=out,
            source=source or tuple(config.data.catalogue.items),
            source_key="--source" if source else "data.catalogue.items",
            to=to,
            checkpoint=checkpoint,
            keep_columns=(id_column or str(config.data.catalogue.id),),
            keep_key="--id-column",
            outputs=(str(output),),
            rows_per_part=rows_per_part,
            batch_size=batch_size,
            features=features_of(config, str(output)),
            names=("id", "vector"),
        )
        predict_files(config, arguments, context)


def _check(config: Config, output: str | None, table: str | None, source: Sequence[str], id_column: str | None) -> None:
    if bool(output) == bool(table):
        raise InputError(f"--output is {output} and --table is {table}; set one of them")
    if table:
        if source or id_column:
            raise InputError("--source and --id-column are for an --output; leave them out with --table")
        return
    vectors = [one.name for one in model_outputs(config) if one.kind == "vector"]
    if output not in vectors:
        raise InputError(f"--output is '{output}', which is no vector of the model{nearest(str(output), vectors)}")
    for flag, value, key in (
        ("--source", source or config.data.catalogue.items, "data.catalogue.items"),
        ("--id-column", id_column or config.data.catalogue.id, "data.catalogue.id"),
    ):
        if not value:
            raise InputError(f"{flag} is not given, and {key} is unset; set one of them")


def features_of(config: Config, output: str) -> tuple[str, ...] | None:
    """Returns the features that a vector depends on; None for all, if the model does not list the items' features."""
    if not (of_items := config.model.item_features):
        return None
    every = (*config.data.dense, *config.data.sparse)
    return tuple(name for name in every if (name in of_items) == output.endswith("_item"))
