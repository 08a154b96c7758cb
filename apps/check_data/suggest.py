"""Suggested keys of the configuration: rows, hotness, transforms, the batch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from apps.check_data.id_checks import suggested_rows
from apps.check_data.numbers import best_transform, transformed
from apps.check_data.profile import Profile
from trainer.config.data import DataConfig
from trainer.core.plural import plural

STEPS_PER_EPOCH = 256
SMALLEST_BATCH, LARGEST_BATCH = 64, 65536
OFF_CENTER, NARROW, WIDE = 1.0, 0.2, 5.0  # of a standardized feature the mean is 0 and the deviation 1
HOTTER = 1.25


@dataclass(frozen=True)
class Suggestion:
    """A key to set.

    Attributes:
        key: The key.
        now: Its value.
        value: A better one.
        why: The reason.
    """

    key: str
    now: Any
    value: Any
    why: str


def batch_size_for(rows: int) -> int:
    """Returns a batch with some hundred steps in an epoch of so many rows: a power of two."""
    power = 2 ** int(np.log2(max(1, rows // STEPS_PER_EPOCH)))
    return min(max(power, SMALLEST_BATCH), LARGEST_BATCH)


def dense_rule(profile: Profile, transform: str | None = None) -> dict[str, Any]:
    """Returns transform, mean and std for a dense feature.

    Args:
        profile: The column.
        transform: The transform. Unset: the best one.
    """
    values = profile.finite(profile.first)
    transform = transform or best_transform(values)
    values = transformed(values, transform)
    std = float(values.std()) if len(values) else 1.0
    mean = float(values.mean()) if len(values) else 0.0
    rule: dict[str, Any] = {} if transform == "none" else {"transform": transform}
    return rule | {"mean": _short(mean), "std": _short(std) or 1.0}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def suggestions(config: DataConfig, profiles: Mapping[str, Profile]) -> list[Suggestion]:
    """Returns keys that would suit the data better than those of a configuration."""
    found = []
    for name in config.dense:
        if name in profiles and profiles[name].kind in ("integer", "number"):
            found += _of_dense(name, config, profiles[name])
    for name in config.sparse:
        if name in profiles:
            found += _of_sparse(name, config, profiles[name])
    rows = next(iter(profiles.values())).first.split.files.rows
    if config.global_batch_size * 8 > rows and batch_size_for(rows) < config.global_batch_size:
        steps = plural(-(-rows // config.global_batch_size), "step")
        why = f"there are {rows:,} rows, so that an epoch has {steps}"
        found.append(Suggestion("data.global_batch_size", config.global_batch_size, batch_size_for(rows), why))
    return found


def _of_dense(name: str, config: DataConfig, profile: Profile) -> Iterator[Suggestion]:
    feature, values = config.dense[name], profile.finite(profile.first)
    if not len(values) or values.min() == values.max():
        return
    key, best = f"data.dense.{name}", best_transform(values)
    if feature.transform == "none" and best != "none":
        rule = dense_rule(profile, best)
        yield Suggestion(f"{key}.transform", "none", best, f"a skewness of {profile.skew:.1f}")
        yield Suggestion(f"{key}.mean", feature.mean, rule["mean"], "the mean after that")
        yield Suggestion(f"{key}.std", feature.std, rule["std"], "the standard deviation after that")
    elif feature.transform in ("none", "log1p", "log3"):
        values = (transformed(values, feature.transform) - feature.mean) / feature.std
        if abs(values.mean()) > OFF_CENTER or not NARROW < values.std() < WIDE:
            rule, why = dense_rule(profile, feature.transform), f"now {values.mean():.3g} and {values.std():.3g}"
            yield Suggestion(f"{key}.mean", feature.mean, rule["mean"], f"mean and deviation are {why}")
            yield Suggestion(f"{key}.std", feature.std, rule["std"], "the same")


def _of_sparse(name: str, config: DataConfig, profile: Profile) -> Iterator[Suggestion]:
    feature, ids, key = config.sparse[name], profile.first_ids, f"data.sparse.{name}"
    hotness = _short(round(ids.hotness, 2))
    if hotness and not 1 / HOTTER < ids.hotness / feature.hotness < HOTTER:
        yield Suggestion(f"{key}.hotness", feature.hotness, hotness, "ids per row; plans count with it")
    distinct = len(ids.distinct) if profile.first.is_whole else ids.estimated
    best = suggested_rows(ids.distinct, distinct)
    if feature.ids == "hash" and feature.rows < distinct:
        yield Suggestion(f"{key}.rows", feature.rows, best, f"{distinct:,} different ids")
    highest = max(measured.tally(name).maximum for measured in profile.measured)
    if feature.ids == "error" and highest >= feature.rows:
        yield Suggestion(f"{key}.rows", feature.rows, int(highest) + 1, "the largest id")
