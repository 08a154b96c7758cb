"""Configuration of the optimizers."""

from typing import Annotated, Self

import pydantic

from trainer.config.dense_optim import DenseOptimizerConfig
from trainer.config.table_optim import SparseOptimizerConfig, TableOptimizerConfig
from trainer.core.errors import InputError
from trainer.core.section import MayChange, Section

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
