"""Names and figures that jobs, schedulers and the schedulers' scripts share, each defined once.

The trainer's half is trainer/core/outcome.py: how a job reports its outcome to its scheduler.
"""

import logging
import shlex
from collections.abc import Collection

from torchx.specs import AppDef

from schedulers.errors import SchedulerError
from trainer.core.outcome import (
    FINISHED_WORD,
    OUTCOME_VARIABLE,
    PROGRESS_VARIABLE,
    SAVED_STEP_VARIABLE,
    SAVED_WORD,
    STOPPED,
    STOPPED_WORD,
    WRONG_INPUT,
    WRONG_INPUT_WORDS,
)
from trainer.core.progress import PROGRESS_FILE

log = logging.getLogger(__name__)

# The variable with the host of replica 0. TorchX's own schedulers use this name, but have no constant for it.
RANK0_HOST = "TORCHX_RANK0_HOST"

# The variable with the rendezvous port on that host, set by schedulers that look for a free port.
RANK0_PORT = "TORCHX_RANK0_PORT"

# The range of rendezvous ports, below the system's ephemeral ports (32768 and up on Linux).
FIRST_PORT = 20000
PORTS = 10000

# torchrun kills its ranks if they have not saved and left this long after a signal.
SHUTDOWN_TIMEOUT_SECONDS = 120

# A job fails after this many consecutive restarts that neither consume a retry nor make progress.
MAX_FREE_RESTARTS = 20

# A shell's exit codes for a program that is not there, and of `timeout`.
NO_PROGRAM, TIMED_OUT = 127, 124

# Metadata key of an app whose roles are independent runs; Slurm submits such an app as a job array.
ARRAY = "torchx-recsys/array"


def refuse_array(app: AppDef) -> None:
    """Refuses an app whose roles are independent runs; for schedulers that would run them as one job.

    Raises:
        SchedulerError: The roles of the app are independent runs.
    """
    if ARRAY in app.metadata:
        raise SchedulerError(
            "--seeds: only on Slurm are several runs one job; `torchx run` submits one for each, a pipeline needs steps"
        )


def warn_of_ignored(app: AppDef, scheduler: str, *fields: str, honoured: Collection[str] = ()) -> None:
    """Warns of requests in an app's roles that a scheduler ignores.

    Args:
        app: The app.
        scheduler: The scheduler's name.
        fields: The ignored fields: devices, capabilities, mounts, ports.
        honoured: Capabilities that the scheduler grants nonetheless.
    """
    for role in app.roles if ARRAY not in app.metadata else app.roles[:1]:
        resource = role.resource
        asked = {
            "devices": resource.devices,
            "capabilities": {key: value for key, value in resource.capabilities.items() if key not in honoured},
            "mounts": {mount.dst_path: "" for mount in role.mounts},
            "ports": role.port_map,
        }
        for field in fields:
            if asked[field]:
                named = ", ".join(f"{key}={value}" if value else key for key, value in asked[field].items())
                log.warning("%s ignores the %s of role %s: %s", scheduler, field, role.name, named)


def assignments(**values: object) -> str:
    """Returns lines of POSIX shell that assign these values; the caller quotes values that need it."""
    return "".join(f"{name}={value}\n" for name, value in values.items())


# Prepended to every script that runs a job, so that trainer/core/outcome.py stays the only source.
SHELL_CONTRACT = assignments(
    outcome_variable=OUTCOME_VARIABLE,
    progress_variable=PROGRESS_VARIABLE,
    progress_name=PROGRESS_FILE,
    saved_step_variable=SAVED_STEP_VARIABLE,
    rank0_variable=RANK0_HOST,
    finished_word=FINISHED_WORD,
    saved_word=SAVED_WORD,
    stopped_word=STOPPED_WORD,
    stopped_code=STOPPED,
    wrong_input_words=shlex.quote(WRONG_INPUT_WORDS),
    wrong_input_code=WRONG_INPUT,
)
