"""Sends a run to its trackers, as far as they do not have it.

python -m trainer track --out runs/mine
"""

from trainer.config.train import ReportConfig
from trainer.core.errors import InputError, StorageError, first_line
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import place
from trainer.core.section import validate
from trainer.core.storage import named
from trainer.extensions.trackers.sending import Sender, check_trackers
from trainer.run.lock import RunLock


def track(out: str, trackers: list[str] | None = None, export: str | None = None) -> None:
    """Sends what the trackers of a run do not have yet, or a whole run to a tracker that has nothing of it.

    Args:
        out: The run directory, any fsspec URL.
        trackers: The trackers. Unset: those of the run's report.trackers.
        export: An export of the run that they are to name, any fsspec URL.

    Raises:
        InputError: There is no run, or it has no such tracker, or its own job still sends.
        StorageError: A tracker does not take the run.
    """
    directory = RunDirectory(out)
    with named("--out", out):
        tree = directory.read_toml("config.toml")
    if tree is None:
        raise InputError(f"--out is {place(out)}, which holds no run; name a run directory")
    report = tree.get("report", {}) | ({} if trackers is None else {"trackers": trackers})
    config = validate(ReportConfig, report, lambda _: "--" if trackers else f"configuration '{out}/config.toml': ")
    if not config.trackers:
        raise InputError(f"--out is {place(out)}, whose report.trackers is empty; name some with --trackers")
    check_trackers(config)
    state = directory.facts().get("state", "")
    for name in config.trackers:
        lock = RunLock(directory, file=f"tracker-{name}.lock")
        lock.take()
        try:
            references = {} if export is None else {"export": export}
            Sender(name, getattr(config, name), directory).send(state, **references)
        except Exception as error:  # clients raise anything
            raise StorageError(
                f"{name} does not take {place(out)}: {first_line(error)}; the same command goes on"
            ) from error
        finally:
            lock.release()
        print(f"{name} has all of {place(out)}", flush=True)
