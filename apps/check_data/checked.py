"""What a check looks at: the configuration, what was read of each split, and the figures of each column."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from apps.check_data.finding import Finding
from apps.check_data.profile import Profile
from apps.check_data.reading import Measured
from trainer.config.data import DataConfig


@dataclass(frozen=True)
class Checked:
    """A data set that was read.

    Attributes:
        config: Its use, limited to the features that are the values of a column of their name.
        splits: What was read of each split; the first is the one to train on.
        profiles: Figures of each column, by name.
        time: A column to compare label rates along. Unset: files only.
    """

    config: DataConfig
    splits: Sequence[Measured]
    profiles: Mapping[str, Profile]
    time: str | None = None

    @property
    def first(self) -> Measured:
        """The split to train on."""
        return self.splits[0]

    def used(self, *kinds: str) -> Iterator[Profile]:
        """Yields the features of some kinds of values: integer, number, text, integers, texts."""
        for name in (*self.config.dense, *self.config.sparse):
            if name in self.profiles and self.profiles[name].kind in kinds:
                yield self.profiles[name]

    def dtype(self, name: str) -> pa.DataType:
        """Returns the type of a column in the first file."""
        return self.first.split.files.files[0].schema.field(name).type


Check = Callable[[Checked], Iterable[Finding]]
"""A check: yields what it finds. Its docstring says why that is a fault; its findings say what to do."""
