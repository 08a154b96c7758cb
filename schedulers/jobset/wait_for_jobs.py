"""Waits until other JobSets have ended: the program of the pod that a job with `after` starts with.

It runs by `python -c` in the job's image, with the standard library alone. It exits with 0 once all jobs have ended as
required, and with WRONG_INPUT and a line once a job no longer can.
"""

import json
import os
import ssl
import sys
import time
from pathlib import Path
from typing import NoReturn
from urllib.error import HTTPError
from urllib.request import Request, urlopen

POLL_SECONDS = 5
TIMEOUT_SECONDS = 60
FORBIDDEN, NOT_FOUND = 403, 404
WRONG_INPUT = 2


def main() -> None:
    """Waits for the jobs that the environment names."""
    waiting = json.loads(os.environ["PREDECESSORS"])
    while waiting:
        waiting = [job for job in waiting if not has_ended(job)]
        if waiting:
            time.sleep(POLL_SECONDS)


def has_ended(job: dict) -> bool:
    """Returns whether a job has ended as required; False without an answer from the API server."""
    try:
        state = state_of(read(job["path"]))
    except HTTPError as error:
        if error.code == FORBIDDEN:
            leave(f"not started: the pod's ServiceAccount may not read {job['handle']}; see docs/guides/after.md")
        if error.code != NOT_FOUND:
            return False
        # After a restart of this job the other may have ended long ago, and been deleted.
        state = "" if os.environ["TORCHX_RESTARTS"] == "0" else "SUCCEEDED"
    except OSError:
        return False
    if state != "SUCCEEDED" and state != "RUNNING" and not job["any_end"]:
        leave(f"not started: {job['handle']} {f'ended as {state}' if state else 'is gone'}")
    return state != "RUNNING"


def read(path: str) -> dict:
    """Returns an object of the API."""
    account = Path(os.environ["SERVICE_ACCOUNT"])
    token = (account / "token").read_text()  # each time, as the kubelet renews it
    request = Request(os.environ["API_SERVER"] + path, headers={"Authorization": f"Bearer {token}"})
    trusted = ssl.create_default_context(cafile=str(account / "ca.crt")) if (account / "ca.crt").exists() else None
    with urlopen(request, timeout=TIMEOUT_SECONDS, context=trusted) as answer:
        return json.load(answer)


def state_of(jobset: dict) -> str:
    """Returns the state as `torchx status` has it, RUNNING for any that is not final."""
    true = [each["type"] for each in jobset.get("status", {}).get("conditions") or () if each["status"] == "True"]
    if "Completed" in true:
        return "SUCCEEDED"
    if (
        os.environ["CANCELLED"] in jobset["metadata"].get("annotations", {})
        or "deletionTimestamp" in jobset["metadata"]
    ):
        return "CANCELLED"
    return "FAILED" if "Failed" in true else "RUNNING"


def leave(line: str) -> NoReturn:
    """Ends this job, with a line for its status."""
    Path(os.environ["LAST_WORDS"]).write_text(line)
    print(line, flush=True)
    sys.exit(WRONG_INPUT)


if __name__ == "__main__":
    main()
