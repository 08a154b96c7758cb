"""The batch script of a job: Slurm's options, the replica's command, and the shell code that all jobs share."""

import logging
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from torchx.specs import AppDef, BindMount, Role, macros

from schedulers.contract import (
    ARRAY,
    FIRST_PORT,
    PORTS,
    RANK0_HOST,
    RANK0_PORT,
    SHELL_CONTRACT,
    SHUTDOWN_TIMEOUT_SECONDS,
    assignments,
)
from schedulers.errors import SchedulerError
from schedulers.slurm.code import Code
from schedulers.slurm.options import SlurmOpts, dependency, sbatch_word
from schedulers.slurm.record import ABOUT, CANCELLED, INDEX, SCRIPT, About
from schedulers.state_directory import STATE_FOLDER
from trainer.core.secrets import has_secrets

ENVIRONMENT = "torchx-job.env"
COMMON = (
    "# ---- The same for every job from here on.\n\n"
    + assignments(environment_file=ENVIRONMENT, index_folder=f"{STATE_FOLDER}/{INDEX}", cancelled_file=CANCELLED)
    + assignments(wait_seconds=SHUTDOWN_TIMEOUT_SECONDS)
    + assignments(port_variable=RANK0_PORT, first_port=FIRST_PORT, ports=PORTS)
    + SHELL_CONTRACT
    + "\n".join(Path(__file__).with_name(f"{name}.sh").read_text() for name in ("requeue", "start", "batch"))
)

# Limit on a replica's command: with some code, it is one argument of bash, and Linux limits the length of arguments.
MOST_COMMAND_BYTES = 120_000

log = logging.getLogger(__name__)

# Placeholders for values known only when the job runs. No argument can hold a NUL, and shlex quotes text that does.
APP_ID, REPLICA_ID = "\0app_id\0", "\0replica_id\0"
JOB, TASK = "$SLURM_JOB_ID", "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
AT_CLUSTER = "@$SLURM_CLUSTER_NAME"


@dataclass(frozen=True)
class SlurmRequest:
    """A job as it is submitted: the files of its directory."""

    about: About
    opts: SlurmOpts
    job_dir: Path
    work_dir: Path
    script: str
    environment: str = field(repr=False)
    code: Code | None = None  # of a job on a host

    @property
    def files(self) -> dict[str, tuple[str, int]]:
        """The files of the job directory: text and mode of each."""
        secret = has_secrets(self.script)
        script, environment = (self.script, 0o600 if secret else 0o666), (self.environment, 0o600)
        return {ABOUT: (self.about.text, 0o666), SCRIPT: script, ENVIRONMENT: environment}

    @property
    def code_dir(self) -> Path:
        """The directory of the code on a host."""
        assert self.code
        return Path(self.opts.remote_dir, "code", self.code.digest)

    def write(self) -> None:
        """Writes the files into the job directory, which exists."""
        for name, (text, mode) in self.files.items():
            file = self.job_dir / name
            file.touch(mode=mode)
            file.write_text(text)

    def __str__(self) -> str:
        names = re.findall(r"^export (\w+)=", self.environment, re.MULTILINE)
        held = f"# {self.job_dir / ENVIRONMENT}, which only you can read, sets {', '.join(names)}"
        waits = dependency(self.about.predecessors)
        submitted = f"# submitted with {' '.join(waits)}\n" if waits else ""
        at = f"{self.opts.host}:" if self.opts.host else ""
        return f"# {at}{self.job_dir / SCRIPT}\n{submitted}{self.script}\n{held}\n"


