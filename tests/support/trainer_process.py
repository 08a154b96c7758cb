"""A training job that a test watches, disturbs and starts again."""

import os
import re
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from command import start_trainer

from trainer.checkpoint.store import Checkpoints

RANK = re.compile(r"rank \d+")  # the name of its process


class Gate:
    """Where a job of `model.name = "custom:gated"` waits, `steps` steps after each start, until the test opens it.

    So a test disturbs the job in the middle, however fast the machine is, and the rest takes no longer than it must.

    Attributes:
        environment: The variables that the job needs.
    """

    def __init__(self, file: Path, steps: int) -> None:
        self._file = file
        self.environment = {"GATE": str(file), "GATE_STEPS": str(steps)}

    def open(self) -> None:
        """Lets the job train on, and all that are started later."""
        self._file.touch()


class Training:
    """`python -m trainer train FILE --out OUT FLAGS`, under torchrun unless `ranks` is 0."""

    def __init__(
        self, file: Path, out: Path | str, *flags: str, ranks: int = 2, restarts: int = 0, **environment: str
    ) -> None:
        self.out = Path(out)
        self._output = tempfile.NamedTemporaryFile("a+")  # noqa: SIM115
        streams = Path(self._output.name), Path(self._output.name)
        variables = {"TORCHX_OUTCOME_FILE": f"{out}-outcome"} | environment
        arguments = ["train", file, "--out", out, *flags]
        self.process = start_trainer(arguments, *streams, ranks, restarts, **variables)

    def wait_until(self, condition: Callable[[], object], seconds: float = 600) -> "Training":
        """Returns when something has happened, which has to happen before the job ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.02)
        return self

    def after_steps(self, steps: int) -> "Training":
        """Returns when so many steps are reported, with `report.interval_steps` 1."""
        return self.wait_until(lambda: self.steps() >= steps)

    def signal(self, number: signal.Signals) -> "Training":
        """Sends a signal to the first process."""
        self.process.send_signal(number)
        return self

    def kill(self) -> None:
        """Kills all processes of the job, which may just be ending."""
        with suppress(psutil.NoSuchProcess):
            for worker in self.workers():
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, seconds: float = 600) -> str:
        """Waits for the end and returns the output."""
        self.process.wait(timeout=seconds)
        return self.output()

    def output(self) -> str:
        """Returns what the job has printed so far."""
        self._output.seek(0)
        return self._output.read()

    @property
    def code(self) -> int:
        """The exit code."""
        return self.process.wait()

    def workers(self) -> list[int]:
        """Returns the process ids of the ranks, in order."""
        return [rank.pid for rank in ranks_of(self.process.pid)]

    def steps(self) -> int:
        """Returns how many steps are reported."""
        file = self.out / "metrics.jsonl"
        return file.read_text().count("\n") if file.exists() else 0

    def outcome(self) -> str:
        """Returns the line that the job wrote for the scheduler."""
        return Path(f"{self.out}-outcome").read_text()


def committed(out: Path) -> list[int]:
    """Returns the steps of the committed checkpoints of a run, in order."""
    return sorted(int(file.parent.name.removeprefix("step-")) for file in out.glob("checkpoints/*/manifest.json"))


def deltas_in(checkpoints: Checkpoints) -> dict[int, int]:
    """Returns the steps of the deltas, each with the step that it builds on."""
    return {step: before for step, before in checkpoints.with_predecessors().items() if before is not None}


def ranks_of(torchrun: int) -> list[psutil.Process]:
    """Returns the ranks that a process of `trainer.launch` has started, in order."""
    children = {name_of(process): process for process in psutil.Process(torchrun).children()}
    return [children[name] for name in sorted(filter(RANK.fullmatch, children))]


def is_rank(process: psutil.Process) -> bool:
    """Returns whether a process is a rank of some job."""
    return RANK.fullmatch(name_of(process)) is not None


def name_of(process: psutil.Process) -> str:
    """Returns the name of a process, none if it has ended since it was found."""
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def is_running(pid: int) -> bool:
    """Returns whether a process runs; one that has ended and was not waited for does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
