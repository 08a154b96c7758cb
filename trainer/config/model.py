"""Configuration of the model and its loss."""

from typing import Any, Literal, Self

import pydantic

from trainer.config.experts import ExpertsConfig
from trainer.core.errors import InputError
from trainer.core.section import Section, flat

# The names of MODELS in trainer/models, which cannot be imported without torch, each with those keys that not all of
# them use. Those of dlrm_dcn do not bother dlrm, as one configuration has been for both.
USED_BY = {
    "dlrm": ("dense_layers", "over_layers", "cross_layers", "cross_rank"),
    "dlrm_dcn": ("dense_layers", "over_layers", "cross_layers", "cross_rank"),
    "deepfm": ("over_layers",),
    "wide_deep": ("over_layers",),
    "mmoe": ("experts.shared", "experts.layers", "tower_layers"),
    "ple": ("experts.shared", "experts.per_task", "experts.levels", "experts.layers", "tower_layers"),
    "esmm": ("tower_layers",),
    "din": ("over_layers", "history", "target", "inner_product", "attention_layers"),
    "sasrec": ("over_layers", "history", "target", "attention_blocks", "attention_heads"),
    "dbmtl": ("over_layers", "tower_layers", "relation_layers", "dependencies"),
    "two_tower": ("item_features", "tower_layers", "vector_dim", "normalize"),
}
CHOSEN = {key for keys in USED_BY.values() for key in keys} | {"arguments"}


class ModelConfig(Section):
    """The model and its loss."""

    name: str = "dlrm"
    """dlrm, dlrm_dcn, deepfm, wide_deep, mmoe, ple, esmm, dbmtl, din, sasrec, two_tower (see docs/models.md), or
    package.module:function for a model of your own (see docs/configuration.md)."""
    loss: str = "binary"
    """Without [tasks], the loss of every label (see docs/models.md), or package.module:function over all of them."""
    task_weighting: Literal["fixed", "uncertainty", "pareto"] = "fixed"
    """How the losses of several tasks become one: by their weights, by learned variances, or by their gradients."""
    embedding_dim: pydantic.PositiveInt = 64
    """Columns of every table that does not set its own; dlrm, dlrm_dcn and deepfm need them all equal."""
    table_precision: Literal["fp32", "fp16"] = "fp32"
    """Precision of the tables' weights; fp16 halves their memory. Their optimizer's state stays float32."""
    dense_layers: list[pydantic.PositiveInt] = [512, 256]
    """Hidden layers of dlrm and dlrm_dcn over the dense features; one of embedding_dim follows."""
    over_layers: list[pydantic.PositiveInt] = [512, 512, 256]
    """Hidden layers over all features or, of dlrm and dlrm_dcn, over their interactions; one with an output per label
    follows. Of dbmtl, the layers that all tasks share."""
    cross_layers: pydantic.PositiveInt = 3
    """Cross layers of dlrm_dcn."""
    cross_rank: pydantic.PositiveInt = 512
    """Rank of the low-rank cross layers of dlrm_dcn."""
    tower_layers: list[pydantic.PositiveInt] = [64]
    """Hidden layers of each task's tower in mmoe, ple, esmm and dbmtl, and of both towers of two_tower."""
    item_features: list[str] = []
    """The dense and sparse features of the item, in two_tower and in data.catalogue; all others are the query's."""
    vector_dim: pydantic.PositiveInt = 64
    """Dimensions of the vectors of two_tower."""
    normalize: bool = True
    """Scale the vectors of two_tower to a length of 1, so that their inner product is a cosine."""
    experts: ExpertsConfig = ExpertsConfig()
    dependencies: dict[str, list[str]] = {}
    """The predictions of dbmtl that a prediction depends on, as in `buy = ["click"]`."""
    relation_layers: list[pydantic.PositiveInt] = [32]
    """Hidden layers of dbmtl over a task's tower and the tasks that it depends on."""
    target: str | None = None
    """The sparse feature, of pooling none, with the item that din and sasrec predict the labels of."""
    history: str | None = None
    """The sparse feature, of pooling none, with a user's earlier items for din and sasrec. Unset: the same network
    without a history, to measure what one brings."""
    inner_product: bool = False
    """Let the history of din reach the logits by an inner product with the target alone, not through over_layers,
    which learn the histories of a small data set by heart."""
    attention_layers: list[pydantic.PositiveInt] = [32]
    """Hidden layers of din over each item of the history and the target."""
    attention_blocks: pydantic.PositiveInt = 1
    """Self-attention blocks of sasrec."""
    attention_heads: pydantic.PositiveInt = 1
    """Heads of each block of sasrec; they must divide the columns of the table."""
    arguments: dict[str, Any] = {}
    """Values for a model of your own."""

    @pydantic.model_validator(mode="after")
    def _keys_are_used(self) -> Self:
        given = flat(self.model_dump(exclude_defaults=True))
        for path, value in given.items():
            key = next((key for key in (".".join(path), path[0]) if key in CHOSEN), None)
            if key and self.name in USED_BY and key not in USED_BY[self.name]:
                users = ", ".join(name for name, keys in USED_BY.items() if key in keys) or "package.module:function"
                raise InputError(
                    f"model.{'.'.join(path)} is {value!r}, which model.name '{self.name}' does not use; leave it out, "
                    f"or use {users}"
                )
        return self
