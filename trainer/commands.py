"""What `python -m trainer` can do. Each command imports what it needs itself, so that each starts fast."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from trainer.config.overrides import parse
from trainer.core.errors import InputError

PROGRAM = "python -m trainer"


@contextmanager
def importing() -> Iterator[None]:
    """Turns garbage collection off: torch and TorchRec leave none, and to look for it takes a quarter of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # nor look through all of it again later
        gc.enable()


def train(flags: list[str]) -> None:
    """CONFIG --out RUN_DIR: train a model, or go on from its newest checkpoint."""
    with importing():
        from trainer.config.root import Config
        from trainer.training.loop import train as run

    @dataclass(frozen=True)
    class Train:
        """Trains a model. CONFIG is a TOML file, or the name of a ready-made configuration."""

        settings: Annotated[Config, tyro.conf.arg(name="")]
        out: str
        """The run directory, any fsspec URL."""
        resume: Literal["auto", "never", "must"] = "auto"
        """auto goes on from a checkpoint if there is one; must needs one; never refuses to start with one."""

    asked = _with_config(Train, "train", flags, out=tyro.MISSING)
    run(asked.settings, asked.out, asked.resume)


def evaluate(flags: list[str]) -> None:
    """CONFIG --out RUN_DIR: evaluate a run's newest checkpoint."""
    with importing():
        from trainer.config.root import Config
        from trainer.training.evaluate import evaluate as run

    @dataclass(frozen=True)
    class Evaluate:
        """Evaluates the newest checkpoint of a run. CONFIG is a TOML file, such as RUN_DIR/config.toml."""

        settings: Annotated[Config, tyro.conf.arg(name="")]
        out: str
        """The run directory, any fsspec URL."""
        split: Literal["validation", "test"] = "test"
        """Which of the configuration's data sets to evaluate on."""

    asked = _with_config(Evaluate, "evaluate", flags, out=tyro.MISSING)
    run(asked.settings, asked.out, asked.split)


def plan(flags: list[str]) -> None:
    """CONFIG: print the sharding plan for this machine."""
    from trainer.config.root import Config
    from trainer.tools.plan import print_plan as run

    @dataclass(frozen=True)
    class Plan:
        """Prints the sharding plan of a configuration. CONFIG is a TOML file, or the name of a ready-made one."""

        settings: Annotated[Config, tyro.conf.arg(name="")]
        world_size: int = 2
        """Ranks to plan for: on this machine, or on as many of planner.hardware as they need."""
        out: str | None = None
        """Where to save the plan.json, any fsspec URL; planner.plan takes it."""

    asked = _with_config(Plan, "plan", flags)
    if asked.world_size < 1:
        raise InputError(f"--world-size is {asked.world_size}; it must be at least 1")
    run(asked.settings, asked.world_size, asked.out)


def bench(flags: list[str]) -> None:
    """[checkpoint] --out DIR: measure the loader and the loop, or saving and restoring, against baselines."""
    from trainer.tools.bench import bench as run

    parse(run, flags, f"{PROGRAM} bench")()


def checkpoints(flags: list[str]) -> None:
    """--out RUN_DIR: list a run's checkpoints, verify them, or convert one to a single file."""
    from trainer.tools.checkpoints import checkpoints as run

    parse(run, flags, f"{PROGRAM} checkpoints")()


def verify_resume(flags: list[str]) -> None:
    """CONFIG: prove that a killed run goes on exactly, on the same and on another number of ranks."""
    from trainer.config.root import Config
    from trainer.tools.verify_resume import verify_resume as run

    @dataclass(frozen=True)
    class VerifyResume:
        """Trains straight, and again with a kill in the middle, and compares. CONFIG is a TOML file or a name."""

        settings: Annotated[Config, tyro.conf.arg(name="")]
        steps: int = 20
        """Steps of each run, in place of train.steps and train.epochs."""
        ranks: int = 2
        """Ranks of the straight and of the killed run, all on this machine."""
        other_ranks: int = 1
        """Ranks that the killed run goes on with in the second comparison."""
        keep: str | None = None
        """A new directory for the runs and their logs, which stay there. Unset: a temporary one, deleted."""

    asked = _with_config(VerifyResume, "verify-resume", flags)
    run(asked.settings, asked.steps, asked.ranks, asked.other_ranks, asked.keep)


def movielens(flags: list[str]) -> None:
    """--out DIR: make the MovieLens-100k data set."""
    from trainer.datasets.movielens import movielens as run

    parse(run, flags, f"{PROGRAM} movielens")()


def criteo(flags: list[str]) -> None:
    """--source FILES --out URL: convert Criteo's click logs to Parquet."""
    from trainer.datasets.criteo import criteo as run

    parse(run, flags, f"{PROGRAM} criteo")()


def synthetic(flags: list[str]) -> None:
    """--out URL: make a data set of Criteo's shape whose best reachable AUC is known."""
    from trainer.datasets.synthetic import synthetic as run

    parse(run, flags, f"{PROGRAM} synthetic")()


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    command.__name__.replace("_", "-"): command
    for command in (train, evaluate, plan, checkpoints, verify_resume, bench, movielens, criteo, synthetic)
}


def usage() -> str:
    """Returns the list of commands, for people."""
    lines = [f"  {name:<13} {command.__doc__}" for name, command in COMMANDS.items()]
    return "\n".join([f"usage: {PROGRAM} COMMAND ...", "", *lines, "", f"{PROGRAM} COMMAND --help lists its flags."])


def _with_config(kind: type, command: str, flags: list[str], **defaults: Any) -> Any:
    """Reads a configuration file, named by the first argument, and the flags that change single values of it."""
    from trainer.config.root import example_config, load_config

    program = f"{PROGRAM} {command} CONFIG"
    if flags and not flags[0].startswith("-"):
        settings = _without_length(load_config(flags[0]), flags)
        return parse(kind, flags[1:], program, kind(settings=settings, **defaults))
    if "--help" in flags or "-h" in flags:
        parse(kind, ["--help"], program, kind(settings=example_config(), **defaults))
    raise InputError(f"which configuration? {program} ..., with a TOML file or the name of a ready-made one")


def _without_length(settings: Any, flags: list[str]) -> Any:
    """Forgets the file's length of training if a flag gives one, be it the other of steps and epochs."""
    if not any(flag.startswith(("--train.steps", "--train.epochs")) for flag in flags):
        return settings
    return settings.model_copy(update={"train": settings.train.model_copy(update={"steps": None, "epochs": None})})
