"""The optimizers of tables and of all other weights, their schedules, and averages of the weights."""

import itertools
import re
from typing import Annotated, Any, Literal, Self

import pydantic

from trainer.core.errors import InputError, nearest
from trainer.core.section import AsBegun, MayChange, Section

WARMUP = ("warmup_steps", "warmup_start")
LENGTH = (*WARMUP, "unit", "decay_start", "decay_steps")
# The names of DECAYS in trainer/optim, which cannot be imported without torch, each with the keys that it uses.
DECAY_KEYS = {
    "constant": WARMUP,
    "linear": (*LENGTH, "end_multiplier"),
    "polynomial": (*LENGTH, "end_multiplier", "power"),
    "exponential": (*LENGTH, "end_multiplier", "decay_rate", "staircase"),
    "piecewise": (*WARMUP, "unit", "decay_start", "boundaries", "multipliers"),
    "cosine": (*LENGTH, "end_multiplier"),
    "cosine_restarts": (*LENGTH, "end_multiplier", "growth"),
    "one_cycle": ("unit", "decay_steps", "start_multiplier", "rise_fraction", "end_multiplier"),
    "inverse_sqrt": LENGTH,
    "inherit": (),
}


class Schedule(Section):
    """Learning-rate schedule: a linear warm-up, then constant or a decay."""

    warmup_steps: pydantic.NonNegativeInt = 0
    """Steps of the linear warm-up; the last of them has the full rate."""
    warmup_start: pydantic.NonNegativeFloat = 0.0
    """Learning-rate multiplier that the warm-up begins with, before its first step."""
    decay: str = "constant"
    """After the warm-up: constant, linear, polynomial, exponential, piecewise, cosine, cosine_restarts, one_cycle,
    inverse_sqrt (see docs/guides/schedules.md), or package.module:function for your own."""
    unit: Literal["steps", "epochs"] = "steps"
    """Unit of decay_start, decay_steps and boundaries. By epochs, the rate changes only from one to the next."""
    decay_start: pydantic.NonNegativeInt = 0
    """The decay begins after this many steps or epochs, if that is later than the warm-up."""
    decay_steps: pydantic.PositiveInt = 1
    """Length of the decay in steps or epochs; in cosine_restarts, the length of the first period."""
    end_multiplier: pydantic.NonNegativeFloat = 0.0
    """Learning-rate multiplier after the decay, at its lowest."""
    power: pydantic.PositiveFloat = 1.0
    """Exponent of polynomial."""
    decay_rate: float = pydantic.Field(default=0.5, gt=0, le=1)
    """Multiplier of exponential after decay_steps."""
    staircase: bool = False
    """Let exponential fall only once in decay_steps."""
    boundaries: list[pydantic.PositiveInt] = []
    """Steps or epochs after the warm-up from which piecewise takes the next multiplier."""
    multipliers: list[pydantic.NonNegativeFloat] = []
    """Learning-rate multipliers of piecewise: one before the first boundary, and one from each boundary on."""
    growth: pydantic.PositiveInt = 1
    """Factor by which each period of cosine_restarts is longer than the period before."""
    start_multiplier: pydantic.NonNegativeFloat = 0.04
    """First learning-rate multiplier of one_cycle."""
    rise_fraction: float = pydantic.Field(default=0.3, gt=0, lt=1)
    """Fraction of decay_steps in which one_cycle rises to the full rate."""

    @pydantic.model_validator(mode="after")
    def _is_used(self) -> Self:
        given = self.model_dump(exclude_defaults=True, exclude={"decay"})
        unused = sorted(given.keys() - set(DECAY_KEYS.get(self.decay, given)))
        if unused:
            users = ", ".join(decay for decay, keys in DECAY_KEYS.items() if unused[0] in keys)
            raise InputError(
                f"{{key}}.{unused[0]} is {given[unused[0]]!r}, which {{key}}.decay '{self.decay}' does not use; "
                f"leave it out, or use {users}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _has_a_warm_up(self) -> Self:
        if self.warmup_start and not self.warmup_steps:
            raise InputError(
                f"{{key}}.warmup_start is {self.warmup_start}; set {{key}}.warmup_steps, too, or leave it out"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.decay in ("polynomial", "cosine", "cosine_restarts", "one_cycle") and self.decay_steps == 1:
            raise InputError(f"{{key}}.decay_steps is 1; set the length of {{key}}.decay '{self.decay}', 2 or more")
        return self

    @pydantic.model_validator(mode="after")
    def _is_piecewise(self) -> Self:
        if self.decay != "piecewise":
            return self
        if not self.boundaries or self.boundaries != sorted(set(self.boundaries)):
            raise InputError(f"{{key}}.boundaries is {self.boundaries}; they must be set and ascend")
        if len(self.multipliers) != len(self.boundaries) + 1:
            raise InputError(
                f"{{key}}.multipliers is {self.multipliers}; {len(self.boundaries)} boundaries need "
                f"{len(self.boundaries) + 1} of them"
            )
        return self


class PartSchedule(Schedule):
    """Learning-rate schedule of a table or a parameter group."""

    # No Schedule or None: a resume could not tell a schedule that is unset from one of nothing but defaults.
    decay: str = "inherit"
    """inherit, for the schedule of the whole, or any other decay (see optimizer.dense.schedule)."""

    def or_else(self, whole: Schedule) -> Schedule:
        """Returns this schedule, or `whole` if it is inherited."""
        return whole if self.decay == "inherit" else self


# The names of TABLE_OPTIMIZERS in trainer/optim, which cannot be imported without torch.
SparseName = Literal[
    "sgd", "adagrad", "rowwise_adagrad", "adam", "lamb", "lars_sgd", "partial_rowwise_adam", "partial_rowwise_lamb"
]
DecayMode = Literal["decoupled", "l2"]
Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]

MOMENTS = ("eps", "beta1", "beta2", "weight_decay")
TABLE_OPTIONS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "adagrad": ("eps", "initial_accumulator"),
    "rowwise_adagrad": ("eps", "initial_accumulator", "weight_decay", "weight_decay_mode"),
    "adam": MOMENTS,
    "lamb": MOMENTS,
    "lars_sgd": ("momentum", "eta", "weight_decay"),
    "partial_rowwise_adam": MOMENTS,
    "partial_rowwise_lamb": MOMENTS,
}
"""Keys that each table optimizer takes besides the common ones."""
COMMON = ("name", "learning_rate", "schedule", "max_gradient", "embedding_l2", "stochastic_rounding")


