"""`python -m trainer check-data`: finds what is wrong with a data set before a job is spent on it."""

import json as json_format
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import numpy as np
import tomli_w

from torchx_recsys.apps.check_data.checked import Check, Checked
from torchx_recsys.apps.check_data.checks import CHECKS, own_checks
from torchx_recsys.apps.check_data.csv_types import csv_keys, guess_types
from torchx_recsys.apps.check_data.file_checks import index_findings, refuse_repeated, repeated_columns, schema_findings
from torchx_recsys.apps.check_data.finding import Finding, by_severity
from torchx_recsys.apps.check_data.first_config import WHY, guess_config
from torchx_recsys.apps.check_data.guess import (
    add_vectors,
    columns_of_few_ids,
    guess_data,
    suggestions,
    vector_suggestions,
)
from torchx_recsys.apps.check_data.items import ROWS, columns_of_item, item_column, write_items
from torchx_recsys.apps.check_data.label import guess_label
from torchx_recsys.apps.check_data.page import draw_report
from torchx_recsys.apps.check_data.profile import Profile, profiles_of
from torchx_recsys.apps.check_data.reading import Measured, read_split, sampling_mask
from torchx_recsys.apps.check_data.report import Report, as_tree, render, statistics_of
from torchx_recsys.apps.check_data.splits import (
    SPLITS,
    Split,
    chosen_groups,
    not_measured,
    numbers_alike,
    open_split,
    split_sources,
)
from torchx_recsys.apps.check_data.vectors import Vectors, read_vectors, vector_columns, vector_findings
from torchx_recsys.apps.engines.engine import Engine, engine_of
from torchx_recsys.apps.engines.progress import progress_bar
from torchx_recsys.apps.engines.source import guess_reader
from torchx_recsys.apps.vocabulary.vocabulary import write_vocabularies
from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature, SparseFeature, columns_of, takes, ways_of
from trainer.config.files import CSV_READERS
from trainer.config.root import Config
from trainer.core.console import next_commands, plural
from trainer.core.errors import InputError, nearest
from trainer.core.section import Tree, validate
from trainer.core.storage import open_storage, refuse_existing, write_file
from trainer.data.columns import id_columns

LOGARITHMS = ("none", "log1p", "log3")
NEGATIVES = 64  # items drawn per lane and step


