"""Finds the first error of a failed replica, in its log and in its program's error file."""

import json
import re
from pathlib import Path

from trainer.core.secrets import without_secrets

TAIL_BYTES = 65536

# The end of torchrun's report, which it prints when one of its ranks has failed.
ROOT_CAUSE = re.compile(
    r"^Root Cause \(first observed failure\):\n.*?"
    r"^  rank +: (?P<rank>\d+).*?"
    r"^  exitcode +: (?P<code>-?\d+).*?"
    r"^  traceback : (?P<traceback>.*?)\s*^=+$",
    re.MULTILINE | re.DOTALL,
)
NO_TRACEBACK = "To enable traceback"


def tail(log: Path) -> str:
    """Returns the end of a log; empty if the log does not exist yet."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
        return file.read().decode(errors="replace")


def first_error(log: str, error_file: Path | None = None) -> str:
    """Returns the error of the rank that failed first; for a program without torchrun, its last line.

    Args:
        log: The last part of the replica's stderr, of one attempt only.
        error_file: The file that TORCHELASTIC_ERROR_FILE names; it may be missing.
    """
    causes = [*ROOT_CAUSE.finditer(log)]
    rank = f"rank {causes[-1]['rank']}: " if causes else ""
    if error_file and error_file.exists():
        return rank + error_message(error_file.read_text(errors="replace"))
    if causes:
        return rank + _without_frames(causes[-1])
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"its last line: {lines[-1]}" if lines else ""


def structured(message: str, exit_code: int, timestamp: float) -> str:
    """Returns an error in the form that TorchX prints, without the secrets of URLs."""
    return json.dumps({"message": without_secrets(message), "errorCode": exit_code, "timestamp": int(timestamp)})


def error_message(structured: str) -> str:
    """Returns the message of an error in one of TorchX's two formats; any other text is returned whole."""
    try:
        message = json.loads(structured)["message"]
        message = message["message"] if isinstance(message, dict) else message
    except (ValueError, TypeError, KeyError):
        message = structured
    return without_secrets(message)


def _without_frames(cause: re.Match[str]) -> str:
    """Returns the error without the frames of its traceback, or how the rank ended if it left no error."""
    if cause["traceback"].startswith(NO_TRACEBACK):
        return f"ended with exit code {cause['code']}"
    lines = cause["traceback"].splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("    ")]
    return "\n".join(line.strip() for line in lines[frames[-1] + 1 if frames else 0 :])
