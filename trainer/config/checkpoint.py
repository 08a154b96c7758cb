"""Configuration of checkpoints: when to save, and which to keep."""

from typing import Annotated

import pydantic

from trainer.core.section import MayChange, Section


class Retention(Section):
    """Checkpoints to keep when a newer one is committed."""

    newest: Annotated[pydantic.PositiveInt, MayChange] = 3
    """Keep this many of the newest; with 1 there is no other to resume from if its files are damaged."""
    best: Annotated[str | None, MayChange] = None
    """Keep the best by this metric of data.validation, such as auc, followed by /TASK if several."""
    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Keep those of every so many steps forever. 0: none for that reason."""


class CheckpointConfig(Section):
    """When to save checkpoints, and which to keep."""

    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Save every so many steps. 0: only at the end."""
    every_minutes: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """Save when so many minutes have passed since the last save. 0: never for that reason."""
    asynchronous: Annotated[bool, MayChange] = True
    """Write while training continues, from a copy in memory as large as the state. Off: training waits."""
    keep: Retention = Retention()
    grace_seconds: Annotated[pydantic.NonNegativeFloat, MayChange] = 120.0
    """Time between a stop request and the kill. A job whose saves take longer stops without one."""
