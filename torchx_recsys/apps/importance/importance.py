"""Permutation importance: how much worse a model predicts once the values of a feature are those of other rows.

python -m trainer importance runs/movielens/config.toml --out runs/movielens
"""

import math
import zlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from tabulate import tabulate

from torchx_recsys.apps.importance.sample import Sample, moved, read_sample
from torchx_recsys.apps.importance.scores import Scorer
from torchx_recsys.apps.importance.units import Unit, units_of
from torchx_recsys.apps.predict.inference import PredictProgress
from trainer.batches.catalogue import Catalogue
from trainer.checkpoint.choice import BEST, NEWEST, find_checkpoint
from trainer.checkpoint.store import Checkpoint
from trainer.checkpoint.verify import verify_together
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, broadcast_when_done, process_group
from trainer.core.errors import InputError, some_of
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import FileSet
from trainer.data.row_groups import find_evaluated_files
from trainer.extensions.page.run_page import write_page
from trainer.metrics.checks import check_metrics, directions
from trainer.metrics.evaluation import predictions_of_items
from trainer.metrics.registry import result_name
from trainer.training.evaluate import SPLITS, open_catalogue, restore_evaluated

FILE = "importance.json"
BAR = 24  # characters of the longest bar in the table
Scores = dict[str, float]


def importance(
    config: Config,
    out: str,
    split: Literal["validation", "test"] = "validation",
    checkpoint: str | None = None,
    metric: str | None = None,
    rows: int = 50_000,
    repeats: int = 5,
    seed: int = 0,
    batch_size: int = 4096,
) -> None:
    """Finds which features a model needs: permutes one after the other, and evaluates. CONFIG is RUN_DIR/config.toml.

    The values of a feature, a list as a whole, are exchanged between rows, so that they no longer tell anything about
    their row. Features of the same columns, and a history with its actions and times, are permuted together. Prints a
    table, the feature whose loss costs most first, and writes RUN_DIR/importance.json, which the page of the run draws.

    Args:
        config: The configuration; its planner and data sections may differ from the run's.
        out: The run directory, any fsspec URL.
        split: Which of the configuration's data sets to evaluate on.
        checkpoint: newest, best (by checkpoint.keep.best of RUN_DIR/config.toml), or the number of a step. Unset: best
            if the run keeps one, else newest.
        metric: The metric to sort by, followed by `/TASK` with several tasks. Unset: checkpoint.keep.best, else the
            first of the first task.
        rows: Rows to evaluate on at most, drawn from the split.
        repeats: Permutations of each feature, over which the spread is taken.
        seed: Seed of the sample and of the permutations.
        batch_size: Rows that a rank computes at once.

    Raises:
        InputError: There is no such checkpoint or metric, it belongs to another model, or the data cannot be used.
    """
    with process_group(config.train.collective_timeout_seconds) as context:
        least = {"rows": (rows, 2), "repeats": (repeats, 2), "seed": (seed, 0), "batch-size": (batch_size, 1)}
        by = broadcast_from_rank0(context, lambda: _check(config, split, metric, least))
        evaluate = config.evaluate.model_copy(update={"global_batch_size": batch_size * context.world_size})
        config = config.model_copy(update={"evaluate": evaluate})
        run = RunDirectory(out)
        choice = checkpoint or broadcast_from_rank0(context, lambda: _default_choice(run))
        chosen = verify_together(context, lambda find: find_checkpoint(run, "--out", choice, "--checkpoint", find))
        types = RecordedTypes.of_checkpoint(chosen.url, chosen.train_state)

        def read() -> tuple[Sample, FileSet]:
            files = find_evaluated_files(f"data.{split}", getattr(config.data, split), config.data)
            types.check(config.data, files.files)
            return read_sample(files, config.data, rows, seed), files

        sample, files = broadcast_when_done(context, read)
        catalogue = open_catalogue(config, context, types) if predictions_of_items(config) else None
        units = units_of(config)
        if context.is_rank0:
            _announce(chosen, sample, files, split, len(units), repeats)
        permutations = Permutations(config, sample, catalogue, repeats, seed)
        base, scores = _evaluate(config, chosen, permutations, units, context)
        broadcast_from_rank0(context, lambda: _check_base(by, base[by], split))
        if context.is_rank0:
            features = _drops(by, base, scores, _directions(config))
            _print_table(by, base[by], features)
            facts = {"step": chosen.step, "rows": len(sample.rows), "repeats": repeats, "seed": seed}
            run.write_json(FILE, {"split": split, "metric": by, "value": base[by], **facts, "features": features})
            print(f"written to {without_secrets(run.url_of(FILE))}")
            write_page(run)


def _check(config: Config, split: str, metric: str | None, numbers: dict[str, tuple[int, int]]) -> str:
    """Refuses arguments that cannot be used; returns the name of the metric to sort by."""
    check_metrics(config)
    for flag, (value, least) in numbers.items():
        if value < least:
            raise InputError(f"--{flag} is {value}; it must be at least {least}")
    if not getattr(config.data, split):
        others = "".join(f", or use --split {name}" for name in SPLITS if getattr(config.data, name))
        raise InputError(f"--split is {split}, but data.{split} is empty; name its files{others}")
    allowed = _directions(config)
    wanted = metric or config.checkpoint.keep.best
    if not allowed:
        raise InputError("no metric of evaluate.metrics has a better direction, so no feature can matter; name auc")
    if wanted and result_name(wanted) not in allowed:
        key = "--metric" if metric else "checkpoint.keep.best"
        raise InputError(f"{key} is '{wanted}'; allowed: {some_of(allowed)}")
    return result_name(wanted) if wanted else next(iter(allowed))


