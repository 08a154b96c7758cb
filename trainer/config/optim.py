"""Configuration of the optimizers."""

from typing import Self

import pydantic

from trainer.config.averages import AverageConfig
from trainer.config.dense_optim import DenseOptimizerConfig
from trainer.config.table_optim import SparseOptimizerConfig, TableOptimizerConfig
from trainer.core.section import Section


class OptimizerConfig(Section):
    """The optimizers of the embedding tables and of all other weights."""

    sparse: SparseOptimizerConfig = SparseOptimizerConfig()
    tables: dict[str, TableOptimizerConfig] = {}
    """Optimizers of single tables, by table name; they replace what is set for all."""
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
