"""Watchers of tests."""

import json
import os
import signal
from pathlib import Path

from torchx_recsys import Watcher
from trainer.core.errors import InputError


class Recorder(Watcher):
    """Records its calls, each with what it sees, in a file of each rank."""

    def __init__(self, name: str, seconds: float = 0.0) -> None:
        self.name, self.seconds = name, seconds

    def note(self, run, *what):
        with Path(run.directory.url, f"{self.name}-{run.context.rank}.jsonl").open("a") as file:
            file.write(json.dumps(what) + "\n")

    def begin(self, run, step, last_step):
        self.note(run, "begin", step, last_step)

    def after_step(self, run, step):
        self.note(run, "step", step)
        run.draw(lambda board: board.add_scalar("mine/step", 2 * step, step))

    def after_evaluation(self, run, step, split, metrics):
        is_last = run.evaluations()[-1] == {"step": step, "split": split, **metrics}
        self.note(run, "evaluation", step, split, is_last, len(run.weights()))

    def at_end(self, run, step, state):
        self.note(run, "end", step, state, len(run.evaluations()))


class Stopper(Watcher):
    """Requests a stop on one rank, after a step or at an evaluation."""

    def __init__(self, rank: int, step: int = -1, evaluated: int = -1) -> None:
        self.rank, self.step, self.evaluated = rank, step, evaluated

    def after_step(self, run, step):
        if (run.context.rank, step) == (self.rank, self.step):
            run.request_stop(f"step {step} was enough")

    def after_evaluation(self, run, step, split, metrics):
        if (run.context.rank, step) == (self.rank, self.evaluated):
            run.request_stop(f"{split} was enough")


class Broken(Watcher):
    """Fails after a step of one rank."""

    def __init__(self, rank: int, step: int, as_input: bool = False) -> None:
        if step < 1:
            raise ValueError(f"step is {step}; it must be at least 1")
        self.rank, self.step, self.as_input = rank, step, as_input

    def after_step(self, run, step):
        if (run.context.rank, step) == (self.rank, self.step):
            raise InputError("step is not to my taste") if self.as_input else RuntimeError("it broke")


class Misspelled(Watcher):
    """Has no method that anything calls."""

    def after_evaluate(self, run, step, split, metrics):
        raise RuntimeError("called")


class NoWatcher:
    """Not a watcher."""


class Outputs(Watcher):
    """Writes logits, labels and weights of every step of this rank, and the norm of all gradients in float64."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def after_step(self, run, step):
        outputs = run.outputs()
        gradients = [one for one in run.gradients().values() if one is not None]
        found = {
            "logits": [value for one in outputs for value in next(iter(one.predictions.values())).tolist()],
            "labels": [value for one in outputs for value in one.labels[:, 0].tolist()],
            "weights": [value for one in outputs for value in one.weights.tolist()],
            "norm": sum(one.double().square().sum().item() for one in gradients) ** 0.5,
        }
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"outputs-{step}-{run.context.rank}.json").write_text(json.dumps(found))


class Killer(Watcher):
    """Kills one rank some steps after each start."""

    def __init__(self, rank: int, steps: int) -> None:
        self.rank, self.left = rank, steps

    def after_step(self, run, step):
        self.left -= 1
        if not self.left and run.context.rank == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)
