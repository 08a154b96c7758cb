"""Configuration of sharding plans and of communication between ranks."""

from typing import Annotated, ClassVar, Literal

import pydantic

from trainer.core.section import MayChange, Section

GibiBytes = Annotated[float, pydantic.Field(gt=0, le=1e9)]
Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8", "mx4"]


class CommsConfig(Section):
    """Precision of embeddings that ranks exchange; fp8 needs GPUs."""

    forward: Annotated[Precision, MayChange] = "fp32"
    """Precision of pooled embeddings."""
    backward: Annotated[Precision, MayChange] = "fp32"
    """Precision of their gradients."""


class TablePlan(Section):
    """Choices of the planner for one table; an empty list allows all."""

    sharding_types: Annotated[list[str], MayChange] = []
    """Sharding types to choose from."""
    compute_kernels: Annotated[list[str], MayChange] = []
    """Compute kernels to choose from, of dense, fused, fused_uvm and fused_uvm_caching."""


class PlannerConfig(Section):
    """The sharding plan: placement of tables on ranks."""

    former: ClassVar = {
        "engine": ("search", "but this version has one planner; leave it out, or name a plan.json in planner.plan"),
        "cost_model": ("step", "but this version forecasts times by work and speeds alone; leave it out"),
    }

    mode: Annotated[Literal["model_parallel", "data_parallel"], MayChange] = "model_parallel"
    """model_parallel shards the tables as planned, data_parallel replicates all of them."""
    calibration: Annotated[str | None, MayChange] = None
    """File of tools.calibrate with speeds of the host. Unset: data sheets', or a usual CPU's."""
    system: Annotated[Literal["torchrec", "hugectr"], MayChange] = "torchrec"
    """System to forecast times for on GPUs without a calibration: this trainer on TorchRec, or HugeCTR."""
    statistics: Annotated[str | None, MayChange] = None
    """JSON file with hotness, Zipf exponent and distinct ids of every sparse feature, which replace those in data."""
    plan: Annotated[str | None, MayChange] = None
    """A plan.json to use instead of planning, with its ranks and kernels."""
    sharding_types: Annotated[list[str], MayChange] = []
    """Sharding types to choose from for every table. Empty: all, but column shards only without row-wise state."""
    compute_kernels: Annotated[list[str], MayChange] = []
    """Compute kernels to choose from for every table, as in planner.tables.NAME. Empty: all that the device has."""
    tables: dict[str, TablePlan] = {}
    """Choices for single tables, by table name; they replace the choices for all."""
    min_columns: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Least columns of a column shard. Unset: 32."""
    slower_for_memory: Annotated[float, MayChange] = pydantic.Field(default=0.0, ge=0, le=10)
    """How much slower a plan may be to need less memory on the fullest rank: 0.1 for a tenth. 0: the fastest plan."""
    hardware: Annotated[str | None, MayChange] = None
    """Host to plan for, such as h100 (docs/reference/resources.md); sets the unset keys below. Unset: this machine."""
    memory_gib: Annotated[GibiBytes | None, MayChange] = None
    """GPU memory per rank in GiB. Unset: the hardware's, or what the device has."""
    host_memory_gib: Annotated[GibiBytes | None, MayChange] = None
    """Host memory per rank in GiB. Unset: the hardware's, or this machine's or cgroup's, divided by its ranks."""
    reserve: Annotated[float | None, MayChange] = pydantic.Field(default=None, ge=0, lt=1)
    """Fraction of the memory to keep free beside the forecast. Unset: 0.05."""
    intra_node_gb_per_second: Annotated[pydantic.PositiveFloat | None, MayChange] = None
    """Bandwidth between two ranks of a node, in GB/s. Unset: the hardware's, or 600."""
    inter_node_gb_per_second: Annotated[pydantic.PositiveFloat | None, MayChange] = None
    """Bandwidth from a rank to other nodes, in GB/s. Unset: the hardware's, or 12.5."""
    hbm_gb_per_second: Annotated[pydantic.PositiveFloat | None, MayChange] = None
    """Bandwidth of GPU memory, in GB/s. Unset: the hardware's, or TorchRec's 963."""