class SparseOptimizerConfig(Section):
    """The optimizer of the embedding tables, fused into backward."""

    name: SparseName = "rowwise_adagrad"
    """For replicated tables: sgd, adagrad or rowwise_adagrad."""
    learning_rate: pydantic.NonNegativeFloat = 0.02
    """Learning rate before the schedule's multiplier."""
    eps: pydantic.PositiveFloat = 1e-8
    """Added to denominators, by all but sgd and lars_sgd."""
    beta1: Beta = 0.9
    """Decay of the first moment, for Adam and LAMB."""
    beta2: Beta = 0.999
    """Decay of the second moment, for Adam and LAMB."""
    max_gradient: pydantic.PositiveFloat | None = None
    """Clamp each value of the gradient of a pooled embedding to this size. Unset: no limit."""
    embedding_l2: pydantic.NonNegativeFloat = 0.0
    """L2 penalty of the embeddings that a step looks up: half of this times the sum of their squares, divided by
    data.global_batch_size, is added to the loss, though not to the reported one. For every optimizer and plan."""
    momentum: Beta = 0.9
    """Momentum of lars_sgd."""
    eta: pydantic.PositiveFloat = 0.001
    """Trust coefficient of lars_sgd: the fraction of a row's norm that a step moves the row by, at learning rate 1."""
    weight_decay: pydantic.NonNegativeFloat = 0.0
    """Weight decay of touched rows, by all but sgd and adagrad, and not on replicated tables."""
    weight_decay_mode: DecayMode = "decoupled"
    """Of rowwise_adagrad: decoupled shrinks rows by the learning rate times weight_decay, l2 adds to the gradient."""
    initial_accumulator: pydantic.NonNegativeFloat = 0.0
    """Initial value of the accumulators of adagrad and rowwise_adagrad."""
    stochastic_rounding: bool = False
    """Round updates of fp16 tables up or down by chance, on a GPU; a resume is then not bit for bit."""
    schedule: Schedule = Schedule()
    """Learning-rate schedule."""

    @pydantic.model_validator(mode="after")
    def _options_are_used(self) -> Self:
        check_options("optimizer.sparse", self.name, self.model_dump(exclude_defaults=True))
        check_decay_mode("optimizer.sparse", self)
        return self


