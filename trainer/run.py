"""How a run begins: its directory, what it says of itself, and whether it goes on from a checkpoint."""

import hashlib
import json
import platform
import shlex
import sys
import tomllib
from importlib.metadata import version
from typing import Any, Literal

import tomli_w

from trainer.checkpoint import FOLDER, MANIFEST, Checkpoint, Checkpoints
from trainer.config import Config
from trainer.data.files import FileSet
from trainer.distributed import Ranks
from trainer.run_directory import RunDirectory

Resume = Literal["auto", "never", "must"]

# What decides the losses of a run; everything else may change when it is resumed.
IDENTITY = ("data", "model", "optimizer", "train.seed", "train.precision", "finetune")
FREE = (
    "data.read_threads",
    "data.prefetch_batches",
    "data.accept_changed",
    "data.validation",
    "data.test",
    "data.lanes",
)


def to_toml(config: Config) -> str:
    """Returns a configuration as a file that can itself be run; keys without a value are left out."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))


def open_run(run: RunDirectory, config: Config) -> None:
    """Makes a run's directory, or takes up the one of an earlier try, and writes the configuration to it.

    What an earlier try left before its first checkpoint is nothing to go on from, whatever its configuration was.

    Raises:
        ValueError: The directory cannot be written, or holds checkpoints of another configuration.
    """
    run.create()
    earlier = run.read("config.toml")
    if earlier is not None and any(path.endswith(f"/{MANIFEST}") for path in run.fs.find(run.path(FOLDER))):
        _refuse_other(run.url, _flat(tomllib.loads(earlier)), _flat(tomllib.loads(to_toml(config))))
    run.write("config.toml", to_toml(config))


def _refuse_other(url: str, earlier: dict[str, Any], now: dict[str, Any]) -> None:
    for key in sorted(earlier.keys() | now.keys()):
        decides = key.startswith(IDENTITY) and not key.startswith(FREE)
        if decides and earlier.get(key) != now.get(key):
            raise ValueError(
                f"--out is '{url}', which holds a run of another configuration: {key} is {earlier.get(key)!r} there "
                f"and {now.get(key)!r} here; choose another --out"
            )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def find_start(checkpoints: Checkpoints, resume: Resume, url: str) -> Checkpoint | None:
    """Returns the checkpoint to go on from, None for a start from scratch.

    Raises:
        ValueError: `resume` is must and there is no checkpoint, or never and there is one.
    """
    newest = checkpoints.newest()
    if resume == "must" and newest is None:
        raise ValueError(f"--resume is must, but '{url}' holds no committed checkpoint; use --resume auto")
    if resume == "never" and newest is not None:
        raise ValueError(
            f"--resume is never, but '{url}' holds a checkpoint of step {newest.step}; choose another --out, "
            "or use --resume auto"
        )
    return newest


def check_start(start: Checkpoint, lanes: int, config: Config, files: FileSet) -> None:
    """Refuses to go on from a checkpoint of other lanes or other data.

    Raises:
        ValueError: The message says what changed, and which flag accepts it.
    """
    saved = start.progress
    if lanes != saved["lanes"]:
        raise ValueError(
            f"data.lanes is {lanes}, but the checkpoint at {start.url} was made with {saved['lanes']}; leave it unset"
        )
    if files.fingerprint != saved["data"]["fingerprint"] and not config.data.accept_changed:
        raise ValueError(
            f"the training data changed since the checkpoint at {start.url}: {describe_change(saved['data'], files)}; "
            "--data.accept-changed True trains on from the same step"
        )


def describe_data(files: FileSet) -> dict[str, Any]:
    """Returns what a checkpoint keeps of the data, to tell later what changed."""
    return {
        "fingerprint": files.fingerprint,
        "files": {file.url: [file.size_bytes, sum(file.row_groups)] for file in files.files},
    }


def describe_change(saved: dict[str, Any], files: FileSet) -> str:
    """Returns what changed between the data of a checkpoint and the files of today."""
    before, now = saved["files"], describe_data(files)["files"]
    for url in sorted(before.keys() | now.keys()):
        if url not in now:
            return f"{url} is gone"
        if url not in before:
            return f"{url} is new"
        if before[url] != now[url]:
            return f"{url} had {before[url][0]} bytes and {before[url][1]} rows, now {now[url][0]} and {now[url][1]}"
    return "the row groups of a file were cut anew"


def describe_run(ranks: Ranks, **facts: Any) -> dict[str, Any]:
    """Returns what run.json holds: versions, command, world, and the given facts."""
    packages = ("torchx-recsys", "torch", "torchrec", "torchx-nightly", "pyarrow", "fsspec")
    return {
        "command": shlex.join([sys.executable, "-m", "trainer", *sys.argv[1:]]),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "world_size": ranks.world_size,
        "local_world_size": ranks.local_world_size,
        "device": ranks.device.type,
        **facts,
    }


def digest(content: Any) -> str:
    """Returns a short name for a JSON-able value: equal values have equal names."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
