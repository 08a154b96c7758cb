"""TorchRec as its golden_training example uses it: a sharded model, the sparse pipeline, batches from memory."""

import os

import torch
import torch.distributed as dist
from run import TABLE_RATE, Case, auc
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.models.deepfm import SimpleDeepFMNN
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad


class WithLoss(nn.Module):
    """A model of probabilities, and the loss that `DLRMTrain` has."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss_of = nn.BCELoss()

    def forward(self, batch: Batch) -> tuple:
        """Returns the loss, and the loss, probabilities and labels without gradients."""
        scores = self.model(batch.dense_features, batch.sparse_features)[:, 0]
        loss = self.loss_of(scores, batch.labels.float())
        return loss, (loss.detach(), scores.detach(), batch.labels)


def train(case: Case) -> float:
    """Trains and returns the AUC of the test rows."""
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29501")
    dist.init_process_group("gloo", rank=0, world_size=1)
    tables = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=f"t{place}", embedding_dim=case.dim, num_embeddings=rows, feature_names=[f"f{place}"]
            )
            for place, rows in enumerate(case.tables)
        ],
        device=torch.device("meta"),
    )
    if case.model == "dlrm":
        model: nn.Module = DLRMTrain(DLRM(tables, case.dense, [case.layers[0], case.dim], [*case.layers, 1]))
    else:
        model = WithLoss(SimpleDeepFMNN(case.dense, tables, case.layers[0], case.dim))
    apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": TABLE_RATE})
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), sharders=[EmbeddingBagCollectionSharder()])
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(sharded.named_parameters())),
        lambda weights: torch.optim.Adam(weights, lr=case.learning_rate),
    )
    optimizer = CombinedOptimizer([sharded.fused_optimizer, dense])
    pipeline = TrainPipelineSparseDist(sharded, optimizer, torch.device("cpu"))
    rows = [torch.from_numpy(each) for each in case.rows("train")]
    for _ in range(case.epochs):
        order = torch.randperm(len(rows[2]))[: len(rows[2]) // case.batch * case.batch]
        rows = [each[order] for each in rows]
        outputs_of(pipeline, rows, case)
    sharded.eval()
    rows = [torch.from_numpy(each) for each in case.rows("test")]
    with torch.no_grad():
        scores = [found for _, found, _ in outputs_of(pipeline, rows, case)]
    return auc(torch.cat(scores), rows[2])


def outputs_of(pipeline: TrainPipelineSparseDist, rows: list[torch.Tensor], case: Case) -> list:
    """Sends rows through the pipeline in batches, and returns the outputs."""
    batches = (batch_of(rows, start, case) for start in range(0, len(rows[2]), case.batch))
    outputs = []
    while True:
        try:
            outputs.append(pipeline.progress(batches))
        except StopIteration:
            return outputs


def batch_of(rows: list[torch.Tensor], start: int, case: Case) -> Batch:
    """Returns a batch of rows."""
    dense, ids, labels = (each[start : start + case.batch] for each in rows)
    keys = [f"f{place}" for place in range(len(case.tables))]
    values = ids.t().reshape(-1)
    sparse = KeyedJaggedTensor(keys=keys, values=values, lengths=torch.ones(len(values), dtype=torch.int32))
    return Batch(dense_features=dense, sparse_features=sparse, labels=labels)
