"""Resume: whether a run directory may be continued, and from which checkpoint.

In order of their calls: `check_saved_before`, `open_run`, `find_start` while a job claims the run directory; then
`check_start` and `check_catalogue`, once the data has been read.
"""

import re
import tomllib
from typing import Any, Literal

from trainer.checkpoint.store import FOLDER, MANIFEST, Checkpoint, Checkpoints, FindDamage
from trainer.config.root import Config, to_toml
from trainer.core.console import plural
from trainer.core.errors import DamagedError, InputError
from trainer.core.outcome import step_saved_before
from trainer.core.run_directory import RunDirectory, pass_over
from trainer.core.secrets import place, without_secrets
from trainer.core.section import as_begun, changed_keys, named_on_one_side
from trainer.core.storage import named
from trainer.data.dataset import FileSet
from trainer.rules.registry import keeps_rows
from trainer.rules.vocabulary import check_fingerprints

SHOWN = 3  # number of names in a message
REWIND = "rewind.json"
"""The first file of a directory that `rewind` makes; run.json is the last."""
Resume = Literal["auto", "never", "must"]


def check_saved_before(directory: RunDirectory) -> None:
    """Refuses to start from scratch if an earlier attempt of this job has saved a checkpoint; writes nothing.

    Raises:
        InputError: An earlier attempt has saved a checkpoint, but the directory holds none.
    """
    if (step := step_saved_before()) and not _has_checkpoints(directory):
        raise InputError(
            f"{directory.key} is {place(directory.url)}, which holds no checkpoint, but an earlier attempt "
            f"of this job has saved step {step:,} there; put the directory back and submit the job again"
        )


def open_run(directory: RunDirectory, config: Config) -> Config:
    """Creates a run directory, or reuses the directory of an earlier attempt.

    The configuration of an earlier attempt matters only if the attempt left a checkpoint to resume from.

    Returns:
        The configuration to train with: `config`, and for keys marked `AsBegun` what the run began with.

    Raises:
        InputError: The directory cannot be written, or holds a configuration that belongs to no run, an unfinished
            rewind, or checkpoints of another configuration.
    """
    with named(directory.key, directory.url):
        has_config, is_run = (directory.read_bytes(name) is not None for name in ("config.toml", "run.json"))
        is_begun_rewind = not is_run and directory.read_bytes(REWIND) is not None
    if is_begun_rewind:
        raise InputError(
            f"{directory.key} is {place(directory.url)}, which a rewind has begun and not completed; give "
            "the same `rewind` command again"
        )
    if has_config and not is_run:
        raise InputError(
            f"{directory.key} is {place(directory.url)}, which holds a config.toml but no run; a run "
            "writes its own there: name another directory"
        )
    directory.create()
    if has_config and _has_checkpoints(directory):
        with named(directory.key, directory.url):
            earlier = _check_may_change(directory, config)
        now = tomllib.loads(to_toml(config))
        if (kept := as_begun(Config, earlier, now)) != now:
            return Config.model_validate(kept)
    return config


def _has_checkpoints(directory: RunDirectory) -> bool:
    # A single listing, because `Checkpoints.steps` would read the manifest of each checkpoint.
    return any(path.endswith(f"/{MANIFEST}") for path in directory.fs.find(directory.path(FOLDER)))


def _check_may_change(directory: RunDirectory, config: Config) -> dict[str, Any]:
    """Refuses a configuration that changes keys which are fixed for the life of a run; returns the earlier one.

    The configuration in the newest checkpoint decides, as the manifest has its checksum. It is read only if the copy in
    the run directory is damaged or differs from the new configuration.

    Raises:
        DamagedError: No configuration can be read.
    """
    try:
        _check_keys(directory.url, earlier := directory.read_toml("config.toml") or {}, config)
    except (InputError, DamagedError) as error:
        checkpoints = Checkpoints(directory)
        texts = (checkpoints.text(step, "config.toml") for step in reversed(checkpoints.steps()))
        if (saved := next(filter(None, texts), None)) is None:
            raise
        _check_keys(directory.url, earlier := tomllib.loads(saved), config)
        differs = directory.damaged("config.toml", why="the newest checkpoint has another")
        pass_over(error if isinstance(error, DamagedError) else differs)
    return earlier


