"""`python -m trainer COMMAND ...`: parses, runs, and maps errors to exit codes.

0: done. 1: failed. 2: wrong input, said in one line.
"""

import sys

from trainer.commands import COMMANDS, usage
from trainer.quiet import hush


def main(arguments: list[str]) -> int:
    """Runs a command and returns its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, *rest = arguments
    try:
        hush()
        if name not in COMMANDS:
            raise ValueError(f"unknown command '{name}'; known: {', '.join(COMMANDS)}")
        COMMANDS[name](rest)
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
