"""The metrics of a model on rows in memory, on all ranks."""

from collections.abc import Iterator

import torch

from trainer.batches.batch import Batch, batches_of_share
from trainer.batches.catalogue import Catalogue
from trainer.batches.rows import Rows
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext
from trainer.metrics.evaluation import Metrics, predictions_of_items
from trainer.metrics.retrieval import ItemVectors
from trainer.training.item_vectors import item_vectors
from trainer.training.sharded_model import ShardedModel


class Scorer:
    """Computes the metrics of all tasks, as an evaluation does.

    Args:
        config: The configuration; evaluate.global_batch_size is set.
        model: The model, inside `averaged()`.
        catalogue: The catalogue, if metrics rank its items.
        context: This process among the ranks.
    """

    def __init__(
        self, config: Config, model: ShardedModel, catalogue: Catalogue | None, context: DistributedContext
    ) -> None:
        self._config, self._model, self._context = config, model, context
        assert config.evaluate.global_batch_size
        self._size = config.evaluate.global_batch_size // context.world_size
        model.model.eval()
        self._items = self._vectors(catalogue) if catalogue else {}

    @torch.no_grad()
    def metrics(self, rows: Rows, catalogue: Catalogue | None = None, seen: Rows | None = None) -> dict[str, float]:
        """Returns the metrics over rows that every rank has.

        Args:
            rows: The rows.
            catalogue: The items that are ranked. Unset: those of the constructor.
            seen: The rows whose ids say which items a query has had (data.catalogue.exclude). Unset: `rows`.
        """
        metrics = Metrics(self._config, self._context.device, self._vectors(catalogue) if catalogue else self._items)
        as_they_were = self._batches(seen) if self._config.data.catalogue.exclude and seen is not None else None
        for batch in self._batches(rows):
            _, outputs = self._model.model(self._model.id_map.looked_up(batch).to(self._context.device))
            if as_they_were:
                outputs = outputs._replace(sparse=next(as_they_were).sparse.to(self._context.device))
            metrics.update(outputs)
        return metrics.compute(self._context)

    def _batches(self, rows: Rows) -> Iterator[Batch]:
        """Returns this rank's share of the rows; rows of weight 0 fill it, so that all ranks have equal batches."""
        data, context = self._config.data, self._context
        size = min(self._size, -(-len(rows) // context.world_size))
        padded = Rows.join([rows, Rows.padding(1, data, rows.bags)])
        return batches_of_share(padded, data, context.rank, context.world_size, size)

    @torch.no_grad()
    def _vectors(self, catalogue: Catalogue) -> dict[str, ItemVectors]:
        names = list(dict.fromkeys(predictions_of_items(self._config)))
        found = item_vectors(
            self._model.model, catalogue, self._config.data, names, self._size, self._context, lambda: False
        )
        assert found is not None
        return found
