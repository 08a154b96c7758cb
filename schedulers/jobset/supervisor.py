"""The script that runs a replica in its container."""

from pathlib import Path

from schedulers.contract import RANK0_HOST, SHELL_CONTRACT, assignments
from schedulers.jobset.options import JobSetOpts
from trainer.core.outcome import OUTCOME_VARIABLE

REPLICAS = "TORCHX_REPLICAS"
RESTARTS = "TORCHX_RESTARTS"

# Exit code of a replica whose job is not started again, for its free restarts are used up.
GIVEN_UP = 70
# The restarts of a job, whatever they gained: those after a pod that died at once are not seen by the script.
MOST_RESTARTS = 1000

_BODY = Path(__file__).with_name("supervisor.sh").read_text()


def supervisor(opts: JobSetOpts, max_retries: int) -> str:
    """Returns the script, which takes the command of the replica as its arguments."""
    numbers = assignments(
        outcome_file=f"${OUTCOME_VARIABLE}",
        rank0_host=f"${RANK0_HOST}",
        replicas=f"${REPLICAS}",
        restarts=f"${RESTARTS}",
        max_retries=max_retries,
        max_free_restarts=opts.max_free_restarts,
        most_restarts=MOST_RESTARTS,
        rank0_wait_seconds=opts.rank0_wait_seconds,
        given_up_code=GIVEN_UP,
    )
    return SHELL_CONTRACT + numbers + _BODY
