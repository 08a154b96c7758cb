"""Fine-tuning: a new run starts with weights from another run's checkpoint.

`trainer/checkpoint/weight_names.py` matches the weights by name; this file finds the checkpoint, prints the table of
outcomes, refuses differences that the configuration does not allow, and fills the model.
"""

from collections.abc import Collection
from typing import Any

from tabulate import tabulate

from trainer.checkpoint.choice import NEWEST, check_choice, checkpoint_of_step, find_checkpoint
from trainer.checkpoint.restore import fill, saved_shapes, shapes_of
from trainer.checkpoint.state_dict import is_table, table_of
from trainer.checkpoint.store import FOLDER, NAME, Checkpoint, Checkpoints, FindDamage
from trainer.checkpoint.verify import verify_together
from trainer.checkpoint.weight_names import WeightMap, Weights, match
from trainer.config.data import DataConfig
from trainer.config.root import load_config
from trainer.config.train import FinetuneConfig
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.errors import InputError, some_of
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import named
from trainer.data.columns import RecordedTypes
from trainer.rules.vocabulary import vocabularies
from trainer.training.sharded_model import ShardedModel

KEY, TAKE = "finetune.checkpoint", "finetune.take"
SHOWN = 3  # number of names per line of the report; run.json lists all


def finetune(
    config: FinetuneConfig,
    data: DataConfig,
    types: RecordedTypes,
    model: ShardedModel,
    context: DistributedContext,
    given: Collection[str] = (),
) -> dict[str, Any]:
    """Fills a fresh model from another run's checkpoint, if the configuration names one.

    Args:
        config: Names the checkpoint and the allowed differences.
        data: The data of this run.
        types: The types of its columns.
        model: The model; weights without a source keep their initial values.
        context: This process among the ranks.
        given: Tables that have vectors from files.

    Returns:
        The entry `finetune` for run.json; empty for a start from scratch.

    Raises:
        InputError: There is no such checkpoint, or it does not fit in a way that the configuration does not allow.
    """
    url = config.checkpoint
    if url is None:
        return {}
    source = verify_together(context, lambda find: find_source(url, config.take, find))
    trained = model.trained() if config.optimizer_state else model.weights()
    # Rank 0 matches the names for all ranks. No rank holds the state of every table, so it collects them first.
    here = shapes_of(trained | model.id_map.tensors(), context)
    found = broadcast_from_rank0(context, lambda: _match(config, data, Weights.of(here, model.frozen()), source))
    broadcast_from_rank0(context, lambda: _check_vocabularies(config, data, found, source))
    broadcast_from_rank0(context, lambda: _check_types(data, types, found, source))
    tables = {table_of(name): table_of(other) for name, other in found.sources.items() if is_table(name)}
    broadcast_from_rank0(context, lambda: _check_given(config, sorted(tables.keys() & {*given})))
    fill(source.url, trained | model.id_map.restoring(source.train_state, tables), found.sources, context)
    model.id_map.begin_anew()
    if config.optimizer_state:
        model.optimizers.tables.earlier_steps = source.step + source.train_state.get("earlier_table_steps", 0)
    facts = {"checkpoint": source.url, "step": source.step, "optimizer_state": config.optimizer_state}
    return {"finetune": facts | found.outcomes}


def find_source(url: str, take: str = NEWEST, find: FindDamage | None = None) -> Checkpoint:
    """Returns the checkpoint at a URL, or the chosen checkpoint of the run directory there.

    Args:
        url: A run directory or one of its checkpoints.
        take: The choice from a run directory: newest, best, or the number of a step.
        find: Verifies files. Unset: `find_damage`, on this rank alone.

    Raises:
        InputError: There is no such checkpoint, or it is damaged.
    """
    check_choice(TAKE, take)
    # Two empty names in front, so that a URL with a single name splits, too.
    *run, folder, name = ["", "", *url.rstrip("/").split("/")]
    if folder == FOLDER and NAME.fullmatch(name):
        if take != NEWEST:
            raise InputError(f"{TAKE} is '{take}', but {KEY} is '{url}', one checkpoint; name its run directory")
        checkpoints = Checkpoints(RunDirectory("/".join(run[2:]) or ".", KEY))
        with named(KEY, url):
            return checkpoint_of_step(checkpoints, int(name.removeprefix("step-")), f"{KEY} is '{url}'", find)
    return find_checkpoint(RunDirectory(url, KEY), KEY, take, TAKE, find)


