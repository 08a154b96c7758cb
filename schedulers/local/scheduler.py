"""The `local_cwd` scheduler: a supervisor process for each job, and a record on disk that every shell can read."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import cast

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Stream, StructuredOpts
from torchx.schedulers.local_scheduler import CWDImageProvider, LocalScheduler, PopenRequest, ReplicaParam, _join_PATH
from torchx.schedulers.local_scheduler import Opts as BuiltinOpts
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, is_terminal, make_app_handle, runopts
from torchx.util.types import none_throws

from schedulers import log_files
from schedulers.contract import MAX_FREE_RESTARTS, SHUTDOWN_TIMEOUT_SECONDS, refuse_array, warn_of_ignored
from schedulers.errors import SchedulerError, check_least
from schedulers.local import status
from schedulers.local.record import Job, Record, Replica, host_directory, look, prune
from schedulers.notify import check_tags, notifier
from schedulers.predecessors import ENDED, Predecessor, outstanding, predecessors
from schedulers.state_directory import check_state_directory
from trainer.core.outcome import OUTCOME_VARIABLE, PROGRESS_VARIABLE, environment_of_child_job
from trainer.core.progress import TrainingProgress

BACKEND = "local_cwd"
# `cancel` waits this long. A job without anything to save has ended by then; other jobs show that they are stopping.
CANCEL_SECONDS = 1


@dataclass
class Opts(BuiltinOpts):
    """Options of `local_cwd`: the builtin's and more."""

    log_dir: str | None = None
    """Directory of the logs, which is never deleted; if unset, the logs are kept and deleted with the job's record."""

    detach: bool = False
    """Return at once; the job outlives the shell. Otherwise the shell shows its logs, and the job ends with it."""

    grace_seconds: int = SHUTDOWN_TIMEOUT_SECONDS + 10
    """Seconds for replicas to save and leave when the job is cancelled or one of them fails; then they are killed."""

    max_free_restarts: int = MAX_FREE_RESTARTS
    """Most restarts in a row that use up no retry and gain no step; then the job has failed."""

    after: list[str] | None = None
    """Handles of local jobs that must succeed before this one starts."""

    after_any: list[str] | None = None
    """Handles of local jobs that must end before this one starts, however they do."""

    notify: list[str] | None = None
    """Tags of your Apprise configuration, to tell how the job ended; all is everybody."""

    def check(self) -> None:
        """Refuses values that cannot work.

        Raises:
            SchedulerError: An option has a value that cannot work.
        """
        check_least("max_free_restarts", self.max_free_restarts, 0)
        _ = self.predecessors

    @property
    def predecessors(self) -> list[Predecessor]:
        """The jobs that this one waits for."""
        return predecessors(BACKEND, self.after, self.after_any)

    @classmethod
    def get_docstrings(cls) -> dict[str, str]:
        """Returns the help of the options, which TorchX reads from the source of one class only."""
        return BuiltinOpts.get_docstrings() | super().get_docstrings()


