"""Notifies people of the end of a job, through Apprise: mail, Slack, Teams, webhooks and a hundred more.

A small job that waits for the other sends the message: `python -P -m schedulers.notify ID HANDLE NAME TAG ...`. It is
a separate job because everything that runs a job can be lost with it: ranks and supervisors are killed, nodes lose
power. It never restarts, so a message is sent at most once.

Recipients are in the user's own Apprise configuration, by tag, so no password is in an option, in a job's request or in
a list of processes.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from torchx.specs import NONE, AppDef, AppStatus, Resource, Role
from torchx.specs.api import is_terminal

from schedulers.errors import SchedulerError
from schedulers.first_error import error_message
from trainer.core.outcome import FAILED, WRONG_INPUT
from trainer.core.secrets import without_secrets

if TYPE_CHECKING:
    from apprise import Apprise

CHECK = "--check"  # in place of a job: whether the tags have recipients
SEND_SECONDS = 10  # time limit for a server to answer
# Slurm starts the jobs that wait for a job while it still lists that job as COMPLETING.
SETTLE_SECONDS = 60
POLL_SECONDS = 1
# Apprise's own variable and places, which only its command line reads.
CONFIG_VARIABLE = "APPRISE_CONFIG_PATH"
CONFIG_FILES = tuple(
    f"{folder}{name}"
    for folder in (
        "~/.apprise",
        "~/.config/apprise",
        "~/.config/apprise/apprise",
        "/etc/apprise",
        "/etc/apprise/apprise",
    )
    for name in ("", ".conf", ".yml", ".yaml")
)


def check_tags(tags: Sequence[str]) -> None:
    """Refuses tags without a recipient, before a job is submitted.

    Raises:
        SchedulerError: Apprise is not installed, or its configuration has no such tag.
    """
    if not tags:
        return
    try:
        client = _client()
    except ModuleNotFoundError as error:
        raise SchedulerError("-cfg notify needs Apprise: pip install 'torchx-recsys[notify]'") from error
    for tag in tags:
        if not any(client.find(tag=tag)):
            files = ", ".join(_files()) or "there is none; ~/.config/apprise.yml is one"
            raise SchedulerError(f"-cfg notify={tag}: no such tag in the configuration of Apprise ({files})")


def notifier(handle: str, name: str, tags: Sequence[str], there: str = "") -> AppDef:
    """Returns the job that waits for another job and sends the message about its end.

    Args:
        handle: The handle of the other job.
        name: Its name.
        tags: Tags of Apprise's configuration.
        there: Its handle where the notifier runs, if that is another.
    """
    words = ["-P", "-m", "schedulers.notify", there or handle, handle, name, *tags]
    return AppDef("notify", [Role("notify", "", entrypoint="python", args=words, resource=Resource(1, 0, 256))])


def message(handle: str, name: str, status: AppStatus | None) -> tuple[str, str]:
    """Returns title and text of the message, without the secrets of URLs."""
    state = status.state.name if status else "GONE"
    lines = [handle]
    if status and status.msg not in ("", NONE):
        lines.append(status.msg)
    if status and status.structured_error_msg not in ("", NONE):
        lines.append(f"first error: {error_message(status.structured_error_msg)}")
    return f"{name} {state}", without_secrets("\n".join([*lines, f"torchx log {handle}"]))


def check(*tags: str) -> None:
    """Ends with wrong input if a tag has no recipient."""
    try:
        check_tags(tags)
    except SchedulerError as error:
        print(error, file=sys.stderr)
        sys.exit(WRONG_INPUT)


def main(there: str, handle: str, name: str, *tags: str) -> None:
    """Waits until a job has ended, and sends the message."""
    from torchx.runner import get_runner

    with get_runner() as runner:
        deadline = time.monotonic() + SETTLE_SECONDS
        while (status := runner.status(there)) and not is_terminal(status.state) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    title, text = message(handle, name, status)
    failure = f"could not tell {', '.join(tags)}: {title}"
    # No exception would do: Apprise and urllib3 catch those of their servers, TimeoutError among them.
    signal.signal(signal.SIGALRM, lambda *_: _give_up(failure))
    signal.setitimer(signal.ITIMER_REAL, SEND_SECONDS)
    if not _client().notify(title=title, body=text, tag=[*tags]):
        _give_up(failure)
    print(f"told {', '.join(tags)}: {title}", flush=True)


def _give_up(failure: str) -> NoReturn:
    print(failure, flush=True)
    os._exit(FAILED)


def _files() -> list[str]:
    """Returns the files of Apprise's configuration."""
    if named := os.environ.get(CONFIG_VARIABLE):
        return re.split(r"[\r\n;]+", named.strip())
    return [str(file) for file in map(Path, CONFIG_FILES) if file.expanduser().is_file()]


def _client() -> "Apprise":
    from apprise import Apprise, AppriseConfig

    config = AppriseConfig()
    for file in _files():
        config.add(file)
    client = Apprise()
    client.add(config)
    return client


if __name__ == "__main__":
    _, first, *rest = sys.argv
    check(*rest) if first == CHECK else main(first, *rest)
