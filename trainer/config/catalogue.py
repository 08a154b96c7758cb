"""Configuration of the catalogue: all items, for negatives and for metrics over all items."""

from dataclasses import dataclass

import pydantic

from trainer.core.section import Section


@dataclass(frozen=True)
class LaneRows:
    """The rows of a lane in a step: its samples, the drawn negatives, then the hard negatives sample by sample.

    Attributes:
        samples: Samples.
        drawn: Drawn negatives, shared by all samples.
        hard: Hard negatives of each sample.
    """

    samples: int
    drawn: int
    hard: int

    @property
    def negatives(self) -> int:
        """Rows of negatives."""
        return self.drawn + self.samples * self.hard

    @property
    def total(self) -> int:
        """All rows."""
        return self.samples + self.negatives


class CatalogueConfig(Section):
    """The catalogue: all items, with the features in model.item_features."""

    items: list[str] = []
    """Files, globs or directories, on any fsspec URL, with one row per item."""
    id: str | None = None
    """Column with the ids of the items, and column of data.groups with the item of each sample."""
    weight: str | None = None
    """Column with the weight by which items are drawn as negatives, such as a count. Unset: all weigh 1."""
    negatives: pydantic.NonNegativeInt = 0
    """Items drawn per lane and step; sampled_softmax takes them as negatives of all samples of the lane."""
    hard_negatives: str | None = None
    """Column of the samples with a list of items, which sampled_softmax takes as negatives of that sample alone."""
    hard_negatives_per_sample: pydantic.PositiveInt = 1
    """Items taken from the beginning of each such list."""

    @property
    def hard(self) -> int:
        """Hard negatives of each sample."""
        return self.hard_negatives_per_sample if self.hard_negatives else 0

    def lane_rows(self, samples: int) -> LaneRows:
        """Returns the rows of a lane that holds this many samples."""
        return LaneRows(samples, self.negatives, self.hard)
