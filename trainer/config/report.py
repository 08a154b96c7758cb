"""Configuration of reports."""

from typing import Annotated

import pydantic

from trainer.config.may_change import MayChange
from trainer.config.section import Section


class ReportConfig(Section):
    """Reports of training, and their interval."""

    interval_steps: Annotated[pydantic.PositiveInt, MayChange] = 50
    """Steps between two console lines and two lines of metrics.jsonl."""
    tensorboard: Annotated[bool, MayChange] = True
    """Write TensorBoard files to RUN_DIR/tensorboard."""
