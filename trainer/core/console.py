"""Text for the terminal: counts of things, and the next commands to type."""

import json
import shlex
from collections.abc import Iterable

from trainer.core.secrets import without_secrets


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
