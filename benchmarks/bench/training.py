"""Compares the training loop with a loop by hand, as in TorchRec's examples, and measures each training feature."""

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.datasets.utils import Batch as TorchRecBatch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from benchmarks.bench.comparison import Comparison, alternate
from benchmarks.bench.setting import WARM_STEPS
from torchx_recsys.apps.calibrate.steps import batches_in_memory
from trainer.batches.batch import Batch
from trainer.config.root import Config
from trainer.models.embeddings import table_configs
from trainer.plan.sharding import sharders
from trainer.run.preemption import Action, Stopped
from trainer.run.reporter import StallTimer
from trainer.training.session import Session
from trainer.training.setup import open_session

LEARNING_RATE = 0.02  # learning rate of both optimizers, the default
BASELINE = "training without it"
FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},  # shows the distance from 1 by noise alone
    "the cut: overflows skipped": {"train.nonfinite": "skip"},
    "4 microbatches": {"train.micro_batches": 4},
    "compiled": {"train.compile": True},
    "a dense optimizer that is not fused": {"optimizer.dense.fused": False},
    "bf16": {"train.precision": "bf16"},
    "fp16": {"train.precision": "fp16"},
    "clipped norm": {"optimizer.dense.max_norm": 1.0},
    "clamped gradients of embeddings": {"optimizer.sparse.max_gradient": 1.0},
    "tables by adam": {"optimizer.sparse.name": "adam"},
    "tables by lamb": {"optimizer.sparse.name": "lamb"},
    "averaged dense weights": {"optimizer.ema.decay": 0.999},
    "averaged tables, too": {"optimizer.ema.decay": 0.999, "optimizer.ema.tables": True},
    "gradient norm, rates and metrics at every step": {"report.interval_steps": 1},
    "metrics of the samples trained on": {"report.training_metrics": ["auc", "normalized_entropy", "calibration"]},
    "gradient norms of all dense weights at every step": {"report.interval_steps": 1, "report.gradient_norms": ["*"]},
    "histograms every 10 steps": {"report.histograms_every_steps": 10},
    "a profile of 5 steps": {"report.profile.first_step": WARM_STEPS + 1},
}
"""Each feature with the keys that turn it on, for the benchmark's model."""


def compare_loops(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares three loops that train the same model under the same plan, on all ranks.

    Both loops from memory get the same tensors in the same order. Skewed ids hit caches more often than uniform ids,
    and int32 ids take half the bytes of int64: on batches of its own, the other loop was a third slower.
    """
    batches, (model, optimizer) = batches_in_memory(session), _write_by_hand(session)
    converted = [TorchRecBatch(batch.dense, batch.sparse, batch.labels.squeeze(1)) for batch in batches]
    parquet, memory, by_hand = alternate(
        repeats,
        lambda: _train_from_parquet(session, steps),
        lambda: train(session, itertools.cycle(batches), steps),
        lambda: _train_by_hand(session, model, optimizer, itertools.cycle(converted), steps),
    )
    return [
        Comparison("training from Parquet", "training from memory", "samples/s", 0.95, parquet, memory),
        Comparison("training from memory", "a loop written by hand", "samples/s", 0.98, memory, by_hand),
    ]


def compare_features(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares training with and without each feature, in turn, one at a time in memory."""
    batches = batches_in_memory(session)
    comparisons = []
    for number, (name, changes) in enumerate(FEATURES.items()):
        out = session.directory.url_of(f"feature-{number}")
        with open_session(changed(session.config, changes), out, "never", session.context) as changed_session:
            measured, compared = alternate(
                repeats,
                lambda changed_session=changed_session: train(changed_session, itertools.cycle(batches), steps),
                lambda: train(session, itertools.cycle(batches), steps),
            )
        comparisons.append(Comparison(name, BASELINE, "samples/s", None, measured, compared))
    return comparisons


def changed(config: Config, changes: dict[str, Any]) -> Config:
    """Returns a configuration with changed values, by the paths of keys.

    Raises:
        InputError: A key or a value is wrong.
    """
    tree = config.model_dump()
    for path, value in changes.items():
        *above, key = path.split(".")
        node = tree
        for step in above:
            node = node.setdefault(step, {})
        node[key] = value
    return Config.model_validate(tree)


def _train_from_parquet(session: Session, steps: int) -> float:
    # Endless, because a loader near its end stops making batches ahead, which leaves the processor to the model.
    # Closed, so that the loader's threads end before the next measurement.
    with contextlib.closing(session.order.loader.batches(0, sys.maxsize)) as batches:  # pyrefly: ignore[bad-specialization]
        return train(session, batches, steps)


def train(session: Session, batches: Iterator[Batch], steps: int) -> float:
    """Returns samples per second of the loop in `trainer.training.loop`, without saves and evaluations."""
    session = replace(session, batches=StallTimer(batches))
    training_step = session.training_step()

    def take(step: int) -> bool:
        result = training_step.take(step, session.batches)
        session.record(step, result)
        if session.requested_action(step) is Action.STOP:
            raise Stopped
        return session.save_due(step) or session.evaluation_due(step)

    rate = samples_per_second(session, take, steps)
    training_step.detach()
    return rate


def _write_by_hand(session: Session) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """Returns the same model under the same plan, assembled as in TorchRec's own examples."""
    config, context = session.config, session.context
    tables = EmbeddingBagCollection(tables=table_configs(config.data, config.model), device=torch.device("meta"))
    dense_layers = [*config.model.dense_layers, config.model.embedding_dim]
    dlrm = DLRM(tables, len(config.data.dense), dense_layers, [*config.model.over_layers, 1], context.device)
    for parameter in tables.parameters():
        apply_optimizer_in_backward(RowWiseAdagrad, [parameter], {"lr": LEARNING_RATE})
    model = DistributedModelParallel(
        DLRMTrain(dlrm),
        device=context.device,
        plan=session.model.plan,
        sharders=sharders(config.comms),
    )
    rest = dict(in_backward_optimizer_filter(model.named_parameters()))
    dense = KeyedOptimizerWrapper(rest, lambda parameters: torch.optim.Adagrad(parameters, lr=LEARNING_RATE))
    return model, CombinedOptimizer([model.fused_optimizer, dense])


def _train_by_hand(
    session: Session,
    model: DistributedModelParallel,
    optimizer: CombinedOptimizer,
    batches: Iterator[TorchRecBatch],
    steps: int,
) -> float:
    """Returns samples per second of the smallest training loop: TorchRec's pipeline and nothing else."""
    pipeline = TrainPipelineSparseDist(model, optimizer, session.context.device)
    rate = samples_per_second(session, lambda _: pipeline.progress(batches), steps)
    pipeline.detach()
    return rate


def samples_per_second(session: Session, take: Callable[[int], object], steps: int) -> float:
    """Returns samples per second of a loop that takes steps by number, after a few warm-up steps."""
    for step in range(1, WARM_STEPS + 1):
        take(step)
    synchronize = torch.get_device_module(session.context.device).synchronize
    synchronize()
    start = time.perf_counter()
    for step in range(WARM_STEPS + 1, WARM_STEPS + steps + 1):
        take(step)
    synchronize()
    seconds = time.perf_counter() - start
    return steps * session.order.lanes.global_batch_size / seconds