def request(app: AppDef, opts: SlurmOpts, job_dir: Path, work_dir: Path, code: Code | None = None) -> SlurmRequest:
    """Renders an app.

    Args:
        app: The app, of one role.
        opts: The options of the scheduler.
        job_dir: Directory for the job's files.
        work_dir: Directory in which the job runs.
        code: The code that is sent to the host of the job.

    Raises:
        SchedulerError: Slurm cannot run the app, or not with these options.
    """
    opts.check()
    for path in (job_dir, work_dir):
        if re.search(r"[\\\n]", str(path)):
            raise SchedulerError(f"{str(path)!r}: sbatch takes no path with a backslash or a line break; rename it")
    if len(app.roles) != 1 and ARRAY not in app.metadata:
        raise SchedulerError(
            f"{app.name} has the roles {', '.join(role.name for role in app.roles)}: the slurm scheduler runs one role;"
            " submit one job for each"
        )
    values = macros.Values(str(work_dir), APP_ID, REPLICA_ID, RANK0_HOST)
    roles = [values.apply(role) for role in app.roles]
    role, array = roles[0], [role.name for role in roles] if len(roles) > 1 else []
    app_id = (TASK if array else JOB) + (AT_CLUSTER if opts.clusters else "")
    for name in role.env:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise SchedulerError(f"--env {name}: must be the name of a variable: letters, digits and _")
    return SlurmRequest(
        about=About(
            app.name,
            role.name,
            role.num_replicas,
            opts.predecessors_there,
            array,
            opts.clusters or [],
            code.digest if code else "",
        ),
        opts=opts,
        job_dir=job_dir,
        work_dir=work_dir,
        code=code,
        script=_script(app.name, roles, opts, job_dir, work_dir, app_id),
        environment="".join(_export(name, value, app_id) for name, value in role.env.items() if not _is_own(value)),
    )


def _script(name: str, roles: list[Role], opts: SlurmOpts, job_dir: Path, work_dir: Path, app_id: str) -> str:
    role, is_array = roles[0], len(roles) > 1
    replica = _one_of(roles, app_id) if is_array else _replica(role, app_id)
    if (size := len("\n".join(replica).encode())) > MOST_COMMAND_BYTES:
        raise SchedulerError(
            f"the command of {role.name} has {size:,} bytes: a replica can be given {MOST_COMMAND_BYTES:,} at most; put"
            " its arguments into a file"
        )
    batch_log = "/slurm-%A_%a.log" if is_array else "/slurm-%j.log"
    options = [
        f"--job-name={sbatch_word(name)}",
        f"--chdir={sbatch_word(str(work_dir))}",
        f"--output={sbatch_word(str(job_dir).replace('%', '%%') + batch_log)}",
        *([f"--array=0-{len(roles) - 1}"] if is_array else []),
        *_shape(role, opts),
        *opts.sbatch(),
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        f"# `sbatch {job_dir / SCRIPT}` runs the job again.",
        "",
        "warned= step=",
        "trap warned=yes USR1  # before anything that takes time: by itself the signal would end the job as failed",
        f"job_dir={shlex.quote(str(job_dir))}",
        f"id={TASK if is_array else JOB}",
        "log=$job_dir/slurm-$id.log",
        f"role={shlex.quote(role.name)}" if not is_array else _role_of_task(roles),
        f"max_retries={role.max_retries}",
        f"max_free_restarts={opts.max_free_restarts}",
        f"open_mode={opts.open_mode}",
        f"srun_args=({shlex.join(_srun_args(role, opts))})",
        f"container_args=({shlex.join(_container_args(role, opts, job_dir))})",
        "",
        *("setup() {", *(f"    {line}" for line in [*opts.before(), *(opts.setup or [])] or [":"]), "}"),
        "",
        *("replica() {", *(f"    {line}" for line in replica), "}"),
    ]
    return "\n".join([*lines, "", COMMON])


