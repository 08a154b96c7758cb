"""How a job restarts: the script of a replica, and the policies by which Job and JobSet act on its exit code."""

from pathlib import Path
from typing import Any

from schedulers.contract import RANK0_HOST, SHELL_CONTRACT, assignments
from schedulers.jobset.options import JobSetOpts
from trainer.core.outcome import OUTCOME_VARIABLE, STOPPED, WRONG_INPUT

REPLICAS = "TORCHX_REPLICAS"
RESTARTS = "TORCHX_RESTARTS"

# Exit code of a replica whose job does not restart, as its free restarts are used up.
GIVEN_UP = 70
# Limit on restarts, with or without progress: the script does not see a restart if its pod dies at once.
MOST_RESTARTS = 1000

# The exit codes after which a job does not restart.
FINAL = (WRONG_INPUT, GIVEN_UP)
# JobSet's field that recognizes such a failure by the message of the Job.
MESSAGE_PATTERNS = "onJobFailureMessagePatterns"
# The first JobSet whose Helm chart has that field; JobSet itself has it since 0.10.
OLDEST_JOBSET = "0.10.1"

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


def failure_policy(max_retries: int) -> dict[str, Any]:
    """Returns the JobSet's policy: the first rule that matches applies, and a failure without a rule is a retry.

    After wrong input, or when the restarts are used up, the job fails. After a stop request or a disruption, all pods
    are recreated, and no retry is consumed.
    """
    reason = {"onJobFailureReasons": ["PodFailurePolicy"]}
    codes = "|".join(map(str, FINAL))
    return {
        "maxRestarts": max_retries,
        "rules": [
            {"name": "final", "action": "FailJobSet", **reason, MESSAGE_PATTERNS: [f"exit code ({codes}) matching"]},
            {"name": "free", "action": "RestartJobSetAndIgnoreMaxRestarts", **reason},
        ],
    }


def pod_failure_policy(container: str, *before: str) -> dict[str, Any]:
    """Returns the Job's policy, which ends it with the reason PodFailurePolicy and a message with the exit code.

    Args:
        container: The container of the replica.
        before: Init containers that end as it does.
    """
    codes = {"operator": "In", "values": sorted((*FINAL, STOPPED))}
    return {
        "rules": [
            *({"action": "FailJob", "onExitCodes": {"containerName": name, **codes}} for name in (container, *before)),
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    }
