"""A sweep file in TOML: a component, a space of values for keys of its configuration, and an aim."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from pydantic import Field

from torchx_recsys.pipelines.arguments import Signature
from torchx_recsys.pipelines.jobs import Job, Options
from trainer.config.overrides import parse
from trainer.config.root import Config
from trainer.core.errors import InputError, StorageError, nearest
from trainer.core.secrets import without_secrets
from trainer.core.section import Section, Tree, validate
from trainer.core.storage import read_text
from trainer.metrics.checks import check_watched_metrics
from trainer.metrics.registry import higher_is_better, result_name

FORMS = ("range", "log", "step")
Value = str | int | float | bool


class SweepSection(Section):
    """A sweep."""

    out: str
    """Directory of the sweep, on storage that is mounted: Optuna's journal, the trials' runs, the results."""

    component: str = "dlrm.single_node"
    """Component that trains, as `torchx run` takes it."""

    arguments: dict[str, Any]
    """Its arguments by name, `config` among them, but `out`. What follows `--` is a list under its name."""

    options: Options = {}
    """Options of schedulers, `options.slurm = { time = "4:00:00" }`."""

    aim: str = "auc"
    """Metric to improve, on data.validation: of the last evaluation, or of the best if it is checkpoint.keep.best."""

    trials: int = Field(20, ge=1)
    """Most trials."""

    at_once: int = Field(2, ge=1)
    """Most trials at the same time."""

    hours: float | None = Field(None, gt=0)
    """Hours after which no trial begins. Unset: no limit."""

    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """How values are chosen: by what was good so far (TPE), at random, or all combinations of lists."""

    pruner: Literal["halving", "hyperband", "none"] = "halving"
    """Which trials are stopped early: asynchronous successive halving (ASHA), Hyperband, or none."""

    min_steps: int | None = Field(None, ge=1)
    """Steps before a trial may be stopped early. Unset: evaluate.every_steps."""

    factor: int = Field(3, ge=2)
    """One of this many trials goes on beyond each rung, and rungs are this many times as far apart."""

    seed: int = Field(0, ge=0)
    """Seed of the sampler."""

    space: dict[str, Any] = Field(min_length=1)
    """Keys of the configuration: a list of values, `{ range = [LOW, HIGH] }`, or `{ log = [LOW, HIGH] }`."""

    start: dict[str, Any] = {}
    """Values of the first trial, for keys of the space. Unset: chosen as those of the others."""


@dataclass(frozen=True)
class Dimension:
    """The values of one key of the configuration.

    Attributes:
        key: The key, with dots.
        distribution: Optuna's form.
        words: The command line's words for each value of a list, by the text that Optuna stores.
    """

    key: str
    distribution: BaseDistribution
    words: Mapping[Value, list[str]]

    def flag(self, value: Value) -> list[str]:
        """Returns the words that set the key to a value."""
        return [f"--{self.key}", *self.words.get(value, [str(value)])]

    @property
    def ends(self) -> list[Value]:
        """The values to check so that all are checked: both ends of a range, or the whole list."""
        if isinstance(self.distribution, FloatDistribution | IntDistribution):
            return [self.distribution.low, self.distribution.high]
        return [*self.words]

    def has(self, value: Value) -> bool:
        """Returns whether a value is one of the dimension's."""
        if self.words or isinstance(value, str | bool):
            return value in self.words
        low, high = self.ends
        return low <= value <= high  # pyrefly: ignore[unsupported-operation]


