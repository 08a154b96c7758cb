"""The topology to plan for: memory and bandwidths from the configuration, the named hardware or this machine."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torchrec.distributed.planner.constants import HBM_MEM_BW, HBM_TO_DDR_MEM_BW

from torchx_recsys.planner.hardware import A100, GIB, HOSTS, Host
from torchx_recsys.planner.topology import (
    ACHIEVED,
    SYSTEMS,
    Speeds,
    System,
    Topology,
    cpu_speeds,
    data_sheet_speeds,
    speeds_of,
)
from trainer.config.data import DataConfig
from trainer.config.plan import CommsConfig, PlannerConfig
from trainer.config.train import TrainConfig
from trainer.plan.communication import BYTES_PER_VALUE
from trainer.plan.measurements import load_calibration

GB_PER_SECOND = 1e9 / 1e3  # in bytes per millisecond, the planner's unit of bandwidth
# Bandwidths of hardware without figures: the defaults of TorchRec's planner.
UNKNOWN_HARDWARE = {
    "intra_node_gb_per_second": 600.0,
    "inter_node_gb_per_second": 12.5,
    "hbm_gb_per_second": HBM_MEM_BW / GB_PER_SECOND,
}


def host_memory_bytes(
    groups: Path = Path("/proc/self/cgroup"), hierarchy: Path = Path("/sys/fs/cgroup"), machine: int | None = None
) -> int:
    """Returns the memory that processes may use here: the machine's, or the lowest limit of their control groups.

    Args:
        groups: The kernel's list of this process's control groups.
        hierarchy: Mount point of the control groups, version 1 or 2.
        machine: The machine's memory; None to read it from the kernel.
    """
    machine = machine or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(groups, hierarchy)])


def _limits(groups: Path, hierarchy: Path) -> Iterator[int]:
    """Yields the memory limits of this process's control group and of its parents, up to the root that it can see."""
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            group, name = hierarchy / path.lstrip("/"), "memory.max"
        elif "memory" in controllers.split(","):
            group, name = hierarchy / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        else:
            continue
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # no such file, or no limit: "max"
                yield int((folder / name).read_text())


def topology_to_plan_for(
    data: DataConfig,
    config: PlannerConfig,
    comms: CommsConfig,
    train: TrainConfig,
    world_size: int,
    local_world_size: int,
    device_type: str,
) -> Topology:
    """Returns the topology to plan for: all memory of the ranks, and the bandwidths."""
    config = _with_hardware(config, local_world_size)
    host = int(config.host_memory_gib * GIB) if config.host_memory_gib else host_memory_bytes() // local_world_size
    on_gpu = device_type != "cpu"
    bandwidths = {key: getattr(config, key) * GB_PER_SECOND for key in UNKNOWN_HARDWARE}
    sizes = BYTES_PER_VALUE[comms.forward], BYTES_PER_VALUE[comms.backward]
    speeds, source, system = _speeds(config, train, on_gpu, bandwidths)
    return Topology(
        ranks=world_size,
        per_host=local_world_size,
        on_gpu=on_gpu,
        gpu_bytes=int(_gpu_memory_bytes(config)) if on_gpu else 0,
        host_bytes=host,
        gpu_bandwidth=bandwidths["hbm_gb_per_second"],
        pcie_bandwidth=HBM_TO_DDR_MEM_BW,
        batch_size=data.global_batch_size // world_size,
        bytes_of_value=None if comms.forward == comms.backward == "fp32" else sizes * 2,
        speeds=speeds,
        speeds_source=source,
        system=system,
    )


def _speeds(
    config: PlannerConfig, train: TrainConfig, on_gpu: bool, bandwidths: dict[str, float]
) -> tuple[Speeds, str, System | None]:
    """Returns the speeds to plan by, their source, and the system that reaches them, if any."""
    if config.calibration:
        calibration = load_calibration(config.calibration, "cuda" if on_gpu else "cpu")
        return calibration.speeds, calibration.source, None
    inter = bandwidths["inter_node_gb_per_second"]
    if not on_gpu:
        return cpu_speeds(inter), "of a usual CPU, not measured", None
    intra, memory = bandwidths["intra_node_gb_per_second"], bandwidths["hbm_gb_per_second"]
    host, system = host_of(config), SYSTEMS[config.system]
    gpu = host.gpu if host and host.gpu else A100  # the slowest GPU with known figures
    flops = 1e12 * gpu.tflops("tf32" if train.tf32 and train.precision == "fp32" else train.precision)
    speeds = speeds_of(system, data_sheet_speeds(memory, intra, inter, flops))
    sheet = f"{ACHIEVED:.0%} of {config.hardware or 'TorchRec'}'s data sheet, not measured"
    return speeds, f"{sheet}; for {system.assumption}", system


def _with_hardware(config: PlannerConfig, local_world_size: int) -> PlannerConfig:
    """Returns the planner's section with unset figures filled in from the hardware, else from TorchRec's defaults."""
    figures: dict[str, float | None] = dict(UNKNOWN_HARDWARE)
    if host := host_of(config):
        figures |= {"host_memory_gib": host.memory_gib / local_world_size}
        figures |= (
            {"inter_node_gb_per_second": host.network_gb_per_second_per_gpu} if host.network_gb_per_second else {}
        )
        if host.gpu:
            figures |= {"memory_gib": host.gpu.memory_gib, "hbm_gb_per_second": host.gpu.hbm_gb_per_second}
            figures |= {"intra_node_gb_per_second": host.gpu.nvlink_gb_per_second}
    return config.model_copy(update={key: value for key, value in figures.items() if getattr(config, key) is None})


def host_of(config: PlannerConfig) -> Host | None:
    """Returns the kind of host to plan for; None for this machine."""
    return HOSTS[config.hardware] if config.hardware else None


def _gpu_memory_bytes(config: PlannerConfig) -> float:
    return config.memory_gib * GIB if config.memory_gib else torch.cuda.get_device_properties(0).total_memory
