"""Configuration of checkpoints: when to save, and which to keep."""

from typing import Annotated

import pydantic

from trainer.core.section import MayChange, Section


class Retention(Section):
    """Checkpoints to keep when a newer one is committed."""

    newest: Annotated[pydantic.PositiveInt, MayChange] = 3
    """Keep this many of the newest. With 1, there is no other checkpoint to resume from if the newest is damaged."""
    best: Annotated[str | None, MayChange] = None
    """Keep the best by this metric of data.validation, such as auc; METRIC/TASK if there are several tasks."""
    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Keep checkpoints whose step is a multiple of this forever. 0: off."""
    segments: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Keep the checkpoints at the ends of this many of the newest segments of data.segments. 0: off."""


class CheckpointConfig(Section):
    """When to save checkpoints, and which to keep."""

    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Steps between two saves. 0: save only at the end."""
    every_minutes: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """Save when this many minutes have passed since the last save. 0: off."""
    full_every: Annotated[pydantic.PositiveInt, MayChange] = 1
    """Every Nth checkpoint is whole; those between have only the rows of tables that changed. 1: all are whole."""
    asynchronous: Annotated[bool, MayChange] = True
    """Write while training continues, from a copy in memory as large as the state. Off: training waits."""
    keep: Retention = Retention()
    grow_tables: Annotated[bool, MayChange] = False
    """Resume with more rows in a table than the checkpoint has. The new rows start like those of a new table."""
    grace_seconds: Annotated[pydantic.NonNegativeFloat, MayChange] = 120.0
    """Time between a stop request and the kill. A job whose saves take longer stops without a save."""
