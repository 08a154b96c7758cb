"""The `slurm` scheduler: one Slurm job with one task for each replica, requeued and resumed after interruptions.

It takes the place of TorchX's own, which makes a heterogeneous job of one component for each replica.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role, Workspace, is_terminal, make_app_handle, runopts
from torchx.workspace import WorkspaceMixin, walk_workspace

from schedulers import log_files
from schedulers.command_check import check_command
from schedulers.contract import warn_of_ignored
from schedulers.errors import MaybeSubmitted, SchedulerError
from schedulers.notify import check_tags, notifier
from schedulers.predecessors import outstanding
from schedulers.slurm import commands as slurm
from schedulers.slurm.app_id import AppId
from schedulers.slurm.options import SlurmOpts, dependency
from schedulers.slurm.record import SCRIPT, About, Index, Record
from schedulers.slurm.script import SlurmRequest, request
from schedulers.slurm.status import View, describe_array
from schedulers.state_directory import check_state_directory
from trainer.core.progress import TrainingProgress

log = logging.getLogger(__name__)

JOBS = "slurm-jobs"
NOTIFIER_TIME = "0:10:00"
# `torchx log` reads the status once for every replica.
STATUS_LIFETIME_SECONDS = 2


class SlurmScheduler(WorkspaceMixin[None], Scheduler[SlurmOpts]):
    """Runs an app of one role as one Slurm job."""

    def __init__(self, session_name: str) -> None:
        super().__init__("slurm", session_name)
        self._lock = Lock()
        self._seen: dict[str, tuple[float, DescribeAppResponse | None]] = {}

    def _run_opts(self) -> runopts:
        return SlurmOpts.as_runopts()

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Does nothing: a dry run must not copy the workspace, `schedule` does."""

    def _submit_dryrun(self, app: AppDef, cfg: SlurmOpts) -> AppDryRunInfo[SlurmRequest, SlurmOpts]:
        warn_of_ignored(app, self.backend, "devices", "capabilities")
        here = Path.cwd()
        if cfg.job_dir is None:
            job_dir, work_dir = here / JOBS / make_unique(app.name), here
        else:
            job_dir = work_dir = here / cfg.job_dir
            if job_dir.exists():
                again = f", or submit it again: sbatch {job_dir / SCRIPT}" if (job_dir / SCRIPT).exists() else ""
                raise SchedulerError(f"-cfg job_dir={cfg.job_dir}: exists already: name a new directory{again}")
        opts = replace(cfg, clusters=cfg.clusters or slurm.default_clusters() or None)
        return AppDryRunInfo(request(app, opts, job_dir, work_dir), str)

    def schedule(self, dryrun_info: AppDryRunInfo[SlurmRequest]) -> str:
        """Writes the job directory, submits the script in it, and returns the job's id.

        Raises:
            SchedulerError: Slurm refuses the job, a directory cannot be written, or a job to wait for is not there or
                has failed; nothing is left behind.
            NoRoom: Slurm refuses the job until other jobs have ended; nothing is left behind.
            MaybeSubmitted: Slurm gave no answer; the job directory stays, as the job may run yet.
        """
        wanted, app = dryrun_info.request, dryrun_info.app
        check_state_directory()
        check_tags(wanted.opts.notify or [])
        waits = outstanding(wanted.opts.predecessors, self._look)
        options = dependency(waits, wanted.opts.place(self._index.cluster, waits)) if waits else []
        with contextlib.ExitStack() as if_refused:
            try:
                for folder in reversed([*_missing(wanted.job_dir.parent)]):
                    folder.mkdir(exist_ok=True)
                    if_refused.callback(_remove_if_empty, folder)
                wanted.job_dir.mkdir(parents=True)
                if_refused.callback(shutil.rmtree, wanted.job_dir, ignore_errors=True)
                if wanted.opts.job_dir is not None and app and app.roles[0].workspace:
                    _copy(app.roles[0].workspace, wanted.job_dir)
                wanted.write()
            except OSError as error:
                raise SchedulerError(
                    f"{wanted.job_dir}: the job directory cannot be written: {error.strerror or error}; run torchx in"
                    " a directory that can, or give -cfg job_dir"
                ) from error
            _check_lead(wanted.opts)
            if app and not waits and not _changes_python(wanted.opts):
                check_command(app.roles[0], wanted.job_dir if wanted.opts.job_dir is not None else Path.cwd())
            try:
                app_id = slurm.submit(wanted.job_dir / SCRIPT, options, wanted.about.clusters)
            except MaybeSubmitted:
                if_refused.pop_all()
                raise
            if_refused.pop_all()
        app_id = self._shortest(app_id)
        self._index.add(app_id, wanted.job_dir)
        if wanted.opts.notify and app:
            self._submit_notifier(str(app_id), app.name, wanted.opts)
        return str(app_id)

    def _shortest(self, app_id: AppId) -> AppId:
        """Returns an id without the name of this machine's own cluster."""
        return replace(app_id, cluster="") if app_id.cluster == self._index.cluster else app_id

    def _submit_notifier(self, app_id: str, name: str, opts: SlurmOpts) -> None:
        handle = make_app_handle(self.backend, self.session_name, app_id)
        same = {key: getattr(opts, key) for key in ("partition", "account", "qos", "reservation", "setup", "clusters")}
        own = SlurmOpts(after_any=[handle], time=NOTIFIER_TIME, requeue=False, **same)
        request: Any = self.submit_dryrun(notifier(handle, name, opts.notify or []), own)
        try:
            self.schedule(request)
        except SchedulerError as error:  # the job itself is submitted
            log.warning("nobody will be told how job %s ends: %s", app_id, error)

    def identity(self, request: SlurmRequest) -> str:
        """Returns a name for the job of a request, known before the job is submitted."""
        return str(request.job_dir / SCRIPT)

    def find(self, identity: str) -> str | None:
        """Returns the app id of the job with an identity; None if it was not submitted."""
        script = Path(identity)
        if not script.exists():
            return None
        noted = (record.app_id for record in self._index.records() if record.job_dir == script.parent)
        if found := next(noted, None):
            return str(found)
        listed = slurm.job_of(script, About.read(script.parent).clusters)
        return str(self._shortest(listed)) if listed else None

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Returns the status of a job, even if Slurm has forgotten it; None if it has no record either."""
        with self._lock:
            seen, answer = self._seen.get(app_id, (0.0, None))
            if answer is None or time.monotonic() > seen + STATUS_LIFETIME_SECONDS:
                answer = self._describe(app_id)
                self._seen[app_id] = time.monotonic(), answer
            return answer

    def _describe(self, app_id: str) -> DescribeAppResponse | None:
        tasks = self._tasks(app_id)
        if tasks:
            return describe_array(app_id, [self._view(task).describe(task) for task in tasks])
        view = self._view(app_id)
        return view.describe(app_id) if view.job or view.record else None

    def _tasks(self, app_id: str) -> Sequence[str]:
        """Returns the ids of the tasks of an array; empty for any other job."""
        record = self._index.find(AppId.parse(app_id))
        return [str(task.app_id) for task in record.tasks] if record else []

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Returns the jobs that TorchX has submitted from this account, the newest first."""
        records = self._index.records()
        jobs = slurm.states([record.app_id for record in records if not record.tasks])

        def state(record: Record) -> AppState:
            answer = self.describe(str(record.app_id)) if record.tasks else None
            return answer.state if answer else View(jobs.get(record.app_id), record).state

        return [ListAppResponse(str(record.app_id), state(record), name=record.about.name) for record in records]

    def progress(self, app_id: str) -> TrainingProgress | None:
        """Returns how far a job is that runs; None if it has not said, and for an array, whose tasks say it."""
        record = self._index.find(AppId.parse(app_id))
        return record.training() if record else None

    def check_known(self, app_id: str) -> None:
        """Refuses a job that Slurm has forgotten, as its end is unknown.

        Raises:
            SchedulerError: Slurm does not know it.
        """
        if not any(self._view(one).is_known for one in self._tasks(app_id) or [app_id]):
            handle = make_app_handle(self.backend, self.session_name, app_id)
            raise SchedulerError(f"{handle}: Slurm knows no such job; if it was one of another cluster, look there")

    def _cancel_existing(self, app_id: str) -> None:
        record = self._index.find(AppId.parse(app_id))
        if record:
            record.note_cancelled()
        try:
            slurm.cancel(AppId.parse(app_id))
        except SchedulerError:
            if record:
                record.note_not_cancelled()
            raise
        self._seen.pop(app_id, None)  # what was read before

    def _delete_existing(self, app_id: str) -> None:
        if not self._ended(app_id):
            self._cancel_existing(app_id)
        if record := self._view(app_id).record:
            self._index.remove(AppId.parse(app_id))
            log.info("job %s is not listed any more; its files are still in %s", app_id, record.job_dir)

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Yields the lines of a replica, of both streams unless one is named; with `should_tail`, until the job ends.

        Raises:
            SchedulerError: The job left no logs that this machine can read, or has no such replica.
        """
        log_files.ignore_times(self.backend, since, until)
        record = self._view(app_id).record
        if record is None:
            raise SchedulerError(
                f"job {app_id} has no job directory that can be read here: it was not submitted by torchx, belongs to"
                " another user, or is gone"
            )
        if task := next((task for task in record.tasks if task.role == role_name), None):
            return self.log_iter(str(task.app_id), role_name, k, regex, since, until, should_tail, streams)
        last = record.about.replicas - 1
        if role_name != record.role or k > last:
            raise SchedulerError(f"{role_name}/{k}: job {app_id} has {record.role}/0 to {record.role}/{last}")
        kinds = {Stream.STDOUT: ("out",), Stream.STDERR: ("err",)}.get(streams or Stream.COMBINED, ("out", "err"))
        files = [record.replica_log(k, kind) for kind in kinds]
        if not should_tail and not any(file.exists() for file in files) and self._ended(app_id):
            answer = self.describe(app_id)
            raise SchedulerError(f"{role_name}/{k}: job {app_id} left no log: {answer.msg if answer else ''}")
        found = log_files.lines(files, (lambda: self._ended(app_id)) if should_tail else None)
        return log_files.matching(regex, found)

    def _ended(self, app_id: str) -> bool:
        answer = self.describe(app_id)
        return answer is None or is_terminal(answer.state)

    @cached_property
    def _index(self) -> Index:
        return Index(slurm.cluster())

    def _view(self, app_id: str) -> View:
        named = AppId.parse(app_id)
        job, record = slurm.job(named), self._index.find(named)
        if job and job.command:
            script = Path(job.command)
            # A cluster that was set up again counts jobs from 1 again, and plain sbatch adds no job to the index.
            if record is None or record.job_dir != script.parent:
                record = Record(script.parent, named) if script.name == SCRIPT and os.access(script, os.R_OK) else None
        return View(job, record, self._look)

    def _look(self, app_id: str) -> tuple[str | None, str]:
        """Returns the state of another job, None if it is unknown, and the end of its first replica's log."""
        if self._tasks(app_id) and (answer := self._describe(app_id)):
            return answer.state.name, ""
        view = self._view(app_id)
        if not (view.job or view.record):
            return None, ""
        return view.state.name, view.how_far()


