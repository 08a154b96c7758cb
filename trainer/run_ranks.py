"""Runs torchrun so that its report is what a user needs.

torchrun itself exits with 1 whatever the exit codes of its ranks are. It also adds some sixty lines and a traceback of
its own to the line that a rank has printed already, or to a stop that was requested.
"""

import argparse
import logging
import os
import subprocess
import sys
from typing import cast

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.run import parse_args, run

from trainer.core.errors import LostRankError
from trainer.core.outcome import DONE, FAILED, WRONG_INPUT
from trainer.forked_ranks import RankTemplate
from trainer.rendezvous import errors_in_one_line, prepare

ELASTIC = "torch.distributed.elastic"
LEVELS = {
    f"{ELASTIC}.multiprocessing.api": logging.CRITICAL,  # which ranks it ends, and how the first one ended
    f"{ELASTIC}.multiprocessing.errors.error_handler": logging.CRITICAL,  # that nobody asked for a file of errors
    f"{ELASTIC}.agent.server.api": logging.ERROR,  # which signal it got
}
# As this process was started: -P leaves a `trainer` in the working directory alone (trainer/core/own_modules.py).
RANK_COMMAND = (sys.executable, *(["-P"] if sys.flags.safe_path else []), "-u", "-m", "trainer")


def run_ranks(arguments: list[str], template: RankTemplate | None) -> int:
    """Runs the ranks of this node and returns the exit code: 2 for wrong input, else 1 if they failed or were stopped.

    Args:
        arguments: The arguments of torchrun.
        template: The process to fork ranks from; None to start each rank as a program.
    """
    if "LOGLEVEL" not in os.environ:
        for name, level in LEVELS.items():
            logging.getLogger(name).setLevel(level)
    if template:
        _fork_ranks(template)
    try:
        record(_run_nodes)(_with_rank_command(parse_args(arguments)))
    except LostRankError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return FAILED
    except SignalException:
        return FAILED
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        if failure.exitcode == WRONG_INPUT:
            return WRONG_INPUT
        print(error.format_msg(), file=sys.stderr, flush=True)
        return FAILED
    return DONE


def _run_nodes(arguments: argparse.Namespace) -> None:
    with errors_in_one_line(prepare(arguments)):
        run(arguments)


def _with_rank_command(parsed: argparse.Namespace) -> argparse.Namespace:
    """Has ranks of the trainer start by their command, for which torchrun knows no option of the interpreter."""
    if parsed.module and parsed.training_script == "trainer" and "PYTHON_EXEC" not in os.environ:
        program, *options = RANK_COMMAND
        parsed.module, parsed.no_python, parsed.training_script = False, True, program
        parsed.training_script_args = [*options, *parsed.training_script_args]
    return parsed


def _fork_ranks(template: RankTemplate) -> None:
    """Lets torchrun start ranks from a template."""
    start_program = SubprocessHandler._popen

    def start(self: SubprocessHandler, args: tuple, env: dict[str, str]) -> subprocess.Popen:
        if args[: len(RANK_COMMAND)] != RANK_COMMAND:  # numactl binds it to cores
            return start_program(self, args, env)
        files = [str(file.name) if file else None for file in (self._stdout, self._stderr)]
        return cast(subprocess.Popen, template.start(args[len(RANK_COMMAND) :], env, files))

    # torchrun has no setting for it.
    SubprocessHandler._popen = start