@dataclass(frozen=True)
class Sweep:
    """A checked sweep.

    Attributes:
        source: The name of its file, for messages.
        settings: The file.
        signature: The arguments of its component.
        dimensions: The space by key.
        start: Values of the first trial, by key.
        config: The configuration of its trials, with the first value of each key of the space.
        higher: Whether a higher value of the aim is better.
    """

    source: str
    settings: SweepSection
    signature: Signature
    dimensions: dict[str, Dimension]
    start: dict[str, Value]
    config: Config
    higher: bool

    @property
    def aim(self) -> str:
        """The name of the aim in evaluations."""
        return result_name(self.settings.aim)

    @property
    def keeps_best(self) -> bool:
        """Whether a run keeps the checkpoint that is best by the aim."""
        return self.config.checkpoint.keep.best == self.settings.aim

    @property
    def trials(self) -> int:
        """The number of trials; for a grid at most the number of combinations."""
        if self.settings.sampler != "grid":
            return self.settings.trials
        return min(self.settings.trials, prod(len(one.words) for one in self.dimensions.values()))

    def flags(self, values: Mapping[str, Value]) -> list[str]:
        """Returns the words of a command line that set keys of the configuration to values."""
        return [*chain(*(self.dimensions[key].flag(value) for key, value in values.items()))]

    def run_directory(self, number: int) -> str:
        """Returns the run directory of a trial."""
        return f"{self.settings.out.rstrip('/')}/trials/{number}"

    def configured(self, values: Mapping[str, Value]) -> Config:
        """Returns the whole configuration of a trial.

        Raises:
            InputError: A value is not allowed.
        """
        return _configured(self.settings, self.signature, self.flags(values))

    def job(self, number: int, values: Mapping[str, Value]) -> Job:
        """Returns the job of a trial.

        Raises:
            InputError: The component does not take the arguments.
        """
        last = last_argument(self.signature)
        arguments = self.settings.arguments | {
            "out": self.run_directory(number),
            last: [*self.settings.arguments.get(last, []), *self.flags(values)],
        }
        return Job(
            name=f"trial_{number}",
            key=self.source.removesuffix(": "),
            component=self.settings.component,
            words=self.signature.words(arguments),
            options=self.settings.options,
        )


def read_sweep(name: str) -> Sweep:
    """Reads a sweep file, on any fsspec URL.

    Raises:
        InputError: It cannot be read, or something in it is wrong; the message names the key.
    """
    source = f"sweep '{without_secrets(name)}': "
    try:
        tree = tomllib.loads(read_text(name))
    except (StorageError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"sweep '{without_secrets(name)}' cannot be read: {error}") from error
    return to_sweep(tree, source)


def to_sweep(tree: Tree, source: str) -> Sweep:
    """Returns a checked sweep; messages begin with `source`.

    Raises:
        InputError: Something is wrong; the message names the key.
    """
    settings = validate(SweepSection, tree, lambda _: source)
    try:
        return _checked(settings, source)
    except InputError as error:
        raise InputError(f"{source}{str(error).removeprefix(source)}") from error


def _checked(settings: SweepSection, source: str) -> Sweep:
    if "://" in settings.out:
        raise InputError(f"out is '{settings.out}': Optuna's journal needs a directory that is mounted; name a path")
    if "config" not in settings.arguments:
        raise InputError("arguments.config is missing; name the configuration whose keys the space has")
    if "out" in settings.arguments:
        raise InputError("arguments.out: each trial has a run directory of its own below the sweep's; leave it out")
    dimensions = {key: _dimension(key, value) for key, value in _leaves(settings.space)}
    if settings.sampler == "grid":
        for key, dimension in dimensions.items():
            if not dimension.words:
                raise InputError(f"space.{key}: sampler is 'grid', which takes lists of values; write a list")
    signature = Signature.of(settings.component, "", {})
    last_argument(signature)
    signature.words(settings.arguments | {"out": settings.out})  # checks all names and types
    # With a value for each key, as one key may need another: weight_decay_mode = "l2" needs a weight_decay.
    first = {key: dimension.ends[0] for key, dimension in dimensions.items()}
    config = _configured(settings, signature, [*chain(*(dimensions[key].flag(value) for key, value in first.items()))])
    start = _start(settings, dimensions)
    sweep = Sweep(source, settings, signature, dimensions, start, config, _direction(settings, config))
    for key, dimension in dimensions.items():
        for value in dimension.ends[1:]:
            sweep.configured(first | {key: value})
    if not config.data.validation:
        raise InputError("data.validation is empty, so that trials have no value; name validation data")
    if settings.pruner != "none" and not config.evaluate.every_steps:
        raise InputError(f"pruner is '{settings.pruner}', but evaluate.every_steps is 0; set it, or pruner to 'none'")
    sweep.job(0, first)
    return sweep


