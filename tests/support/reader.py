"""A reader of the project's pages, who types what stands there into a directory that looks like a checkout."""

import os
import re
import sys
from pathlib import Path

from ports import free_port
from shell import hints, typed

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ACTIVATE = "source .venv/bin/activate; "


class Reader:
    """A checkout in a folder with its environment installed, and all commands with what each printed, in order."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self.transcript: list[tuple[str, str]] = []
        self._path = path
        _check_out(folder)

    def type(self, command: str) -> str:
        """Types a command, which has to succeed, and returns what it printed."""
        # `make` finds the environment by itself, and a `make` that runs this test tells nothing to that of the reader.
        elsewhere = [each for each in os.environ["PATH"].split(os.pathsep) if each != f"{sys.prefix}/bin"]
        shell = {"PATH": os.pathsep.join(elsewhere), "MAKEFLAGS": "", "MAKELEVEL": ""}
        words = command if command.startswith("make ") else f"{ACTIVATE}PATH={self._path}; {command}"
        self.transcript.append((command, typed(words, self.folder, **shell)))
        return self.transcript[-1][1]

    def follow(self, command: str) -> None:
        """Types a command, and those that it prints for its user, but for what was typed before of another job."""
        for hint in hints(self.type(command)):
            if _without_job(hint) not in [_without_job(earlier) for earlier, _ in self.transcript]:
                self.type(hint)

    def read(self, page: str) -> None:
        """Follows the commands of a page and writes its files. Cloning and installing is done already."""
        for language, block in FENCE.findall((ROOT / page).read_text()):
            if name := re.match(r"# (\w+\.\w+)\n", block):
                (self.folder / name[1]).write_text(block)
            for command in block.replace("\\\n", " ").splitlines() if language == "sh" else ():
                if not command.startswith(("git clone ", "cd ", "source ", "make test")):
                    self.follow(command)


def evaluations_in(text: str) -> dict[tuple[str, str], dict[str, float]]:
    """Returns the metrics of the evaluations that were printed, by step and split."""
    found = re.findall(r"step (\d+)  (validation|test): (.*)", text)
    return {(step, split): dict(zip(line.split()[::2], _figures(line), strict=True)) for step, split, line in found}


def _figures(line: str) -> list[float]:
    return [float(word.replace(",", "")) for word in line.split()[1::2]]


def _without_job(words: str) -> str:
    return re.sub(r"local_cwd://\S+", "", words)


def _check_out(folder: Path) -> None:
    """Makes a directory that looks like the project's, with its environment installed."""
    folder.mkdir()
    for name in (
        "Makefile",
        "pyproject.toml",
        "requirements-cpu.txt",
        "components",
        "schedulers",
        "torchx_recsys",
        "trainer",
    ):
        (folder / name).symlink_to(ROOT / name)
    # At another port, as other tests look at curves, too; and on one core, as two threads that share a core with other
    # tests wait for each other at every operation.
    own = f"[component:tools.tensorboard]\nport = {free_port()}\n[component:dlrm.evaluate]\ncpu = 1\n"
    own += "[component:data.baselines]\ncpu = 1\n"
    (folder / ".torchxconfig").write_text((ROOT / ".torchxconfig").read_text() + own)
    (folder / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name not in ("ready", "extras"):
            (folder / ".venv" / path.name).symlink_to(path)
    for part in ("ready", "extras"):
        (folder / ".venv" / part).touch()
