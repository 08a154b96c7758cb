"""FBGEMM takes the options of every table optimizer, and has those on a CPU that are said to be there."""

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torchrec.distributed.utils import merge_fused_params, optimizer_type_to_emb_opt_type

from trainer.config.table_optim import SparseOptimizerConfig
from trainer.optim.table_optimizers import ON_CPU, TABLE_OPTIMIZERS, table_options

OPTIONS = {"learning_rate": 0.25, "eps": 0.1, "beta1": 0.5, "beta2": 0.6}
# A GPU's kernel is built on the meta device, where there is no GPU.
GPU = ("meta", EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
CPU = ("cpu", EmbeddingLocation.HOST, ComputeDevice.CPU)


def kernel(name, device, location, compute_device):
    config = SparseOptimizerConfig.model_validate({"name": name, **OPTIONS})
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(10, 8, location, compute_device)],
        optimizer=optimizer_type_to_emb_opt_type(TABLE_OPTIMIZERS[name].fused),
        device=torch.device(device),
        **merge_fused_params({}, table_options(config)),
    )


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_options_reach_the_kernel(name):
    built = kernel(name, *GPU)
    arguments = built.optimizer_args._asdict()
    assert built.learning_rate_tensor.item() == 0.25
    for key in TABLE_OPTIMIZERS[name].options:
        assert arguments[key] == OPTIONS[key]


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_a_cpu_has_those_that_are_said_to_be_there(name):
    if name in ON_CPU:
        assert kernel(name, *CPU).optimizer == kernel(name, *GPU).optimizer
    else:
        with pytest.raises(AssertionError, match="is not supported in CPU mode"):
            kernel(name, *CPU)
