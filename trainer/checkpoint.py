"""Checkpoints: what one is, which is the newest good one, and how a job is restored from it.

    RUN_DIR/checkpoints/step-000001000/
        *.distcp, .metadata     tensors, as torch.distributed.checkpoint writes them
        state.json              step, data position, running metrics, data fingerprint
        config.toml, plan.json  as in the run directory
        manifest.json           size and checksum of every file above; written last

The manifest is the commit: a directory without one does not exist for anybody.
"""

import json
import posixpath
import re
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer.distributed import Ranks, gather_to_all
from trainer.manifest import FileEntry, entry_of, find_damage
from trainer.run_directory import RunDirectory
from trainer.state import State, is_row_state, write_row_state

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
STATE = "state.json"
NAME = re.compile(r"step-\d{9,}")


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
    """The checkpoints in a run directory.

    Args:
        run: The run directory.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def url(self, step: int) -> str:
        """Returns where the checkpoint of a step is."""
        return self._run.url_of(FOLDER, _name(step))

    def steps(self) -> list[int]:
        """Returns the steps of the committed checkpoints, in order."""
        return sorted(int(name.removeprefix("step-")) for name in self._names() if self._manifest(name) is not None)

    def newest(self) -> Checkpoint | None:
        """Returns the newest committed checkpoint whose files are as they were written; damaged ones are reported."""
        for step in reversed(self.steps()):
            damage = self.damage(step)
            if damage is None:
                return self.at(step)
            print(f"checkpoint {_name(step)} is skipped: {damage}; trying the one before it", flush=True)
        return None

    def at(self, step: int) -> Checkpoint:
        """Returns the committed checkpoint of a step."""
        progress = json.loads(self._run.read(FOLDER, _name(step), STATE) or "")
        return Checkpoint(self.url(step), progress.pop("step"), progress)

    def damage(self, step: int) -> str | None:
        """Reads the files of a committed checkpoint and returns what is wrong with them, None if nothing is."""
        manifest = self._manifest(_name(step))
        try:
            entries = json.loads(manifest or "")["files"]
        except (ValueError, KeyError):
            return f"{MANIFEST} is damaged"
        return find_damage(self._run.fs, self._run.path(FOLDER, _name(step)), entries)

    def begin(self, step: int) -> str:
        """Makes the empty directory of a checkpoint and returns its URL."""
        self.remove(step)
        self._run.fs.makedirs(self._run.path(FOLDER, _name(step)), exist_ok=True)
        return self.url(step)

    def commit(self, step: int, entries: dict[str, FileEntry], texts: dict[str, str]) -> None:
        """Writes the small files of a checkpoint and then the manifest, with which it begins to exist.

        Args:
            step: Steps done.
            entries: The files that are written already.
            texts: Files to lie beside them, by name.
        """
        for file, text in texts.items():
            self._run.write(posixpath.join(FOLDER, _name(step), file), text)
        entries = entries | {file: entry_of(text.encode()) for file, text in texts.items()}
        self._run.write_json(posixpath.join(FOLDER, _name(step), MANIFEST), {"version": 1, "files": entries})

    def remove(self, step: int) -> None:
        """Deletes a checkpoint, the manifest first, so that none is ever half there."""
        self._remove(_name(step))

    def remove_leftovers(self) -> list[str]:
        """Deletes what saves left that were never committed, and returns their names."""
        leftovers = [name for name in self._names() if self._manifest(name) is None]
        for name in leftovers:
            self._remove(name)
        return leftovers

    def _remove(self, name: str) -> None:
        directory, manifest = self._run.path(FOLDER, name), self._run.path(FOLDER, name, MANIFEST)
        if self._run.fs.exists(manifest):
            self._run.fs.rm_file(manifest)
        if self._run.fs.exists(directory):
            self._run.fs.rm(directory, recursive=True)

    def _manifest(self, name: str) -> str | None:
        return self._run.read(FOLDER, name, MANIFEST)

    def _names(self) -> list[str]:
        folder = self._run.path(FOLDER)
        if not self._run.fs.exists(folder):
            return []
        names = (posixpath.basename(path.rstrip("/")) for path in self._run.fs.ls(folder, detail=False))
        return [name for name in names if NAME.fullmatch(name)]


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
