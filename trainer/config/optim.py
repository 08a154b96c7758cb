"""Configuration of the optimizers."""

from trainer.config.dense_optim import DenseOptimizerConfig
from trainer.config.section import Section
from trainer.config.table_optim import SparseOptimizerConfig


class OptimizerConfig(Section):
    """The optimizers of the embedding tables and of all other weights."""

    sparse: SparseOptimizerConfig = SparseOptimizerConfig()
    dense: DenseOptimizerConfig = DenseOptimizerConfig()
