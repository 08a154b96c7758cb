"""A run of baselines: checks its arguments, reads the rows, trains, measures, and writes the file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from torchx_recsys.apps.baselines.items import Items
from torchx_recsys.apps.baselines.problem import LeftOut, Problem
from torchx_recsys.apps.baselines.ranks import functions_of, loss_of_ranks
from torchx_recsys.apps.baselines.rows import Split, Table, open_splits
from torchx_recsys.apps.baselines.suite import BASELINES, Results, measure
from torchx_recsys.apps.engines.progress import progress_bar
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.distributed import process_group
from trainer.core.errors import InputError, nearest
from trainer.core.secrets import without_secrets
from trainer.core.storage import write_file
from trainer.data.dataset import inspect_files
from trainer.extensions.baselines.kept import VERSION, Tree, belongs_to, differences, find, url_of
from trainer.extensions.baselines.table import draw, shown
from trainer.metrics.checks import check_metrics

PACKAGES = ("torchx-recsys", "scikit-learn", "lightgbm", "scipy", "numpy")
AFTER_TASK = "label rate by "


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of the command."""

    to: str | None
    only: tuple[str, ...]
    max_rows: int
    user: str | None
    item: str | None
    overwrite: bool


def run(config: Config, arguments: Arguments) -> Tree:
    """Trains and measures the baselines, prints their tables, and returns what it writes.

    Raises:
        InputError: An argument is wrong, the data cannot be used, or the file is of other rows.
    """
    _check(config, arguments)
    check_metrics(config)
    key, url = ("--to", arguments.to) if arguments.to else ("report.baselines", url_of(config))
    config = _with_columns(config, arguments)
    about = belongs_to(config)
    before = _kept_before(key, url, about, arguments.overwrite)
    with process_group(config.train.collective_timeout_seconds) as context:
        splits = open_splits(config)
        tables = {
            name: _read(splits[name], arguments.max_rows, config) for name in ("train", "validation") if name in splits
        }
        measured = [split for name, split in splits.items() if name != "train"]
        results = []
        for name in config.named_tasks():
            try:
                problem = _problem(name, config, tables, splits["train"], arguments)
            except LeftOut as reason:
                print(f"{name}: no baselines: {reason}")
                results.append(Results(name, left_out={"all": str(reason)}))
                continue
            results.append(measure(problem, measured, arguments.only, context, print))
            print(f"\n{_table(results[-1], measured)}\n")
    tree = _tree(results, about, arguments, splits, tables)
    write_file(key, url, json.dumps(_merged(before, tree), indent=2) + "\n")
    print(f"written to {without_secrets(url)}")
    return tree


def _check(config: Config, arguments: Arguments) -> None:
    """Refuses arguments before anything is read."""
    data = config.data
    if data.segments.path:
        raise InputError(
            "data.segments.path is set, whose segments are trained on one after the other; baselines needs data.train, "
            "and data.validation or data.test"
        )
    if not data.train:
        raise InputError("data.train is empty; name at least one file, glob or directory")
    if not (data.validation or data.test):
        raise InputError("data.validation and data.test are both empty; name one of them, to measure baselines on")
    if arguments.max_rows < 1:
        raise InputError(f"--max-rows is {arguments.max_rows}; it must be at least 1")
    if arguments.to == "":
        raise InputError("--to is empty; name a file, any fsspec URL, or leave it out")
    known = {name for kind in BASELINES.values() for name in kind}
    for name in arguments.only:
        if name not in known and not name.startswith(AFTER_TASK):
            raise InputError(f"--only has '{name}'{nearest(name, known)}")
    for flag, name in (("--user", arguments.user), ("--item", arguments.item)):
        if name == "":
            raise InputError(f"{flag} is empty; name a column, or leave it out")
    if arguments.user is not None and arguments.user == arguments.item:
        raise InputError(f"--user and --item are both '{arguments.user}'; name two columns")


def _with_columns(config: Config, arguments: Arguments) -> Config:
    """Returns the configuration with the columns of users and items among its groups, unless features have them.

    Raises:
        InputError: The files lack such a column.
    """
    data = config.data
    added = [name for name in (arguments.user, arguments.item) if name and name not in (*data.sparse, *data.groups)]
    if added:
        schema = inspect_files("data.train", data.train, data).files[0].schema
        for flag, name in (("--user", arguments.user), ("--item", arguments.item)):
            if name in added and name not in schema.names:
                raise InputError(
                    f"{flag} is '{name}', which is no column of data.train{nearest(str(name), schema.names)}"
                )
        data = data.model_copy(update={"groups": [*data.groups, *added]})
    return config.model_copy(update={"data": data})


