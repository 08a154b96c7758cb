"""The checkpoints of a run: lists, verifies, commits and deletes them.

    RUN_DIR/checkpoints/step-000001000/
        *.distcp, .metadata     tensors, as torch.distributed.checkpoint writes them
        state.json              step, seed, lanes, running metrics, step state, fingerprints of the data
        config.toml, plan.json  as in the run directory
        manifest.json           size and checksum of every file above; written last

Writing the manifest commits a checkpoint: a directory without a manifest is no checkpoint. DCP has no commit: it writes
`.metadata` last, but without checksums, and the files of the ranks appear one by one.

A delta holds the changes since another checkpoint, its predecessor. Its manifest names the predecessor, with a checksum
of the predecessor's manifest. So a delta stands for the whole state unless something in its chain is lost or replaced.
"""

import json
import posixpath
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from isal.isal_zlib import crc32

from trainer.core.console import plural
from trainer.core.errors import DamagedError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import has_secrets
from trainer.core.storage import Storage, os_errors

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
AFTER = "after"  # key in a manifest for the predecessor
STATE = "state.json"
ENDS = "ends"  # key in the train state for the name of the segment that ends with the step
NAME = re.compile(r"step-\d{9,}")
FileEntry = dict[str, int]
"""`bytes` and `crc32` of one file.

CRC-32 detects accidental truncation and corruption, not forgery. ISA-L computes what zlib does, at the speed of memory:
1 GiB takes 0.1 s, with zlib 0.5 s, in which it keeps a core busy.
"""
READ_BYTES = 1 << 20  # for larger reads Python gets new memory from the system each time
VERIFY_THREADS = 4  # number of files that a rank verifies at once; reads and checksums release Python's lock
FindDamage = Callable[[Storage, str, dict[str, FileEntry]], str | None]
"""Reads files in a directory back; returns the damage of one, None if all are as they were written."""


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint.

    Attributes:
        url: Directory of the checkpoint.
        step: Steps done when it was saved.
        train_state: The content of state.json beside the step.
    """

    url: str
    step: int
    train_state: dict[str, Any]

    @property
    def run_url(self) -> str:
        """URL of the run directory."""
        return self.url.rpartition(f"/{FOLDER}/")[0]


@dataclass(frozen=True)
class Chain:
    """The chain of a committed checkpoint: a whole checkpoint and the deltas up to itself.

    Attributes:
        step: Step of the last checkpoint.
        deltas: Number of deltas.
        whole_bytes: Size of the whole checkpoint.
        delta_bytes: Size of all deltas together.
    """

    step: int
    deltas: int
    whole_bytes: int
    delta_bytes: int


class Checkpoints:
    """The checkpoints in a run directory.

    Manifests and states of committed checkpoints do not change, so they are read only once. A run that keeps 10,000
    checkpoints would otherwise need as many requests after each save.

    Args:
        run: The run directory.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._predecessors: dict[int, int | None] = {}
        self._ends: dict[int, str | None] = {}

    def url(self, step: int) -> str:
        """Returns the URL of the checkpoint of a step."""
        return self._run.url_of(FOLDER, _name(step))

    def steps(self) -> list[int]:
        """Returns the steps of the committed checkpoints, in order."""
        return [*self.with_predecessors()]

    def newest(self, find: FindDamage | None = None) -> Checkpoint | None:
        """Returns the newest committed checkpoint that is not damaged; reports damaged newer checkpoints."""
        return self.first_good(reversed(self.steps()), find)

    def first_good(self, steps: Iterable[int], find: FindDamage | None = None) -> Checkpoint | None:
        """Returns the first undamaged checkpoint of these steps; reports the damaged checkpoints before it.

        Args:
            steps: The steps, in the order of preference.
            find: Verifies files. Unset: `find_damage`, on this rank alone.
        """
        known: dict[int, str | None] = {}
        for step in steps:
            damage = self.damage(step, known, find)
            if damage is None:
                return self.at(step)
            print(f"checkpoint {_name(step)} is skipped: {damage}; trying the next", flush=True)
        return None

    def at(self, step: int) -> Checkpoint:
        """Returns the committed checkpoint of a step."""
        train_state = self._run.read_json(FOLDER, _name(step), STATE) or {}
        return Checkpoint(self.url(step), train_state.pop("step"), train_state)

    def text(self, step: int, name: str) -> str | None:
        """Returns a small file of a committed checkpoint; None if it is damaged."""
        manifest = _parsed(self._manifest(_name(step)))
        content = self._run.read_bytes(FOLDER, _name(step), name)
        is_whole = manifest and content is not None and manifest.files.get(name) == entry_of(content)
        return content.decode() if is_whole and content is not None else None

    def damage(
        self, step: int, known: dict[int, str | None] | None = None, find: FindDamage | None = None
    ) -> str | None:
        """Verifies the files of a committed checkpoint and of its chain; returns the damage, None if there is none.

        Args:
            step: Step of the checkpoint.
            known: Damage found so far, by checkpoint, so that no file is read twice; extended by this call.
            find: Verifies files. Unset: `find_damage`, on this rank alone.
        """
        known, manifest = {} if known is None else known, _parsed(self._manifest(_name(step)))
        if step not in known:
            known[step] = self._own_damage(step, manifest, find or find_damage)
        if own := known[step]:
            return own
        if manifest is None or (predecessor := manifest.after) is None:
            return None
        before = self._manifest(_name(predecessor["step"]))
        if before is None:
            return f"it is a delta on {_name(predecessor['step'])}, which is missing"
        if crc32(before.encode()) != predecessor["crc32"]:
            return f"it is a delta on {_name(predecessor['step'])}, which was replaced by another"
        earlier = self.damage(predecessor["step"], known, find)
        return f"it is a delta on {_name(predecessor['step'])}: {earlier}" if earlier else None

    def _own_damage(self, step: int, manifest: "Manifest | None", find: FindDamage) -> str | None:
        if manifest is None:
            return f"{MANIFEST} is damaged"
        return find(self._run.fs, self._run.path(FOLDER, _name(step)), manifest.files)

    def with_predecessors(self) -> dict[int, int | None]:
        """Returns the steps of the committed checkpoints in order, each with the step of its predecessor."""
        steps = sorted(map(_step, self._names()))
        for step in steps:
            if step not in self._predecessors and (manifest := self._manifest(_name(step))) is not None:
                before = _predecessor(manifest)
                self._predecessors[step] = None if before is None else before["step"]
        return {step: self._predecessors[step] for step in steps if step in self._predecessors}

    def end_at(self, step: int) -> str | None:
        """Returns the name of the segment, such as a day, that ends with a committed checkpoint; None if none does."""
        if step not in self._ends:
            state = self.at(step).train_state
            self._ends[step] = state.get(ENDS, _unmarked_end(step, state))
        return self._ends[step]

    def links(self, step: int) -> list[int]:
        """Returns the steps of the chain of a committed checkpoint, the whole checkpoint first."""
        return [_step(link.rpartition("/")[2]) for link in links_of(self.url(step))]

    def chain(self, step: int) -> Chain:
        """Returns the chain of a committed, undamaged checkpoint."""
        sizes = [_bytes(self._manifest(_name(link)) or "") for link in self.links(step)]
        return Chain(step, len(sizes) - 1, sizes[0], sum(sizes[1:]))

    def begin(self, step: int) -> None:
        """Creates the empty directory of a checkpoint."""
        self.remove(step)
        self._run.fs.makedirs(self._run.path(FOLDER, _name(step)))

    def commit(
        self, step: int, entries: dict[str, FileEntry], texts: dict[str, str], predecessor: int | None = None
    ) -> None:
        """Writes the small files of a checkpoint, and then the manifest, which commits it.

        Args:
            step: Steps done.
            entries: Size and checksum of each file with tensors.
            texts: Contents of the small files, by name.
            predecessor: Step of the predecessor of a delta; None for a whole checkpoint.

        Raises:
            OSError: A file cannot be written, or the predecessor is gone.
        """
        for name, text in texts.items():
            private = name.endswith(".toml") and has_secrets(text)
            with self._run.fs.durable(self._run.path(FOLDER, _name(step), name), private) as file:
                file.write(text.encode())
        entries = entries | {name: entry_of(text.encode()) for name, text in texts.items()}
        manifest: dict[str, Any] = {"version": 1, "files": entries}
        if predecessor is not None:
            before = self._manifest(_name(predecessor))
            if before is None:
                raise FileNotFoundError(f"{self.url(predecessor)}, which this is a delta on, is gone")
            after = {"step": predecessor, "crc32": crc32(before.encode())}
            manifest = {"version": 2, AFTER: after, "files": entries}
        self._run.write_json(posixpath.join(FOLDER, _name(step), MANIFEST), manifest)

    def remove(self, step: int) -> None:
        """Deletes a checkpoint, the manifest first, so that an interrupted deletion leaves no damaged checkpoint."""
        self._predecessors.pop(step, None)
        self._ends.pop(step, None)
        # Files may be missing, because an interrupted deletion is continued later.
        with suppress(FileNotFoundError):
            self._run.fs.rm_file(self._run.path(FOLDER, _name(step), MANIFEST))
        with suppress(FileNotFoundError):
            self._run.fs.rm(self._run.path(FOLDER, _name(step)), recursive=True)

    def uncommitted(self) -> list[int]:
        """Returns the steps of checkpoints that are not committed, in order."""
        committed = self.with_predecessors()
        return sorted(step for step in map(_step, self._names()) if step not in committed)

    def remove_leftovers(self) -> list[str]:
        """Deletes checkpoints that were never committed, and returns their names."""
        leftovers = self.uncommitted()
        for step in leftovers:
            self.remove(step)
        return [_name(step) for step in leftovers]

    def saved_at(self, step: int) -> float | None:
        """Returns when the checkpoint of a step was committed, in seconds since 1970; None if storage does not tell."""
        with suppress(OSError, NotImplementedError):
            return self._run.fs.modified(self._run.path(FOLDER, _name(step), MANIFEST)).timestamp()
        return None

    def _manifest(self, name: str) -> str | None:
        """Returns the text of a manifest, empty if it is too damaged to be text; None if there is no manifest."""
        try:
            return self._run.read(FOLDER, name, MANIFEST)
        except DamagedError:
            return ""

    def _names(self) -> list[str]:
        try:
            paths = self._run.fs.ls(self._run.path(FOLDER), detail=False)
        except FileNotFoundError:
            return []
        names = (posixpath.basename(path.rstrip("/")) for path in paths)
        return [name for name in names if NAME.fullmatch(name)]


