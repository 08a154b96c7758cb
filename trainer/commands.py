"""The commands of `python -m trainer`: functions with typed arguments, imported once a command line is right."""

import ast
import gc
import importlib.util
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.config.overrides import parse
from trainer.core.errors import InputError, nearest

PROGRAM = "python -m trainer"
VERSIONED = ("torchx-recsys", "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "torchx-nightly", "pyarrow")
COMMANDS = {
    "train": (
        "trainer.training.loop:train",
        "CONFIG --out RUN_DIR: train a model, or resume it from its newest checkpoint.",
        "movielens --out runs/movielens --train.epochs 2",
    ),
    "evaluate": (
        "trainer.training.evaluate:evaluate",
        "CONFIG --out RUN_DIR: evaluate a run's newest or best checkpoint, or one by its step.",
        "movielens --out runs/movielens",
    ),
    "predict": (
        "torchx_recsys.apps.predict.predict:predict",
        "CONFIG --out RUN_DIR --source FILES --to DIR: write a model's outputs for every row of a data set.",
        "runs/movielens/config.toml --out runs/movielens --source data/movielens/test --to data/predicted",
    ),
    "importance": (
        "torchx_recsys.apps.importance.importance:importance",
        "CONFIG --out RUN_DIR: find which features matter, by permuting one after the other.",
        "runs/movielens/config.toml --out runs/movielens",
    ),
    "recommend": (
        "torchx_recsys.apps.recommend.recommend:recommend",
        "CONFIG --out RUN_DIR: list the top items of the catalogue for users.",
        "movielens_two_tower --out runs/two_tower --user-column user_id --users 42 7",
    ),
    "embed": (
        "torchx_recsys.apps.embed.embed:embed",
        "CONFIG --out RUN_DIR --output NAME --to DIR: write vectors of a whole catalogue, or of a table.",
        "runs/movielens/config.toml --out runs/movielens --table movie_id --to data/movies",
    ),
    "plan": (
        "torchx_recsys.apps.plan.plan:plan",
        "CONFIG [--on HOST:NODES]: plan for this machine, or a cluster given by name: memory, time, why.",
        "criteo_terabyte --on h100:2 a100:4",
    ),
    "schedule": (
        "torchx_recsys.apps.runs.schedule:show_schedule",
        "CONFIG: show the learning rates of a run, as a table, charts or a drawing, and when it saves and evaluates.",
        "criteo_kaggle --train.steps 3000",
    ),
    "compare": (
        "torchx_recsys.apps.runs.compare:compare",
        "--runs RUN_DIRS: put runs side by side: configuration, metrics with the spread of seeds, speed, curves.",
        "--runs runs/a runs/b --page compared.html",
    ),
    "segments": (
        "torchx_recsys.apps.runs.segments:segments",
        "CONFIG --out RUN_DIR: watch a run over segments: metrics, shifts of the data, exports, lag.",
        "movielens_segments --out runs/days --to exports/days",
    ),
    "checkpoints": (
        "torchx_recsys.apps.runs.checkpoints:checkpoints",
        "--out RUN_DIR: list a run's checkpoints, verify them, or convert one to a single file.",
        "--out runs/movielens --verify True",
    ),
    "rewind": (
        "torchx_recsys.apps.runs.rewind:rewind",
        "--out RUN_DIR --segment NAME --to NEW_RUN_DIR: go back in a run over segments to the end of one.",
        "--out runs/days --segment 09 --to runs/mended",
    ),
    "export": (
        "torchx_recsys.apps.export.export:export",
        "CONFIG --out RUN_DIR --to DIR: export a checkpoint as a directory that serves with torch alone.",
        "runs/movielens/config.toml --out runs/movielens --to exported",
    ),
    "rollback": (
        "torchx_recsys.apps.export.publishing:rollback",
        "--to DIR: go back to the export before the newest.",
        "--to exported",
    ),
    "publish": (
        "torchx_recsys.apps.row_store.publish:publish",
        "--export DIR --to redis://HOST: publish an export's tables to a store of rows, as a new version.",
        "--export exported --to redis://localhost:6379/0",
    ),
    "serve": (
        "torchx_recsys.apps.serve.serve:serve",
        "--directory DIR: serve an exported model over HTTP, to look at it.",
        "--directory exported",
    ),
    "profile": (
        "torchx_recsys.apps.runs.profile:profile",
        "--out RUN_DIR: profile a few steps of a running job: traces, and where the time of a step goes.",
        "--out runs/movielens --steps 5",
    ),
    "track": (
        "torchx_recsys.apps.runs.track:track",
        "--out RUN_DIR: send a run to its trackers, such as MLflow, as far as they do not have it.",
        "--out runs/movielens --trackers mlflow",
    ),
    "tensorboard": (
        "torchx_recsys.apps.runs.tensorboard:tensorboard",
        "--logdir DIR: serve TensorBoard for one run directory or for a directory of them.",
        "--logdir runs/movielens --port 6006",
    ),
    "verify-resume": (
        "torchx_recsys.apps.runs.verify_resume:verify_resume",
        "CONFIG: prove that an interrupted run resumes exactly, on the same and on another number of ranks.",
        "movielens --ranks 2 --other-ranks 1",
    ),
    "calibrate": (
        "torchx_recsys.apps.calibrate.calibrate:calibrate",
        "--out FILE: measure this kind of host, once, for plans to count with.",
        "--out host.toml",
    ),
    "bench": (
        "benchmarks.bench.bench:bench",
        "[csv|check|checkpoint|features|models|predict|roofline|growth] --out DIR: measure loader, loop, saves, ...",
        "training --out runs/bench",
    ),
    "movielens": (
        "torchx_recsys.apps.datasets.movielens:movielens",
        "--out DIR: make the MovieLens-100k data set.",
        "--out data/movielens",
    ),
    "criteo": (
        "torchx_recsys.apps.datasets.criteo:criteo",
        "--source FILES --out URL: convert Criteo's click logs to Parquet.",
        "--source train.txt --out data/criteo",
    ),
    "synthetic": (
        "torchx_recsys.apps.datasets.synthetic:synthetic",
        "--out URL: make a data set of Criteo's shape whose best reachable AUC is known.",
        "--out data/synthetic --rows 1000000",
    ),
    "taobao": (
        "torchx_recsys.apps.datasets.taobao:taobao",
        "--source DIR --out DIR: convert Taobao's log of displayed ads: clicks, purchases, what users did before.",
        "--source taobao --out data/taobao",
    ),
    "yambda": (
        "torchx_recsys.apps.datasets.yambda:yambda",
        "--out URL: convert Yambda's log of music as DLRMv4 trains on it, or generate a log like it.",
        "--out data/yambda",
    ),
    "split": (
        "torchx_recsys.apps.split.split:split",
        "--source FILES --out DIR: cut a log of events into train, validation and test, with labels and the past.",
        '--source ratings.csv --out data/mine --time timestamp --label "liked = rating >= 4"',
    ),
    "sort-log": (
        "torchx_recsys.apps.sort_log.sort_log:sort_log",
        "--source FILES --out DIR: sort a log of events by user and time, for histories gathered while reading.",
        "--source ratings.csv --out data/log --user user --time timestamp --values item rating",
    ),
    "cut-stream": (
        "torchx_recsys.apps.cut_stream.cut_stream:cut_stream",
        "CONFIG: cut a topic of Kafka into segments, which training takes one after the other.",
        "stream.toml --follow True",
    ),
    "check-data": (
        "torchx_recsys.apps.check_data.check_data:check_data",
        "CONFIG | --source FILES: find what is wrong with a data set, or write a first configuration for it.",
        "--source data/mine --write-config mine.toml",
    ),
    "baselines": (
        "torchx_recsys.apps.baselines.baselines:baselines",
        "CONFIG: measure simple predictors on the same rows, to show beside every model.",
        "movielens",
    ),
    "embed-text": (
        "torchx_recsys.apps.embed_text.embed_text:embed_text",
        "--source FILES --column NAME --out DIR: add vectors of texts, or of images, to a data set.",
        "--source data/mine --column title --out data/with_vectors --width 64",
    ),
    "vocabulary": (
        "torchx_recsys.apps.vocabulary.vocabulary:vocabulary",
        "--source FILES --columns NAMES --out URL: count ids, and write those that get a row of their own.",
        "--source data/mine --columns user_id item_id --out data/vocabulary",
    ),
}
"""Where each command's function is, its line in the list of commands, and an example for its help."""


def read_command(words: list[str]) -> partial[Any]:
    """Parses a command line and returns the call to make.

    Args:
        words: The name of a command and its arguments. `--help` among these prints them and ends the process.

    Raises:
        InputError: There is no such command, the command is not installed, or an argument is wrong.
    """
    module, function, bound = _bind(words)
    return partial(getattr(import_quickly(module), function), *bound.args, **bound.keywords)


def check_command(words: list[str]) -> None:
    """Checks a command line as `read_command` does, without importing torch."""
    _bind(words)


def _bind(words: list[str]) -> tuple[str, str, partial[Any]]:
    """Returns the module of a command, its function there, and the function's arguments."""
    name, *arguments = words
    if name not in COMMANDS and (dashed := name.replace("_", "-")) in COMMANDS:  # as components have it
        name = dashed
    if name not in COMMANDS:
        raise InputError(f"unknown command '{name}'{nearest(name, COMMANDS)}")
    place, _, example = COMMANDS[name]
    module, _, function = place.partition(":")
    if not _is_there(module):
        raise InputError(
            f"{name} is part of the project's checkout, not of the installed package; run it in the root of a checkout"
        )
    # Errors are found before torch is imported, which takes longer than anything else.
    return module, function, parse(declaration(module, function), arguments, f"{PROGRAM} {name}", example)


def _is_there(module: str) -> bool:
    """Returns whether a module can be imported; `benchmarks` is not in the wheel."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def declaration(module: str, name: str) -> Callable[..., Any]:
    """Returns a function of a module with its declaration and an empty body, without importing the module.

    Only those imports of the module run that the arguments' types need.
    """
    spec = importlib.util.find_spec(module)
    assert spec
    assert spec.origin
    statements = ast.parse(Path(spec.origin).read_text()).body
    function = next(one for one in statements if isinstance(one, ast.FunctionDef) and one.name == name)
    del function.body[1:]  # all but the docstring
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    needed: list[ast.stmt] = [function]
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            statement.names = [one for one in statement.names if (one.asname or one.name) in names]
            if statement.names:
                needed.insert(-1, statement)
    declared: dict[str, Any] = {"__name__": module}
    exec(compile(ast.Module(needed, []), module, "exec"), declared)
    return declared[name]


def import_quickly(module: str) -> Any:
    """Imports a module without garbage collection, a quarter of the time of importing torch that frees nothing."""
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()  # later collections need not look through all of it either
        gc.enable()


def usage() -> str:
    """Returns the list of commands."""
    lines = [f"  {name:<13} {line}" for name, (_, line, _) in COMMANDS.items()]
    last = f"{PROGRAM} COMMAND --help lists its flags, and {PROGRAM} --version the versions."
    return "\n".join([f"usage: {PROGRAM} COMMAND ...", "", *lines, "", last])


def versions() -> str:
    """Returns the versions that a report of a problem needs, of packages that are installed, on one line."""
    found = {name: _version(name) for name in VERSIONED}
    return ", ".join(f"{name} {number}" for name, number in found.items() if number)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
