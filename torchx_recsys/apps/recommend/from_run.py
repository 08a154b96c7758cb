"""Lists by a run: its configuration names users and items, and all ranks compute with a checkpoint of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from torchx_recsys.apps.predict.predict import model_fingerprint
from torchx_recsys.apps.predict.resume import Record, choose_checkpoint, in_words, record_of_checkpoint
from torchx_recsys.apps.recommend.answers import Answers, ByScores, ByVectors, Model
from torchx_recsys.apps.recommend.approximate import check_index
from torchx_recsys.apps.recommend.inputs import Arguments, Inputs
from torchx_recsys.apps.recommend.items import find_items, read_items
from torchx_recsys.apps.recommend.lists import rows_for_page
from torchx_recsys.apps.recommend.queries import find_queries
from torchx_recsys.apps.recommend.seen import find_seen
from torchx_recsys.apps.recommend.sides import Sides, sides_of
from trainer.batches.batch import features_only
from trainer.checkpoint.choice import find_checkpoint
from trainer.checkpoint.store import Checkpoint, FindDamage
from trainer.checkpoint.verify import verify_together
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext
from trainer.core.errors import InputError, first_line, nearest
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import os_errors
from trainer.data.columns import RecordedTypes
from trainer.extensions.page.run_page import PAGE, RECOMMENDED, write_page
from trainer.models.outputs import ModelOutput, outputs_of
from trainer.training.evaluate import restore_evaluated
from trainer.training.sharded_model import ShardedModel


@dataclass(frozen=True, kw_only=True)
class RunInputs(Inputs):
    """The data of an answer by a run.

    Attributes:
        found: The outputs to go by.
        of_sides: The features of users and of items.
    """

    found: list[ModelOutput]
    of_sides: Sides


class FromRun:
    """A run that answers.

    Args:
        config: The configuration.
        out: The run directory.
        checkpoint: newest, best, or the number of a step.
    """

    def __init__(self, config: Config, out: str, checkpoint: str) -> None:
        self._config, self._out, self._choice = config, out, checkpoint
        self._checkpoint: Checkpoint | None = None
        self.timeout_seconds = config.train.collective_timeout_seconds

    def find(self, arguments: Arguments) -> RunInputs:
        """Finds users and items; raises InputError."""
        return find_inputs(self._config, arguments)

    def choose(self, inputs: RunInputs, to: RunDirectory | None, context: DistributedContext) -> tuple[str, Record]:
        """Finds the checkpoint; returns it in words, and what decides the lists besides the inputs.

        Raises:
            InputError: There is no such checkpoint, or columns had another meaning when the model was trained.
        """

        def find(find_damage: FindDamage) -> Checkpoint:
            if to:
                chosen = choose_checkpoint(to, self._out, self._choice, find_damage)
            else:
                chosen = find_checkpoint(RunDirectory(self._out), "--out", self._choice, "--checkpoint", find_damage)
            types = RecordedTypes.of_checkpoint(chosen.url, chosen.train_state)
            types.check(features_only(inputs.of_sides.query), inputs.queries.files.files)
            types.check(features_only(inputs.of_sides.item), inputs.files.files.files)
            return chosen

        self._checkpoint = chosen = verify_together(context, find)
        return in_words(chosen), {
            "checkpoint": record_of_checkpoint(chosen),
            "model": model_fingerprint(self._config),
        }

    @contextmanager
    def answering(self, inputs: RunInputs, batch_size: int, context: DistributedContext) -> Iterator[Answers]:
        """Holds the model while the block asks."""
        assert self._checkpoint
        evaluate = self._config.evaluate.model_copy(update={"global_batch_size": batch_size * context.world_size})
        config = self._config.model_copy(update={"evaluate": evaluate})
        model = restore_evaluated(config, self._checkpoint, context)
        with model.averaged():
            yield answers_of(model, config, inputs, batch_size, context)

    def keep(self, lists: pa.Table) -> None:
        """Writes the lists of the first users to recommended.json of the run, and its page with them.

        The run may be on storage that cannot be written to: then a line says so.
        """
        assert self._checkpoint
        run = RunDirectory(self._out)
        try:
            with os_errors():
                run.write_json(RECOMMENDED, {"step": self._checkpoint.step, "lists": rows_for_page(lists)})
                write_page(run)
            print(f"the first lists are shown by {without_secrets(run.url_of(PAGE))}\n")
        except OSError as error:
            print(f"the page of the run does not show these lists: {first_line(error)}", flush=True)

    def words_of_all(self) -> list[str]:
        """Returns the words that name the run and a place for the lists of all users."""
        url = RunDirectory(self._out).url
        return [url, "--out", url, "--to", f"{url}/recommendations"]


def answers_of(
    model: ShardedModel, config: Config, inputs: RunInputs, batch_size: int, context: DistributedContext
) -> Answers:
    """Returns the way in which a model answers.

    Args:
        model: The model, inside `averaged()`.
        config: The configuration.
        inputs: Users, items and the task.
        batch_size: Rows that a rank computes at once.
        context: This process among the ranks.
    """
    sides, items, lists = inputs.of_sides, inputs.items, tuple(inputs.queries.files.files[0].lists)
    if len(inputs.found) == 2:
        features = (sides.query, sides.item)
        query, item = (
            Model(model, output, side, config.data, context)
            for output, side in zip(inputs.found, features, strict=True)
        )
        return ByVectors(query, item, items, lists, batch_size, inputs.arguments.index, context)
    scores = Model(model, inputs.found[0], features_only(config.data), config.data, context)
    return ByScores(scores, sides, items, lists, batch_size)


def find_inputs(config: Config, arguments: Arguments) -> RunInputs:
    """Finds users and items, without computing anything.

    Raises:
        InputError: A flag names nothing that is there, or files cannot be used.
    """
    data = config.data
    outputs = _outputs(config, arguments.task)
    check_index(arguments.index, len(outputs) == 2)
    key, patterns = _named("items", arguments.items, "data.catalogue.items", data.catalogue.items)
    column = arguments.item_column or data.catalogue.id
    if column is None:
        raise InputError(
            "--item-column is not given, and data.catalogue.id is unset; name the column of the items' ids"
        )
    files = find_items(key, patterns, column, arguments.show, data)
    sides = sides_of(config, files.columns)
    key, patterns = _source(arguments.source, data)
    user = arguments.user_column or _user_column(data)
    columns = sides.query, sides.query_columns
    queries = find_queries(key, patterns, *columns, user, arguments.time_column, arguments.users)
    return RunInputs(
        arguments=arguments,
        outputs=[output.name for output in outputs],
        found=outputs,
        sides=f"features {sides}",
        of_sides=sides,
        queries=queries,
        columns=sides.query_columns,
        files=files,
        items=read_items(files, sides.item, arguments.where),
        exclude=data.catalogue.exclude,
        features={name: data.sparse[name] for name in data.catalogue.exclude},
        seen=find_seen(arguments.seen, (queries.column, column), data) if arguments.seen else None,
    )


def _outputs(config: Config, task: str | None) -> list[ModelOutput]:
    tasks = config.named_tasks()
    name = next(iter(tasks)) if task is None else task
    if name not in tasks:
        raise InputError(f"--task is '{name}', which the model does not have{nearest(name, tasks)}")
    found = outputs_of(tasks[name], config.predictions())
    if found[0].kind == "probabilities":
        raise InputError(
            f"--task is '{name}', which gives a probability for each class and no score; name another task"
        )
    if found[0].kind == "vector" and not config.model.item_features:
        raise InputError(
            f"--task is '{name}', which gives vectors, but model.item_features is empty; name the features of an item"
        )
    return found


def _named(flag: str, given: Sequence[str], key: str, configured: Sequence[str]) -> tuple[str, Sequence[str]]:
    if not given and not configured:
        raise InputError(f"--{flag} is not given, and {key} is unset; name files with a row for each item")
    return (f"--{flag}", given) if given else (key, configured)


def _source(given: Sequence[str], data: DataConfig) -> tuple[str, Sequence[str]]:
    for key, patterns in (("--source", given), ("data.test", data.test), ("data.validation", data.validation)):
        if patterns:
            return key, patterns
    raise InputError(
        "--source is not given, and data.test and data.validation are empty; name files with rows of users"
    )


def _user_column(data: DataConfig) -> str | None:
    """Returns the only group of samples that is not their item."""
    others = [name for name in data.groups if name != data.catalogue.id]
    return others[0] if len(others) == 1 else None
