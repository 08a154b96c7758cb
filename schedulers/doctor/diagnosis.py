"""Findings of `torchx doctor`, and the programs that it runs to find them."""

import subprocess
import sys
from dataclasses import dataclass
from enum import Enum

from schedulers.contract import NO_PROGRAM, TIMED_OUT


class Level(Enum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    ABSENT = "not here"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Diagnosis:
    """One line of the table."""

    check: str
    level: Level
    found: str
    remedy: str = ""


def absent(check: str, found: str, required: bool, remedy: str) -> Diagnosis:
    """Returns the finding for something missing: an error only if it is required."""
    return Diagnosis(check, Level.WRONG, found, remedy) if required else Diagnosis(check, Level.ABSENT, found)


def troubled(check: str, found: str, required: bool, remedy: str) -> Diagnosis:
    """Returns the finding for something that does not work: an error only if it is required."""
    return Diagnosis(check, Level.WRONG if required else Level.NOTE, found, remedy)


def answer(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a program; a missing program, or one that exceeds its time limit, counts as failed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, TIMED_OUT, "", f"no answer within {seconds:g} seconds")
    except OSError as error:
        return subprocess.CompletedProcess(command, NO_PROGRAM, "", str(error))


def probe(name: str, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs one of the checks in probes.py as a process of its own."""
    return answer([sys.executable, "-P", "-m", "schedulers.doctor.probes", name, *arguments], seconds)


def last_line(text: str) -> str:
    """Returns the last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message")
