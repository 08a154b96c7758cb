"""baselines.json: where it is, which rows and labels it belongs to, and the metrics in it."""

import json
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.config.tasks import TaskConfig
from trainer.core.errors import InputError
from trainer.core.secrets import place
from trainer.core.storage import digest, named, open_storage
from trainer.data.dataset import FileSet, inspect_files
from trainer.metrics.registry import prediction_kind

NAME = "baselines.json"
VERSION = 1
SPLITS = ("train", "validation", "test")
Tree = dict[str, Any]


def url_of(config: Config) -> str:
    """Returns the URL of the baselines of a configuration: `report.baselines`, or beside the files of data.train."""
    return config.report.baselines or beside(config.data.train[0] if config.data.train else "")


def beside(pattern: str) -> str:
    """Returns the URL of the file beside a file, a glob or a directory."""
    fixed = pattern
    while any(mark in fixed for mark in "*?["):
        fixed = posixpath.dirname(fixed)
    folder = posixpath.dirname(fixed.rstrip("/")) if fixed == pattern else fixed
    if "://" in pattern and "://" not in folder:  # a whole bucket
        folder = fixed.rstrip("/")
    return posixpath.join(folder, NAME)


def find(key: str, url: str) -> Tree | None:
    """Reads a file of baselines; None if there is none.

    Args:
        key: The key or flag that gave the URL.
        url: The file.

    Raises:
        InputError: It cannot be read, or is another file.
    """
    with named(key, url):
        fs, path = open_storage(url)
        try:
            content = fs.cat_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    try:
        tree = json.loads(content)
        version = tree["about"]["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{key} is {place(url)}, which data.baselines did not write; name another file") from error
    if version > VERSION:
        raise InputError(
            f"{key} is {place(url)}, of version {version}, which this version of torchx-recsys does not read; write it "
            "anew with data.baselines"
        )
    return tree


def belongs_to(config: Config) -> Tree:
    """Describes the rows and labels of a configuration: the files of each split, what chooses and weighs their rows.

    Raises:
        InputError: Files cannot be listed.
    """
    data = config.data
    found = {split: files_of(split, data) for split in SPLITS if getattr(data, split)}
    if data.catalogue.items:
        found["catalogue.items"] = _described(inspect_files("data.catalogue.items", data.catalogue.items, data))
    choice = {"select.filter": data.select.filter, "weight": data.weight}
    tasks = {name: _of_task(task) for name, task in config.named_tasks().items()}
    return {"files": found, "data": choice, "tasks": tasks}


def files_of(split: str, data: DataConfig) -> Tree:
    """Describes the files of a split by their names, sizes and rows, wherever their directory is mounted."""
    return _described(inspect_files(f"data.{split}", getattr(data, split), data))


def _described(files: FileSet) -> Tree:
    names = [(url.rpartition("/")[2], size, sum(rows)) for some in files.files.outline() for url, size, rows, _ in some]
    return {"digest": digest(names), "files": len(names), "rows": sum(rows for *_, rows in names)}


def _of_task(task: TaskConfig) -> Tree:
    where = [task.where.column, task.where.outside] if task.where.column else None
    return {"label": task.label, "kind": prediction_kind(task), "where": where, "group": task.group}


def differences(about: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yields in words in which keys of the data a file of baselines belongs to other rows than a configuration."""
    of_files = about.get("files", {})
    for name in sorted({*of_files, *now["files"]}):
        before, here = of_files.get(name), now["files"].get(name)
        if (before or {}).get("digest") != (here or {}).get("digest"):
            yield f"data.{name} has other files"
    for key, value in now["data"].items():
        if about.get("data", {}).get(key) != value:
            yield f"data.{key} is another"


def of_tasks(kept: Mapping[str, Any], now: Mapping[str, Any]) -> Tree:
    """Returns the file's content with only the tasks that are those of a configuration."""
    then = kept["about"].get("tasks", {})
    same = [name for name, task in now["tasks"].items() if then.get(name) == task]
    splits = {
        split: {name: kept[split][name] for name in same if name in kept.get(split, {})}
        for split in SPLITS[1:]
        if split in kept
    }
    about = kept["about"] | {"tasks": {name: then[name] for name in same}}
    return {**splits, "about": about}
