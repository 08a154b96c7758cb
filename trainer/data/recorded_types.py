"""The types of a run's columns, recorded with its checkpoints: all data that is read later is held to them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.columns import uses
from trainer.data.files import DataFiles
from trainer.rules.plain_types import meaning, meaning_in_lists

LISTS = "lists of "


@dataclass(frozen=True)
class RecordedTypes:
    """What the values of the columns meant when a model was trained on them.

    A type that is read as another, bit for bit, has the same meaning: integers of any width, strings in any layout.

    Attributes:
        meanings: The meaning of each use of a column, by its key, such as `data.sparse.user`; without those of columns
            that had no values.
        where: The data, for messages.
    """

    meanings: Mapping[str, str]
    where: str

    @classmethod
    def of_files(cls, config: DataConfig, files: DataFiles, where: str) -> "RecordedTypes":
        """Returns the types of files whose columns are checked."""
        found: dict[str, str] = {}
        for schema in files.first_of_schemas():
            for use in uses(config):
                if meaning := meaning_in_lists(schema.field(use.column).type, use.of_ids):
                    found.setdefault(use.key, meaning)
        return cls(found, where)

    @classmethod
    def of_checkpoint(cls, url: str, train_state: Mapping[str, Any]) -> "RecordedTypes":
        """Returns the types of a checkpoint; none of an earlier one, which has no record."""
        return cls(train_state.get("types", {}), f"the data of the checkpoint at {url}")

    def completed(self, other: "RecordedTypes") -> "RecordedTypes":
        """Returns these types, with those of another record for columns that had no values."""
        return RecordedTypes({**other.meanings, **self.meanings}, self.where)

    def check(self, config: DataConfig, files: DataFiles) -> None:
        """Refuses files in which a column means something else: its ids would get other rows, its numbers another unit.

        Args:
            config: The columns that are read.
            files: Files whose columns are checked.

        Raises:
            InputError: A column differs.
        """
        for schema, file in files.first_of_schemas().items():
            for use in uses(config):
                dtype, there = schema.field(use.column).type, self.meanings.get(use.key)
                here = meaning_in_lists(dtype, use.of_ids)
                if here and there and here != there:
                    raise InputError(
                        f"{file.name}: column '{use.column}' has {here} ({dtype}), but {use.key} had {there} in "
                        f"{self.where}; make them alike"
                    )

    def check_items(self, data: DataConfig, files: DataFiles) -> None:
        """Refuses a catalogue with none of the ids that hard negatives have.

        Args:
            data: Names the column of the items' ids.
            files: The catalogue.

        Raises:
            InputError: The columns differ.
        """
        hard, item = data.catalogue.hard_negatives, str(data.catalogue.id)
        there = self.meanings.get("data.catalogue.hard_negatives", "").removeprefix(LISTS)
        here = next((one for schema in files.first_of_schemas() if (one := meaning(schema.field(item).type, True))), "")
        if here and there and here != there:
            raise InputError(
                f"{files[0].name}: column '{item}' has {here}, but column '{hard}' of {self.where} {there}; make them "
                "alike"
            )

    def ids_of(self, feature: str) -> str:
        """Returns what the ids of a sparse feature were, alone or in lists; empty if unknown."""
        key = f"data.sparse.{feature}"
        own = [text for name, text in self.meanings.items() if name == key or name.startswith(f"{key}.columns.")]
        return " and ".join(text.removeprefix(LISTS) for text in own)


UNKNOWN = RecordedTypes({}, "")
