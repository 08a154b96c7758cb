"""Checkpoints: when, where and how, and which is the newest good one.

    RUN_DIR/checkpoints/step-000001000/
        *.distcp, .metadata     tensors, as torch.distributed.checkpoint writes them
        state.json              step, data position, running metrics, data fingerprint
        config.toml, plan.json  as in the run directory
        manifest.json           size and checksum of every file above; written last

The manifest is the commit: a directory without one does not exist for anybody.
"""

import json
import posixpath
import time
from dataclasses import dataclass
from typing import Any

import pydantic
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer.distributed import Ranks, from_main, gather_to_all
from trainer.manifest import ChecksumWriter, FileEntry, entry_of, find_damage
from trainer.run_directory import RunDirectory
from trainer.section import Section
from trainer.state import State, is_row_state, write_row_state

FOLDER = "checkpoints"
MANIFEST = "manifest.json"


class CheckpointConfig(Section):
    """When training saves its state."""

    every_steps: pydantic.NonNegativeInt = 0
    """Save every so many steps. 0: only at the end."""
    grace_seconds: pydantic.NonNegativeFloat = 120.0
    """Time between a signal that asks to stop and the kill. A job whose saves take longer leaves without one."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint.

    Attributes:
        url: Its directory.
        step: Steps done when it was saved.
        progress: Everything else that state.json holds.
    """

    url: str
    step: int
    progress: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run.

    Args:
        run: The run directory.
        config: When to save.
        ranks: This process among the ranks that save and restore together.

    Attributes:
        saved_step: Steps done at the last save, or in the checkpoint that this job started from; 0 without either.
        save_seconds: How long the longest save took.
    """

    def __init__(self, run: RunDirectory, config: CheckpointConfig, ranks: Ranks) -> None:
        self._run, self._config, self._ranks = run, config, ranks
        self.saved_step, self.save_seconds = 0, 0.0

    def url(self, step: int) -> str:
        """Returns where the checkpoint of a step is."""
        return self._run.url_of(FOLDER, _name(step))

    def due(self, step: int) -> bool:
        """Tells whether to save after a step."""
        return self._config.every_steps > 0 and step % self._config.every_steps == 0

    def save(self, step: int, tensors: State, progress: dict[str, Any], texts: dict[str, str]) -> Checkpoint:
        """Saves the state of all ranks; returns once it is committed.

        Args:
            step: Steps done.
            tensors: This rank's tensors, by names that do not depend on the plan.
            progress: Everything else that changes the future; the same on every rank, JSON-able.
            texts: Files to lie beside the tensors, by name.
        """
        name, url, started = _name(step), self.url(step), time.monotonic()
        from_main(self._ranks, lambda: self._clear(name))
        writer = ChecksumWriter(url)
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        dcp.save(tensors, storage_writer=writer, planner=planner)
        entries = {name: entry for part in gather_to_all(writer.entries, self._ranks) for name, entry in part.items()}
        texts = {**texts, "state.json": json.dumps({"step": step, **progress}, indent=2)}
        from_main(self._ranks, lambda: self._commit(name, entries, texts))
        self.saved_step, self.save_seconds = step, max(self.save_seconds, time.monotonic() - started)
        return Checkpoint(url, step, progress)

    def _clear(self, name: str) -> None:
        directory = self._run.path(FOLDER, name)
        if self._run.fs.exists(directory):
            self._run.fs.rm(directory, recursive=True)
        self._run.fs.makedirs(directory, exist_ok=True)

    def _commit(self, name: str, entries: dict[str, FileEntry], texts: dict[str, str]) -> None:
        for file, text in texts.items():
            self._run.write(posixpath.join(FOLDER, name, file), text)
        entries = entries | {file: entry_of(text.encode()) for file, text in texts.items()}
        self._run.write_json(posixpath.join(FOLDER, name, MANIFEST), {"version": 1, "files": entries})

    def newest(self) -> Checkpoint | None:
        """Returns the newest committed checkpoint whose files are as they were written; damaged ones are reported."""
        for name in sorted(self._names(), reverse=True):
            manifest = self._run.read(FOLDER, name, MANIFEST)
            if manifest is None:
                continue
            damage = find_damage(self._run.fs, self._run.path(FOLDER, name), json.loads(manifest)["files"])
            if damage:
                print(f"checkpoint {name} is skipped: {damage}; trying the one before it", flush=True)
                continue
            progress = json.loads(self._run.read(FOLDER, name, "state.json") or "")
            return Checkpoint(self._run.url_of(FOLDER, name), progress.pop("step"), progress)
        return None

    def _names(self) -> list[str]:
        folder = self._run.path(FOLDER)
        if not self._run.fs.exists(folder):
            return []
        return [posixpath.basename(path.rstrip("/")) for path in self._run.fs.ls(folder, detail=False)]


def _name(step: int) -> str:
    return f"step-{step:09d}"


def restore(checkpoint: Checkpoint, tensors: State, ranks: Ranks, partial: bool = False) -> None:
    """Fills tensors in place from a checkpoint, whatever its plan and number of ranks were.

    Args:
        checkpoint: Where to read.
        tensors: This rank's tensors; each is filled.
        ranks: This process among the ranks that restore together.
        partial: Whether the checkpoint may hold more than these tensors, as when only the weights are wanted.

    Raises:
        ValueError: The checkpoint lacks one of the tensors, or holds one that is not asked for.
    """
    reader = FsspecReader(checkpoint.url)
    metadata = reader.read_metadata().state_dict_metadata
    _check_names(checkpoint.url, set(metadata), tensors, ranks, partial)
    sizes = {name: entry.size for name, entry in metadata.items() if isinstance(entry, TensorStorageMetadata)}
    recut = {name: value for name, value in tensors.items() if is_row_state(name, value, sizes[name])}
    whole = {name: torch.empty(sizes[name]) for name in recut}
    same = {name: value for name, value in tensors.items() if name not in recut}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(same | whole, storage_reader=reader, planner=planner)
    for name, value in recut.items():
        write_row_state(value, whole[name], _table_rows(name, tensors))


def _check_names(url: str, saved: set[str], tensors: State, ranks: Ranks, partial: bool) -> None:
    wanted = set().union(*gather_to_all(set(tensors), ranks))
    if missing := sorted(wanted - saved):
        raise ValueError(f"checkpoint {url} lacks {len(missing)} tensors of this model, such as '{missing[0]}'")
    if not partial and (unused := sorted(saved - wanted)):
        raise ValueError(f"checkpoint {url} holds {len(unused)} tensors that this model lacks, such as '{unused[0]}'")


def _table_rows(name: str, tensors: State) -> int:
    table = name.split(".")[1]
    return next(value.size(0) for key, value in tensors.items() if key.endswith(f"embedding_bags.{table}.weight"))
