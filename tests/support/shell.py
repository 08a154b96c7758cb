"""A shell as a reader's: types commands as they stand, and finds those that programs print."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

LOG_PREFIX = re.compile(r"^\w+/\d+ (?:\[rank \d+\] )?", re.MULTILINE)
HINT = re.compile(r"(?:\w: +|^ {2,})((?:torchx|torchrun|python|pip|make) .*)$", re.MULTILINE)
ADDRESS = re.compile(r"http://[\w.:]+")


def hints(printed: str) -> list[str]:
    """Returns the commands that a program printed for its user to type: after `next:` or the like, or indented."""
    return list(dict.fromkeys(HINT.findall(LOG_PREFIX.sub("", printed))))


def typed(command: str, folder: Path, **environment: str) -> str:
    """Types a command into a shell in a folder, and returns what it printed; it has to succeed.

    A command that serves is interrupted as soon as it answers.
    """
    with tempfile.NamedTemporaryFile("w+") as output:
        shell = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        expected, printed = 0, Path(output.name)
        while shell.poll() is None:
            if not expected and (address := ADDRESS.search(printed.read_text())) and _answers(address[0]):
                os.killpg(shell.pid, signal.SIGINT)
                expected = 128 + signal.SIGINT
            time.sleep(0.1)
        text = printed.read_text()
    assert shell.returncode == expected, f"$ {command}\n{text}"
    return text


def _answers(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
        return answer.status == 200
    return False
