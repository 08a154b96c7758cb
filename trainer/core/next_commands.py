"""The commands that a program prints at its end, for its user to type next."""

import json
import shlex
from collections.abc import Iterable

from trainer.core.secrets import without_secrets


def next_commands(*commands: Iterable[str]) -> str:
    """Returns the lines that show commands, each given by its words and quoted for a shell."""
    return "Next:  " + "\n       ".join(without_secrets(shlex.join(words)) for words in commands)


def python_command(statements: str, url: str) -> list[str]:
    """Returns the words of a command that executes Python statements, with a URL in place of `{}`."""
    # In double quotes, as the shell has single ones around the statements.
    return ["python", "-c", statements.format(json.dumps(url, ensure_ascii=False))]