class PersistentLocalScheduler(LocalScheduler):
    """TorchX's own `local_cwd`, with a supervisor process and a record in the state directory for each job."""

    def __init__(self, session_name: str) -> None:
        super().__init__(session_name, CWDImageProvider)
        self._attached: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def _opts_type(cls) -> type[StructuredOpts]:
        return Opts

    def _run_opts(self) -> runopts:
        return Opts.as_runopts()

    def _get_app_log_dir(self, app_id: str, cfg: BuiltinOpts) -> str:
        if cfg.log_dir:
            return str(Path(cfg.log_dir).absolute() / self.session_name / app_id)
        return str(host_directory() / app_id)

    def _submit_dryrun(self, app: AppDef, cfg: BuiltinOpts) -> AppDryRunInfo[PopenRequest, BuiltinOpts]:
        cast(Opts, cfg).check()
        refuse_array(app)
        warn_of_ignored(app, BACKEND, "devices", "capabilities", "mounts")
        info = super()._submit_dryrun(app, cfg)
        record = Record(host_directory() / info.request.app_id)
        files = {OUTCOME_VARIABLE: str(record.outcome_file), PROGRESS_VARIABLE: str(record.training_file)}
        for replica in chain.from_iterable(info.request.role_params.values()):
            replica.env |= {**files, "PATH": _path(replica, cfg.prepend_cwd)}
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[PopenRequest, BuiltinOpts]) -> str:
        """Starts the job's supervisor and returns the app id once the supervisor is ready.

        Raises:
            SchedulerError: The state directory or the directory of the logs cannot be written, or a job to wait for is
                missing or has failed.
        """
        opts, app = cast(Opts, dryrun_info.cfg), none_throws(dryrun_info.app)
        check_state_directory()
        check_tags(opts.notify or [])
        outstanding(opts.predecessors, look)
        job = _job(dryrun_info.request, app, opts)
        record = Record(host_directory() / job.app_id)
        supervisor = _start_supervisor(job, record)
        if not none_throws(supervisor.stdout).read():  # one line when it is ready, none if it has died
            error = record.supervisor_error() or f"{record.folder} cannot be written"
            record.remove()
            raise SchedulerError(f"the job cannot be started: {error}")
        if not job.detach:
            self._attached[job.app_id] = supervisor
        prune()
        if opts.notify:
            self._submit_notifier(job.app_id, app.name, opts.notify)
        return job.app_id

    def _submit_notifier(self, app_id: str, name: str, tags: Sequence[str]) -> None:
        handle = make_app_handle(BACKEND, self.session_name, app_id)
        opts = Opts(detach=True, after_any=[handle])
        self.schedule(self.submit_dryrun(notifier(handle, name, tags), opts))

    def identity(self, request: PopenRequest) -> str:
        """Returns a name for the job of a request, known before the job is submitted."""
        return request.app_id

    def find(self, identity: str) -> str | None:
        """Returns the app id of the job with an identity; None if it was not submitted."""
        return identity if Record.of(identity) else None

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Returns the status of a job, or None if there is no record of it."""
        with suppress(FileNotFoundError):  # removed meanwhile
            if record := Record.of(app_id):
                return status.describe(record)
        return None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Returns the jobs that have a record, the newest first."""
        found = []
        for record in Record.all():
            try:
                job, state = record.job(), AppState[record.progress().state]
                found.append(ListAppResponse(app_id=job.app_id, state=state, name=job.name))
            except FileNotFoundError:
                pass  # removed meanwhile
            except SchedulerError as error:
                warnings.warn(str(error), stacklevel=2)
        return found

    def progress(self, app_id: str) -> TrainingProgress | None:
        """Returns how far a job is that runs; None if it has not said."""
        record = Record.of(app_id)
        return record.training() if record else None

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
        """Yields the lines of one replica, all attempts; with `should_tail`, until the job has ended.

        Raises:
            SchedulerError: There is no such job or replica.
        """
        log_files.ignore_times(BACKEND, since, until)
        record, replica = _find_replica(app_id, f"{role_name}/{k}")
        file = Path(getattr(replica, (streams or Stream.COMBINED).value))

        def ended() -> bool:
            try:
                return record.progress().state in ENDED
            except FileNotFoundError:  # removed meanwhile
                return True

        lines = log_files.lines([file], ended if should_tail else None)
        return log_files.matching(regex, lines)

    def _cancel_existing(self, app_id: str) -> None:
        if record := Record.of(app_id):
            record.cancel()
            record.wait_for_end(CANCEL_SECONDS)

    def _delete_existing(self, app_id: str) -> None:
        if record := Record.of(app_id):
            record.delete()

    def close(self) -> None:
        """Cancels the jobs that this process started and that are not detached, and waits until they have ended."""
        attached, self._attached = self._attached, {}
        for app_id, supervisor in attached.items():
            job = self.describe(app_id)
            if job and not is_terminal(job.state):
                print("cancelling the job, which may save first; Ctrl-C again does not wait for it", file=sys.stderr)
            none_throws(supervisor.stdin).close()
            supervisor.wait()


def _start_supervisor(job: Job, record: Record) -> subprocess.Popen[bytes]:
    with record.create(job) as lock, record.supervisor_log.open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "schedulers.local.supervisor", str(record.folder)],
            cwd=record.folder,
            env=environment_of_child_job(),
            # The supervisor of an attached job ends it when this pipe is closed, by close() or by this process's end.
            stdin=subprocess.DEVNULL if job.detach else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )


def _path(replica: ReplicaParam, prepend_cwd: bool) -> str:
    """Returns the whole PATH of a replica: TorchX would put this process's PATH after the current directory."""
    own, here = replica.env["PATH"], replica.cwd or ""
    if prepend_cwd:
        return _join_PATH(own, os.environ.get("PATH"))
    return _join_PATH(own.removesuffix(here), os.environ.get("PATH"), here)


def _job(request: PopenRequest, app: AppDef, cfg: Opts) -> Job:
    return Job(
        app_id=request.app_id,
        name=app.name,
        roles=[status.role_fields(role) for role in app.roles],
        replicas=[
            Replica(role=role, number=number, **vars(params))
            for role, replicas in request.role_params.items()
            for number, params in enumerate(replicas)
        ],
        max_retries=min(role.max_retries for role in app.roles),
        max_free_restarts=cfg.max_free_restarts,
        grace_seconds=cfg.grace_seconds,
        detach=cfg.detach,
        log_dir=request.log_dir,
        predecessors=cfg.predecessors,
    )


def _find_replica(app_id: str, name: str) -> tuple[Record, Replica]:
    record = Record.of(app_id)
    if record is None:
        raise SchedulerError(f"no such job: {app_id}; `torchx list -s local_cwd` lists all jobs")
    replicas = {replica.name: replica for replica in record.job().replicas}
    if name not in replicas:
        raise SchedulerError(f"job {app_id} has no replica {name}; it has {', '.join(replicas)}")
    return record, replicas[name]


def create_scheduler(session_name: str, **_: object) -> PersistentLocalScheduler:
    """Returns the scheduler that TorchX knows as `local_cwd`."""
    return PersistentLocalScheduler(session_name)
