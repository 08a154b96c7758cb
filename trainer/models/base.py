"""The model protocol: the inputs and the result of a model builder."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.model import ModelConfig
from trainer.models.dropout import Dropout
from trainer.models.pooled_sequences import PooledSequences
from trainer.models.step_samples import StepSamples


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of a model builder.

    Attributes:
        tables: The tables of pooled features, on the meta device; the model must use this very module, and may call it
            once: `self.tables(sparse)` returns a `KeyedTensor` whose `values()`, `[B, columns of all features]`, are in
            the order of `sparse_features`, however the tables are sharded. Without pooled features, `[B, 0]`.
        dense_features: Columns of the dense features, `D`: one of a number, as many as its length of a vector.
        sparse_features: Names of the pooled features, keys of the `KeyedJaggedTensor`, in the order of the
            configuration; features that share a table follow the first of them.
        predictions: Names of the predictions that the model returns, `T`.
        device: Device of the dense parameters.
        config: The model's section of the configuration.
        sequences: The tables of sequences, on the meta device, None without any. The model must keep this very module
            as `self.sequences`, and may call it once: `self.sequences(sparse)` returns a `JaggedTensor` of embeddings
            for each feature, oldest first.
        sequence_features: Names of the sequences, the other keys of the `KeyedJaggedTensor`, each with its greatest
            length.
        dense_names: Names of the dense features, in the order of their columns.
        weighted_features: Names of the sparse features whose ids have weights, `sparse[name].weights()`. The pooled
            embeddings are weighted already.
        pooled_sequences: The pooled features whose table serves sequences, too, each with its pooling; they are not in
            `sparse_features`. Where there are any, the model keeps `inputs.pool_sequences()` as a module and calls it
            with `self.sequences(sparse)` and `sparse`.
        pairs: The predictions that are two logits, for label 0 and for label 1, as the loss jrc needs.
        classes: The predictions that are a logit for each of so many classes.
        samples: The samples that the model is about to compute, which dropout and batch normalization need.
        dense_vectors: The dense features that are vectors, each with its columns; all others have one.
    """

    tables: EmbeddingBagCollection
    dense_features: int
    sparse_features: list[str]
    predictions: Sequence[str]
    device: torch.device
    config: ModelConfig
    sequences: EmbeddingCollection | None = None
    sequence_features: Mapping[str, int] = field(default_factory=dict)
    dense_names: Sequence[str] = ()
    weighted_features: Collection[str] = ()
    pooled_sequences: Mapping[str, str] = field(default_factory=dict)
    pairs: Sequence[str] = ()
    classes: Mapping[str, int] = field(default_factory=dict)
    samples: StepSamples = field(default_factory=StepSamples)
    dense_vectors: Mapping[str, int] = field(default_factory=dict)

    @property
    def labels(self) -> int:
        """Number of the predictions, `T`."""
        return len(self.predictions)

    @property
    def columns(self) -> list[int]:
        """Columns of each prediction: two of a pair, one for each class, else one."""
        return [self.classes.get(name, 2 if name in self.pairs else 1) for name in self.predictions]

    def pool_sequences(self) -> PooledSequences | None:
        """Returns the module that pools `pooled_sequences`, `[B, their columns]`; None without any."""
        is_weighted = bool(self.weighted_features)
        return PooledSequences(self.pooled_sequences, is_weighted) if self.pooled_sequences else None

    def dropout(self, from_the_end: bool = False) -> nn.Module:
        """Returns a layer of dropout by `model.dropout`, whose masks are the same on any number of ranks.

        Args:
            from_the_end: Whether its inputs are `[B, L, ...]`, padded at the beginning; else they are `[B, ...]`.
        """
        return Dropout(self.config.dropout, self.samples, from_the_end) if self.config.dropout else nn.Identity()


Predictions = dict[str, Tensor]
"""A model's predictions by name, `[B]` or `[B, ...]` float32 each."""


class BatchOutputs(NamedTuple):
    """The outputs of a model with its loss for a local batch, detached.

    Attributes:
        loss: The loss, a scalar whose mean over the ranks is the loss of the global batch.
        predictions: The predictions.
        labels: Labels, `[B, L]`.
        weights: Weights of the samples, `[B]`.
        groups: Groups of the samples, `[B, G]`.
        sparse: The ids of the samples; None in training.
    """

    loss: Tensor
    predictions: Predictions
    labels: Tensor
    weights: Tensor
    groups: Tensor
    sparse: KeyedJaggedTensor | None = None


ModelBuilder = Callable[[ModelInputs], nn.Module]
"""Builds a module whose `forward(dense [B, D], sparse: KeyedJaggedTensor)` returns its predictions.

Predictions are a dictionary by name, or a tensor `[B, T]` with a column for each of `ModelInputs.predictions` and two
for each of `ModelInputs.pairs`, in order.

The module must be traceable by torch.fx down to the tables, as TorchRec's pipeline moves their input distribution out
of it: no branch on the values of its inputs.
"""