def check_data(
    config: Config | None = None,
    source: tuple[str, ...] = (),
    label: str | None = None,
    task: str | None = None,
    reader: str | None = None,
    rows: int = 50_000,
    all: bool = False,
    time: str | None = None,
    checks: tuple[str, ...] = (),
    seed: int = 0,
    engine: str = "threads",
    json: str | None = None,
    page: str | None = None,
    statistics: str | None = None,
    write_config: str | None = None,
    overwrite: bool = False,
    strict: bool = False,
) -> dict[str, Any]:
    """Finds faults of a data set before training on it. CONFIG is a TOML file or a name.

    Without CONFIG, --source names the files, and the use of each column is guessed.

    Counts and extremes cover all rows that are read: some row groups of every split, or all row groups with --all,
    which counts different ids in all rows, too. Distributions, ids and AUCs cover a sample of --rows of these rows, in
    memory.

    Args:
        config: The configuration.
        source: Files, globs or directories on any fsspec URL, instead of a configuration.
        label: The column to predict, with --source. Unset: guessed.
        task: What to learn of it: binary, values, counts, classes, or items, which goes with labels that are all 1.
            Unset: guessed.
        reader: Format of the files, as in data.reader, with --source. Unset: by their names, or first bytes.
        rows: Rows of the sample of each split.
        all: Read all row groups.
        time: A column of numbers or times, to follow the label rate along.
        checks: Checks of your own, package.module:check, in addition to the built-in checks.
        seed: Decides which rows are read.
        engine: threads reads in this process, a row group on each core; a URL of Spark, sc://HOST or spark://HOST:PORT,
            on that cluster, whose workers must see the files.
        json: A file to write everything to as JSON, any fsspec URL.
        page: An HTML file to draw everything to, any fsspec URL; a browser opens it.
        statistics: A JSON file to write for planner.statistics, any fsspec URL.
        write_config: A TOML file to write a first configuration to, ready to train with, and beside it the vocabularies
            of columns with few ids, FILE-vocabulary/COLUMN.parquet; with --source.
        overwrite: Replace files that exist.
        strict: End with exit code 2 if there is an error.

    Returns:
        What --json writes.

    Raises:
        InputError: A file cannot be read, an argument is wrong, or --strict is set and there is an error.
    """
    _check_arguments(config, source, label, task, rows, write_config, reader)
    reader = reader or ("parquet" if config else guess_reader(source))
    own = own_checks(checks)
    to_write = {"--json": json, "--page": page, "--statistics": statistics, "--write-config": write_config}
    for flag, url in to_write.items():
        if url == "":
            raise InputError(f"{flag} is empty; name a file, any fsspec URL, or leave it out")
    refuse_existing(to_write, overwrite)
    refuse_existing({"--write-config": write_config and _vocabularies(write_config)}, overwrite)
    data = config.data if config else DataConfig(reader=reader)
    files = _files_of(data) if config else split_sources(source, data)
    if not config and reader in CSV_READERS:
        data = guess_types(data, files, rows, all, seed)
    key, choice = "data.{}" if config else "--source", config.train.seed if config else seed
    opened = [open_split(name, key.format(name), urls, data, choice) for name, urls in files.items()]
    splits = numbers_alike(opened, id_columns(data) if config else ())
    of_vectors = vector_columns(splits, config.data if config else None)
    columns = [name for name in (data.columns if config else splits[0].kinds) if name not in of_vectors]
    refuse_repeated(splits, {"--label": label, "--time": time})
    unmeasured = not_measured(splits[0])
    unmeasured = {name: why for name, why in unmeasured.items() if name not in of_vectors}
    for flag, name in (("--label", label), ("--time", time)):
        if name in unmeasured:
            raise InputError(f"{flag} is '{name}', a column {unmeasured[name]}; name another one")
    if time is not None and time not in splits[0].kinds:
        raise InputError(f"--time is '{time}', which is no column{nearest(time, splits[0].kinds)}")
    before = schema_findings(splits, data if config else None) + index_findings(splits)
    computer = engine_of(engine, "check-data")
    measured, vectors = _read(
        splits, data, [*columns, *([time] if time else [])], of_vectors, rows, all, seed, computer
    )
    with _removed_after_a_failure(write_config and _vocabularies(write_config), overwrite):
        if config:
            written, guessed, left_out = config, {}, {}
            profiles = profiles_of(measured, _probabilities(data))
        else:
            target = guess_label(profiles_of(measured, []), label, task, repeated_columns(splits))
            profiles = profiles_of(measured, [target.name] if target.task == "binary" and not target.classes else [])
            columns_tree, left_out = guess_data(profiles, target)
            left_out |= add_vectors(columns_tree, vectors, target)
            if csv := csv_keys(data.csv, [*columns_tree["sparse"], *columns_tree.get("groups", ()), target.name]):
                columns_tree["csv"] = csv
            if write_config and (few := columns_of_few_ids(columns_tree, profiles)):
                beside = _vocabularies(write_config)
                found = write_vocabularies(files["train"], few, data, beside, flag="--write-config")
                for name, one in found.items():
                    columns_tree["sparse"][name] |= {"rows": one["rows"], "ids": "vocabulary", "vocabulary": one["url"]}
            if target.task == "items":
                columns_tree |= _catalogue(profiles, target.name, columns_tree, splits, data, write_config)
            guessed = guess_config(columns_tree, target, files, reader, {one.name: one.files.rows for one in splits})
            written = validate(Config, guessed, lambda _: "--source: ")
            data = written.data
        left_out |= {name: why for name, why in unmeasured.items() if not config or name in columns}
        counts = [str(task.label) for task in written.named_tasks().values() if task.loss == "poisson"]
        checked = Checked(plain_features(data), measured, profiles, time, _retrieved(written), counts)
        report = _reported(data, checked, vectors, before, [*CHECKS, *own], left_out)
        print(render(report))
        tree = as_tree(report)
        if json:
            write_file("--json", json, json_format.dumps(tree, indent=2, default=str))
        if page:
            write_file("--page", page, draw_report(report))
        if statistics:
            write_file("--statistics", statistics, statistics_of(data, report.profiles).model_dump_json(indent=2))
        if write_config:
            write_file("--write-config", write_config, _as_toml(guessed, left_out))
    _print_next(write_config, report)
    if strict and (wrong := [one for one in report.findings if one.severity == "error"]):
        first = wrong[0]
        raise InputError(
            f"--strict is set, and the data has {plural(report.count('error'), 'error')}, first "
            f"{first.where}, {first.column or 'rows'}: {first.check}, {first.found}; {first.remedy}"
        )
    return tree


def _check_arguments(
    config: Config | None,
    source: Sequence[str],
    label: str | None,
    task: str | None,
    rows: int,
    write_config: str | None,
    reader: str | None,
) -> None:
    if (config is None) == (not source):
        found = "both are given" if config else "neither is given"
        raise InputError(f"data is named by CONFIG or by --source, but {found}; give one of them")
    if rows < 1:
        raise InputError(f"--rows is {rows}; it must be at least 1")
    for flag, given in (("--label", label), ("--task", task), ("--write-config", write_config), ("--reader", reader)):
        if config and given:
            raise InputError(f"{flag} is set, and so is CONFIG, which has all that it would say; use it with --source")


def _files_of(data: DataConfig) -> dict[str, list[str]]:
    if not data.train:
        raise InputError("data.train is empty; name at least one file, glob or directory")
    return {name: getattr(data, name) for name in SPLITS if getattr(data, name)}


