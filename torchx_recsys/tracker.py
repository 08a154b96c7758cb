"""TorchX's tracker `recsys`: the jobs that this user has submitted, and what their run directories hold by now."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torchx.tracker.api import Lineage, TrackerArtifact, TrackerBase, TrackerSource

from schedulers.job_records import JobRecords
from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.extensions.page.recorded import Run

FACTS = ("state", "step", "outcome", "command", "code", "world_size", "device")


def create(config: str | None) -> "RunTracker":
    """Returns the tracker; TorchX calls it, with `config` of [tracker:recsys]: a directory in place of the user's."""
    return RunTracker(Path(config).expanduser() if config else None)


class RunTracker(TrackerBase):
    """Reads a job's record, and the run directory that the record names, whenever it is asked.

    So a job needs no connection to it, and what it answers is as new as the run. Metrics are `SPLIT METRIC`, keys of
    the configuration are those that are not at their defaults.

    Args:
        folder: Directory of the records. Unset: in the user's state directory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._records = JobRecords(folder)

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Adds an artifact to the record of a job."""
        self._records.add(run_id, artifact={"name": name, "path": path, "metadata": metadata})

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Returns the artifacts of a job by name: run directory, newest checkpoint, exports, and those added."""
        found = {name: TrackerArtifact(name, path, None) for name, path in self._places(run_id)}
        added = (TrackerArtifact(**entry) for entry in self._records.lines(run_id, "artifact"))
        return found | {one.name: one for one in added}

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Adds metadata to the record of a job."""
        self._records.add(run_id, metadata=kwargs)

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Returns what is known of a job by name: when and how submitted, facts, last metrics, configuration."""
        found: dict[str, object] = {}
        for entry in self._records.lines(run_id, "metadata"):
            found |= entry
        for role in self._records.lines(run_id, "role"):
            prefix = role["prefix"]
            found |= {f"{prefix}{key}": role[key] for key in ("command", "config") if key in role}
            if run := _run_of(role):
                facts = {key: run.facts[key] for key in FACTS if key in run.facts}
                facts |= run.results | run.set_keys
                found |= {f"{prefix}{key}": without_secrets(value) for key, value in facts.items()}
        return found

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Adds a source, such as the job whose checkpoint is used, to the record of a job."""
        self._records.add(run_id, source={"id": source_id, "name": artifact_name})

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Returns where a job comes from: its parent run, the training whose run directory it reads, those added."""
        added = ((entry["id"], entry["name"]) for entry in self._records.lines(run_id, "source"))
        found = dict.fromkeys([*added, *self._read_runs(run_id)])
        return [TrackerSource(*one) for one in found if artifact_name in (None, one[1])]

    def descendants(self, run_id: str) -> list[TrackerSource]:
        """Returns the jobs that come from a job."""
        return [
            TrackerSource(other, source.artifact_name)
            for other in self._records.run_ids()
            for source in self.sources(other)
            if source.source_run_id == run_id
        ]

    def lineage(self, run_id: str) -> Lineage:
        """Not answered, because TorchX has no form for it yet; `sources` and `descendants` are.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("TorchX defines no lineage yet; use sources and descendants")

    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Returns the jobs, oldest first; with `parent_run_id`, those that come from it."""
        parent = kwargs.get("parent_run_id")
        return [one.source_run_id for one in self.descendants(parent)] if parent else self._records.run_ids()

    @cached_property
    def _trainings(self) -> dict[str, str]:
        """The last job that trained in a run directory."""
        return {
            role["--out"]: run_id
            for run_id in self._records.run_ids()
            for role in self._records.lines(run_id, "role")
            if role["command"] == "train" and "--out" in role
        }

    def _places(self, run_id: str) -> Iterator[tuple[str, str]]:
        for role in self._records.lines(run_id, "role"):
            prefix, out = role["prefix"], role.get("--out")
            if role["command"] == "train" and out:
                yield f"{prefix}run_directory", out
                if steps := _steps(out):
                    yield f"{prefix}checkpoint", steps.url(steps.steps()[-1])
                for number, export in enumerate(self._exports_of(out)):
                    yield f"{prefix}export{number or ''}", export
            elif place := role.get("--to", out):
                yield f"{prefix}{role['command']}", place

    def _exports_of(self, out: str) -> list[str]:
        jobs = (role for run_id in self._records.run_ids() for role in self._records.lines(run_id, "role"))
        found = (
            one["--to"] for one in jobs if one["command"] == "export" and one.get("--out") == out and "--to" in one
        )
        return [*dict.fromkeys(found)]

    def _read_runs(self, run_id: str) -> Iterator[tuple[str, str | None]]:
        for role in self._records.lines(run_id, "role"):
            out = role.get("--out")
            if role["command"] != "train" and out in self._trainings:
                yield self._trainings[out], "run_directory"
            elif (run := _run_of(role)) and (given := run.config.get("finetune.checkpoint")):
                yield self._training_of(given), "checkpoint"

    def _training_of(self, checkpoint: str) -> str:
        """Returns the job of a run directory, or of one of its checkpoints; the URL itself if there is none."""
        of_run = checkpoint.partition("/checkpoints/step-")[0].removeprefix("./").strip("/")
        found = (job for place, job in self._trainings.items() if f"/{place}".endswith(f"/{of_run}"))
        return next(found, checkpoint)


def _run_of(role: Mapping[str, Any]) -> Run | None:
    """Returns what the run directory of a training holds; None without one that can be read here."""
    if role["command"] != "train" or "--out" not in role:
        return None
    try:
        return Run.of(RunDirectory(role["--out"]), "")
    except (OSError, ValueError):  # such as a store that needs credentials which this shell lacks
        return None


def _steps(out: str) -> Checkpoints | None:
    """Returns the checkpoints in a run directory; None if there are none that can be read here."""
    try:
        found = Checkpoints(RunDirectory(out))
        return found if found.steps() else None
    except (OSError, ValueError):
        return None
