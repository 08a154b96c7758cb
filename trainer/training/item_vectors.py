"""The vectors of all items of the catalogue, computed by the sharded model on all ranks."""

from collections.abc import Callable, Collection

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.batches.catalogue import Catalogue
from trainer.config.data import DataConfig
from trainer.core.distributed import DistributedContext
from trainer.metrics.retrieval import ItemVectors
from trainer.metrics.seen_items import SeenItems


def item_vectors(
    model: nn.Module,
    catalogue: Catalogue,
    data: DataConfig,
    predictions: Collection[str],
    batch_size: int,
    context: DistributedContext,
    give_up: Callable[[], bool],
) -> dict[str, ItemVectors] | None:
    """Returns the vectors of all items by prediction, on every rank; each prediction takes `I x D x 4` bytes.

    Each rank computes the vectors of a share of the items; all ranks call the model equally often.

    Args:
        model: The model with its loss, in evaluation.
        catalogue: The items.
        data: The data.
        predictions: Names of the predictions `[B, Q + 1, D]`, whose last vector is the item's.
        batch_size: Number of items in a rank's batch.
        context: This process among the ranks.
        give_up: Called before every batch; returns whether to give up, the same on all ranks.
    """
    parts: dict[str, list[Tensor]] = {name: [] for name in predictions}
    for batch in catalogue.batches(data, context.rank, context.world_size, batch_size):
        if give_up():
            return None
        _, outputs = model(batch.to(context.device))
        for name, vectors in parts.items():
            vectors.append(outputs.predictions[name][:, -1])
    ids = torch.from_numpy(catalogue.ids).to(context.device)
    share = -(-len(ids) // context.world_size)
    seen = SeenItems(catalogue.ids, data, context.device) if data.catalogue.exclude else None
    return {
        name: ItemVectors(ids, _of_all_ranks(torch.cat(vectors)[:share], context)[: len(ids)], seen)
        for name, vectors in parts.items()
    }


def _of_all_ranks(share: Tensor, context: DistributedContext) -> Tensor:
    whole = share.new_empty(context.world_size * len(share), *share.shape[1:])
    dist.all_gather_into_tensor(whole, share.contiguous())
    return whole