def _shape(role: Role, opts: SlurmOpts) -> list[str]:
    """Returns the options for the nodes of a job and for its part of each."""
    resource, on_node = role.resource, _replicas_on_a_node(role, opts)
    nodes, cpus = -(-role.num_replicas // on_node), max(1, resource.cpu)
    if _is_elastic(role):
        # With --ntasks-per-node, Slurm 22.05 takes as few nodes as it may.
        options = [f"--nodes={-(-_least_replicas(role) // on_node)}-{nodes}", f"--mincpus={cpus * on_node}"]
    else:
        options = [f"--nodes={nodes}", f"--ntasks={role.num_replicas}", f"--ntasks-per-node={on_node}"]
    options.append(f"--cpus-per-task={cpus}")
    if opts.mem != "none" and (opts.mem or resource.memMB > 0):
        options.append(f"--mem={opts.mem or resource.memMB * on_node}")
    if resource.gpu > 0 and not opts.gres:
        # Replicas that share a node each see GPUs of their own.
        per_task = on_node > 1 and not _is_elastic(role)
        options.append(f"--gpus-per-task={resource.gpu}" if per_task else f"--gpus-per-node={resource.gpu * on_node}")
    return options


def _least_replicas(role: Role) -> int:
    return role.num_replicas if role.min_replicas is None else role.min_replicas


def _is_elastic(role: Role) -> bool:
    return _least_replicas(role) < role.num_replicas


def _replicas_on_a_node(role: Role, opts: SlurmOpts) -> int:
    return min(opts.ntasks_per_node, role.num_replicas)


def _srun_args(role: Role, opts: SlurmOpts) -> list[str]:
    # srun does not inherit this option from sbatch.
    args = [f"--cpus-per-task={max(1, role.resource.cpu)}"]
    if _is_elastic(role):
        on_node = _replicas_on_a_node(role, opts)
        args.append(f"--ntasks-per-node={on_node}")
        if on_node > 1 and role.resource.gpu > 0 and not opts.gres:
            args.append(f"--gpus-per-task={role.resource.gpu}")
    return [*args, *(word for arg in opts.srun_args or [] for word in shlex.split(arg))]


def _container_args(role: Role, opts: SlurmOpts, job_dir: Path) -> list[str]:
    if opts.container_image:
        mounts = [f"{job_dir}:{job_dir}", *map(_mount, role.mounts), *(opts.container_mounts or [])]
        return [f"--container-image={opts.container_image}", f"--container-mounts={','.join(mounts)}"]
    if role.mounts:
        log.warning("mounts take effect only in a container: -cfg container_image=...")
    return []


def _mount(mount: object) -> str:
    if not isinstance(mount, BindMount):
        raise SchedulerError(f"--mounts {mount}: must be of type bind on Slurm")
    return f"{mount.src_path}:{mount.dst_path}" + (":ro" if mount.read_only else "")


def _role_of_task(roles: list[Role]) -> str:
    return f"roles=({shlex.join(role.name for role in roles)}) role=${{roles[SLURM_ARRAY_TASK_ID]}}"


def _one_of(roles: list[Role], app_id: str) -> list[str]:
    """Returns the commands of a replica of any task of an array."""
    cases = [line for task, role in enumerate(roles) for line in (f"{task})", *_replica(role, app_id), ";;")]
    return ["case $SLURM_ARRAY_TASK_ID in", *cases, "esac"]


def _replica(role: Role, app_id: str) -> list[str]:
    """Returns the commands of a replica; the last replaces the shell, so that signals reach the program."""
    own = [_export(name, value, app_id).rstrip("\n") for name, value in role.env.items() if _is_own(value)]
    words = [_quote(word, app_id) for word in (role.entrypoint, *role.args)]
    return [*own, f"exec {' '.join(words)}"]


def _is_own(value: str) -> bool:
    """Returns whether each replica has another value."""
    return REPLICA_ID in value


def _export(name: str, value: str, app_id: str) -> str:
    return f"export {name}={_quote(value, app_id)}\n"


def _quote(text: str, app_id: str) -> str:
    """Quotes a word for the shell, with variables for values that are known only when the job runs."""
    quoted = shlex.quote(text)
    for mark, value in ((APP_ID, app_id), (REPLICA_ID, "$SLURM_PROCID")):
        quoted = quoted.replace(mark, f"'\"{value}\"'")
    return quoted.replace("''", "") or "''"