class TableOptimizerConfig(Section):
    """The optimizer of one table, by table name; unset keys are as in optimizer.sparse."""

    name: SparseName | None = None
    """Another optimizer; its options then have their defaults, not the values of optimizer.sparse."""
    learning_rate: pydantic.NonNegativeFloat | None = None
    """Learning rate before the schedule's multiplier."""
    eps: pydantic.PositiveFloat | None = None
    """Added to denominators."""
    beta1: Beta | None = None
    """Decay of the first moment."""
    beta2: Beta | None = None
    """Decay of the second moment."""
    momentum: Beta | None = None
    """Momentum of lars_sgd."""
    eta: pydantic.PositiveFloat | None = None
    """Trust coefficient of lars_sgd."""
    weight_decay: pydantic.NonNegativeFloat | None = None
    """Weight decay of touched rows."""
    weight_decay_mode: DecayMode | None = None
    """decoupled or l2, of rowwise_adagrad."""
    initial_accumulator: pydantic.NonNegativeFloat | None = None
    """Initial value of the accumulators."""
    frozen: bool = False
    """Keep the table as it is initialized or loaded, bit for bit."""
    schedule: PartSchedule = PartSchedule()
    """Learning-rate schedule."""

    def over(self, sparse: SparseOptimizerConfig, key: str) -> SparseOptimizerConfig:
        """Returns the table's settings: the settings of all tables, with its own in their place.

        Args:
            sparse: The settings of all tables.
            key: This section's key, for messages.

        Raises:
            InputError: The table's optimizer does not have an option that is set.
        """
        given = {field: getattr(self, field) for field in self.model_dump(exclude_defaults=True)}
        if self.frozen:
            if unused := given.keys() - {"frozen"}:
                raise InputError(f"{key}.{min(unused)} is set, but {key}.frozen is true; leave one of them out")
            return SparseOptimizerConfig(name="sgd", learning_rate=0.0)
        name = self.name or sparse.name
        check_options(key, name, given)
        inherited = (*COMMON, *(TABLE_OPTIONS[name] if name == sparse.name else ()))
        values = {field: getattr(sparse, field) for field in inherited} | given | {"name": name}
        values["schedule"] = self.schedule.or_else(sparse.schedule)
        merged = SparseOptimizerConfig.model_construct(**values)  # the values are validated, and messages name the key
        if self.weight_decay_mode:
            check_decay_mode(key, merged)
        return merged


def check_options(key: str, name: str, given: dict[str, Any]) -> None:
    """Refuses options that a table optimizer does not have: FBGEMM would ignore them.

    Args:
        key: The section's key, for messages.
        name: The table optimizer.
        given: The values that are set.

    Raises:
        InputError: The message names the option and the optimizers that have it.
    """
    for option in given.keys() - {*COMMON, *TABLE_OPTIONS[name]}:
        having = ", ".join(other for other, options in TABLE_OPTIONS.items() if option in options)
        raise InputError(
            f"{key}.{option} is {given[option]!r}, which the table optimizer '{name}' does not have; leave it out, or "
            f"use one of {having}"
        )


def check_decay_mode(key: str, settings: SparseOptimizerConfig) -> None:
    """Refuses a mode of weight decay without weight decay.

    Raises:
        InputError: The message names the key.
    """
    if settings.weight_decay_mode == "l2" and not settings.weight_decay:
        raise InputError(f"{key}.weight_decay_mode is 'l2', but weight_decay is 0; set both or none")


BETAS = ("beta1", "beta2")
# The names of DENSE in trainer/optim, which cannot be imported without torch, each with its options besides learning
# rate and weight decay.
DENSE_OPTIONS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "nesterov", "fused"),
    "adagrad": ("eps", "fused"),
    "adadelta": ("eps", "rho"),
    "rmsprop": ("eps", "alpha", "momentum"),
    "adam": ("eps", *BETAS, "amsgrad", "fused"),
    "adamw": ("eps", *BETAS, "amsgrad", "fused"),
    "adamax": ("eps", *BETAS),
    "radam": ("eps", *BETAS),
}


def _known(name: str) -> str:
    if name not in DENSE_OPTIONS and ":" not in name:
        raise InputError(f"{{key}} is '{name}'{nearest(name, DENSE_OPTIONS, 'name your own as package.module:Class')}")
    return name


REGEX = "regex:"


def _is_pattern(pattern: str) -> str:
    try:
        re.compile(pattern.removeprefix(REGEX) if pattern.startswith(REGEX) else "")
    except re.error as error:
        raise InputError(f"{{key}} is '{pattern}', which is no regular expression: {error}; correct it") from error
    return pattern


