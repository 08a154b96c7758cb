"""Runs jobs as processes of this host, with a record on disk, so that every shell can follow and control them."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import cast

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Stream, StructuredOpts, filter_regex
from torchx.schedulers.local_scheduler import CWDImageProvider, LocalScheduler, PopenRequest, ReplicaParam, _join_PATH
from torchx.schedulers.local_scheduler import Opts as BuiltinOpts
from torchx.specs import (
    NONE,
    AppDef,
    AppDryRunInfo,
    AppState,
    CfgVal,
    ReplicaStatus,
    Resource,
    Role,
    RoleStatus,
    runopts,
)
from torchx.util.types import none_throws

from components._launch import SHUTDOWN_TIMEOUT_SECONDS
from schedulers.errors import SchedulerError
from schedulers.local.record import ENDED, Job, Process, Record, Replica, prune, state_directory
from trainer.core.outcome import OUTCOME_VARIABLE, environment_of_child_job

READ_SECONDS = 0.1


@dataclass
class Opts(BuiltinOpts):
    """Options of `local_cwd`: the builtin's and more."""

    log_dir: str | None = None
    """Directory of the logs, which is never deleted; unset: they are kept with the job's record, and as long."""

    detach: bool = False
    """Return at once; the job outlives the shell. Otherwise the shell shows its logs, and it ends with the shell."""

    grace_seconds: int = SHUTDOWN_TIMEOUT_SECONDS + 10
    """How long replicas have to save and leave when the job is cancelled or one of them fails; then they are killed."""

    @classmethod
    def get_docstrings(cls) -> dict[str, str]:
        """Returns the help of the options, which TorchX reads from the source of one class only."""
        return BuiltinOpts.get_docstrings() | super().get_docstrings()


class PersistentLocalScheduler(LocalScheduler):
    """TorchX's own `local_cwd`, except that each job has a supervisor process and a record in the state directory."""

    def __init__(self, session_name: str) -> None:
        super().__init__(session_name, CWDImageProvider)
        self._attached: list[subprocess.Popen[bytes]] = []

    @classmethod
    def _opts_type(cls) -> type[StructuredOpts]:
        return Opts

    def _run_opts(self) -> runopts:
        return Opts.as_runopts()

    def _get_app_log_dir(self, app_id: str, cfg: BuiltinOpts) -> str:
        if cfg.log_dir:
            return str(Path(cfg.log_dir).absolute() / self.session_name / app_id)
        return str(state_directory() / app_id)

    def _submit_dryrun(self, app: AppDef, cfg: BuiltinOpts) -> AppDryRunInfo[PopenRequest, BuiltinOpts]:
        info = super()._submit_dryrun(app, cfg)
        outcome_file = Record(state_directory() / info.request.app_id).outcome_file
        for replica in chain.from_iterable(info.request.role_params.values()):
            replica.env |= {OUTCOME_VARIABLE: str(outcome_file), "PATH": _path(replica, cfg.prepend_cwd)}
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[PopenRequest, BuiltinOpts]) -> str:
        """Starts the job's supervisor and returns when the job is under way.

        Raises:
            SchedulerError: The state directory or the directory of the logs cannot be written.
        """
        job = _job(dryrun_info.request, none_throws(dryrun_info.app), cast(Opts, dryrun_info.cfg))
        record = Record(state_directory() / job.app_id)
        with record.create(job) as lock, (record.folder / "supervisor.log").open("w") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", "schedulers.local.supervisor", str(record.folder)],
                cwd=record.folder,
                env=environment_of_child_job(),
                stdin=subprocess.DEVNULL if job.detach else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=[lock.fileno()],
                start_new_session=True,
            )
        if not none_throws(supervisor.stdout).read():  # it says that it is ready, or dies
            why = record.last_words()
            record.remove()
            raise SchedulerError(f"the job cannot be started: {why}")
        if not job.detach:
            self._attached.append(supervisor)
        prune()
        return job.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Returns what the record says of a job, or None if there is no record."""
        record = Record.of(app_id)
        if record is None:
            return None
        try:
            job, progress = record.job(), record.progress()
        except FileNotFoundError:  # removed meanwhile
            return None
        return DescribeAppResponse(
            app_id=app_id,
            state=AppState[progress.state],
            num_restarts=progress.restarts,
            msg=progress.message or NONE,
            structured_error_msg=_first_error(job),
            ui_url=f"file://{job.log_dir}",
            roles=[Role(**role | {"resource": Resource(**role["resource"])}) for role in job.roles],
            roles_statuses=_statuses(job, progress.processes, progress.state),
        )

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Returns the jobs that have a record, the newest first."""
        found = []
        for record in Record.all():
            with suppress(FileNotFoundError):  # removed meanwhile
                job, state = record.job(), AppState[record.progress().state]
                found.append(ListAppResponse(app_id=job.app_id, state=state, name=job.name))
        return found

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
        """Yields the lines of one replica, all attempts; while it follows, until the job has ended.

        Raises:
            SchedulerError: There is no such job or replica.
        """
        if since or until:
            warnings.warn("local_cwd does not know when a line was written: since and until are ignored", stacklevel=2)
        file, record = _log_file(app_id, role_name, k, streams or Stream.COMBINED)

        def ended() -> bool:
            try:
                return not should_tail or record.progress().state in ENDED
            except FileNotFoundError:  # removed meanwhile
                return True

        lines = _lines(file, ended)
        return filter_regex(regex, lines) if regex else lines

    def describe_native(self, app_id: str) -> AppDryRunInfo[PopenRequest] | None:
        """Returns None: the record does not keep the request."""
        return None

    def _cancel_existing(self, app_id: str) -> None:
        if record := Record.of(app_id):
            record.cancel()

    def _delete_existing(self, app_id: str) -> None:
        if record := Record.of(app_id):
            record.delete()

    def close(self) -> None:
        """Cancels the jobs that this process started and that are not detached, and waits until they have ended."""
        attached, self._attached = self._attached, []
        for supervisor in attached:
            if supervisor.poll() is None:
                print(
                    "cancelling the job, which may take a while to save; Ctrl-C again leaves it to that",
                    file=sys.stderr,
                )
            none_throws(supervisor.stdin).close()
            supervisor.wait()


