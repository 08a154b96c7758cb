"""Configuration of checkpoints: when to save, and which to keep."""

from typing import Annotated

import pydantic

from trainer.config.section import MayChange, Section


class Retention(Section):
    """Which checkpoints stay when a newer one is committed."""

    newest: Annotated[pydantic.PositiveInt, MayChange] = 3
    """The newest so many stay; with 1 there is nothing to fall back to if its files are damaged."""
    best: Annotated[str | None, MayChange] = None
    """The best by this metric of data.validation stays too: auc, normalized_entropy or log_loss, /LABEL if several."""
    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Those of every so many steps stay for good. 0: none for that reason."""


class CheckpointConfig(Section):
    """When training saves its state, and which checkpoints stay."""

    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Save every so many steps. 0: only at the end."""
    every_minutes: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """Save when so many minutes have passed since the last save. 0: never for that reason."""
    asynchronous: Annotated[bool, MayChange] = True
    """Write while training goes on, from a copy in memory that takes as much as the state. Off: training waits."""
    keep: Retention = Retention()
    grace_seconds: Annotated[pydantic.NonNegativeFloat, MayChange] = 120.0
    """Time between a signal that asks to stop and the kill. A job whose saves take longer leaves without one."""