def _kept_before(key: str, url: str, about: Tree, overwrite: bool) -> Tree | None:
    """Returns the file that is there already, if it is of the same rows.

    Raises:
        InputError: It is of other rows, or another file.
    """
    before = find(key, url)
    if before is None:
        return None
    if other := next(differences(before["about"], about), None):
        if not overwrite:
            raise InputError(
                f"{key} is '{without_secrets(url)}', which has the baselines of other rows ({other}); name another "
                "file by --to and report.baselines, or add --overwrite True"
            )
        return None
    return before


def _read(split: Split, most: int, config: Config) -> Table:
    with progress_bar(split.rows_to_read(most, config.train.seed), " rows") as bar:
        table = split.sample(most, config.train.seed, bar.update)
    of = "" if len(table) == split.rows else f", a sample of {split.rows:,}"
    print(f"data.{split.name}: {plural(len(table), 'row')}{of}")
    return table


def _problem(name: str, config: Config, tables: Mapping[str, Table], train: Split, arguments: Arguments) -> Problem:
    """Returns a task with its rows and, if it finds items, the catalogue.

    Raises:
        LeftOut: It finds items, but there is no catalogue, or no metric over it.
    """
    task = config.named_tasks()[name]
    user, item = _who_and_what(config, tables["train"], arguments)
    problem = Problem(
        name=name,
        task=task,
        config=config.model_copy(update={"tasks": {name: task}}),
        train=tables["train"],
        validation=tables.get("validation"),
        user=user,
        item=item,
        seed=config.train.seed,
    )
    if problem.kind != "vectors":
        return problem
    if not config.data.catalogue.items:
        raise LeftOut("the task finds items, but data.catalogue.items is empty; name the catalogue")
    functions_of(problem)
    items = Items.of(config, train.files.files[0], problem.train)
    problem = replace(problem, items=items)
    return replace(problem, loss_of_items=partial(loss_of_ranks, problem, items)) if problem.validation else problem


def _who_and_what(config: Config, train: Table, arguments: Arguments) -> tuple[str | None, str | None]:
    """Returns the columns of users and items: those named, or the two with the most different ids that repeat."""
    for flag, name in (("--user", arguments.user), ("--item", arguments.item)):
        if name in train.rows.bags:
            raise InputError(f"{flag} is '{name}', a feature with lists of ids; name one with single ids")
    item = arguments.item or config.data.catalogue.id or config.model.target
    item = item if item in (*train.single, *train.data.groups) else None
    counts = {name: len(np.unique(train.key(name))) for name in dict.fromkeys((*train.data.groups, *train.single))}
    repeated = [
        name for name, ids in counts.items() if 2 <= ids <= len(train) / 2 and name not in config.model.item_features
    ]
    ranked = sorted(repeated, key=lambda name: -counts[name])
    user = arguments.user or next((name for name in ranked if name != item), None)
    item = item or next((name for name in ranked if name != user), None)
    return user, item


def _table(results: Results, splits: Sequence[Split]) -> str:
    names = dict.fromkeys(name for one in results.found for found in one.metrics.values() for name in found)
    rows = [(one.name, one.metrics) for one in results.found]
    seconds = ["\nseconds", *(f"{one.seconds:.1f}" for one in results.found)]
    return draw(results.task, rows, [split.name for split in splits], shown(names), seconds)


def _tree(
    results: Sequence[Results],
    about: Tree,
    arguments: Arguments,
    splits: Mapping[str, Split],
    tables: Mapping[str, Table],
) -> Tree:
    """Returns the content of the file."""
    found: Tree = {}
    for split in splits:
        if split != "train":
            found[split] = {one.task: _by_metric(one, split) for one in results}
    rows = {f"{name}_rows": len(table) for name, table in tables.items()}
    return {
        **found,
        "about": {
            "version": VERSION,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {name: number for name in PACKAGES if (number := _version(name))},
            "rows": {"max_rows": arguments.max_rows, **rows},
            "samples": results[0].samples if results else {},
            **about,
            "tasks": {one.task: about["tasks"][one.task] for one in results},
            "baselines": {
                one.task: {
                    result.name: {"seconds": round(result.seconds, 3), "chosen": result.chosen} for result in one.found
                }
                for one in results
            },
            "left_out": {one.task: one.left_out for one in results},
        },
    }


def _by_metric(results: Results, split: str) -> Tree:
    found: Tree = {}
    for one in results.found:
        for metric, value in one.metrics[split].items():
            found.setdefault(metric, {})[one.name] = value
    return found


def _merged(before: Tree | None, tree: Tree) -> Tree:
    """Returns the new content, with the tasks of the file of the same rows that were not measured now."""
    if before is None:
        return tree
    merged = {**tree, "about": dict(tree["about"])}
    for split in ("validation", "test"):
        if split in tree:
            merged[split] = before.get(split, {}) | tree[split]
    for key in ("tasks", "baselines", "left_out"):
        merged["about"][key] = before["about"].get(key, {}) | tree["about"][key]
    return merged


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
