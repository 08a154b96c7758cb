"""The ready-made space of `torchx sweep tune`: a sweep file made of a configuration, around its own values."""

import argparse
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from torchx_recsys.pipelines.arguments import Signature
from torchx_recsys.sweeps.file import configured, last_argument, to_sweep
from torchx_recsys.sweeps.study import FILE
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.metrics.checks import directions

TIMES = 8  # how many times a learning rate may be smaller or larger
RUNG = 2  # evaluations after which a trial may be stopped early, as small rates and dropout begin slowly
LEAST_DECAY, MOST_DECAY = 1e-8, 1e-3  # of tables, as an L2 penalty; the least is as good as none


def write_sweep(args: argparse.Namespace, say: Callable[[str], None]) -> str:
    """Writes OUT/sweep.toml, unless it is there already, and returns its path.

    Raises:
        InputError: The configuration is wrong, has no key to search, or OUT holds another search.
    """
    text, left_out = _sweep(args)
    file = Path(args.out, FILE)
    try:
        if file.exists() and file.read_text() != text:
            raise InputError(
                f"--out is '{args.out}', which holds another search; name another, or go on with the one there: "
                f"torchx sweep run {file}"
            )
        if file.parent.exists() and not file.exists() and any(file.parent.iterdir()):
            raise InputError(f"--out is '{args.out}', which has other files; name a new directory")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise InputError(f"--out is '{args.out}', which cannot be written: {error.strerror}") from error
    for key, why in left_out.items():
        say(f"{key} stays as it is: {why}")
    return str(file)


def _sweep(args: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Returns the text of the sweep file, and why keys are not in its space."""
    signature = Signature.of(args.component, "--", {})
    last = last_argument(signature)
    words = [word for pair in args.set for word in _flag(pair)]
    config = configured([args.config, *words])
    if not config.evaluate.every_steps:
        raise InputError(
            "evaluate.every_steps is 0, so that no trial could be stopped early; set it in the configuration or here, "
            "to about a quarter of an epoch: --set evaluate.every_steps=100"
        )
    aim = args.aim or config.checkpoint.keep.best or _first_metric(config)
    words += _flags_of_best(config, aim)
    space, start, left_out = {}, {}, {}
    for key, dimension, value, flags in _candidates(config):
        try:
            for end in (value, *_ends(dimension)):
                configured([args.config, *words, *flags, f"--{key}", str(end)])
        except InputError as error:
            left_out[key] = str(error)
        else:
            words += flags
            space[key], start[key] = dimension, value
    if not space:
        raise InputError(f"config '{args.config}' has no key to search; write a sweep file with a space of your own")
    tree = {
        "out": args.out,
        "component": args.component,
        "aim": aim,
        "trials": args.trials,
        "at_once": args.at_once,
        **({"hours": args.hours} if args.hours is not None else {}),
        "factor": 2,  # with 3, dropout and small rates were stopped for beginning slowly
        "min_steps": RUNG * config.evaluate.every_steps,
        "arguments": {"config": args.config, **_cores(args, signature), last: words},
        "space": space,
        "start": start,
    }
    to_sweep(tree, "")  # refuses what is wrong before anything is written
    return tomli_w.dumps(tree), left_out


def _cores(args: argparse.Namespace, signature: Signature) -> dict[str, int]:
    """Returns the argument that gives each trial on this machine cores of its own: threads that share one are slow."""
    if not args.scheduler.startswith("local") or "cpu" not in signature.parameters:
        return {}
    return {"cpu": max(1, len(os.sched_getaffinity(0)) // max(1, args.at_once))}


def _flag(pair: str) -> list[str]:
    key, equals, value = pair.partition("=")
    if not (key and equals):
        raise InputError(f"--set is '{pair}'; write KEY=VALUE, such as evaluate.every_steps=100")
    return [f"--{key}", *value.split()]


def _first_metric(config: Config) -> str:
    if first := next(iter(directions(config)), None):
        return first
    raise InputError("no metric of evaluate.metrics has a better direction; name one there, and as --aim")


def _flags_of_best(config: Config, aim: str) -> list[str]:
    """Returns the flags with which a run keeps its best checkpoint by the aim, if it does not yet."""
    flags = []
    if config.checkpoint.keep.best != aim:
        flags += ["--checkpoint.keep.best", aim]
    if not (config.checkpoint.every_steps or config.checkpoint.every_epochs):
        flags += ["--checkpoint.every_steps", str(config.evaluate.every_steps)]
    return flags


def _candidates(config: Config) -> Iterator[tuple[str, Any, Any, list[str]]]:
    """Yields keys, each with its values, its value now, and flags that it needs."""
    sparse, dense, model = config.optimizer.sparse, config.optimizer.dense, config.model
    for key, rate in (("sparse", sparse.learning_rate), ("dense", dense.learning_rate)):
        if rate > 0:
            ends = [rate / TIMES, rate * TIMES]
            yield f"optimizer.{key}.learning_rate", {"log": ends}, rate, []
    if ":" not in model.name:
        most = max(0.5, math.ceil(10 * model.dropout) / 10)
        yield "model.dropout", {"range": [0.0, most]}, model.dropout, []
    if not any(feature.dimension for feature in config.data.sparse.values()):
        size = model.embedding_dim
        yield "model.embedding_dim", sorted({max(1, size // 2), size, 2 * size}), size, []
    # Last, as its mode is wrong without it.
    is_l2 = sparse.name == "rowwise_adagrad" and not sparse.weight_decay
    mode = ["--optimizer.sparse.weight_decay_mode", "l2"] if is_l2 else []
    decay = min(max(sparse.weight_decay, LEAST_DECAY), MOST_DECAY)
    yield "optimizer.sparse.weight_decay", {"log": [LEAST_DECAY, MOST_DECAY]}, decay, mode


def _ends(dimension: Mapping[str, list[Any]] | list[Any]) -> list[Any]:
    return dimension if isinstance(dimension, list) else next(iter(dimension.values()))
