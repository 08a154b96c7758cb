"""Goes back in a run over segments: makes a new run directory with the run as it was at the end of a segment.

Nothing here writes to the run itself, so a job may write to it meanwhile.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from trainer.checkpoint.retention import named_ends
from trainer.checkpoint.store import (
    MANIFEST,
    READ_BYTES,
    Checkpoints,
    FileEntry,
    add_to,
    entry_of,
    files_of,
    find_damage,
)
from trainer.core.console import next_commands, plural
from trainer.core.errors import InputError
from trainer.core.outcome import STOPPED_WORD
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import place, without_secrets
from trainer.core.storage import named
from trainer.extensions.compiled import DECIDED
from trainer.training.resume import REWIND

Line = Mapping[str, Any]


def rewind(out: str, segment: str, to: str) -> None:
    """Makes a new run directory with a run over segments as it was at the end of a segment.

    The directory has the checkpoint at the end of the segment, and the run's records up to it. The same training
    command with this directory as --out continues with the next segment; --data.segments.skip leaves segments out.

    Args:
        out: The run directory, any fsspec URL. Nothing is written to it, and a job may write to it meanwhile.
        segment: Name of the segment to go back to; if the run trained on it twice, the second time counts.
        to: New run directory, any fsspec URL.

    Raises:
        InputError: There is no good checkpoint at the end of the segment, or `to` holds something else.
    """
    run, target = RunDirectory(out), RunDirectory(to, "--to")
    wanted = {"run": without_secrets(run.url), "segment": segment}
    there = _read_record(run, target)
    if there and there != wanted | {"step": there.get("step")}:
        raise InputError(
            f"--to is '{without_secrets(to)}', which holds '{there.get('run')}' after segment {there.get('segment')}; "
            "name a new directory"
        )
    with named("--to", to):
        is_done = there and target.read("run.json") is not None
    if is_done:
        step = there["step"]
    else:
        with named("--out", out):
            step = _step_at_end(run, segment)
        _copy(run, target, wanted | {"step": step})
    checkpoint = without_secrets(Checkpoints(target).url(step))
    print(f"{without_secrets(target.url)} holds the run after segment {segment}, step {step:,}: {checkpoint}\n")
    print(next_commands(_command(run, target, step)))


def _read_record(run: RunDirectory, target: RunDirectory) -> dict[str, Any]:
    """Returns the origin of a directory made by an earlier call, empty for a new one; refuses any other content."""
    inside, outside = (directory.fs.url_of(directory.path()) for directory in (target, run))
    if f"{inside}/".startswith(f"{outside}/"):
        raise InputError(f"--to is '{without_secrets(target.url)}', which is in --out; name a new directory elsewhere")
    with named(target.key, target.url):
        there = target.read_json(REWIND) or {}
        if not there and target.fs.find(target.path()):
            raise InputError(
                f"--to is '{without_secrets(target.url)}', which holds something else; name a new directory"
            )
    return there


def _step_at_end(run: RunDirectory, segment: str) -> int:
    """Returns the step at the end of a segment, which has a checkpoint."""
    checkpoints = Checkpoints(run)
    ends = named_ends(checkpoints, checkpoints.steps())
    if steps := [step for step, name in ends.items() if name == segment]:
        return steps[-1]
    if not run.read_records("segments.jsonl") and not ends:
        raise InputError(f"--out is {place(run.url)}, which holds no run over segments")
    there = ", ".join(dict.fromkeys(ends.values())) or "none"
    raise InputError(
        f"--segment is '{segment}', at whose end '{without_secrets(run.url)}' has no checkpoint; one can go back to: "
        f"{there}; checkpoint.keep.segments keeps those at the ends of more segments"
    )


def _copy(run: RunDirectory, target: RunDirectory, record: dict[str, Any]) -> None:
    """Writes a new run directory. run.json comes last: with a config.toml but no run.json, training refuses it."""
    step, checkpoints = record["step"], Checkpoints(target)
    checkpoint = RunDirectory(Checkpoints(run).url(step), run.key)
    texts = {name: _read(checkpoint, name) for name in ("config.toml", "plan.json")}
    if (decided := run.read(DECIDED)) is not None:  # or the run would decide anew when to compile, and round elsewhere
        texts[DECIDED] = decided
    with named(target.key, target.url):
        target.fs.makedirs(target.path())
        target.write_json(REWIND, record)
    for name, text in texts.items():
        _write(target, name, text)
    with named(target.key, target.url):
        for killed in (*checkpoints.steps(), *checkpoints.uncommitted()):
            checkpoints.remove(killed)
    for name, is_kept in KEPT.items():
        with named(run.key, run.url), named(target.key, target.url):
            target.write_records(name, (line for line in run.records(name) if is_kept(line, step)))
    for one in Checkpoints(run).links(step):
        copy_checkpoint(Checkpoints(run), checkpoints, one, run.key, target.key)
    facts = run.facts()
    facts.pop("measured", None)
    outcome = f"{STOPPED_WORD} at step {step}, after segment {record['segment']} of {record['run']}"
    starts = [start for start in facts.get("starts", []) if start.get("step", step) < step]
    facts |= {"state": "stopped", "step": step, "outcome": outcome, "starts": starts}
    _write(target, "run.json", json.dumps(facts, indent=2) + "\n")


KEPT: Mapping[str, Callable[[Line, int], bool]] = {
    "metrics.jsonl": lambda line, step: line["step"] <= step,
    # The evaluation after the last step belongs to the next segment, and so do lines of that step without samples.
    "evaluations.jsonl": lambda line, step: line["step"] < step,
    "segments.jsonl": lambda line, step: line["step"] < step or (line["step"] == step and line["samples"] > 0),
}
"""Files of lines, and whether a line is from before the end of a segment."""


def copy_checkpoint(source: Checkpoints, target: Checkpoints, step: int, source_key: str, target_key: str) -> None:
    """Copies a committed checkpoint to another run directory, the manifest last, and verifies the copy.

    Args:
        source: The checkpoints of a run.
        target: The checkpoints of the other.
        step: The step.
        source_key: The flag that names the run.
        target_key: The flag that names the other run.

    Raises:
        InputError: A file is damaged, gone, or cannot be written.
    """
    here, there = RunDirectory(source.url(step), source_key), RunDirectory(target.url(step), target_key)
    manifest = _read(here, MANIFEST)
    if (entries := files_of(manifest)) is None:
        raise InputError(
            f"{source_key}: '{without_secrets(here.url_of(MANIFEST))}' is damaged; choose another checkpoint"
        )
    with named(target_key, there.url):
        target.begin(step)
    for name, expected in entries.items():
        if (found := _copy_file(here, there, name)) != expected:
            damage = f"has {plural(found['bytes'], 'byte')} of CRC-32 {found['crc32']:08x}, not as it was written"
            raise InputError(f"{source_key}: '{without_secrets(here.url_of(name))}' is damaged: it {damage}")
    with named(target_key, there.url):
        if damage := find_damage(there.fs, there.path(), entries):
            raise InputError(f"{target_key}: the copy in '{without_secrets(there.url)}' is not right: {damage}")
        there.write(MANIFEST, manifest)


def _copy_file(here: RunDirectory, there: RunDirectory, name: str) -> FileEntry:
    """Copies a file and returns size and checksum of the bytes read."""
    entry = entry_of(b"")
    with named(there.key, there.url), there.fs.durable(there.path(name)) as copy:
        for block in _blocks(here, name):
            add_to(entry, block)
            copy.write(block)
    return entry


def _blocks(here: RunDirectory, name: str) -> Iterator[bytes]:
    with named(here.key, here.url), here.fs.open(here.path(name), "rb") as file:
        while block := file.read(READ_BYTES):
            yield block


def _read(directory: RunDirectory, name: str) -> str:
    with named(directory.key, directory.url):
        text = directory.read(name)
    if text is None:  # the job that writes to the run may have just deleted the checkpoint
        raise InputError(f"{directory.key}: no such file: '{without_secrets(directory.url_of(name))}'")
    return text


def _write(target: RunDirectory, name: str, text: str) -> None:
    with named(target.key, target.url):
        target.write(name, text)


def _command(run: RunDirectory, target: RunDirectory, step: int) -> list[str]:
    """Returns the command that continues without the segment that the run trained on next."""
    facts = target.facts()
    ranks = facts.get("local_world_size", 1)
    hosts = facts.get("world_size", ranks) // ranks
    words = ["torchx", "run", "dlrm.multi_node", "-j", f"{hosts}x{ranks}"]
    words += ["--config", target.url_of("config.toml"), "--out", target.url]
    config = tomllib.loads(_read(target, "config.toml"))
    after = (line["segment"] for line in run.read_records("segments.jsonl") if line["step"] > step)
    skip = [*config["data"]["segments"].get("skip", []), *islice(after, 1)]
    return [*words, *(["--", "--data.segments.skip", *skip] if skip else [])]
