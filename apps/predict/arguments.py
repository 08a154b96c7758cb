"""The arguments of a prediction, and what they mean for a configuration."""

from dataclasses import dataclass

import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.errors import InputError, nearest
from trainer.data.features import features_only
from trainer.models.outputs import ModelOutput, model_outputs


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of a prediction.

    Attributes:
        out: The run directory.
        source: The files to predict.
        source_key: The flag that names them.
        to: Directory for the parts.
        checkpoint: newest, best, or the number of a step.
        keep_columns: Columns to keep.
        outputs: Names of outputs; empty for all.
        rows_per_part: Rows of a part.
        batch_size: Rows of a rank in a batch.
        features: The features that are in the data; None for all. The others are empty.
        keep_key: The flag that names the columns to keep.
        names: Names of the columns in the parts; empty for those that they have already.
    """

    out: str
    source: tuple[str, ...]
    source_key: str
    to: str
    checkpoint: str
    keep_columns: tuple[str, ...]
    outputs: tuple[str, ...]
    rows_per_part: int
    batch_size: int
    features: tuple[str, ...] | None = None
    keep_key: str = "--keep-columns"
    names: tuple[str, ...] = ()

    def data(self, config: Config) -> DataConfig:
        """Returns the columns to read."""
        return features_only(config.data, self.features)

    def check(self) -> None:
        """Refuses numbers that cannot be used.

        Raises:
            InputError: The message names the flag.
        """
        for flag, value in (("rows-per-part", self.rows_per_part), ("batch-size", self.batch_size)):
            if value < 1:
                raise InputError(f"--{flag} is {value}; it must be at least 1")
        if self.rows_per_part % self.batch_size:
            raise InputError(
                f"--rows-per-part is {self.rows_per_part}, which is no multiple of --batch-size, {self.batch_size}; "
                f"use {-(-self.rows_per_part // self.batch_size) * self.batch_size}, or another --batch-size"
            )


def chosen_outputs(config: Config, names: tuple[str, ...], kept: pa.Schema) -> list[ModelOutput]:
    """Returns the outputs of these names; without any, all.

    Args:
        config: The configuration.
        names: Names of outputs.
        kept: The columns that are kept beside them.

    Raises:
        InputError: There is no such output, or a kept column has the name of one.
    """
    known = {output.name: output for output in model_outputs(config)}
    for name in names:
        if name not in known:
            raise InputError(f"--outputs has '{name}', which the model does not give{nearest(name, known)}")
    chosen = [known[name] for name in names or known]
    for output in chosen:
        if output.name in kept.names:
            raise InputError(
                f"the data has a column '{output.name}', as the model has an output; leave it out of --keep-columns"
            )
    return chosen
