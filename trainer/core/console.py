"""Text for the terminal: whole lines, counts of things, and the next commands to type."""

import io
import json
import shlex
import sys
from collections.abc import Iterable

from trainer.core.secrets import without_secrets


def write_whole_lines() -> None:
    """Lets this process write a line that it prints at once, together with its end.

    An unbuffered Python writes the end by itself. torchrun, if it reads the file of a rank in between, takes the two
    for two lines, and puts the rank's prefix before both.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def plural(number: int, name: str) -> str:
    """Returns a number of things, such as `1 row` or `1,200 rows`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def next_commands(*commands: Iterable[str]) -> str:
    """Returns lines with commands, quoted for a shell; each command is a list of words."""
    return "Next:  " + "\n       ".join(without_secrets(shlex.join(words)) for words in commands)


def python_command(statements: str, url: str) -> list[str]:
    """Returns the words of a command that executes Python statements, with a URL in place of `{}`."""
    # In double quotes, as the shell puts single quotes around the statements.
    return ["python", "-c", statements.format(json.dumps(url, ensure_ascii=False))]
