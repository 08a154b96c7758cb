"""What an answer is made of, found before anything is computed: users, items, and what a user has had."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchx_recsys.apps.recommend.items import ItemFiles, Items
from torchx_recsys.apps.recommend.queries import Queries
from torchx_recsys.apps.recommend.seen import SeenFiles, SeenItems, read_seen
from trainer.config.features import SparseFeature
from trainer.core.console import plural


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
    index: str | None

    def words_of_all_users(self) -> list[str]:
        """Returns the flags as they are typed, but for the users."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, ()) and name != "users"}
        return [
            str(word)
            for name, value in given.items()
            for word in (f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else [value]))
        ]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The data of an answer.

    Attributes:
        arguments: The flags.
        outputs: The names of the outputs to go by: a score, or the vectors of query and item.
        sides: What the model takes of a user and of an item, in words.
        queries: The rows that ask.
        columns: Their columns that the model takes.
        files: The files of the items.
        items: The items.
        exclude: Names of what queries have with items to leave out.
        features: Those of them whose rules this package knows; of the others the model leaves items out itself.
        seen: The files of the items that users have had.
    """

    arguments: Arguments
    outputs: Sequence[str]
    sides: str
    queries: Queries
    columns: Sequence[str]
    files: ItemFiles
    items: Items
    exclude: Sequence[str]
    features: Mapping[str, SparseFeature]
    seen: SeenFiles | None

    def __str__(self) -> str:
        asking = f"the newest rows of {plural(len(self.queries), 'user')} of {self.queries.key}"
        among = f"{plural(len(self.items), 'item')} of {self.files.key}"
        left_out = ", ".join([*self.exclude, *(["--seen"] if self.seen else [])]) or "nothing"
        return f"{asking} ask among {among}\n{self.sides}\nleft out: {left_out}"

    def seen_items(self) -> SeenItems:
        """Reads the items that users have had."""
        return SeenItems(self.items, self.features, read_seen(self.seen) if self.seen else None)

    def record(self) -> dict[str, Any]:
        """Returns what decides the lists, besides the model."""
        arguments = self.arguments
        return {
            "data": self.queries.files.fingerprint,
            "items": self.files.files.fingerprint,
            "seen": self.seen.files.fingerprint if self.seen else None,
            "users": [*arguments.users],
            "user_column": self.queries.column,
            "time_column": arguments.time_column,
            "item_column": self.files.column,
            "exclude": [*self.exclude],
            "where": arguments.where,
            "show": [*self.files.show],
            "task": [*self.outputs],
            "k": arguments.k,
            "index": arguments.index,
        }
