"""Tables that cannot be averaged are refused."""

import pytest
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

from trainer.core.errors import InputError
from trainer.optim.averages import check_kernels


def plan(kernel):
    tables = {"user%2Eid": ParameterSharding("table_wise", "fused"), "item": ParameterSharding("table_wise", kernel)}
    return ShardingPlan({"collection": EmbeddingModuleShardingPlan(tables)})


@pytest.mark.parametrize("kernel", ["fused", "fused_uvm", "dense"])
def test_rows_that_are_seen_can_be_averaged(kernel):
    check_kernels(plan(kernel))


@pytest.mark.parametrize("kernel", ["fused_uvm_caching", "key_value"])
def test_rows_in_a_cache_cannot(kernel):
    with pytest.raises(InputError, match=f"optimizer.ema.tables is true, but table 'item' has .* '{kernel}'"):
        check_kernels(plan(kernel))