def _missing(folder: Path) -> Iterator[Path]:
    """Yields a directory and its parents as far as they do not exist, the innermost first."""
    while not folder.exists():
        yield folder
        folder = folder.parent


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another job is in it by now
        folder.rmdir()


def _changes_python(opts: SlurmOpts) -> bool:
    """Returns whether the job may find a different Python or different files than a command run here and now."""
    return bool(opts.setup or opts.container_image or opts.dependency)


def _check_lead(opts: SlurmOpts) -> None:
    """Refuses a warning that would come before the job has begun, if the options do not say the time limit."""
    if opts.time:
        return
    if limit := slurm.of_all_jobs("time"):
        opts.check_lead(limit)
        return
    for cluster in opts.clusters or [""]:
        limits = slurm.default_limits(cluster)
        for partition in opts.partition or (slurm.of_all_jobs("partition") or "").split(","):
            opts.check_lead(limits.get(partition or None))


def _copy(workspace: Workspace, target: Path) -> None:
    """Copies the workspace without the files that .torchxignore excludes."""
    from fsspec.implementations.local import LocalFileSystem

    for source, below in workspace.projects.items():
        root = Path(source).resolve()
        # Listed before anything is copied: the target may be below the source.
        found = [(Path(folder), [*files]) for folder, _, files in walk_workspace(LocalFileSystem(), str(root))]
        for folder, names in found:
            into = target / below / folder.relative_to(root)
            for name in names if not folder.is_relative_to(target) else ():
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy2(folder / name, into / name)


def create_scheduler(session_name: str, **kwargs: object) -> SlurmScheduler:
    """Returns the scheduler that TorchX knows as `slurm`."""
    return SlurmScheduler(session_name)
