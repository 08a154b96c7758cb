"""Costs and memory of thousands of random options equal those of TorchRec's own estimators."""

import numpy as np
import pytest
import torch
from planning import topology_of
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator, EmbeddingStorageEstimator
from torchrec.distributed.planner.types import HardwareConfig, KernelConfig, TopologyFactory, TrainerConfig
from torchrec.distributed.types import CacheParams
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from benchmarks.torchrec_estimate import Bandwidths, costs, shard_bytes
from torchx_recsys.planner.shard_memory import sum_of_shards
from torchx_recsys.planner.tables import CACHED, KERNELS, KINDS, Table, all_options
from trainer.config.plan import CommsConfig
from trainer.plan.sharding import SequenceSharder, Sharder

pytestmark = pytest.mark.more("compares with TorchRec, and tests no promise")

CLUSTERS = [(1, 1), (4, 4), (16, 8), (64, 8), (6, 2)]
OF_SEQUENCES = ("table_wise", "row_wise", "column_wise")


def random_tables(seed, pooled):
    random = np.random.default_rng(seed)
    return [
        Table(
            name=f"t{number}",
            rows=int(10 ** random.uniform(0, 6)),
            columns=int(random.choice([8, 24, 32, 64, 96, 128, 256])),
            hotness=tuple(random.choice([0.3, 1.0, 1.7, 12.0], size=random.integers(1, 4))),
            is_pooled=pooled,
            value_bytes=int(random.choice([2, 4])),
            state_per_value=0,
            state_per_row=0,
            averages_per_value=0,
            averages_per_row=0,
            kinds=KINDS if pooled else OF_SEQUENCES,
            kernels=(),
            min_columns=8,
        )
        for number in range(4)
    ]


def by_torchrec(table, topology, comms, option):
    """Returns cost and memory of every shard of an option as TorchRec's enumerator finds them."""
    kind, kernel, columns, cached = option
    constraint = ParameterConstraints(
        sharding_types=[KINDS[kind]],
        compute_kernels=[KERNELS[kernel]],
        min_partition=int(columns),
        pooling_factors=list(table.hotness),
        cache_params=CacheParams(load_factor=float(cached)) if kernel == CACHED else None,
    )
    settings = {
        "name": table.name,
        "num_embeddings": table.rows,
        "embedding_dim": table.columns,
        "feature_names": [f"f{number}" for number in range(len(table.hotness))],
        "data_type": DataType.FP32 if table.value_bytes == 4 else DataType.FP16,
    }
    if table.is_pooled:
        module = EmbeddingBagCollection([EmbeddingBagConfig(**settings)], device=torch.device("meta"))
        sharder = Sharder(comms)
    else:
        module = EmbeddingCollection([EmbeddingConfig(**settings)], device=torch.device("meta"))
        sharder = SequenceSharder(comms)
    of_torchrec = TopologyFactory.create_topology(
        TrainerConfig(world_size=topology.ranks, local_world_size=topology.per_host),
        HardwareConfig(
            hbm_cap_bytes=2**36,
            ddr_cap_bytes=2**37,
            hbm_mem_bw=topology.gpu_bandwidth,
            ddr_mem_bw=topology.host_bandwidth,
            hbm_to_ddr_mem_bw=topology.pcie_bandwidth,
            intra_host_bw=topology.intra_bandwidth,
            inter_host_bw=topology.inter_bandwidth,
        ),
        KernelConfig(compute_device="cuda" if topology.on_gpu else "cpu", use_hardware_based_bandwidth=True),
    )
    constraints = {table.name: constraint}
    estimators = [EmbeddingPerfEstimator(of_torchrec, constraints), EmbeddingStorageEstimator(of_torchrec, constraints)]
    enumerator = EmbeddingEnumerator(of_torchrec, topology.batch_size, constraints, estimators)
    (found,) = enumerator.enumerate(torch.nn.ModuleDict({"tables": module}), [sharder])
    return found.shards


@pytest.mark.sample(12)
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize(("forward", "backward", "sizes"), [("fp32", "fp32", None), ("fp16", "bf16", (2, 2, 2, 2))])
@pytest.mark.parametrize(("number", "per_host"), CLUSTERS)
@pytest.mark.parametrize("on_gpu", [True, False])
def test_costs_and_memory_equal_torchrecs(on_gpu, number, per_host, forward, backward, sizes, pooled):
    topology = Bandwidths.of(
        topology_of(number, per_host, on_gpu=on_gpu, batch_size=517, bytes_of_value=sizes),
        host_bandwidth=5.1e7,
        intra_bandwidth=4.5e8,
        inter_bandwidth=5e7,
    )
    comms = CommsConfig(forward=forward, backward=backward)
    tables = random_tables(number + on_gpu, pooled)
    options = all_options(tables, topology)
    found, largest = (estimate(options, tables, topology) for estimate in (costs, shard_bytes))
    total = sum_of_shards(options, tables, topology, shard_bytes)
    for index in range(len(options)):
        option = tuple(getattr(options, key)[index] for key in ("kind", "kernel", "columns", "cached"))
        shards = by_torchrec(tables[options.table[index]], topology, comms, option)
        perf = shards[0].perf
        expected = [perf.fwd_compute, perf.fwd_comms, perf.bwd_compute, perf.bwd_comms]
        np.testing.assert_allclose(found[index], expected, rtol=1e-12, err_msg=str(option))
        assert len(shards) == options.shards[index]
        memory = np.array([[shard.storage.hbm, shard.storage.ddr] for shard in shards])
        np.testing.assert_allclose(largest[index], memory.max(axis=0), rtol=0, atol=8, err_msg=str(option))
        np.testing.assert_allclose(total[index], memory.sum(axis=0), rtol=0, atol=8 * len(shards), err_msg=str(option))