def _path(replica: ReplicaParam, prepend_cwd: bool) -> str:
    """The whole PATH of a replica: TorchX leaves this process's to the end, after the current directory."""
    own, here = replica.env["PATH"], replica.cwd or ""
    if prepend_cwd:
        return _join_PATH(own, os.environ.get("PATH"))
    return _join_PATH(own.removesuffix(here), os.environ.get("PATH"), here)


def _job(request: PopenRequest, app: AppDef, cfg: Opts) -> Job:
    replicas = [
        Replica(
            role=role,
            number=number,
            args=replica.args,
            env=replica.env,
            cwd=replica.cwd,
            stdout=none_throws(replica.stdout),
            stderr=none_throws(replica.stderr),
            combined=none_throws(replica.combined),
        )
        for role, params in request.role_params.items()
        for number, replica in enumerate(params)
    ]
    return Job(
        app_id=request.app_id,
        name=app.name,
        roles=[_role(role) for role in app.roles],
        replicas=replicas,
        max_retries=min(role.max_retries for role in app.roles),
        grace_seconds=cfg.grace_seconds,
        detach=cfg.detach,
        log_dir=request.log_dir,
    )


def _role(role: Role) -> dict[str, object]:
    kept = ("name", "image", "entrypoint", "args", "env", "num_replicas", "max_retries", "port_map", "metadata")
    resource = {name: getattr(role.resource, name) for name in ("cpu", "gpu", "memMB")}
    return {name: getattr(role, name) for name in kept} | {"resource": resource}


def _statuses(job: Job, processes: list[Process], state: str) -> list[RoleStatus]:
    roles = {role["name"]: RoleStatus(role["name"], []) for role in job.roles}
    for replica, process in zip(job.replicas, processes, strict=False):
        roles[replica.role].replicas.append(
            ReplicaStatus(
                id=replica.number,
                role=replica.role,
                state=_state(process, state),
                hostname="localhost",
                structured_error_msg=_error(replica),
            )
        )
    return list(roles.values())


def _state(process: Process, state: str) -> AppState:
    if process.exit_code == 0:
        return AppState.SUCCEEDED
    if process.exit_code is None:
        return AppState.UNKNOWN if state in ENDED else AppState.RUNNING
    return AppState.CANCELLED if state == "CANCELLED" else AppState.FAILED


def _error(replica: Replica) -> str:
    return replica.error_file.read_text() if replica.error_file.exists() else NONE


def _first_error(job: Job) -> str:
    files = [replica.error_file for replica in job.replicas if replica.error_file.exists()]
    return min(files, key=lambda file: file.stat().st_mtime).read_text() if files else NONE


def _log_file(app_id: str, role: str, number: int, stream: Stream) -> tuple[Path, Record]:
    record = Record.of(app_id)
    if record is None:
        raise SchedulerError(f"there is no job {app_id}; `torchx list -s local_cwd` shows those that there are")
    replicas = {replica.name: replica for replica in record.job().replicas}
    name = f"{role}/{number}"
    if name not in replicas:
        raise SchedulerError(f"job {app_id} has no replica {name}; it has {', '.join(replicas)}")
    return Path(getattr(replicas[name], stream.value)), record


def _lines(file: Path, ended: Callable[[], bool]) -> Iterator[str]:
    """Yields whole lines as they are written, until the job has ended."""
    part = ""
    with file.open(errors="replace", newline="\n") as log:
        while True:
            last = ended()  # asked first: what is written before the end is then read below
            for text in log:
                part += text
                if part.endswith("\n"):
                    yield part
                    part = ""
            if last:
                break
            time.sleep(READ_SECONDS)
    if part:
        yield f"{part}\n"


def create_scheduler(session_name: str, **_: object) -> PersistentLocalScheduler:
    """Returns the scheduler that TorchX knows as `local_cwd`."""
    return PersistentLocalScheduler(session_name)
