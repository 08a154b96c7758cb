"""`python -m trainer.launch FLAGS -m trainer ARGUMENTS`: torchrun, whose report ends with what a user needs.

torchrun itself ends with 1 whatever its ranks end with, and adds some sixty lines and a traceback of its own to a line
that a rank has said already, or to a stop that somebody has asked for.
"""
# An interrupt is to be quiet from the first line on, also while torch is imported.

from trainer.core.interrupts import default_to_quiet

if __name__ == "__main__":
    default_to_quiet()

import logging
import os
import sys

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.run import parse_args, run

from trainer.core.outcome import DONE, FAILED, WRONG_INPUT

ELASTIC = "torch.distributed.elastic"
LEVELS = {
    f"{ELASTIC}.multiprocessing.api": logging.CRITICAL,  # which ranks it ends, and how the first one ended
    f"{ELASTIC}.multiprocessing.errors.error_handler": logging.CRITICAL,  # that nobody asked for a file of errors
    f"{ELASTIC}.agent.server.api": logging.ERROR,  # which signal it got
}


def main(arguments: list[str]) -> int:
    """Runs the ranks of this node and returns the exit code: 2 for wrong input, else 1 if they failed or were stopped.

    Args:
        arguments: Those of torchrun.
    """
    if "LOGLEVEL" not in os.environ:
        for name, level in LEVELS.items():
            logging.getLogger(name).setLevel(level)
    try:
        record(run)(parse_args(arguments))
    except SignalException:
        return FAILED
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        if failure.exitcode == WRONG_INPUT:
            return WRONG_INPUT
        print(error.format_msg(), file=sys.stderr, flush=True)
        return FAILED
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