def _match(config: FinetuneConfig, data: DataConfig, here: Weights, source: Checkpoint) -> WeightMap:
    dense = load_config(f"{source.url}/config.toml").optimizer.dense
    found = match(config, data, here, Weights.of_checkpoint(saved_shapes(source.url), dense))
    # The table is printed before anything is refused: it shows all that the user has to allow or rename.
    print(
        f"fine-tuning from step {source.step:,}, {without_secrets(source.url)}\n\n"
        f"{render(found, config.optimizer_state)}\n",
        flush=True,
    )
    for names, about, key in (
        (found.refused["missing"], "lacks '{}' of this model", "allow_missing"),
        (found.refused["unexpected"], "holds '{}', which this model lacks", "ignore_unexpected"),
    ):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise InputError(
                f"{KEY} is '{config.checkpoint}', which {about.format(names[0])}{more}; list it in finetune.{key}, "
                "or map it to another name in the file finetune.names"
            )
    return found


def _check_given(config: FinetuneConfig, both: list[str]) -> None:
    if both:
        raise InputError(
            f"{KEY} is '{config.checkpoint}', which has table '{both[0]}', but model.tables.{both[0]}.vectors is set, "
            f"too; list '{both[0]}' in finetune.exclude, or leave the vectors out"
        )


def _check_vocabularies(config: FinetuneConfig, data: DataConfig, found: WeightMap, source: Checkpoint) -> None:
    """Refuses a table whose ids had other rows in the checkpoint; the table may have been renamed since."""
    filled = {table_of(name) for name in found.sources if is_table(name)}
    known = source.train_state.get("vocabularies", {}).values()
    for name, vocabulary in vocabularies(data.sparse).items():
        table = data.table_of(name)
        if table in filled and not any(map(vocabulary.extends, known)):
            raise InputError(
                f"data.sparse.{name}.vocabulary is '{without_secrets(data.sparse[name].vocabulary)}', whose ids have "
                f"other rows than in {KEY}, '{without_secrets(source.url)}'; name the vocabulary of that run, or list "
                f"'{table}' in finetune.exclude"
            )


def _check_types(data: DataConfig, types: RecordedTypes, found: WeightMap, source: Checkpoint) -> None:
    """Refuses weights that were trained on columns of another type, whatever the table's name was."""
    there = RecordedTypes.of_checkpoint(source.url, source.train_state)
    if not there.meanings:  # the checkpoint is of an earlier version, which recorded no types
        return
    features = load_config(f"{source.url}/config.toml").data.features_of_tables()
    ours = data.features_of_tables()
    for name, other in found.sources.items():
        known = {there.ids_of(feature) for feature in features[table_of(other)]} - {""} if is_table(name) else set()
        for feature in ours[table_of(name)] if known else []:
            if (here := types.ids_of(feature)) and here not in known:
                raise InputError(
                    f"data.sparse.{feature} has {here}, but its weights in {KEY}, '{without_secrets(source.url)}', "
                    f"were trained on {' and '.join(sorted(known))}; make them alike, or list '{table_of(name)}' in "
                    "finetune.exclude"
                )
    if not all(map(is_table, found.sources)):
        _check_numbers(types, there, source)


def _check_numbers(types: RecordedTypes, there: RecordedTypes, source: Checkpoint) -> None:
    for key, here in types.meanings.items():
        if key.startswith("data.dense.") and there.meanings.get(key, here) != here:
            raise InputError(
                f"{key} has {here}, but had {there.meanings[key]} in {KEY}, '{without_secrets(source.url)}'; make them "
                "alike"
            )


def render(found: WeightMap, optimizer_state: bool) -> str:
    """Returns the outcomes of all weights as a table to print."""
    rows = [[outcome.replace("_", " "), len(names), some_of(names, SHOWN)] for outcome, names in found.outcomes.items()]
    state = "loaded" if optimizer_state else "from scratch"
    return tabulate(rows, headers=["outcome", "weights", "which"]) + f"\n\noptimizer state: {state}"
