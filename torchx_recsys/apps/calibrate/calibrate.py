"""Measures the speeds of a kind of host, and writes them to a file for the planner.

python -m trainer calibrate --out host.toml
torchx run tools.calibrate --out host.toml -j 1x8
"""

import contextlib
import datetime
import io
import platform
import re
import statistics
from dataclasses import asdict, fields
from pathlib import Path

import torch
from tabulate import tabulate

from torchx_recsys.apps.calibrate.exchanges import exchange_speeds
from torchx_recsys.apps.calibrate.steps import step_speeds
from torchx_recsys.apps.calibrate.tables import input_speeds, replicated_speed, table_speeds
from torchx_recsys.planner.topology import Speeds, cpu_speeds, data_sheet_speeds
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all, process_group
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import refuse_existing
from trainer.plan.measurements import Calibration, save_calibration
from trainer.plan.topology import GB_PER_SECOND, UNKNOWN_HARDWARE

MIB = 2**20
# On an H100, kernels of 2,048 samples end before the next one is launched: bytes and operations seem to cost nothing.
BATCH_SIZES = {"cpu": 2048, "cuda": 65536}
# The printed unit of each figure, and that unit in nanoseconds.
UNITS = {"step": ("ms", 1e6), "flop": ("ps", 1e-3), "batched_flop": ("ps", 1e-3)}


def calibrate(
    out: str = "host.toml",
    scratch: str = "runs/calibrate",
    batch_size: int | None = None,
    table_mib: int = 256,
    exchange_mib: int = 8,
    repeats: int = 20,
    overwrite: bool = False,
) -> None:
    """Measures this kind of host, and writes a file for planner.calibration.

    Measures lookups by bag and by byte, updates by id, by row and by byte, the sorting of ids, the update of replicated
    tables, the operations of dense parts, the rest of a step, and the reading of data; with two ranks or more also
    exchanges between ranks, and with two hosts or more exchanges between hosts. On a CPU the measure is processor
    time. All ranks measure at once, as they train; a figure is the median of theirs.

    Args:
        out: File to write, any fsspec URL.
        scratch: Directory for a small data set and a run, which are removed; all hosts must share it.
        batch_size: Samples of a rank in a step. Unset: 2048; on a GPU 65536.
        table_mib: Memory of the tables that are measured, per rank: more than the caches hold.
        exchange_mib: Size of what ranks exchange.
        repeats: Runs of everything.
        overwrite: Replace a file that exists.

    Raises:
        InputError: An argument is out of range, or a file cannot be written.
    """
    sizes = {"batch_size": batch_size, "table_mib": table_mib, "exchange_mib": exchange_mib, "repeats": repeats}
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}; it must be 1 or more")
    with process_group() as context:
        broadcast_from_rank0(context, lambda: refuse_existing({"--out": out}, overwrite))
        batch_size = batch_size or BATCH_SIZES[context.device.type]
        measured = table_speeds(batch_size, table_mib * MIB, context.device, repeats)
        measured |= input_speeds(batch_size, context.device, repeats)
        measured |= replicated_speed(table_mib * MIB, context.device, repeats)
        measured |= exchange_speeds(exchange_mib * MIB, context, repeats)
        assumed = _assumed(context)
        speeds = _median_speeds(assumed | measured, context)
        with contextlib.redirect_stdout(io.StringIO()):
            of_steps, samples_per_second = step_speeds(speeds, scratch, batch_size, context, repeats)
        speeds = _median_speeds(asdict(speeds) | of_steps, context)
        lacking = sorted(assumed.keys() - measured.keys() - of_steps.keys())
        calibration = _describe(speeds, samples_per_second, lacking, context)
        broadcast_from_rank0(context, lambda: save_calibration(calibration, out))
        if context.is_rank0:
            print(_render(calibration))
            print(f"\nwritten to {without_secrets(out)}; plan with it: --planner.calibration {without_secrets(out)}")


def _assumed(context: DistributedContext) -> dict[str, float]:
    """Returns the speeds that plans use without a calibration, for speeds that are not measured."""
    inter, intra, memory = (
        UNKNOWN_HARDWARE[f"{link}_gb_per_second"] * GB_PER_SECOND for link in ("inter_node", "intra_node", "hbm")
    )
    on_gpu = context.device.type != "cpu"
    return asdict(data_sheet_speeds(memory, intra, inter) if on_gpu else cpu_speeds(inter))


def _median_speeds(speeds: dict[str, float], context: DistributedContext) -> Speeds:
    of_ranks = gather_to_all(speeds, context)
    return Speeds(**{one.name: statistics.median(rank[one.name] for rank in of_ranks) for one in fields(Speeds)})


def _describe(
    speeds: Speeds, samples_per_second: float, assumed: list[str], context: DistributedContext
) -> Calibration:
    on_gpu = context.device.type != "cpu"
    return Calibration(
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        host=platform.node(),
        processor=torch.cuda.get_device_name(context.device) if on_gpu else processor_name(),
        device="cuda" if on_gpu else "cpu",
        ranks=context.world_size,
        input_samples_per_second=samples_per_second,
        assumed=assumed,
        speeds=speeds,
    )


def processor_name() -> str:
    """Returns the model name of the host's processor."""
    # platform.processor() returns the architecture on Linux, and psutil does not know the model.
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return model[1] if model else platform.machine()


def _render(calibration: Calibration) -> str:
    """Returns a table of the speeds, to print."""
    rows = []
    for name, value in asdict(calibration.speeds).items():
        unit, size = UNITS.get(name, ("ns", 1.0))
        source = "assumed" if name in calibration.assumed else "measured"
        rows.append([name.replace("_", " "), f"{value / size:.3g}", unit, source])
    rows.append(["reading", f"{calibration.input_samples_per_second:,.0f}", "samples/s", "measured"])
    return tabulate(rows, ["of one", "time", "unit", ""], disable_numparse=True)
