"""Processes that are forked from one which has imported torch and TorchRec: of the trainer, of torchrun, of functions.

Importing takes 4 of the 5 processor seconds that a small run needs; the rest of a process is as ever.
"""

import ctypes
import logging
import multiprocessing
import os
import pwd
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

from fsspec.config import conf, set_conf_env

from torchx_recsys.apps.runs import local_job
from trainer.core.own_modules import find_own_first

QUIET = {"TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Variables of every trainer: no progress bar, no GPU."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["preloaded"])


class ForkedProcess:
    """A process that calls a function, with the methods of `subprocess.Popen` that tests and torchrun use."""

    def __init__(self, context: BaseContext, function: Callable[..., None], *arguments: object) -> None:
        self._process = context.Process(target=function, args=arguments)
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Returns the exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def terminate(self) -> None:
        """Asks it to stop, if it still runs."""
        self._process.terminate()

    def kill(self) -> None:
        """Kills it."""
        self._process.kill()


def start_forked(
    function: Callable[..., None],
    *arguments: object,
    environment: dict[str, str],
    output: Path,
    errors: Path,
    folder: Path | None = None,
    user: str = "",
    hidden: Sequence[Path] = (),
) -> ForkedProcess:
    """Starts a process that calls a function, in a session of its own, and in a folder, which is ours if unset.

    The process belongs to a user, who is ours if unset, and sees empty directories in place of those that are hidden.
    """
    # Read by tqdm and torch when they are imported, in the process that all others come from.
    os.environ |= QUIET | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    sys.audit("subprocess.Popen", sys.executable, arguments, None, None)  # which multiprocessing does not tell
    return ForkedProcess(
        FORKS, _call, function, arguments, environment, output, errors, folder or Path.cwd(), user, hidden
    )


def run_forked(function: Callable[..., None], *arguments: object, folder: Path) -> str:
    """Calls a function in a process of its own, which has to succeed; returns what it prints, into files there."""
    output, errors = folder / "forked-output.txt", folder / "forked-errors.txt"
    for file in (output, errors):
        file.write_text("")
    process = start_forked(function, *arguments, environment=dict(os.environ), output=output, errors=errors)
    assert process.wait() == 0, output.read_text()[-3000:] + errors.read_text()[-20000:]
    return output.read_text()


def trainer(*words: str) -> None:
    """`python -m trainer WORDS`, which forks the jobs that it starts on this machine."""
    vars(local_job)["subprocess"] = SimpleNamespace(Popen=_fork_job, STDOUT=subprocess.STDOUT)
    sys.argv[1:] = words
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)


def trainers(*lines: tuple[str, ...]) -> None:
    """One `python -m trainer WORDS` after another in one process, until one fails."""
    from trainer.__main__ import leave, main

    for words in lines:
        if code := main([*words]):
            leave(code)


def torchrun(*words: str) -> None:
    """`python -m trainer.launch WORDS`."""
    from trainer.launch import main

    find_own_first()
    sys.exit(main([*words]))


def torchx(*words: str) -> None:
    """`torchx WORDS`."""
    from torchx.cli.main import main
    from torchx.runner.config import DEFAULT_CONFIG_DIRS

    logging.getLogger().handlers.clear()  # TorchX sets logs up, unless somebody has
    DEFAULT_CONFIG_DIRS[:] = [str(Path.home()), str(Path.cwd())]  # which TorchX looks up when it is imported
    sys.argv[:] = ["torchx", *words]
    sys.path.remove(str(Path.cwd()))  # where a program that is no module is not looked for
    sys.exit(main([*words]))


def _call(
    function: Callable[..., None],
    arguments: tuple,
    environment: dict[str, str],
    output: Path,
    errors: Path,
    folder: Path,
    user: str,
    hidden: Sequence[Path],
) -> None:
    assert "preloaded" in sys.modules, "preloaded.py cannot be imported, of which the forkserver says nothing"
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    set_conf_env(conf)  # fsspec has read its variables when it was imported
    for stream, file in ((1, output), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    for each in hidden:
        _hide(each)
    if user:
        _become(user)
    os.chdir(folder)
    sys.path[:0] = [str(folder), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    function(*arguments)


def _hide(folder: Path) -> None:
    """Covers a directory for this process and those that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    recursive_and_private = 0x4000 | 0x40000  # MS_REC, MS_PRIVATE
    done = (
        libc.unshare(0x20000) == 0  # CLONE_NEWNS
        and libc.mount(b"none", b"/", None, recursive_and_private, None) == 0
        and libc.mount(b"none", bytes(folder), b"tmpfs", 0, None) == 0
    )
    assert done, os.strerror(ctypes.get_errno())


def _become(user: str) -> None:
    account = pwd.getpwnam(user)
    os.initgroups(user, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


def _fork_job(command: list[str], env: dict[str, str], stdout: BinaryIO, **_: object) -> ForkedProcess:
    log = Path(stdout.name)
    return start_forked(torchrun, *command[4:], environment=env, output=log, errors=log)
