"""Records of submitted jobs for `torchx tracker`: one file for each job in the state directory, without a server."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from torchx.settings import ENV_TORCHX_PARENT_RUN_ID
from torchx.specs import AppDryRunInfo, Role, macros

from schedulers.state_directory import state_directory
from trainer.core.secrets import without_secrets

TRACKER = "recsys"
SUFFIX = ".jsonl"
# Flags that name what a command reads and writes: of `train` and data jobs, --out is what they write.
FLAGS = ("--out", "--to")
# Schedulers whose jobs see the files of the submitting shell. Elsewhere a relative path is the container's.
SHARED_FILES = ("local_cwd", "slurm")


class JobRecords:
    """A directory with a file for each job; each of its lines is an object with one of the keys of `add`.

    Args:
        folder: The directory; created with the first record.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_directory("tracker")

    def add(self, run_id: str, **entry: Mapping[str, Any]) -> None:
        """Appends a line to the record of a job.

        Args:
            run_id: The handle of the job.
            entry: `metadata` by name, `artifact` with `name`, `path` and `metadata`, or `source` with `id` and `name`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        line = without_secrets(json.dumps(entry, default=str)) + "\n"
        # One write to the end of the file, so that lines of several processes do not mix.
        file = os.open(self._file(run_id), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def lines(self, run_id: str, key: str) -> list[dict[str, Any]]:
        """Returns the entries of one kind in the record of a job, oldest first; none if there is no record."""
        return [entry[key] for entry in self._entries(run_id) if key in entry]

    def run_ids(self) -> list[str]:
        """Returns the handles of all jobs with a record, oldest first."""
        files = sorted(self.folder.glob(f"*{SUFFIX}"), key=lambda file: (file.stat().st_ctime, file.name))
        return [unquote(file.name.removesuffix(SUFFIX)) for file in files]

    def _entries(self, run_id: str) -> Iterator[dict[str, Any]]:
        try:
            lines = self._file(run_id).read_text().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                print(f"{self._file(run_id)} has a damaged line; it is passed over", file=sys.stderr)

    def _file(self, run_id: str) -> Path:
        return self.folder / f"{quote(run_id, safe='')}{SUFFIX}"


def remember(handle: str, dry_run: AppDryRunInfo) -> str:
    """Records a job that has just been submitted, and returns its handle.

    A failure only prints a line, because the job is submitted.

    Args:
        handle: Its handle.
        dry_run: Its request.
    """
    app = dry_run.app
    if app is None:
        return handle
    records = JobRecords()
    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        records.add(handle, metadata={"name": app.name, "submitted": now})
        for parent in {
            role.env[ENV_TORCHX_PARENT_RUN_ID] for role in app.roles if ENV_TORCHX_PARENT_RUN_ID in role.env
        }:
            records.add(handle, source={"id": parent, "name": None})
        for role in app.roles:
            records.add(handle, role=_described(role, handle, dry_run.cfg, len(app.roles) > 1))
    except OSError as error:
        print(f"torchx tracker will not know {handle}: {records.folder}: {error}", file=sys.stderr, flush=True)
    return handle


def _described(role: Role, handle: str, cfg: Any, is_one_of_several: bool) -> dict[str, Any]:
    """Returns the trainer's command in a role, its configuration, and what its flags name."""
    scheduler, _, rest = handle.partition("://")
    host, _, app_id = rest.rpartition("/")[2].rpartition(":")
    words = [word.replace(macros.app_id, app_id) for word in _words(role)]
    described = {"prefix": f"{role.name}/" if is_one_of_several else "", "command": next(iter(words), role.entrypoint)}
    if len(words) > 1 and not words[1].startswith("-"):
        described["config"] = words[1]
    base = None
    if scheduler in SHARED_FILES and not host:
        base = Path.cwd() / (getattr(cfg, "job_dir", None) or "")
    for flag in FLAGS:
        if flag in words[:-1]:
            place = words[words.index(flag) + 1]
            described[flag] = place if base is None or "://" in place else os.path.normpath(base / place)
    return described


def _words(role: Role) -> list[str]:
    """Returns the command line of `python -m trainer` in a role; empty for another program."""
    try:
        words = shlex.split(role.args[-1]) if role.entrypoint == "bash" else [*role.args]
    except (ValueError, IndexError):
        return []
    pairs = pairwise(words)
    begin = next((place for place, pair in enumerate(pairs) if pair == ("-m", "trainer")), None)
    return [] if begin is None else [word.replace("$$", "$") for word in words[begin + 2 :]]
