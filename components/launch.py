"""Roles that run the trainer. Only this file has torchrun's command line, which trainer/launch.py receives.

TorchX's `dist.torchrun` does not pass `--signals-to-handle`, `--shutdown-timeout` and `--max-restarts`, without which
ranks have no time to save; and it uses the same rendezvous port in all jobs.
"""

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from torchx import specs
from torchx.components.dist import parse_nnodes
from torchx.specs import AppDef, Role, macros

from schedulers.contract import ARRAY, FIRST_PORT, PORTS, RANK0_PORT, SHUTDOWN_TIMEOUT_SECONDS

# Signals passed on to every rank, which then has SHUTDOWN_TIMEOUT_SECONDS to leave.
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"

# How many nodes an elastic job may lose and still continue; a node that returns does not count.
ELASTIC_RESTARTS = 100

LONGEST_NAME = 100
MACROS = (macros.img_root, macros.app_id, macros.replica_id, macros.rank0_env)


class ArgumentError(ValueError):
    """An argument of a component has a value that cannot be used."""

    def __init__(self, flag: str, value: object, allowed: str) -> None:
        super().__init__(f"{flag} {value}: must be {allowed}")


@dataclass(frozen=True)
class Shape:
    """The number of nodes of a job, and the number of processes on each of them."""

    min_nodes: int | None
    nodes: int
    procs: int

    @classmethod
    def parse(cls, j: str) -> "Shape":
        """Reads `NODESxPROCS` or `MIN:NODESxPROCS`."""
        with suppress(ValueError):
            min_nodes, nodes, procs, nnodes = parse_nnodes(j)
            # A bare number is refused: it means processes to parse_nnodes, and nodes to dist.torchrun.
            if "x" in j and 1 <= min_nodes <= nodes and procs >= 1:
                return cls(min_nodes if ":" in nnodes else None, nodes, procs)
        raise ArgumentError("-j", j, "NODESxPROCS or MIN:NODESxPROCS, such as 2x8 or 1:2x8, with 1 <= MIN <= NODES")

    @property
    def nnodes(self) -> str:
        """The value of torchrun's `--nnodes`."""
        return f"{self.min_nodes}:{self.nodes}" if self.min_nodes else str(self.nodes)


def one_node(nproc: int) -> str:
    """Returns the `-j` of a job on one node."""
    if nproc < 1:
        raise ArgumentError("--nproc", nproc, "a number of processes from 1 up")
    return f"1x{nproc}"


def choice(flag: str, value: str, allowed: tuple[str, ...]) -> None:
    """Refuses a value that is not allowed."""
    if value not in allowed:
        raise ArgumentError(flag, value, ", ".join(allowed))


def literal(text: str) -> str:
    """Escapes a text, in which TorchX then replaces only macros such as `${app_id}`, and no other `$`."""
    doubled = text.replace("$", "$$")
    for macro in MACROS:
        doubled = doubled.replace(f"${macro}", macro)
    return doubled


def node(
    h: str | None,
    cpu: int,
    gpu: int,
    memMB: int,
    image: str,
    env: dict[str, str] | None,
    mounts: list[str] | None,
    metadata: dict[str, str] | None,
) -> Role:
    """Returns a role without a command: the resources, image and environment of one replica.

    The resources are the named resource `h` if there is one, else the numbers.
    """
    try:
        resource = specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h)
    except KeyError as error:
        raise ArgumentError("-h", h, f"the name of a registered resource ({error.args[0]})") from error
    try:
        parsed = specs.parse_mounts(mounts or [])
    except (KeyError, ValueError) as error:
        allowed = f"type=bind|volume|device,src=...,dst=...[,readonly] ({error.args[0]})"
        raise ArgumentError("--mounts", ",".join(mounts or []), allowed) from error
    variables = {name: literal(value) for name, value in (env or {}).items()}
    return Role("", image, env=variables, resource=resource, mounts=parsed, metadata=dict(metadata or {}))


