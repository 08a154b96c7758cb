"""DLRM (Naumov et al., arXiv:1906.00091) and DLRM with DCNv2 interaction (Wang et al., arXiv:2008.13535)."""

from collections.abc import Callable

from torch import nn
from torchrec.models.dlrm import DLRM, DLRM_DCN

from trainer.core.errors import InputError
from trainer.models.base import ModelInputs
from trainer.models.pooled import equal_dimension


def dlrm(inputs: ModelInputs) -> nn.Module:
    """Builds DLRM: embeddings and dense features interact by their inner products."""
    return _build(DLRM, inputs)


def dlrm_dcn(inputs: ModelInputs) -> nn.Module:
    """Builds DLRM whose interaction is a stack of low-rank cross layers, as in MLPerf's recommendation benchmark."""
    config = inputs.config
    return _build(DLRM_DCN, inputs, dcn_num_layers=config.cross_layers, dcn_low_rank_dim=config.cross_rank)


def _build(model: Callable[..., nn.Module], inputs: ModelInputs, **options: int) -> nn.Module:
    config = inputs.config
    if inputs.dense_features == 0:
        raise InputError(f"model.name is '{config.name}', which needs dense features; name one in data.dense")
    if not config.over_layers:
        raise InputError("model.over_layers is empty; name at least one hidden layer")
    dimension = equal_dimension(inputs)  # the interaction multiplies embeddings of all tables with one another
    return model(
        inputs.tables,
        inputs.dense_features,
        [*config.dense_layers, dimension],
        [*config.over_layers, sum(inputs.columns)],
        dense_device=inputs.device,
        **options,
    )
