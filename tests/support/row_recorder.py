"""A model that writes down which rows it is trained on, and what a test reads there.

`model.name = "row_recorder:build"`, with the dense feature `row_id` as the last one and the run directory's path in
`RECORDED_RUN`, and `model.arguments.micro_batches` as in `train`. All ranks write to one file, `RECORDED_RUN-rows`: a
line `start STEP` when a job is about to resume from a checkpoint (0: from scratch), and a line `STEP ROW ROW ...` when
a rank begins a microbatch of a step.
"""

import os
import time
from pathlib import Path
from typing import Self

from torch import Tensor, fx, nn
from torch._guards import detect_fake_mode

from trainer.models.base import ModelInputs
from trainer.models.dlrm import dlrm

STEP_SECONDS = 0.04  # of training and evaluation alike: long enough for a test to hit one


class Recorder:
    """Writes a line for each batch that a model in training is given, and takes the ids of its rows out."""

    def __init__(self, run: Path, micro_batches: int) -> None:
        folders = [file.parent.name for file in run.glob("checkpoints/*/manifest.json")]
        self._first = max((int(name.removeprefix("step-")) for name in folders), default=0)
        self._micro_batches = micro_batches
        self._begun = 0
        self._file = Path(f"{run}-rows")
        if os.environ.get("RANK", "0") == "0":
            self._write(f"\nstart {self._first}")  # a line that a kill cut off ends here

    def __call__(self, module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor] | None:
        (dense,) = arguments
        if isinstance(dense, fx.Proxy):
            return None
        if module.training:
            step = self._first + self._begun // self._micro_batches + 1
            self._write(f"{step} " + " ".join(str(int(row)) for row in dense[:, -1]))
            self._begun += 1
        time.sleep(STEP_SECONDS)
        dense = dense.clone()
        dense[:, -1] = 0
        return (dense,)

    def _write(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{line}\n")


def build(inputs: ModelInputs) -> nn.Module:
    """Returns a DLRM that is recorded, but not where a model without values is built to plan with."""
    model = dlrm(inputs)
    if inputs.device.type == "meta" or detect_fake_mode():
        return model
    micro_batches = inputs.config.arguments.get("micro_batches", 1)
    model.dense_arch.register_forward_pre_hook(Recorder(Path(os.environ["RECORDED_RUN"]), micro_batches))
    return model


class RowLog:
    """What was written for a run, read while it is.

    Attributes:
        starts: How often the run was started.
        first: The step that the last start resumed from.
        step: The step that was begun last; `first` if none was since the last start.
        rows: By step, the rows that it was trained on, counting from the checkpoints that were used.
    """

    def __init__(self, run: Path) -> None:
        file = Path(f"{run}-rows")
        file.touch()
        self._file, self._torn = file.open(), ""
        self.starts, self.first, self.step = 0, 0, 0
        self.rows: dict[int, list[int]] = {}

    def follow(self) -> Self:
        """Reads the lines that are new and whole: a line across two pages is seen in two parts while it is written."""
        *lines, self._torn = (self._torn + self._file.read()).split("\n")
        for line in filter(None, lines):
            word, *numbers = line.split()
            if word == "start":
                self.starts += 1
                self.first = self.step = int(numbers[0])
                self.rows = {step: rows for step, rows in self.rows.items() if step <= self.first}
            else:
                self.step = int(word)
                self.rows.setdefault(self.step, []).extend(map(int, numbers))
        return self
