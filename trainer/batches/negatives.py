"""Negatives from the catalogue: a function of lane and step, the same on any number of ranks and after a restart."""

from collections.abc import Iterator, Sequence

import numpy as np

from trainer.batches.catalogue import Catalogue
from trainer.batches.rows import NO_ITEM, Rows
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.epoch_order import philox

STREAM = 1  # number of the random stream for negatives; stream 0 orders the samples


class Negatives:
    """Appends negatives to the samples of a lane: items drawn by weight, and the hard negatives of the samples.

    Args:
        catalogue: The items, read with `samples`, so that their lists fit those of the samples.
        config: The data.
        seed: Seed of the draws.
    """

    def __init__(self, catalogue: Catalogue, config: DataConfig, seed: int) -> None:
        self._catalogue, self._config, self._seed = catalogue, config.catalogue, seed
        self._item = config.groups.index(str(config.catalogue.id))

    def follow(self, steps: Iterator[Rows], epoch: int, lane: int, first: int) -> Iterator[Rows]:
        """Yields the samples of a lane step by step, from step `first` on, each step followed by its negatives."""
        return (self.append(samples, epoch, lane, step) for step, samples in enumerate(steps, first))

    def append(self, samples: Rows, epoch: int, lane: int, step: int) -> Rows:
        """Returns the samples of a lane in a step, followed by their negatives, in the order of `LaneRows`.

        Raises:
            InputError: A hard negative is not in the catalogue.
        """
        raw = philox(self._seed, epoch, lane, step, STREAM).random_raw(self._config.negatives)
        drawn = self._catalogue.draw((raw >> np.uint64(11)) * 2.0**-53)  # 53 random bits, the precision of float64
        rows = np.concatenate([drawn, self._hard(samples)])
        return Rows.join([samples, self._catalogue.rows.take(rows)]) if len(rows) else samples

    def log_q(self, lanes: Sequence[Rows]) -> np.ndarray:
        """Returns the log probability that each row's item is drawn, `[R]` float32, lane by lane."""
        return self._catalogue.log_q(np.concatenate([rows.groups[self._item] for rows in lanes]))

    def _hard(self, samples: Rows) -> np.ndarray:
        """Returns the hard negatives as rows of the catalogue, sample by sample."""
        ids = samples.hard_negatives.T.reshape(-1)
        found = self._catalogue.find(ids)
        if (lost := (found == len(self._catalogue)) & (ids != NO_ITEM)).any():
            raise InputError(
                f"column '{self._config.hard_negatives}' has item {ids[lost.argmax()]}, which is not in "
                "data.catalogue.items; add it there or leave it out"
            )
        return found