def _directions(config: Config) -> dict[str, bool]:
    """Returns the metrics with a better direction by their names in results, each with whether higher is better."""
    return {result_name(metric): higher for metric, higher in directions(config).items()}


def _default_choice(run: RunDirectory) -> str:
    keep = (run.read_toml("config.toml") or {}).get("checkpoint", {}).get("keep", {})
    return BEST if keep.get("best") else NEWEST


def _announce(chosen: Checkpoint, sample: Sample, files: FileSet, split: str, units: int, repeats: int) -> None:
    whole = plural(files.rows, "row")
    part = f"{len(sample.rows):,} of {whole}" if len(sample.rows) < files.rows else whole
    groups = len(files.row_groups)
    some = f", from {sample.row_groups:,} of its {groups:,} row groups" if sample.row_groups < groups else ""
    print(
        f"step {chosen.step:,} of {without_secrets(chosen.run_url)}: {part} of data.{split}{some}; "
        f"{plural(units, 'feature')}, each permuted {repeats} times",
        flush=True,
    )


@dataclass(frozen=True)
class Permutations:
    """The permutations of each unit, which depend on nothing but the seed, the unit's name and the repeat.

    Attributes:
        config: The configuration.
        sample: The rows.
        catalogue: The items, if metrics rank them.
        repeats: Number of permutations of each unit.
        seed: The seed.
    """

    config: Config
    sample: Sample
    catalogue: Catalogue | None
    repeats: int
    seed: int

    def scored(self, scorer: Scorer, unit: Unit, repeat: int) -> dict[str, float]:
        """Returns the metrics after one permutation of a unit."""
        random = np.random.default_rng([self.seed, zlib.crc32(unit.name.encode()), repeat])
        rows = self.sample.permuted(unit, random.permutation(len(self.sample.rows)))
        return scorer.metrics(rows, self._items(unit, random), self.sample.rows)

    def _items(self, unit: Unit, random: np.random.Generator) -> Catalogue | None:
        """Returns the items with the unit's features of other items; None if the items have none of them."""
        catalogue, ours = self.catalogue, {*self.config.model.item_features}
        dense, sparse = unit.dense & ours, (unit.sparse | unit.crosses) & ours
        if catalogue is None or not (dense or sparse):
            return None
        order = np.append(random.permutation(len(catalogue)), len(catalogue))  # the last row stands for no item
        return replace(catalogue, rows=moved(catalogue.rows, order, self.config.data, dense, sparse))


def _evaluate(
    config: Config, chosen: Checkpoint, permutations: Permutations, units: list[Unit], context: DistributedContext
) -> tuple[Scores, dict[Unit, list[Scores]]]:
    """Returns the metrics on the rows as they are, and those of each permutation of each unit."""
    sample, repeats = permutations.sample, permutations.repeats
    progress = PredictProgress(len(sample.rows) * (1 + len(units) * repeats), context)
    model = restore_evaluated(config, chosen, context)
    with model.averaged():
        scorer = Scorer(config, model, permutations.catalogue, context)
        base = scorer.metrics(sample.rows)
        progress.add(len(sample.rows))
        found: dict[Unit, list[Scores]] = {unit: [] for unit in units}
        for unit, scores in found.items():
            for repeat in range(repeats):
                scores.append(permutations.scored(scorer, unit, repeat))
                progress.add(len(sample.rows))
    if context.is_rank0:
        print(progress.summary(), flush=True)
    return base, found


def _check_base(metric: str, value: float, split: str) -> None:
    if not math.isfinite(value):
        raise InputError(f"{metric} is {value} on these rows of data.{split}; raise --rows, or name another --metric")


def _drops(
    by: str, base: Scores, scores: dict[Unit, list[Scores]], directions: dict[str, bool]
) -> list[dict[str, Any]]:
    """Returns by how much each unit's permutation makes each metric worse, from the largest drop on."""

    def drops(unit: Unit, metric: str) -> np.ndarray:
        worse = np.array([each[metric] for each in scores[unit]]) - base[metric]
        return -worse if directions[metric] else worse

    features = []
    for unit in scores:
        each = {metric: drops(unit, metric) for metric in directions if metric in base}
        of_all = {name: {"drop": float(one.mean()), "spread": float(one.std(ddof=1))} for name, one in each.items()}
        features.append({"name": unit.name, **of_all[by], "columns": sorted(unit.columns), "metrics": of_all})
    return sorted(features, key=lambda one: -one["drop"])


def _print_table(by: str, value: float, features: list[dict[str, Any]]) -> None:
    others = [name for name in (features[0]["metrics"] if features else {}) if "/" in name and name != by]
    same = [name for name in others if name.partition("/")[0] == by.partition("/")[0]]  # of the other tasks
    longest = max((one["drop"] for one in features), default=0.0)
    rows = [
        [
            one["name"],
            f"{one['drop']:.5f}",
            f"{one['spread']:.5f}",
            *(f"{one['metrics'][name]['drop']:.5f}" for name in same),
            "#" * round(BAR * max(0.0, one["drop"]) / longest) if longest > 0 else "",
        ]
        for one in features
    ]
    print(f"{by} is {value:.5f}; how much worse it gets without what a feature tells:")
    print(tabulate(rows, ["feature", "drop", "spread", *same, ""], disable_numparse=True))
    if useless := [one["name"] for one in features if one["drop"] <= 2 * one["spread"]]:
        print(f"no more than chance: {some_of(useless)}")