DenseName = Annotated[str, pydantic.AfterValidator(_known)]
WeightPattern = Annotated[str, pydantic.AfterValidator(_is_pattern)]


class DensePart(Section):
    """A parameter group: dense weights with an optimizer, learning rate, weight decay or schedule of their own.

    Unset keys are as in optimizer.dense.
    """

    weights: list[WeightPattern] = pydantic.Field(min_length=1)
    """Names, patterns with *, or regex: before a regular expression of the whole name. A weight that several groups
    name belongs to the first of them."""
    name: DenseName | None = None
    """Another optimizer; its options then have their defaults, not the values of optimizer.dense."""
    arguments: dict[str, Any] = {}
    """Options of an optimizer of your own, besides its learning rate and weight decay."""
    learning_rate: pydantic.NonNegativeFloat | None = None
    """Learning rate before the schedule's multiplier. Unset: optimizer.dense.learning_rate."""
    eps: pydantic.PositiveFloat | None = None
    """Added to denominators."""
    momentum: pydantic.NonNegativeFloat | None = None
    """Momentum of sgd and rmsprop."""
    nesterov: bool | None = None
    """Nesterov's form of the momentum of sgd."""
    beta1: Beta | None = None
    """Decay of the first moment."""
    beta2: Beta | None = None
    """Decay of the second moment, or of adamax's maximum."""
    amsgrad: bool | None = None
    """Let adam and adamw divide by the largest second moment so far."""
    alpha: Beta | None = None
    """Decay of the squared gradient, for rmsprop."""
    rho: Beta | None = None
    """Decay of the squared gradient and of the squared update, for adadelta."""
    fused: Annotated[bool | None, MayChange, AsBegun] = None
    """Update all weights of the group in one kernel. Unset: as optimizer.dense.fused."""
    weight_decay: pydantic.NonNegativeFloat | None = None
    """Weight decay. Unset: optimizer.dense.weight_decay."""
    schedule: PartSchedule = PartSchedule()
    """Learning-rate schedule."""


def _options_of(name: str) -> tuple[str, ...]:
    return DENSE_OPTIONS.get(name, ("arguments",))


