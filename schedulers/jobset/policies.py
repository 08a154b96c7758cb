"""The policies by which JobSet and Job act on how a replica ended."""

from typing import Any

from schedulers.jobset.supervisor import GIVEN_UP
from trainer.core.outcome import STOPPED, WRONG_INPUT

# The exit codes of a replica whose job is not started again.
FINAL = (WRONG_INPUT, GIVEN_UP)
# JobSet's field that tells such a failure from one that is, by the message of the Job; JobSet has it since 0.10.
MESSAGE_PATTERNS = "onJobFailureMessagePatterns"


def failure_policy(max_retries: int) -> dict[str, Any]:
    """Returns the JobSet's policy, of which the first rule that matches holds; a failure that none matches is a retry.

    Wrong input and given up: the job fails. A stop on request and a disruption: all pods are made again, and no retry
    is used up.
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


def pod_failure_policy(container: str) -> dict[str, Any]:
    """Returns the Job's policy, which ends it with the reason PodFailurePolicy and a message with the exit code."""
    codes = {"containerName": container, "operator": "In", "values": sorted((*FINAL, STOPPED))}
    return {
        "rules": [
            {"action": "FailJob", "onExitCodes": codes},
            {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    }
