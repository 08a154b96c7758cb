"""Kernels of tables take the options of every table optimizer, on a CPU and on a GPU, and update touched rows only."""

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, WeightDecayMode
from jobs import config
from torchrec.distributed.utils import merge_fused_params, optimizer_type_to_emb_opt_type

from trainer.config.optimizer import TABLE_OPTIONS, SparseOptimizerConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.optim import table_kernels
from trainer.optim.table_kernels import TableKernel
from trainer.optim.table_optimizers import TABLE_OPTIMIZERS, check_table_optimizers, fused_options

VALUES = {"eps": 0.1, "beta1": 0.5, "beta2": 0.6, "momentum": 0.7, "eta": 0.8, "weight_decay": 0.9}
MODES = {"weight_decay_mode": "l2"}
# A GPU's kernel is built on the meta device, where there is no GPU.
GPU = ("meta", EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
CPU = ("cpu", EmbeddingLocation.HOST, ComputeDevice.CPU)
SLOTS = {
    "sgd": [],
    "adagrad": [2],
    "rowwise_adagrad": [1],
    "adam": [2, 2],
    "lamb": [2, 2],
    "lars_sgd": [2],
    "partial_rowwise_adam": [2, 1],
    "partial_rowwise_lamb": [2, 1],
}
"""Dimensions of each slot of the optimizers' state."""


def kernel(name, device, location, compute_device, precision=SparseType.FP32, rows=(10,), **options):
    settings = SparseOptimizerConfig.model_validate({"name": name, **options})
    return TableKernel(
        [(of_table, 8, location, compute_device) for of_table in rows],
        optimizer=optimizer_type_to_emb_opt_type(TABLE_OPTIMIZERS[name].fused),
        device=torch.device(device),
        weights_precision=precision,
        **merge_fused_params({}, fused_options(settings) | {"lr": 0.25}),
    )


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_options_reach_the_kernel(name, device):
    given = {key: value for key, value in (VALUES | MODES).items() if key in TABLE_OPTIONS[name]}
    built = kernel(name, *device, **given)
    arguments = built.optimizer_args._asdict()
    assert built.learning_rate_tensor.item() == 0.25
    for key in given.keys() - MODES.keys():
        assert arguments[key] == VALUES[key]
    if "weight_decay_mode" in given:
        assert arguments["weight_decay_mode"] == WeightDecayMode.L2.value


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_a_cpu_has_the_state_of_a_gpu(name, device):
    states = kernel(name, *device).get_optimizer_state()
    assert [value.dim() for state in states for value in state.values()] == SLOTS[name]


def test_every_optimizer_has_its_options():
    assert TABLE_OPTIMIZERS.keys() == TABLE_OPTIONS.keys()


def look_up(built, gradient):
    """Looks up rows 3 (twice), 5 and 3, 7 in two bags, and sends a gradient back."""
    indices, offsets = torch.tensor([3, 3, 5, 3, 7]), torch.tensor([0, 3, 5])
    built(indices=indices, offsets=offsets).backward(gradient)


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_untouched_rows_stay_as_they_are(name):
    built = kernel(name, *CPU, **({"weight_decay": 0.1} if "weight_decay" in TABLE_OPTIONS[name] else {}))
    built.init_embedding_weights_uniform(-1, 1)
    (weights,) = built.split_embedding_weights()
    before = weights.clone()
    look_up(built, torch.randn(2, 8))
    moved = (weights != before).any(1)
    assert moved.nonzero().flatten().tolist() == [3, 5, 7]
    for state in built.get_optimizer_state():
        for value in state.values():
            assert value.view(10, -1).any(1).nonzero().flatten().tolist() == [3, 5, 7]


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_tables_that_are_updated_together_are_as_by_themselves(name, monkeypatch):
    found = []
    for together_bytes in (0, table_kernels.TOGETHER_BYTES):
        monkeypatch.setattr(table_kernels, "TOGETHER_BYTES", together_bytes)
        torch.manual_seed(0)
        built = kernel(name, *CPU, rows=(10, 20, 30))
        built.init_embedding_weights_uniform(-1, 1)
        indices, offsets = torch.tensor([3, 3, 5, 7, 19, 3, 0, 29]), torch.tensor([0, 2, 4, 6, 6, 7, 8])
        built(indices=indices, offsets=offsets).backward(torch.randn(2, 3 * 8))
        states = [value for state in built.get_optimizer_state() for value in state.values()]
        found.append([*built.split_embedding_weights(), *states])
    assert all(torch.equal(alone, together) for alone, together in zip(*found, strict=True))


@pytest.mark.parametrize("weights", [None, torch.ones(256)], ids=["plain", "weighted"])
def test_single_ids_update_rows_as_in_float64(weights):
    """Row-wise Adagrad from its formula, over tables whose rows come several times in a batch."""
    torch.manual_seed(0)
    rows, samples = (10, 2, 30, 7), 64
    built = kernel("rowwise_adagrad", *CPU, rows=rows, eps=1e-3)
    built.init_embedding_weights_uniform(-1, 1)
    before = [weight.double() for weight in built.split_embedding_weights()]
    ids, gradient = [torch.randint(some, (samples,)) for some in rows], torch.randn(samples, 8 * len(rows))
    offsets = torch.arange(samples * len(rows) + 1)
    built(indices=torch.cat(ids), offsets=offsets, per_sample_weights=weights).backward(gradient)
    for table, weight in enumerate(built.split_embedding_weights()):
        of_table = gradient[:, 8 * table : 8 * (table + 1)].double()
        summed = torch.zeros(rows[table], 8, dtype=torch.float64).index_add(0, ids[table], of_table)
        expected = before[table] - 0.25 * summed / (summed.square().mean(1).sqrt() + 1e-3)[:, None]
        torch.testing.assert_close(weight.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights_of", [0.0, 0.5])
@pytest.mark.parametrize("name", ["lamb", "partial_rowwise_lamb", "lars_sgd"])
def test_zero_gradients_and_zero_rows_give_no_nan(name, weights_of):
    built = kernel(name, *CPU)
    (weights,) = built.split_embedding_weights()
    weights.fill_(weights_of)
    look_up(built, torch.zeros(2, 8))
    assert torch.equal(weights, torch.full_like(weights, weights_of))
    look_up(built, torch.ones(2, 8))
    assert weights.isfinite().all()
    assert (weights[[3, 5, 7]] < weights_of).all()


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_a_rank_without_rows_gives_zeros(name):
    """A rank has none of a table that has fewer rows than there are ranks."""
    pooled = kernel(name, *CPU, rows=(0,))(indices=torch.empty(0, dtype=torch.int64), offsets=torch.tensor([0, 0, 0]))
    assert torch.equal(pooled, torch.zeros(2, 8))
    pooled.sum().backward()


@pytest.mark.parametrize("name", ["adam", "lamb", "partial_rowwise_adam", "partial_rowwise_lamb"])
def test_evaluations_are_no_steps(name):
    """FBGEMM counts forward passes for the bias correction of Adam and LAMB."""
    found = []
    for evaluations in (0, 3):
        built = kernel(name, *CPU)
        (weights,) = built.split_embedding_weights()
        weights.fill_(0.5)
        for step in (1, 2):
            with torch.no_grad():
                for _ in range(evaluations):
                    built(indices=torch.tensor([1]), offsets=torch.tensor([0, 1]))
            built.set_steps_taken(step - 1)
            look_up(built, torch.ones(2, 8))
        found.append(weights.clone())
    assert torch.equal(*found)


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_tables_of_half_precision_are_rounded_to_nearest(name):
    torch.manual_seed(0)
    gradient, start = torch.randn(2, 8), torch.rand(10, 8).half()
    found = []
    for precision in (SparseType.FP32, SparseType.FP16):
        built = kernel(name, *CPU, precision)
        (weights,) = built.split_embedding_weights()
        weights.copy_(start)
        look_up(built, gradient)
        found.append((weights, built.get_optimizer_state()))
    (exact, expected), (rounded, states) = found
    assert rounded.dtype == torch.float16
    assert torch.equal(rounded, exact.half())
    values = [value for state in expected for value in state.values()]
    assert len(values) == len(SLOTS[name])
    for found, value in zip((value for state in states for value in state.values()), values, strict=True):
        torch.testing.assert_close(found, value)


@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_samples_of_weight_zero_are_refused_where_they_give_nan(name):
    weighted = Config.model_validate(config("nowhere", data__weight="w", optimizer__tables={"s2": {"name": name}}))
    check_table_optimizers(weighted, "cpu")
    check_table_optimizers(Config.model_validate(config("nowhere", optimizer__tables={"s2": {"name": name}})), "cuda")
    if name in ("lamb", "partial_rowwise_lamb", "lars_sgd"):
        with pytest.raises(InputError, match=f"^data.weight is 'w', but '{name}', the optimizer of table 's2'"):
            check_table_optimizers(weighted, "cuda")
    else:
        check_table_optimizers(weighted, "cuda")
