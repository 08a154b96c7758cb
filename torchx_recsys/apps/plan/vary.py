"""What-if plans: one change at a time, and the gain or cost of each change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate

from torchx_recsys.apps.plan.planning import plan_on
from torchx_recsys.apps.plan.text import shortage
from torchx_recsys.planner.hardware import GIB, Cluster
from torchx_recsys.planner.plan import Planned
from trainer.config.features import SparseFeature
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.errors import InputError, nearest
from trainer.training.sharded_model import build_unsharded_model

ALL = "all"
ADDED = 0.1  # fraction of the tables to repeat, largest first
PRECISIONS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class Change:
    """A change of a configuration.

    Attributes:
        kind: Kind of the change.
        name: The change in words.
        config: The changed configuration.
    """

    kind: str
    name: str
    config: Config


def changes_of(config: Config, kinds: Sequence[str]) -> list[Change]:
    """Returns configurations with one change each.

    Args:
        config: The configuration.
        kinds: Names of the changes, or `all`.

    Raises:
        InputError: There is no such kind of change.
    """
    for kind in kinds:
        if kind not in (ALL, *KINDS):
            raise InputError(f"--vary names '{kind}'{nearest(kind, [ALL, *KINDS])}")
    chosen = KINDS if ALL in kinds or not kinds else {kind: KINDS[kind] for kind in KINDS if kind in kinds}
    return [Change(kind, name, changed) for kind, make in chosen.items() for name, changed in make(config)]


def _with(config: Config, section: str, **values: Any) -> Config:
    return config.model_copy(update={section: getattr(config, section).model_copy(update=values)})


def _batches(config: Config) -> Iterator[tuple[str, Config]]:
    batch = config.data.global_batch_size
    for other in (batch // 2, batch * 2):
        yield f"batch {other:,} for {batch:,}", _with(config, "data", global_batch_size=other)


def _dimensions(config: Config) -> Iterator[tuple[str, Config]]:
    width = config.model.embedding_dim
    for other in (width // 2, width * 2):
        if other % 4 == 0 and other:
            yield f"embedding_dim {other} for {width}", _with(config, "model", embedding_dim=other)


def _tables_precision(config: Config) -> Iterator[tuple[str, Config]]:
    now = config.model.table_precision
    for other in ("fp32", "fp16"):
        if other != now:
            yield f"table_precision {other} for {now}", _with(config, "model", table_precision=other)


def _comms(config: Config) -> Iterator[tuple[str, Config]]:
    now = config.comms.forward, config.comms.backward
    for other in PRECISIONS:
        if (other, other) != now:
            yield (
                f"comms {other} for {'/'.join(dict.fromkeys(now))}",
                _with(config, "comms", forward=other, backward=other),
            )


def _hotness(config: Config) -> Iterator[tuple[str, Config]]:
    for times in (0.5, 2.0):
        sparse = {
            name: feature.model_copy(update={"hotness": times * feature.hotness})
            for name, feature in config.data.sparse.items()
        }
        yield f"{times:g} times the ids of a sample", _with(config, "data", sparse=sparse)


def _more_tables(config: Config) -> Iterator[tuple[str, Config]]:
    sparse = config.data.sparse
    largest = sorted(config.data.features_of_tables().values(), key=lambda names: -sparse[names[0]].rows)
    number = max(1, round(ADDED * len(largest)))
    added: dict[str, SparseFeature] = {}
    for names in largest[:number]:
        added |= {f"{names[0]} again": sparse[names[0]].model_copy(update={"table": None})}
    yield (
        f"the largest {'table' if number == 1 else plural(number, 'table')} once more",
        _with(config, "data", sparse=sparse | added),
    )


KINDS: dict[str, Callable[[Config], Iterator[tuple[str, Config]]]] = {
    "batch": _batches,
    "dimension": _dimensions,
    "precision": _tables_precision,
    "comms": _comms,
    "hotness": _hotness,
    "tables": _more_tables,
}
"""The kinds of changes by name."""


def effects_of(config: Config, cluster: Cluster, kinds: Sequence[str]) -> str:
    """Returns a table of the effects of changes; the change with the least time of a sample is first.

    Args:
        config: The configuration.
        cluster: The cluster to plan for.
        kinds: Names of the changes, or `all`.

    Raises:
        InputError: The unchanged configuration does not fit, or there is no such change.
    """
    changes = changes_of(config, kinds)
    now = _planned(config, cluster)
    if not now.fits:
        raise InputError(f"--vary needs a plan to begin with, and {cluster} does not fit: {shortage(now)}")
    rows, refused = [], []
    for change in changes:
        try:
            planned = _planned(change.config, cluster)
        except InputError as error:
            refused.append([change.name, f"cannot be: {error}"])
            continue
        if planned.fits:
            rows.append((_microseconds(planned), _row(change.name, planned, now)))
        else:
            refused.append([change.name, "does not fit"])
    effects = [row for _, row in sorted(rows, key=lambda row: row[0])]
    headers = ["change", "ms of a step", "", "us of a sample", "", "fullest rank, GiB", "", "bound by"]
    align = ("left", *["right"] * 6, "left")
    table = tabulate([_row("as it is", now, now), *effects], headers, disable_numparse=True, colalign=align)
    figures = f"Figures: {now.step.source}"
    words = [": ".join(one) for one in refused]
    return "\n".join([f"{cluster}: one change at a time", "", table, *words, "", figures])


def _planned(config: Config, cluster: Cluster) -> Planned:
    return plan_on(build_unsharded_model(config, torch.device("meta")), config, cluster)


def _microseconds(planned: Planned) -> float:
    return planned.step.total / planned.samples * 1000


def _gib(planned: Planned) -> float:
    return float(planned.fullest[planned.problem.device]) / GIB


def _row(name: str, planned: Planned, now: Planned) -> list[str]:
    step, before = planned.step, now.step
    values = (
        (step.total, before.total, ".3f"),
        (_microseconds(planned), _microseconds(now), ".4f"),
        (_gib(planned), _gib(now), ".2f"),
    )
    cells = [cell for value, old, form in values for cell in (f"{value:{form}}", _relative(value, old))]
    return [name, *cells, step.longest.name]


def _relative(value: float, old: float) -> str:
    return f"{value / old - 1:+.0%}" if value != old else ""