def torchrun(*trainer_args: str, name: str, j: str, node: Role, max_retries: int) -> AppDef:
    """Returns an app of one role, whose replicas each run the trainer under torchrun."""
    # Names of the job's directories derive from the name.
    if not re.fullmatch(rf"[A-Za-z][\w.-]{{0,{LONGEST_NAME - 1}}}", name):
        raise ArgumentError("--name", name, f"a letter, then letters, digits, '.', '_' or '-', {LONGEST_NAME} at most")
    shape = Shape.parse(j)
    defaults = {
        "OMP_NUM_THREADS": str(max(1, node.resource.cpu // shape.procs)),
        # torchrun tees through files, and Python would buffer what it writes to a file.
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank ${rank}] ",
        # The ranks get a store of their own, which survives the end of an agent.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    role = replace(
        node,
        # No dash: Volcano derives the name of a shell variable from it.
        name="trainer",
        entrypoint="bash",
        args=["-c", _torchrun_command(shape, [literal(argument) for argument in trainer_args])],
        env=defaults | node.env,
        num_replicas=shape.nodes,
        min_replicas=shape.min_nodes,
        max_retries=max_retries,
    )
    return AppDef(name=name, roles=[role])


def check_seeds(seeds: list[str]) -> None:
    """Refuses seeds that are not numbers, or are repeated."""
    if len({*seeds}) < len(seeds) or not all(re.fullmatch("0|[1-9][0-9]*", seed) for seed in seeds):
        raise ArgumentError("--seeds", ",".join(seeds), "numbers from 0 up, each once, such as 1,2,3")


def one_run_for_each(seeds: list[str], out: str, run: Callable[[str, str], AppDef]) -> AppDef:
    """Returns an app with an independent run as a role for each seed; for a single seed, the job of its run.

    Args:
        seeds: The seeds, numbers from 0 up, each once.
        out: Run directory; each seed has OUT/seed-SEED.
        run: Returns the job of one seed; takes its run directory and the seed.
    """
    check_seeds(seeds)
    apps = {f"seed-{seed}": run(f"{out}/seed-{seed}", seed) for seed in seeds}
    first = next(iter(apps.values()))
    if len(apps) == 1:
        return first
    roles = [replace(role, name=name) for name, app in apps.items() for role in app.roles]
    return AppDef(first.name, roles, metadata={ARRAY: "true"})


def python(*args: str, name: str, node: Role, port_map: dict[str, int] | None = None) -> AppDef:
    """Returns an app of one process, `python -P -m ARGS`."""
    env = {"PYTHONUNBUFFERED": "1"} | node.env
    words = ["-P", "-m", *map(literal, args)]
    role = replace(node, name=name, entrypoint="python", args=words, env=env, port_map=port_map or {})
    return AppDef(name=name, roles=[role])


def _torchrun_command(shape: Shape, trainer_args: list[str]) -> str:
    # Every argument is quoted, and TorchX still substitutes its macros inside the quotes.
    return " ".join(
        [
            # With exec, signals reach torchrun. With -P, a `trainer` in the user's directory cannot shadow ours.
            "exec python -P -m trainer.launch",
            f"--nnodes {shape.nnodes}",
            f"--nproc-per-node {shape.procs}",
            "--rdzv-backend c10d",
            f"--rdzv-id '{macros.app_id}'",
            f"--rdzv-endpoint {_rdzv_endpoint(shape)}",
            # A job that is not elastic is restarted by its scheduler.
            f"--max-restarts {ELASTIC_RESTARTS if shape.min_nodes else 0}",
            f"--signals-to-handle {SIGNALS}",
            f"--shutdown-timeout {SHUTDOWN_TIMEOUT_SECONDS}",
            "--tee 3",
            f"-m trainer {shlex.join(trainer_args)}",
        ]
    )


def _rdzv_endpoint(shape: Shape) -> str:
    """Returns the rendezvous endpoint of the nodes, as a word for the shell.

    The scheduler may publish a free port. Else the port is derived from the app id: from its number, which is unique,
    or from its checksum. All nodes of a job compute the same port, and other jobs on the host a different port.
    """
    if shape.nodes == 1:
        return "localhost:0"
    # TorchX turns `$$` into `$`. Without a host, the shell fails: each node would wait at its own localhost.
    host = f"$${{{macros.rank0_env}:?names the host of replica 0 and is not set}}"
    job = f"$$(id='{macros.app_id}'; if [ $${{id//[0-9]}} ]; then cksum <<< $$id | cut -d ' ' -f 1; else echo $$id; fi)"
    return f'"{host}:$${{{RANK0_PORT}:-$$(({FIRST_PORT} + {job} % {PORTS}))}}"'