def _check_keys(url: str, earlier: dict[str, Any], config: Config) -> None:
    now = tomllib.loads(to_toml(config))
    for table, (there, here) in named_on_one_side(Config, earlier, now).items():
        sides = ((there, "there"), (here, "here"))
        differ = " and ".join(f"{_listed(names)} only {where}" for names, where in sides if names)
        raise InputError(
            f"--out is '{url}', which holds a run of another configuration: {table} has {differ}, and may not change "
            "when a run is resumed; set it back or choose another --out"
        )
    for key, before, after in changed_keys(Config, earlier, now):
        may_grow = _may_grow(config, key, before, after)
        if may_grow and config.checkpoint.grow_tables:
            continue
        way_out = "let the table grow with --checkpoint.grow-tables True" if may_grow else "choose another --out"
        raise InputError(
            f"--out is '{url}', which holds a run of another configuration: {key} is {before!r} there and {after!r} "
            f"here, and may not change when a run is resumed; set it back or {way_out}"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(f"'{name}'" for name in names[:SHOWN]) + more


def _may_grow(config: Config, key: str, before: Any, after: Any) -> bool:
    """Returns whether a key is the number of rows of a table that has grown, and whose ids keep their rows."""
    found = re.fullmatch(r"data\.sparse\.(.+)\.rows", key)
    return found is not None and after > before and keeps_rows(config.data.sparse[found[1]])


def find_start(checkpoints: Checkpoints, resume: Resume, url: str, find: FindDamage) -> Checkpoint | None:
    """Returns the checkpoint to resume from; None for a start from scratch.

    Args:
        checkpoints: The checkpoints of the run.
        resume: auto, must or never.
        url: The run directory.
        find: Verifies files.

    Raises:
        InputError: `resume` is must and there is no checkpoint, or never and there is one, or all are damaged.
    """
    with named("--out", url):
        newest = checkpoints.newest(find)
        committed = checkpoints.steps()
    if newest is None and committed:
        raise InputError(
            f"--out is '{without_secrets(url)}', which holds {plural(len(committed), 'checkpoint')}, all damaged; put "
            "copies of the files back, or delete its folder 'checkpoints' to start from scratch"
        )
    if resume == "must" and newest is None:
        raise InputError(f"--resume is must, but '{url}' holds no committed checkpoint; use --resume auto")
    if resume == "never" and newest is not None:
        raise InputError(
            f"--resume is never, but '{url}' holds a checkpoint of step {newest.step}; choose another --out, "
            "or use --resume auto"
        )
    return newest


def check_start(start: Checkpoint, lanes: int, config: Config, files: FileSet | None) -> None:
    """Refuses to resume from a checkpoint with other lanes or other data.

    Args:
        start: The checkpoint.
        lanes: The lanes of the run now.
        config: The configuration now.
        files: The training data now; None if training continues on other data.

    Raises:
        InputError: They differ. The message names the change and the flag that accepts it.
    """
    saved = start.train_state
    if lanes != saved["lanes"]:  # lanes decide which samples a step has
        raise InputError(
            f"data.lanes is {lanes}, but the checkpoint at {start.url} was made with {saved['lanes']}; leave it unset"
        )
    if files and not files.was(saved["data"]["fingerprint"]) and not config.data.accept_changed:
        raise InputError(
            f"the training data changed since the checkpoint at {start.url}: {files.change_since(saved['data'])}; "
            "--data.accept-changed True resumes from the same step"
        )
    check_fingerprints(config.data.sparse, saved.get("vocabularies", {}), start.url)


def check_catalogue(start: Checkpoint, fingerprint: str, config: Config) -> None:
    """Refuses to resume from a checkpoint with another catalogue, because the run would draw other negatives.

    Raises:
        InputError: It differs. The message names the flag that accepts it.
    """
    saved = start.train_state.get("catalogue")  # absent in checkpoints of earlier versions
    if saved and fingerprint != saved and not config.data.accept_changed:
        raise InputError(
            f"data.catalogue.items changed since the checkpoint at {start.url}: its items, their weights or their "
            "features; --data.accept-changed True resumes from the same step"
        )
