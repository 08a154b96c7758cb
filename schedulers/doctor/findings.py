"""What `torchx doctor` finds."""

import subprocess
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How good a finding is."""

    OK = "ok"
    NOTE = "note"
    ABSENT = "not here"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    check: str
    level: Level
    found: str
    remedy: str = ""


def absent(check: str, found: str, asked: bool, remedy: str) -> Finding:
    """Something that need not be there, unless it was asked for."""
    return Finding(check, Level.WRONG, found, remedy) if asked else Finding(check, Level.ABSENT, found)


def troubled(check: str, found: str, asked: bool, remedy: str) -> Finding:
    """Something that is there and does not work, which matters most if it was asked for."""
    return Finding(check, Level.WRONG if asked else Level.NOTE, found, remedy)


def answer(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a program; one that does not answer in time, or is not there, has failed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {seconds:g} seconds")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