def _read(
    splits: Sequence[Split],
    data: DataConfig,
    columns: Sequence[str],
    of_vectors: Sequence[str],
    rows: int,
    everything: bool,
    seed: int,
    engine: Engine,
) -> tuple[list[Measured], list[Vectors]]:
    """Reads every split, and then its vectors."""
    groups = {split.name: chosen_groups(split, rows, everything, seed) for split in splits}
    in_all = sum(group.rows for some in groups.values() for group in some)
    mask = sampling_mask(in_all)
    found: list[Measured] = []
    keys: list[str] = []
    # Rows of two splits are compared by the columns that both have.
    shared = [name for name in dict.fromkeys(columns) if all(name in split.kinds for split in splits)]
    if not shared:
        raise InputError("the files have no column that all splits have and that can be measured; check their names")
    with progress_bar(in_all * (2 if of_vectors else 1), " rows") as bar:
        for split in splits:
            one, keys = read_split(split, data, shared, groups[split.name], rows, seed, keys, mask, engine, bar.update)
            found.append(one)
        return found, read_vectors(splits, data, of_vectors, groups, engine, bar.update)


def _probabilities(data: DataConfig) -> list[str]:
    """Returns the labels in [0, 1]."""
    return [name for name in data.labels if name not in (*data.numeric_labels, *data.classes)]


def _retrieved(config: Config) -> list[str]:
    """Returns the labels that only losses of vectors learn."""
    tasks = config.named_tasks().values()
    others = {task.label for task in tasks if task.output != "vectors"}
    return [str(task.label) for task in tasks if task.label not in others]


def _reported(
    data: DataConfig,
    checked: Checked,
    vectors: Sequence[Vectors],
    before: Sequence[Finding],
    checks: Sequence[Check],
    left_out: Mapping[str, str],
) -> Report:
    with np.errstate(all="ignore"):  # values that are not finite are findings, not warnings
        found = chain(chain.from_iterable(check(checked) for check in checks), vector_findings(data, vectors))
        findings = by_severity([*before, *found])
        better = [*suggestions(checked.config, checked.profiles), *vector_suggestions(data, vectors)]
    return Report(data, checked.splits, checked.profiles, findings, better, left_out, checked.time, vectors)


def _catalogue(
    profiles: Mapping[str, Profile],
    label: str,
    guessed: Tree,
    splits: Sequence[Split],
    data: DataConfig,
    write_config: str | None,
) -> Tree:
    """Returns the keys of the catalogue of items, and writes it beside a configuration that is to be written."""
    item = item_column(profiles, label)
    columns = [name for name in columns_of_item(profiles, item) if name != label]
    url = f"{(write_config or 'first.toml').removesuffix('.toml')}-items.parquet"
    if write_config:
        write_items(url, splits, data, columns)
    groups = [item, *(name for name in guessed.get("groups", ()) if name != item)]
    catalogue = {"items": [url], "id": item, "weight": ROWS, "negatives": NEGATIVES}
    return {"groups": groups, "catalogue": catalogue, "columns of item": columns}


def _vocabularies(write_config: str) -> str:
    """Returns the directory beside a configuration for its vocabularies."""
    return f"{write_config.removesuffix('.toml')}-vocabulary"


@contextmanager
def _removed_after_a_failure(folder: str | None, overwrite: bool) -> Iterator[None]:
    """Removes the vocabularies of a configuration that is not written in the end."""
    try:
        yield
    except BaseException:
        if folder and not overwrite:
            fs, path = open_storage(folder)
            with suppress(FileNotFoundError):
                fs.rm(path, recursive=True)
        raise


def _as_toml(tree: Tree, left_out: Mapping[str, str]) -> str:
    notes = [f"#   {json_format.dumps(name)}: {why}" for name, why in left_out.items()]
    head = ["# Guessed from the files.", *(["# Left out:", *notes] if notes else []), ""]
    text = tomli_w.dumps(tree)
    for section, why in WHY.items():
        text = text.replace(f"[{section}]\n", f"[{section}]\n# {why}\n", 1)
    return "\n".join(head) + "\n" + text


def _print_next(write_config: str | None, report: Report) -> None:
    if write_config:
        run = write_config.rpartition("/")[2].removesuffix(".toml")
        print(f"\n{next_commands(['python', '-m', 'trainer', 'train', write_config, '--out', f'runs/{run}'])}")
    elif report.count("error"):
        print("\nSee to the errors, then check again; --page FILE draws every column")


def plain_features(config: DataConfig) -> DataConfig:
    """Returns the data with only the features that can be judged by the column of their name.

    The columns of other features, such as buckets, times, clipped values and crosses, are only measured.
    """
    dense = {name: feature for name, feature in config.dense.items() if _is_plain_number(name, feature)}
    sparse = {name: feature for name, feature in config.sparse.items() if _is_plain_id(name, feature)}
    return config.model_copy(update={"dense": dense, "sparse": sparse})


def _is_plain_number(name: str, feature: DenseFeature) -> bool:
    plain = feature.transform in LOGARITHMS and not (feature.clip or feature.width or ways_of(feature))
    return columns_of(name, feature) == [name] and plain


def _is_plain_id(name: str, feature: SparseFeature) -> bool:
    return columns_of(name, feature) == [name] and takes(feature) == "ids" and not (feature.offset or feature.lookup)