def _leaves(tree: Tree, above: str = "") -> list[tuple[str, Any]]:
    """Returns the keys of a space with their values; flattens the tables that TOML makes of dotted keys."""
    found = []
    for name, value in tree.items():
        key = f"{above}{name}"
        is_table = isinstance(value, dict) and not any(form in value for form in FORMS)
        found += _leaves(value, f"{key}.") if is_table else [(key, value)]
    return found


def _dimension(key: str, value: Any) -> Dimension:
    if isinstance(value, list) and len(value) > 1:
        words = dict(_choice(each) for each in value)
        if len(words) == len(value):
            return Dimension(key, CategoricalDistribution([*words]), words)
    elif isinstance(value, dict) and {*value} <= {*FORMS} and ("range" in value) != ("log" in value):
        log, ends, step = "log" in value, value.get("range", value.get("log")), value.get("step")
        if isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends):
            whole = all(type(end) is int for end in ends)
            try:
                if whole:
                    return Dimension(key, IntDistribution(*ends, log=log, step=step or 1), {})
                return Dimension(key, FloatDistribution(*map(float, ends), log=log, step=step), {})
            except ValueError as error:
                raise InputError(f"space.{key} is {value}: {error}") from error
    raise InputError(
        f"space.{key} is {value!r}: must be a list of different values, {{ range = [LOW, HIGH] }} or"
        " {{ log = [LOW, HIGH] }}, whole numbers if both ends are"
    )


def _start(settings: SweepSection, dimensions: dict[str, Dimension]) -> dict[str, Value]:
    found = {key: _choice(value)[0] for key, value in _leaves(settings.start)}
    if found and settings.sampler == "grid":
        raise InputError("start is set, but sampler is 'grid', which tries all combinations; leave one of them out")
    for key, value in found.items():
        if key not in dimensions:
            raise InputError(f"start.{key} is {value!r}, but the space has no such key{nearest(key, dimensions)}")
        if not dimensions[key].has(value):
            raise InputError(f"start.{key} is {value!r}, which space.{key} does not have; use one of its values")
    return found


def _choice(value: Any) -> tuple[Value, list[str]]:
    """Returns the text that Optuna stores for a value, and the value's words on a command line."""
    if isinstance(value, list):
        words = [str(each) for each in value]
        return " ".join(words), words
    return value, [str(value)]


def _direction(settings: SweepSection, config: Config) -> bool:
    """Returns whether a higher value of the aim is better."""
    keep = config.checkpoint.keep.model_copy(update={"best": settings.aim})
    watched = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"keep": keep})})
    try:
        check_watched_metrics(watched)
    except InputError as error:
        raise InputError(str(error).replace("checkpoint.keep.best", "aim")) from error
    return bool(higher_is_better(settings.aim))


def last_argument(signature: Signature) -> str:
    """Returns the argument of a component that takes the words after `--`."""
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL and {"config", "out"} <= signature.parameters.keys():
            return name
    raise InputError(
        "component: must take `config`, `out` and overrides of the configuration, as dlrm.single_node does"
    )


def _configured(settings: SweepSection, signature: Signature, flags: list[str]) -> Config:
    """Returns the configuration that the file names, changed by the file's words after `--` and by flags."""
    words = map(str, settings.arguments.get(last_argument(signature), []))
    return configured([str(settings.arguments["config"]), *words, *flags])


def configured(words: list[str]) -> Config:
    """Returns a configuration from the words that the trainer takes: its file or name, then flags.

    Raises:
        InputError: The file, a flag or a value is wrong.
    """

    def train(config: Config) -> None:
        """Takes a configuration, as the trainer does."""

    return parse(train, words, "trainer").keywords["config"]