def _unmarked_end(step: int, state: dict[str, Any]) -> str | None:
    """Returns the name of the segment that ends with a checkpoint of an earlier version, which did not mark it."""
    segment = state.get("segment")
    return segment["name"] if segment and segment["last_step"] == step else None


def links_of(url: str) -> list[str]:
    """Returns the URLs of the directories of a checkpoint's chain, the whole checkpoint first."""
    links = [url.rstrip("/")]
    while predecessor := _predecessor(RunDirectory(links[0]).read(MANIFEST)):
        links.insert(0, f"{links[0].rpartition('/')[0]}/{_name(predecessor['step'])}")
    return links


@dataclass(frozen=True)
class Manifest:
    """The content of a manifest.

    Attributes:
        files: Size and checksum of each file.
        after: The step of the predecessor and the CRC-32 of the predecessor's manifest; None for a whole checkpoint.
    """

    files: dict[str, FileEntry]
    after: dict[str, int] | None


def _parsed(manifest: str | None) -> Manifest | None:
    """Parses a manifest; None if there is none or it is damaged."""
    try:
        content = json.loads(manifest or "")
        found = Manifest(content["files"], content.get(AFTER))
        is_whole = content["version"] == (1 if found.after is None else 2) and STATE in found.files
        shapes = [(entry, {"bytes", "crc32"}) for entry in found.files.values()]
        shapes += [] if found.after is None else [(found.after, {"step", "crc32"})]
        is_whole &= all({*entry} == keys and {*map(type, entry.values())} == {int} for entry, keys in shapes)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if is_whole else None


