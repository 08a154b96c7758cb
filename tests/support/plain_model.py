"""The model before training, unsharded and in one process, for references that tests compute themselves."""

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trainer.config.root import Config
from trainer.models.base import ModelBuilder, ModelInputs
from trainer.models.dlrm import dlrm
from trainer.models.embeddings import table_configs
from trainer.models.table_init import initialize_tables


def plain_model(settings: Config, build: ModelBuilder = dlrm) -> nn.Module:
    """Returns the model of a configuration of two dense features and one label, with its initial weights."""
    torch.manual_seed(settings.train.seed)
    tables = EmbeddingBagCollection(tables=table_configs(settings.data, settings.model))
    torch.manual_seed(settings.train.seed)
    names, device = list(settings.data.dense), torch.device("cpu")
    features = settings.data.pooled
    model = build(ModelInputs(tables, 2, features, ["label"], device, settings.model, dense_names=names))
    initialize_tables(model, settings.train.seed, settings.model.init_of)
    return model
