"""Configuration of models with experts."""

import pydantic

from trainer.core.section import Section


class ExpertsConfig(Section):
    """The experts of mmoe and ple, networks whose outputs the gate of each task mixes."""

    shared: pydantic.PositiveInt = 4
    """Experts that all tasks share; of ple, on each level."""
    per_task: pydantic.PositiveInt = 2
    """Experts of ple that each task has for itself, on each level."""
    levels: pydantic.PositiveInt = 2
    """Levels of ple, each of which mixes the outputs of the one before."""
    layers: list[pydantic.PositiveInt] = pydantic.Field(default=[256, 128], min_length=1)
    """Layers of each expert."""
