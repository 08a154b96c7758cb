"""Configuration of the model and its loss."""

from typing import Any, Literal

import pydantic

from trainer.config.section import Section


class ModelConfig(Section):
    """The model and its loss."""

    name: str = "dlrm"
    """dlrm, dlrm_dcn, or package.module:function for a model of your own (see docs/configuration.md)."""
    loss: str = "binary"
    """binary (cross-entropy), or package.module:function for a loss of your own (see docs/configuration.md)."""
    embedding_dim: pydantic.PositiveInt = 64
    """Columns of every table that does not set its own; dlrm and dlrm_dcn need them all equal."""
    table_precision: Literal["fp32", "fp16"] = "fp32"
    """Precision of the tables' weights; fp16 halves their memory. Their optimizer's state stays float32."""
    dense_layers: list[pydantic.PositiveInt] = [512, 256]
    """Hidden layers over the dense features; one of embedding_dim follows."""
    over_layers: list[pydantic.PositiveInt] = [512, 512, 256]
    """Hidden layers over the interactions; one with an output per label follows."""
    cross_layers: pydantic.PositiveInt = 3
    """Cross layers of dlrm_dcn."""
    cross_rank: pydantic.PositiveInt = 512
    """Rank of the low-rank cross layers of dlrm_dcn."""
    arguments: dict[str, Any] = {}
    """Values for a model of your own."""
