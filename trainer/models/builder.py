"""Builds a model with its loss from configuration; its tables stay on the meta device until they are sharded."""

from collections.abc import Mapping

import torch
from torch import nn

from trainer.config.data import DataConfig
from trainer.config.model import ModelConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.core.registry import find_by_name
from trainer.models.base import ModelBuilder, ModelInputs
from trainer.models.dropout import Dropout
from trainer.models.embeddings import check_names, collections, table_of_weight
from trainer.models.hidden_layers import ACTIVATIONS
from trainer.models.normalization import BatchNorm, LayerNorm
from trainer.models.pooled_sequences import PooledSequences
from trainer.models.recompute import recompute_parts
from trainer.models.tasks import ModelWithLoss, TaskLosses

MODELS = {
    "dlrm": "trainer.models.dlrm:dlrm",
    "dlrm_dcn": "trainer.models.dlrm:dlrm_dcn",
    "deepfm": "trainer.models.deepfm:deepfm",
    "wide_deep": "trainer.models.deepfm:wide_deep",
    "xdeepfm": "trainer.models.xdeepfm:xdeepfm",
    "autoint": "trainer.models.autoint:autoint",
    "masknet": "trainer.models.masknet:masknet",
    "finalmlp": "trainer.models.finalmlp:finalmlp",
    "wukong": "trainer.models.wukong:wukong",
    "mmoe": "trainer.models.experts:mmoe",
    "ple": "trainer.models.experts:ple",
    "esmm": "trainer.models.esmm:esmm",
    "dbmtl": "trainer.models.dbmtl:dbmtl",
    "pepnet": "trainer.models.pepnet:pepnet",
    "din": "trainer.models.din:din",
    "sasrec": "trainer.models.sasrec:sasrec",
    "bst": "trainer.models.bst:bst",
    "hstu": "trainer.models.hstu:hstu",
    "dlrm_hstu": "trainer.models.dlrm_hstu:dlrm_hstu",
    "recency": "trainer.models.recency:recency",
    "mind": "trainer.models.mind:mind",
    "two_tower": "trainer.models.two_tower:two_tower",
}


def build_model(
    data: DataConfig, model: ModelConfig, predictions: Mapping[str, int], device: torch.device
) -> nn.Module:
    """Builds the model, which gives `predictions` of so many columns, with its tables on the meta device.

    Raises:
        InputError: The model's name is unknown, or the model cannot be built from these features.
    """
    if not data.dense and not data.sparse:
        raise InputError("data.dense and data.sparse are both empty; name at least one feature")
    builder = find_by_name("model.name", model.name, MODELS)
    # A GPU draws other numbers from the same seed, and a model is to begin alike on a laptop and on a cluster.
    drawn = _build(builder, data, model, predictions, torch.device("cpu")) if device.type == "cuda" else None
    built = _build(builder, data, model, predictions, device)
    if drawn:
        weights = built.state_dict()
        for name, value in drawn.state_dict().items():
            if not value.is_meta:
                weights[name].copy_(value)
    check_names(built)
    _check_hidden_layers(built, model)
    if data.features_of_tables() and not any(table_of_weight(path) for path, _ in built.named_parameters()):
        raise InputError(
            f"model.name is '{model.name}', a model that keeps no tables; keep ModelInputs.tables in it, as self.tables"
        )
    pools = any(isinstance(module, PooledSequences) for module in built.modules())
    if (pooled := next(iter(data.pooled_sequences), None)) and not pools:
        raise InputError(
            f"data.sparse.{pooled}.pooling is '{data.sparse[pooled].pooling}', and its table '{data.table_of(pooled)}' "
            f"has sequences, too, but model.name is '{model.name}', a model that does not pool these; keep "
            "ModelInputs.pool_sequences() in it and call it, or name another table"
        )
    return built


def _check_hidden_layers(built: nn.Module, model: ModelConfig) -> None:
    """Refuses keys about hidden layers for a built-in model that has none here."""
    made_by = {
        "dropout": Dropout,
        "normalization": (BatchNorm, LayerNorm),
        "activation": ACTIVATIONS[model.activation],
    }
    for key, kinds in made_by.items() if model.name in MODELS else ():
        value, default = getattr(model, key), ModelConfig.model_fields[key].default
        if value != default and not any(isinstance(module, kinds) for module in built.modules()):
            raise InputError(
                f"model.{key} is {value!r}, but model.name '{model.name}' has no layer here that it could act on; give "
                f"it hidden layers, or leave model.{key} out"
            )


def _build(
    builder: ModelBuilder, data: DataConfig, model: ModelConfig, predictions: Mapping[str, int], device: torch.device
) -> nn.Module:
    # On the meta device, as all tables together may not fit one host.
    tables, sequences = collections(data, model, torch.device("meta"))
    inputs = ModelInputs(
        tables=tables,
        dense_features=data.dense_width,
        sparse_features=[feature for table in tables.embedding_bag_configs() for feature in table.feature_names],
        predictions=[*predictions],
        device=device,
        config=model,
        sequences=sequences,
        sequence_features=data.sequences,
        dense_names=list(data.dense),
        weighted_features=[name for name, feature in data.sparse.items() if feature.weights],
        pooled_sequences=data.pooled_sequences,
        pairs=[name for name, columns in predictions.items() if columns == 2],
        classes={name: columns for name, columns in predictions.items() if columns > 2},
        dense_vectors={name: feature.width for name, feature in data.dense.items() if feature.width},
    )
    return builder(inputs)


def build_model_with_loss(
    config: Config, device: torch.device, dtype: torch.dtype | None, samples_per_lane: int = 0
) -> ModelWithLoss:
    """Builds the model and its loss.

    Args:
        config: The configuration.
        device: Device of the dense parameters.
        dtype: Precision that the model computes in, None for float32.
        samples_per_lane: Samples of a lane in a step, which only training needs.

    Raises:
        InputError: The model or a loss is unknown, or the model cannot be built from these features.
    """
    model = build_model(config.data, config.model, config.predictions(), device)
    if config.train.recompute and not recompute_parts(model):
        raise InputError(
            f"train.recompute is true, but model.name '{config.model.name}' has no hidden layers or blocks here "
            "that could be computed again; give it some, or leave train.recompute out"
        )
    return ModelWithLoss(model, TaskLosses(config, device, samples_per_lane), device.type, dtype)
