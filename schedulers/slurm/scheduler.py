"""The `slurm` scheduler: one Slurm job with one task for each replica, requeued and resumed after interruptions.

It takes the place of TorchX's own, which makes a heterogeneous job of one component for each replica.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role, Workspace, is_terminal, make_app_handle, runopts
from torchx.workspace import WorkspaceMixin

from schedulers import log_files
from schedulers.command_check import SECONDS, Program, check_command
from schedulers.contract import warn_of_ignored
from schedulers.errors import SchedulerError
from schedulers.notify import CHECK, check_tags, notifier
from schedulers.predecessors import outstanding
from schedulers.slurm import commands as slurm
from schedulers.slurm.app_id import AppId
from schedulers.slurm.code import Code
from schedulers.slurm.host import Host, reach
from schedulers.slurm.job_directory import new_directory, new_directory_there, run_as_job
from schedulers.slurm.options import SlurmOpts, dependency
from schedulers.slurm.record import ABOUT, SCRIPT, About, Index, Record, record_of
from schedulers.slurm.script import SlurmRequest, request
from schedulers.slurm.status import View, describe_array
from schedulers.slurm.transport import HERE, HostAway, Transport
from schedulers.state_directory import check_state_directory
from trainer.core.outcome import WRONG_INPUT
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
        self._indices: dict[str, Index] = {}
        self._seen: dict[str, tuple[float, DescribeAppResponse | None]] = {}

    def _run_opts(self) -> runopts:
        return SlurmOpts.as_runopts()

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Does nothing: a dry run must not copy the workspace, `schedule` does."""

    def _submit_dryrun(self, app: AppDef, cfg: SlurmOpts) -> AppDryRunInfo[SlurmRequest, SlurmOpts]:
        warn_of_ignored(app, self.backend, "devices", "capabilities")
        if cfg.host:
            return AppDryRunInfo(_request_there(app, cfg), str)
        here = Path.cwd()
        if cfg.job_dir is None:
            job_dir, work_dir = here / JOBS / make_unique(app.name), here
        else:
            job_dir = work_dir = here / cfg.job_dir
            if job_dir.exists():
                again = f", or submit it again: sbatch {job_dir / SCRIPT}" if (job_dir / SCRIPT).exists() else ""
                raise SchedulerError(f"-cfg job_dir={cfg.job_dir}: exists already: name a new directory{again}")
        opts = replace(cfg, clusters=cfg.clusters or slurm.default_clusters(HERE) or None)
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
        at = reach(wanted.opts.host or "")
        if isinstance(at, Host):
            assert app
            wanted = _in_full(at, wanted, app)
        else:
            check_state_directory()
            check_tags(wanted.opts.notify or [])
        _check_venv(at, wanted.opts)
        waits = outstanding(wanted.opts.predecessors, self._look)
        options = dependency(waits, wanted.opts.place(self._index(at).cluster, waits)) if waits else []
        with _new_directory(at, wanted, app):
            _check_lead(at, wanted.opts)
            if isinstance(at, Host) and wanted.opts.notify:
                _check_tags_there(at, wanted, wanted.opts.notify)
            if app and not waits and not _changes_python(wanted.opts):
                check_command(app.roles[0], wanted.work_dir, _program(at, wanted))
            script = wanted.job_dir / SCRIPT
            app_id = slurm.submit(at, script, wanted.script, options, wanted.about.clusters)
        app_id = self._shortest(app_id)
        try:
            self._index(at).add(app_id, wanted.job_dir)
        except HostAway as error:  # the job is submitted, and adds itself when it starts
            log.warning("`torchx list` shows job %s once it has started: %s", app_id, error)
        if wanted.opts.notify and app:
            self._submit_notifier(app_id, app.name, wanted.opts)
        return str(app_id)

    def _shortest(self, app_id: AppId) -> AppId:
        """Returns an id without the name of the machine's own cluster."""
        own = self._index(reach(app_id.host)).cluster
        return replace(app_id, cluster="") if app_id.cluster == own else app_id

    def _submit_notifier(self, app_id: AppId, name: str, opts: SlurmOpts) -> None:
        handle = make_app_handle(self.backend, self.session_name, str(app_id))
        there = make_app_handle(self.backend, self.session_name, app_id.there)  # where the notifier runs
        keys = ("partition", "account", "qos", "reservation", "setup", "clusters", "host", "remote_dir", "venv")
        same = {key: getattr(opts, key) for key in keys}
        own = SlurmOpts(after_any=[handle], time=NOTIFIER_TIME, requeue=False, **same)
        request: Any = self.submit_dryrun(notifier(handle, name, opts.notify or [], there), own)
        try:
            self.schedule(request)
        except SchedulerError as error:  # the job itself is submitted
            log.warning("nobody will be told how job %s ends: %s", app_id, error)

    def identity(self, request: SlurmRequest) -> str:
        """Returns a name for the job of a request, known before the job is submitted."""
        return f"{request.opts.host}:{request.job_dir / SCRIPT}" if request.opts.host else str(request.job_dir / SCRIPT)

    def find(self, identity: str) -> str | None:
        """Returns the app id of the job with an identity; None if it was not submitted."""
        host, _, path = identity.rpartition(":") if not identity.startswith("/") else ("", "", identity)
        at = reach(host)
        script = at.absolute(path)
        if not at.exists(script):
            return None
        noted = (record.app_id for record in self._index(at).records() if record.job_dir == script.parent)
        if found := next(noted, None):
            return str(found)
        at.pull(script.parent / ABOUT)
        listed = slurm.submitted_as(at, script, About.read(at.here(script.parent)).clusters)
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
        record = self._find(AppId.parse(app_id))
        return [str(task.app_id) for task in record.tasks] if record else []

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Returns the jobs that TorchX has submitted from this account, the newest first."""
        at = reach(str((cfg or {}).get("host") or ""))
        records = self._index(at).records()
        jobs = slurm.states(at, [record.app_id for record in records if not record.tasks])
        at.pull(*(file for record in records for file in record.files))

        def state(record: Record) -> AppState:
            answer = self.describe(str(record.app_id)) if record.tasks else None
            return answer.state if answer else View(jobs.get(record.app_id), record).state

        return [ListAppResponse(str(record.app_id), state(record), name=record.about.name) for record in records]

    def progress(self, app_id: str) -> TrainingProgress | None:
        """Returns how far a job is that runs; None if it has not said, and for an array, whose tasks say it."""
        record = self._find(AppId.parse(app_id))
        if record is None:
            return None
        record.at.pull(*record.files)
        return record.training()

    def fetch(self, app_id: str, path: str, to: str, without: str) -> None:
        """Copies a directory of the host of a job to this machine, without a part of it.

        Raises:
            SchedulerError: The job is one of this machine's own Slurm, or the directory cannot be read.
        """
        reach(AppId.parse(app_id).host).fetch(Path(path), Path(to), without)

    def check_known(self, app_id: str) -> None:
        """Refuses a job that Slurm has forgotten, as its end is unknown.

        Raises:
            SchedulerError: Slurm does not know it.
        """
        if not any(self._view(one).is_known for one in self._tasks(app_id) or [app_id]):
            handle = make_app_handle(self.backend, self.session_name, app_id)
            raise SchedulerError(f"{handle}: Slurm knows no such job; if it was one of another cluster, look there")

    def _cancel_existing(self, app_id: str) -> None:
        named = AppId.parse(app_id)
        record = self._find(named)
        if record:
            record.note_cancelled()
        try:
            slurm.cancel(reach(named.host), named)
        except SchedulerError:
            if record:
                record.note_not_cancelled()
            raise
        self._seen.pop(app_id, None)  # what was read before

    def _delete_existing(self, app_id: str) -> None:
        if not self._ended(app_id):
            self._cancel_existing(app_id)
        if record := self._view(app_id).record:
            self._index(record.at).remove(AppId.parse(app_id))
            where = f"{record.at.host}:{record.job_dir}" if record.at.host else record.job_dir
            log.info("job %s is not listed any more; its files are still in %s", app_id, where)

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
        if not should_tail and not any(record.at.exists(file) for file in files) and self._ended(app_id):
            answer = self.describe(app_id)
            raise SchedulerError(f"{role_name}/{k}: job {app_id} left no log: {answer.msg if answer else ''}")
        ended = (lambda: self._ended(app_id)) if should_tail else None
        found = log_files.lines(files, ended, record.at.open_log, record.at.poll_seconds)
        return log_files.matching(regex, found)

    def _ended(self, app_id: str) -> bool:
        answer = self.describe(app_id)
        return answer is None or is_terminal(answer.state)

    def _index(self, at: Transport) -> Index:
        if at.host not in self._indices:
            self._indices[at.host] = Index(slurm.cluster(at), at)
        return self._indices[at.host]

    def _find(self, named: AppId) -> Record | None:
        return self._index(reach(named.host)).find(named)

    def _view(self, app_id: str) -> View:
        named = AppId.parse(app_id)
        job, record = slurm.job(reach(named.host), named), self._find(named)
        if job and job.command:
            script = Path(job.command)
            # A cluster that was set up again counts jobs from 1 again, and plain sbatch adds no job to the index.
            if record is None or record.job_dir != script.parent:
                record = record_of(script, named, reach(named.host))
        if record:
            record.at.pull(*record.files)
        return View(job, record, self._look)

    def _look(self, app_id: str) -> tuple[str | None, str]:
        """Returns the state of another job, None if it is unknown, and how far it is."""
        if self._tasks(app_id) and (answer := self._describe(app_id)):
            return answer.state.name, ""
        view = self._view(app_id)
        if not (view.job or view.record):
            return None, ""
        return view.state.name, view.how_far()


def _request_there(app: AppDef, opts: SlurmOpts) -> SlurmRequest:
    """Renders an app for a host, with paths that begin with ~ if they do in the options."""
    folder = Path(opts.remote_dir)
    code = Code.of(app.roles[0].workspace or Workspace(projects={str(Path.cwd()): ""}))
    if opts.job_dir is not None:
        job_dir = work_dir = folder / (opts.job_dir if not opts.job_dir.startswith("~") else Path(opts.job_dir))
    else:
        job_dir, work_dir = folder / "jobs" / make_unique(app.name), folder / "code" / code.digest
    return request(app, opts, job_dir, work_dir, code)


def _in_full(at: Host, wanted: SlurmRequest, app: AppDef) -> SlurmRequest:
    """Returns a request with the paths and the clusters that it has on the host."""
    opts = wanted.opts
    clusters = opts.clusters or slurm.default_clusters(at) or None
    opts = replace(opts, remote_dir=str(at.absolute(opts.remote_dir)), clusters=clusters)
    job_dir, work_dir = (at.absolute(str(folder)) for folder in (wanted.job_dir, wanted.work_dir))
    return request(app, opts, job_dir, work_dir, wanted.code)


def _new_directory(at: Transport, wanted: SlurmRequest, app: AppDef | None) -> AbstractContextManager[None]:
    if isinstance(at, Host):
        return new_directory_there(at, wanted)
    workspace = app.roles[0].workspace if app and wanted.opts.job_dir is not None else None
    return new_directory(wanted, workspace)


def _program(at: Transport, wanted: SlurmRequest) -> Program | None:
    """Returns how the command of a job is checked where it cannot be done here."""
    return (lambda words, _: run_as_job(at, wanted, words, SECONDS)) if isinstance(at, Host) else None


def _check_tags_there(at: Host, wanted: SlurmRequest, tags: list[str]) -> None:
    code, errors = run_as_job(at, wanted, ["python", "-P", "-m", "schedulers.notify", CHECK, *tags], SECONDS)
    if code == WRONG_INPUT:
        raise SchedulerError(f"{at.host}: {errors.strip()}; nothing was submitted")


def _check_venv(at: Transport, opts: SlurmOpts) -> None:
    if opts.venv and not at.exists(at.absolute(opts.venv) / "bin" / "python"):
        where = f" on {at.host}" if at.host else ""
        raise SchedulerError(f"-cfg venv={opts.venv}: has no bin/python{where}: make it there, or leave venv out")


def _changes_python(opts: SlurmOpts) -> bool:
    """Returns whether the job may find a different Python or different files than a command run here and now."""
    return bool(opts.setup or opts.container_image or opts.dependency)


def _check_lead(at: Transport, opts: SlurmOpts) -> None:
    """Refuses a warning that would come before the job has begun, if the options do not say the time limit."""
    if opts.time:
        return
    if limit := slurm.of_all_jobs(at, "time"):
        opts.check_lead(limit)
        return
    for cluster in opts.clusters or [""]:
        limits = slurm.default_limits(at, cluster)
        for partition in opts.partition or (slurm.of_all_jobs(at, "partition") or "").split(","):
            opts.check_lead(limits.get(partition or None))


def create_scheduler(session_name: str, **kwargs: object) -> SlurmScheduler:
    """Returns the scheduler that TorchX knows as `slurm`."""
    return SlurmScheduler(session_name)
