"""The cost of training features that are off by default: training with each beside training without it."""

import itertools
from typing import Any

from apps.calibrate.setting import WARM_STEPS, batches_in_memory
from benchmarks.bench.comparison import Comparison, alternate
from benchmarks.bench.loops import train
from trainer.config.root import Config
from trainer.training.session import Session
from trainer.training.setup import open_session

BASELINE = "training without it"
FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},  # how far from 1 noise alone comes
    "the cut: overflows skipped": {"train.nonfinite": "skip"},
    "4 microbatches": {"train.micro_batches": 4},
    "bf16": {"train.precision": "bf16"},
    "fp16": {"train.precision": "fp16"},
    "clipped norm": {"optimizer.dense.max_norm": 1.0},
    "clamped gradients of embeddings": {"optimizer.sparse.max_gradient": 1.0},
    "tables by adam": {"optimizer.sparse.name": "adam"},
    "tables by lamb": {"optimizer.sparse.name": "lamb"},
    "averaged dense weights": {"optimizer.ema.decay": 0.999},
    "averaged tables, too": {"optimizer.ema.decay": 0.999, "optimizer.ema.tables": True},
    "gradient norm, rates and metrics at every step": {"report.interval_steps": 1},
    "histograms every 10 steps": {"report.histograms_every_steps": 10},
    "a profile of 5 steps": {"report.profile.first_step": WARM_STEPS + 1},
}
"""Each feature with the keys that turn it on, as in a configuration of the benchmark's model."""


def compare_features(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares training with each feature with training without it, in turns; one feature at a time is in memory."""
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
    """Returns a configuration with other values of some keys, by their paths.

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