class DenseOptimizerConfig(Section):
    """The optimizer of all weights but the embedding tables."""

    name: DenseName = "adagrad"
    """sgd, adagrad, adadelta, rmsprop, adam, adamw, adamax, radam, or package.module:Class for your own."""
    arguments: dict[str, Any] = {}
    """Options of an optimizer of your own, besides its learning rate and weight decay."""
    learning_rate: pydantic.NonNegativeFloat = 0.02
    """Learning rate before the schedule's multiplier."""
    eps: pydantic.PositiveFloat = 1e-8
    """Added to denominators. sgd has none; adadelta needs a larger one, such as 1e-6."""
    momentum: pydantic.NonNegativeFloat = 0.0
    """Momentum of sgd and rmsprop."""
    nesterov: bool = False
    """Nesterov's form of the momentum of sgd."""
    beta1: Beta = 0.9
    """Decay of the first moment, for adam, adamw, adamax and radam."""
    beta2: Beta = 0.999
    """Decay of the second moment, or of adamax's maximum, for the same optimizers."""
    amsgrad: bool = False
    """Let adam and adamw divide by the largest second moment so far."""
    alpha: Beta = 0.99
    """Decay of the squared gradient, for rmsprop."""
    rho: Beta = 0.95
    """Decay of the squared gradient and of the squared update, for adadelta."""
    fused: Annotated[bool | None, MayChange, AsBegun] = None
    """Update all weights in one kernel, which is faster and rounds differently. Unset: where torch has one for the
    optimizer and the device. For sgd, adagrad, adam and adamw."""
    weight_decay: pydantic.NonNegativeFloat = 0.0
    """L2 penalty, added to the gradient; adamw shrinks the weights themselves."""
    max_norm: pydantic.PositiveFloat | None = None
    """Scale all gradients down together if their norm is greater than this. Unset: no limit."""
    norm_type: pydantic.PositiveFloat = 2.0
    """Which p-norm max_norm limits."""
    max_value: pydantic.PositiveFloat | None = None
    """Clamp each value of a gradient to this size. Unset: no limit."""
    schedule: Schedule = Schedule()
    """Learning-rate schedule."""
    parts: dict[str, DensePart] = {}
    """Parameter groups by name; a weight belongs to the first group that names it."""
    frozen: list[WeightPattern] = []
    """Weights that are not trained, named as those of a group."""

    @pydantic.model_validator(mode="after")
    def _options_are_used(self) -> Self:
        self._check_options("optimizer.dense", self.model_dump(exclude_defaults=True))
        for part in self.parts:
            self.of_part(part)
        return self

    def of_part(self, part: str | None) -> "DenseOptimizerConfig":
        """Returns the settings of a parameter group: these, with its own in their place; of None these.

        Raises:
            InputError: The group's optimizer does not have an option that is set.
        """
        if part is None:
            return self
        own = self.parts[part]
        given = {
            key: value for key in own.model_dump(exclude_defaults=True) if (value := getattr(own, key)) is not None
        }
        given = {key: value for key, value in given.items() if key not in ("weights", "schedule")}
        name = own.name or self.name
        inherited = ("learning_rate", "weight_decay", "fused", *(_options_of(name) if name == self.name else ()))
        values = {key: getattr(self, key) for key in inherited} | given | {"name": name}
        values["schedule"] = own.schedule.or_else(self.schedule)
        merged = DenseOptimizerConfig.model_construct(**values)  # validated already, and messages name the part's keys
        merged._check_options(f"optimizer.dense.parts.{part}", given)
        return merged

    def _check_options(self, key: str, given: dict[str, Any]) -> None:
        every = {*itertools.chain(*DENSE_OPTIONS.values()), "arguments"}
        # `fused = false` is true of every optimizer, and was written down for each run of 0.1.0.
        has = {*_options_of(self.name), *(() if given.get("fused") else ("fused",))}
        unused = sorted((given.keys() & every) - has)
        if unused:
            users = ", ".join(name for name, options in DENSE_OPTIONS.items() if unused[0] in options)
            instead = f"{key}.arguments" if ":" in self.name else users or "package.module:Class"
            raise InputError(
                f"{key}.{unused[0]} is {given[unused[0]]!r}, which the dense optimizer '{self.name}' does not have; "
                f"use {instead} or leave it out"
            )
        if self.nesterov and not self.momentum:
            raise InputError(f"{key}.nesterov is true, but {key}.momentum is 0.0; set a momentum")

    @pydantic.model_validator(mode="after")
    def _clips_in_one_way(self) -> Self:
        if self.max_norm is not None and self.max_value is not None:
            raise InputError(
                f"optimizer.dense.max_norm is {self.max_norm} and optimizer.dense.max_value is {self.max_value}; "
                "set one of them"
            )
        if self.norm_type != 2 and self.max_norm is None:
            raise InputError(
                f"optimizer.dense.norm_type is {self.norm_type}, but optimizer.dense.max_norm is unset; set both"
            )
        return self


Decay = Annotated[float, pydantic.Field(gt=0, lt=1)]


class AverageConfig(Section):
    """Exponential moving averages (EMA) of the weights, kept beside the trained weights."""

    decay: Decay | None = None
    """Fraction of an average that a step keeps, such as 0.999. Unset: no averages."""
    tables: bool = False
    """Average embedding tables, too. It takes their memory once more, with evaluate twice. Off: only dense weights."""
    evaluate: Annotated[bool, MayChange] = True
    """Evaluate the averages. Off: evaluate the trained weights."""

    @pydantic.model_validator(mode="after")
    def _belongs_to_a_decay(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if self.decay is None and given:
            raise InputError(f"optimizer.ema.{min(given)} is set, but optimizer.ema.decay is not; set both or none")
        return self


class OptimizerConfig(Section):
    """The optimizers of the embedding tables and of all other weights."""

    sparse: SparseOptimizerConfig = SparseOptimizerConfig()
    tables: dict[str, TableOptimizerConfig] = {}
    """Optimizers of single tables, by table name; they replace the settings for all tables."""
    dense: DenseOptimizerConfig = DenseOptimizerConfig()
    ema: AverageConfig = AverageConfig()

    @pydantic.model_validator(mode="after")
    def _options_of_tables_are_used(self) -> Self:
        for table in self.tables:
            self.of_table(table)
        return self

    def of_table(self, table: str) -> SparseOptimizerConfig:
        """Returns the settings of a table's optimizer; a frozen table has SGD at rate 0."""
        own = self.tables.get(table)
        return own.over(self.sparse, f"optimizer.tables.{table}") if own else self.sparse