def files_of(manifest: str) -> dict[str, FileEntry] | None:
    """Returns the size and the checksum of each file in a manifest; None if the manifest is damaged."""
    found = _parsed(manifest)
    return found.files if found else None


def _predecessor(manifest: str | None) -> dict[str, int] | None:
    found = _parsed(manifest)
    return found.after if found else None  # None for a damaged manifest; `damage` reports it


def _bytes(manifest: str) -> int:
    found = _parsed(manifest)
    assert found, "it was verified"
    return sum(entry["bytes"] for entry in found.files.values())


def find_damage(fs: Storage, directory: str, entries: dict[str, FileEntry]) -> str | None:
    """Reads files back and returns the damage of the first damaged file; None if all are as they were written."""

    def check(name: str) -> str | None:
        return _damage_of(fs, directory, name, entries[name])

    with ThreadPoolExecutor(VERIFY_THREADS) as threads:
        return next(filter(None, threads.map(check, entries)), None)


def _damage_of(fs: Storage, directory: str, name: str, expected: FileEntry) -> str | None:
    entry = entry_of(b"")
    try:
        path = posixpath.join(directory, name)
        with os_errors(path), fs.open(path, "rb") as file:
            while block := file.read(READ_BYTES):
                add_to(entry, block)
    except OSError as error:
        return f"{name} cannot be read ({error})"
    if entry["bytes"] != expected["bytes"]:
        return f"{name} is damaged: it has {plural(entry['bytes'], 'byte')}, and {expected['bytes']:,} were written"
    if entry["crc32"] != expected["crc32"]:
        return f"{name} is damaged: its CRC-32 is {entry['crc32']:08x}, and was {expected['crc32']:08x} when written"
    return None


def entry_of(data: bytes) -> FileEntry:
    """Returns the size and checksum of this content."""
    return {"bytes": len(data), "crc32": crc32(data)}


def add_to(entry: FileEntry, data: Any) -> None:
    """Continues a size and checksum with more bytes."""
    view = memoryview(data).cast("B")
    entry["bytes"] += view.nbytes
    entry["crc32"] = crc32(view, entry["crc32"])


def _name(step: int) -> str:
    # Nine digits, so that listings are in the order of steps.
    return f"step-{step:09d}"


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))
