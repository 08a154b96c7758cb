"""Configuration of the optimizers of the embedding tables."""

from typing import Annotated, Any, Literal, Self

import pydantic

from trainer.config.schedule import PartSchedule, Schedule
from trainer.core.errors import InputError
from trainer.core.section import Section

# The names of TABLE_OPTIMIZERS in trainer/optim, which cannot be imported without torch.
SparseName = Literal[
    "sgd", "adagrad", "rowwise_adagrad", "adam", "lamb", "lars_sgd", "partial_rowwise_adam", "partial_rowwise_lamb"
]
DecayMode = Literal["decoupled", "l2"]
Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]

MOMENTS = ("eps", "beta1", "beta2", "weight_decay")
OPTIONS: dict[str, tuple[str, ...]] = {
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
COMMON = ("name", "learning_rate", "schedule", "max_gradient", "stochastic_rounding")


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
        inherited = (*COMMON, *(OPTIONS[name] if name == sparse.name else ()))
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
    for option in given.keys() - {*COMMON, *OPTIONS[name]}:
        having = ", ".join(other for other, options in OPTIONS.items() if option in options)
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
