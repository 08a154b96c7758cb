"""The input of every check: the configuration, the rows read of each split, and the figures of each column."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from torchx_recsys.apps.check_data.finding import Finding
from torchx_recsys.apps.check_data.profile import Profile
from torchx_recsys.apps.check_data.reading import Measured, Tally
from trainer.config.data import DataConfig


@dataclass(frozen=True)
class Checked:
    """A data set that was read.

    Attributes:
        config: The use of the data, limited to features that are the plain values of the column of their name.
        splits: The rows read of each split; the first split is for training.
        profiles: Figures of each column, by name.
        time: A column of times, along which label rates are compared. Unset: they are compared by file only.
        retrieved: Labels of retrieval losses only: these compare a sample's item with others, so all labels may be 1.
        counts: Labels that are learned as counts.
    """

    config: DataConfig
    splits: Sequence[Measured]
    profiles: Mapping[str, Profile]
    time: str | None = None
    retrieved: Collection[str] = ()
    counts: Collection[str] = ()

    @property
    def first(self) -> Measured:
        """The split to train on."""
        return self.splits[0]

    @property
    def probabilities(self) -> list[str]:
        """The labels in [0, 1]."""
        others = (*self.config.numeric_labels, *self.config.classes)
        return [name for name in self.config.labels if name not in others]

    @property
    def features(self) -> list[str]:
        """The names of all features."""
        return [*self.config.dense, *self.config.sparse]

    def of(self, names: Iterable[str | None]) -> Iterator[Profile]:
        """Yields the columns with these names, if they were read."""
        return (self.profiles[name] for name in names if name in self.profiles)

    def columns(self, names: Iterable[str | None]) -> Iterator[tuple[Profile, Measured, Tally]]:
        """Yields these columns in every split that has them, with their tally in the split."""
        return (
            (profile, measured, measured.tally(profile.name))
            for profile in self.of(names)
            for measured in profile.measured
        )

    def used(self, *kinds: str) -> Iterator[Profile]:
        """Yields the features whose values are of certain kinds: integer, number, text, integers, texts."""
        return (profile for profile in self.of(self.features) if profile.kind in kinds)

    def dtype(self, name: str) -> pa.DataType:
        """Returns the type of a column in the first file."""
        return self.first.split.files.files[0].schema.field(name).type


Check = Callable[[Checked], Iterable[Finding]]
"""A check: yields findings. Its docstring explains the fault, and a finding names the remedy."""
