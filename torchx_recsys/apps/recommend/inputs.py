"""What an answer is made of, found before anything is computed: users, items, features, and the task to go by."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchx_recsys.apps.recommend.items import ItemFiles, Items, find_items, read_items
from torchx_recsys.apps.recommend.queries import Queries, find_queries
from torchx_recsys.apps.recommend.seen import SeenItems, find_seen, read_seen
from torchx_recsys.apps.recommend.sides import Sides, sides_of
from trainer.batches.batch import features_only
from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.errors import InputError, nearest
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import FileSet
from trainer.models.outputs import ModelOutput, outputs_of


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The flags that decide an answer, under their names."""

    k: int
    users: tuple[str, ...]
    source: tuple[str, ...]
    user_column: str | None
    time_column: str | None
    items: tuple[str, ...]
    item_column: str | None
    show: tuple[str, ...] | None
    where: str | None
    seen: tuple[str, ...]
    task: str | None

    def words_of_all_users(self) -> list[str]:
        """Returns the flags as they are typed, but for the users."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, ()) and name != "users"}
        return [
            str(word)
            for name, value in given.items()
            for word in (f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else [value]))
        ]


@dataclass(frozen=True)
class Inputs:
    """The data of an answer.

    Attributes:
        arguments: The flags.
        outputs: The outputs of the task to go by: a score, or the vectors of query and item.
        sides: The features of users and of items.
        queries: The rows that ask.
        files: The files of the items.
        items: The items.
        exclude: Features of the queries with items to leave out.
        seen: The files of the items that users have had.
        had: Their columns of users and items.
    """

    arguments: Arguments
    outputs: list[ModelOutput]
    sides: Sides
    queries: Queries
    files: ItemFiles
    items: Items
    exclude: dict[str, SparseFeature]
    seen: FileSet | None
    had: tuple[str, str]

    def __str__(self) -> str:
        asking = f"the newest rows of {plural(len(self.queries), 'user')} of {self.queries.key}"
        among = f"{plural(len(self.items), 'item')} of {self.files.key}"
        left_out = ", ".join([*self.exclude, *(["--seen"] if self.seen else [])]) or "nothing"
        return f"{asking} ask among {among}\nfeatures {self.sides}\nleft out: {left_out}"

    def seen_items(self, data: DataConfig) -> SeenItems:
        """Reads the items that users have had."""
        pairs = read_seen(self.seen, self.had, data) if self.seen else None
        return SeenItems(self.items, self.exclude, pairs)

    def check(self, types: RecordedTypes) -> None:
        """Refuses columns that had another meaning when the model was trained; raises InputError."""
        types.check(features_only(self.sides.query), self.queries.files.files)
        types.check(features_only(self.sides.item), self.files.files.files)

    def record(self) -> dict[str, Any]:
        """Returns what decides the lists, besides the model."""
        arguments = self.arguments
        return {
            "data": self.queries.files.fingerprint,
            "items": self.files.files.fingerprint,
            "seen": self.seen.fingerprint if self.seen else None,
            "users": [*arguments.users],
            "user_column": self.queries.column,
            "time_column": arguments.time_column,
            "item_column": self.files.column,
            "exclude": [*self.exclude],
            "where": arguments.where,
            "show": [*self.files.show],
            "task": [output.name for output in self.outputs],
            "k": arguments.k,
        }


def find_inputs(config: Config, arguments: Arguments) -> Inputs:
    """Finds users and items, without computing anything.

    Raises:
        InputError: A flag names nothing that is there, or files cannot be used.
    """
    data = config.data
    outputs = _outputs(config, arguments.task)
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
    exclude = {name: data.sparse[name] for name in data.catalogue.exclude}
    had = (str(user), column)
    seen = find_seen(arguments.seen, had, data) if arguments.seen else None
    items = read_items(files, sides.item, arguments.where)
    return Inputs(arguments, outputs, sides, queries, files, items, exclude, seen, had)


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
