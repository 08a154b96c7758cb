"""Measures which costs grow with the number of ranks, up to 4,096, without these ranks.

Writes docs/explanation/scale.md.
Takes five minutes.

Calls the functions of the trainer, the planner and DCP with the number of ranks as an argument, and counts the bytes
sent. Only the collectives run between processes, few of which fit on one machine.
"""

import gc
import json
import logging
import multiprocessing
import os
import pickle
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.tensorboard import SummaryWriter
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

from benchmarks.machine import describe_machine
from benchmarks.planners import Tables
from benchmarks.published import mlperf
from docs.generate import ROOT, table, write_measured
from torchx_recsys.planner.hardware import Cluster
from trainer.checkpoint.reader import CheckpointReader
from trainer.checkpoint.retention import expired
from trainer.checkpoint.store import Checkpoints, entry_of, find_damage
from trainer.config.plan import CommsConfig
from trainer.config.root import Config
from trainer.config.train import Retention
from trainer.core.distributed import DistributedContext
from trainer.core.run_directory import JsonLines, RunDirectory
from trainer.data.dataset import FileSet
from trainer.data.epoch_order import Lanes, default_lanes, ends_of, epoch_order, share_of, windows
from trainer.data.file_outlines import COLUMNS, Outlines
from trainer.data.files import DataFiles
from trainer.extensions.managed_ids.blocks import Blocks
from trainer.extensions.managed_ids.exchange import Exchange, IdRequests
from trainer.extensions.managed_ids.row_map import RowMap
from trainer.extensions.preflight import partners
from trainer.metrics.base import Samples
from trainer.metrics.binary import LogitHistogram
from trainer.models.embeddings import table_shapes
from trainer.plan.make_plan import plan_for
from trainer.plan.plan_file import parse_plan, plan_to_json
from trainer.plan.sharding import Unwrapped, sharders
from trainer.plan.sharding_plan import render_plan
from trainer.run.preemption import StopRequests

PAGE = ROOT / "docs" / "explanation" / "scale.md"
RANKS = (1, 4, 16, 64, 256, 1024, 4096)
SHOWN = (1, 64, 1024, 4096)  # the columns of the page: where the fit begins, the limits, and the ends
PROCESSES = (2, 4, 8, 16, 32)  # numbers of real processes that exchange data, all on this machine
LARGE = 64  # the exponent is fitted from here on, or over the larger half of the processes
AT = 1024  # the number of ranks for which the limits hold
PER_HOST = 8
ROW_GROUPS, GROUP_ROWS, WINDOW_ROWS = 100_000, 10_000, 65_536
LOCAL_BATCH = 1024
TABLES, SHARDS = 500, 200  # tables of a checkpoint, and shards of each: 100,000 shards
DENSE_TENSORS = 60  # number of weights and states of a dense part, which each rank has
CHECKPOINTS, MANY_CHECKPOINTS, MANY_FILES = 50, 10_000, 1_000_000
MANAGED_ROWS, MAP_ROWS = 10_000_000, 1_000_000_000  # rows of the table of managed ids, and of the largest table
MAP_BYTES = 24 + 12  # bytes of a row: its state, and its entry in the sorted ids
SECONDS, BYTES, COUNT = "s", "B", ""
START_SECONDS, STEP_SECONDS, SENT_BYTES, SQUARE = 60.0, 0.0002, 2**20, 1.7


@dataclass(frozen=True)
class Row:
    """A quantity that may grow with the number of ranks.

    Attributes:
        phase: The phase of a job, or `step`.
        name: The measured quantity.
        unit: Seconds, bytes, or a count.
        measure: Returns the value for a number of ranks.
        ranks: The numbers of ranks.
        sent: Whether the bytes are one object that is pickled for all ranks.
    """

    phase: str
    name: str
    unit: str
    measure: Callable[[int], float]
    ranks: tuple[int, ...] = RANKS
    sent: bool = False


@dataclass
class Measured:
    """The values of a row by number of ranks."""

    row: Row
    values: dict[int, float] = field(default_factory=dict)

    @property
    def exponent(self) -> float | None:
        """The slope of the logarithms over the larger numbers of ranks; None if values are too small or too few."""
        points = {n: value for n, value in self.values.items() if n >= min(LARGE, max(self.values) // 4)}
        if len(points) < 3 or min(points.values()) <= (1e-4 if self.row.unit == SECONDS else 0):
            return None
        slope, _ = np.polyfit(np.log([*points]), np.log([*points.values()]), 1)
        return float(slope)

    @property
    def over(self) -> str:
        """The limits that it exceeds."""
        value, found = self.values.get(AT, 0.0), []
        if self.row.unit == SECONDS and self.row.phase == "step" and max(self.values.values()) > STEP_SECONDS:
            found.append("1 % of a step of 20 ms")
        if self.row.unit == SECONDS and self.row.phase != "step" and value > START_SECONDS:
            found.append("60 s")
        if self.row.sent and value > SENT_BYTES:
            found.append("1 MiB to all ranks")
        if (self.exponent or 0) > SQUARE:
            found.append("square")
        return ", ".join(found)


def main() -> None:
    """Measures all rows and rewrites the tables."""
    torch.set_num_threads(1)
    collectives = of_processes()
    exchanged = [Measured(row, {n: found[row.name] for n, found in collectives.items()}) for row in collective_rows()]
    measured = [Measured(row) for row in rows()]
    for ranks in RANKS:
        measure(measured, ranks)
    write_measured(PAGE, "scale", render(measured, SHOWN))
    write_measured(PAGE, "processes", render(exchanged, PROCESSES))
    sizes = table(["What", "Size", "Value"], [[*one] for one in of_other_sizes()])
    machine = describe_machine()
    work = sum(one.values[AT] for one in measured if one.row.phase == "start" and one.row.unit == SECONDS)
    write_measured(
        PAGE,
        "sizes",
        f"{sizes}\n\nAll rows of seconds at the start together, at {AT:,} ranks: {shown(work, SECONDS)}. "
        f"{machine['cores']} cores ({machine['processor']}), torch {torch.__version__}.",
    )


def measure(measured: list[Measured], ranks: int) -> None:
    """Adds the values for a number of ranks."""
    for one in measured:
        if ranks in one.row.ranks:
            gc.freeze()  # otherwise collections examine the objects of earlier rows again and again
            one.values[ranks] = one.row.measure(ranks)
            print(ranks, one.row.phase, one.row.name, shown(one.values[ranks], one.row.unit), sep="  ", flush=True)
    gc.unfreeze()


def render(measured: list[Measured], ranks: tuple[int, ...]) -> str:
    """Returns a table with a column for each number of ranks."""
    lines = [
        [
            one.row.phase,
            one.row.name,
            *(shown(one.values[n], one.row.unit) if n in one.values else "" for n in ranks),
            "" if one.exponent is None else f"{round(one.exponent, 1) + 0:g}",
            one.over,
        ]
        for one in measured
    ]
    return table(["Phase", "What", *(f"{n:,}" for n in ranks), "Exponent", "Over"], lines)


def shown(value: float, unit: str) -> str:
    """Returns a value with three digits and a unit that fits."""
    scales = {
        SECONDS: ((1, "s"), (1e-3, "ms"), (1e-6, "µs")),
        BYTES: ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
        COUNT: ((1, ""),),
    }
    size, name = next((each for each in scales[unit] if value >= each[0]), scales[unit][-1])
    number = f"{value / size:,.0f}" if value / size >= 10 else f"{value / size:.2g}"
    return f"{number} {name}".strip()


def timed(act: Callable[[], object]) -> float:
    """Returns the seconds of a call, the best of three if it is short."""
    seconds = []
    while len(seconds) < 3 and sum(seconds) < 0.2:
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def once(act: Callable[[], object]) -> float:
    """Returns the seconds of a call whose result is kept for other rows."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def rows() -> list[Row]:
    """Returns the rows that are measured without processes."""
    return [
        Row("start", "order of an epoch, rank 0", SECONDS, lambda n: timed(lambda: order(n, 0))),
        Row("start", "order of an epoch, the last rank", SECONDS, lambda n: timed(lambda: order(n, n - 1))),
        Row("start", "rows that a rank decodes for each of its own, run begun on 8", COUNT, rows_decoded),
        Row("start", "files and row groups, pickled", BYTES, lambda _: apart(file_set())[0], sent=True),
        Row("start", "plan of MLPerf's tables", SECONDS, lambda n: once(lambda: planned("mlperf", n))),
        Row("start", "plan of 10 TB", SECONDS, lambda n: once(lambda: planned("10 TB", n))),
        Row("start", "plan of 10 TB, pickled", BYTES, lambda n: of_plan(n, pickled), sent=True),
        Row("start", "plan of 10 TB, plan.json", BYTES, lambda n: of_plan(n, lambda plan: len(plan_text(plan, n)))),
        Row("start", "plan of 10 TB, read from plan.json", SECONDS, read_plan),
        Row("start", "plan of 10 TB, printed", BYTES, lambda n: of_plan(n, lambda plan: len(printed(plan, n)))),
        Row("start", "sharders and DistributedModelParallel of 10 TB, tables without memory", SECONDS, sharded),
        Row("start", "partners in preflight", SECONDS, lambda n: timed(lambda: partners(hosts(n), n - 1))),
        Row("start", "notes of preflight, rank 0", SECONDS, read_notes),
        Row("start", "requests a second to rank 0's store in preflight", COUNT, lambda n: 20.0 * (n - 1)),
        Row("start", "requests to rank 0's store for each Gloo group", COUNT, lambda n: float(n * (n - 1))),
        Row("start", "open files of a rank for each Gloo group", COUNT, lambda n: float(n - 1)),
        Row("start", "managed ids: map of a rank for 10⁹ rows", BYTES, lambda n: MAP_BYTES * MAP_ROWS / n),
        Row("step", "managed ids: ids and rows received by a rank", BYTES, managed_bytes),
        Row("step", "managed ids: rows given by a rank", SECONDS, give_rows),
        Row("step", "messages in a row, for requests", COUNT, lambda n: 2.0 * (n - 1)),
        Row("step", "requests, this rank's own calls", SECONDS, calls_for_requests),
        Row("report", "all-reduces of 8 bytes", COUNT, lambda n: 2.0 if n > 1 else 0.0),
        Row("evaluation", "state of AUC of a rank", BYTES, lambda _: state_of_auc()),
        Row("save", "local plans gathered on rank 0", BYTES, lambda n: sum(map(pickled, local_plans(n)))),
        Row("save", "global plan, rank 0", SECONDS, lambda n: once(lambda: global_plan(n))),
        Row("save", ".metadata", BYTES, lambda n: pickled(metadata_of(n))),
        Row("save", "entries of files, received by each rank", BYTES, lambda n: n * pickled(entries(1)), sent=True),
        Row("save", "manifest, written", SECONDS, lambda n: in_folder(partial(commit, n))),
        Row(
            "save", f"deletion of old checkpoints, {CHECKPOINTS} kept", SECONDS, lambda n: in_folder(partial(list_, n))
        ),
        Row(
            "resume",
            "verification of a file for each rank, beside its bytes",
            SECONDS,
            lambda n: in_folder(partial(verify, n)),
        ),
        Row("resume", "shapes, received by rank 0", BYTES, lambda n: n * pickled(shapes())),
        Row("resume", ".metadata, read by a rank", SECONDS, lambda n: in_folder(partial(read_metadata, n))),
        Row("resume", "local plan of a rank", SECONDS, lambda n: timed(lambda: load_plan(n)), RANKS[2:]),
    ]


@cache
def file_set() -> FileSet:
    """Returns a data set of 10^9 rows in 1,000 files."""
    groups, files = ROW_GROUPS // 1000, range(1000)
    columns = {
        "url": [f"s3://bucket/train/part-{number:05d}.parquet" for number in files],
        "version": [f"{number:032x}" for number in files],
        "size": [2**30 for _ in files],
        "row_groups": [[GROUP_ROWS] * groups for _ in files],
        "index": [None for _ in files],
        "schema": [0 for _ in files],
    }
    schemas = (pa.schema([("label", pa.float32())]),)
    return FileSet(DataFiles.of(Outlines(pa.table(columns, COLUMNS), schemas)))


def order(ranks: int, rank: int) -> int:
    """Makes the order of an epoch as the loader of a rank does; returns the windows of the rank."""
    groups = file_set().row_groups
    lanes = Lanes(ROW_GROUPS * GROUP_ROWS, default_lanes(ranks), LOCAL_BATCH * default_lanes(ranks))
    found = epoch_order(groups, 0, 0, shuffle=True)
    ends = ends_of(found)
    slices = [lanes.row_slices(found, ends, lane) for lane in share_of(rank, ranks, lanes.lanes).lanes]
    return sum(len(list(windows(one, WINDOW_ROWS))) for one in slices)


def rows_decoded(ranks: int) -> float:
    """Returns the ratio of rows that a rank decodes to rows that it trains on, for a run that began on 8 ranks."""
    return float(share_of(0, ranks, default_lanes(8)).slices)


def pickled(value: object) -> int:
    """Returns the size of an object when it is sent."""
    return len(pickle.dumps(value))


def apart(value: object) -> tuple[int, int]:
    """Returns the bytes of an object that rank 0 sends to all ranks, and of the buffers that are sent beside it."""
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(value, 5, buffer_callback=buffers.append)
    return len(content), sum(one.raw().nbytes for one in buffers)


@lru_cache(2)
def planned(name: str, ranks: int) -> tuple[ShardingPlan, nn.Module]:
    """Returns the plan for so many H100, and its model."""
    config = Config.model_validate(mlperf() if name == "mlperf" else ten_terabytes())
    data = config.data.model_copy(update={"global_batch_size": LOCAL_BATCH * ranks})
    planner = config.planner.model_copy(update={"hardware": "h100", **unlimited(name, ranks)})
    config = config.model_copy(update={"data": data, "planner": planner})
    model = Tables(config)
    per_host = min(ranks, PER_HOST)
    return plan_for(model, config, Cluster("h100", ranks // per_host, per_host, on_gpu=True))[0], model


def ten_terabytes() -> dict[str, Any]:
    """Returns the configuration of a model of 10 TB."""
    sparse = {f"cat_{number}": {"rows": 40_000_000, "dimension": 128} for number in range(TABLES)}
    data = {"train": ["unread"], "dense": {"int_0": {}}, "sparse": sparse}
    return {"data": data, "model": {"embedding_dim": 128}, "optimizer": {"sparse": {"name": "rowwise_adagrad"}}}


def unlimited(name: str, ranks: int) -> dict[str, float]:
    """Returns enough memory to plan the model even on a few ranks."""
    least = {"mlperf": 300, "10 TB": 15_000}[name] / ranks
    return {"memory_gib": max(80.0, least)}


def of_plan(ranks: int, take: Callable[[Any], int]) -> int:
    """Returns a figure of the plan of 10 TB."""
    return take(planned("10 TB", ranks)[0])


def plan_text(plan: ShardingPlan, ranks: int) -> str:
    """Returns the content of plan.json."""
    return json.dumps(plan_to_json(plan, table_shapes(planned("10 TB", ranks)[1]), ranks), indent=2)


def printed(plan: ShardingPlan, ranks: int) -> str:
    """Returns the tables that a job prints."""
    return render_plan(plan, planned("10 TB", ranks)[1], ranks)


def read_plan(ranks: int) -> float:
    """Returns the seconds in which a rank reads a plan."""
    plan, model = planned("10 TB", ranks)
    text, shapes = plan_text(plan, ranks), table_shapes(model)
    return timed(lambda: parse_plan(text, "plan.json", shapes, ranks, min(ranks, PER_HOST), "cuda"))


def sharded(ranks: int) -> float:
    """Returns the seconds in which rank 0 places its shards of 10 TB, in its own process, as TorchRec keeps groups.

    Uses torch's fake group, which sends nothing; tables on the meta device take no memory.
    """
    plan, model = planned("10 TB", ranks)
    return in_child(partial(shard_tables, plan, model, ranks))


def shard_tables(plan: ShardingPlan, model: nn.Module, ranks: int) -> float:
    """As `sharded`, in this process."""
    logging.disable(logging.WARNING)
    os.environ["LOCAL_WORLD_SIZE"] = str(min(ranks, PER_HOST))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    return once(
        lambda: DistributedModelParallel(
            model,
            device=torch.device("meta"),
            plan=plan,
            sharders=sharders(CommsConfig()),
            data_parallel_wrapper=Unwrapped(),
            init_parameters=False,
        )
    )


def hosts(ranks: int) -> list[str]:
    """Returns the host of each rank."""
    return [f"node{rank // PER_HOST:04d}" for rank in range(ranks)]


def read_notes(ranks: int) -> float:
    """Returns the seconds in which rank 0 reads a note of each rank, as in preflight, from a store of this process."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for rank in range(ranks):
        store.set(f"host/{rank}", json.dumps(hosts(1)[0]))
    keys = [f"host/{rank}" for rank in range(ranks)]
    return timed(lambda: [store.get(key) for key in keys if store.check([key])])


@cache
def ids_of_rank(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the distinct ids of a rank's batch, and how often each occurs: 1,024 samples of 10 skewed ids."""
    return np.unique(np.random.default_rng(rank).zipf(1.2, 10 * LOCAL_BATCH).astype(np.int64), return_counts=True)


class RecordedExchange(Exchange):
    """Replaces an exchange by the messages that rank 0 would receive, computed from the known ids."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        blocks = Blocks.of_table(MANAGED_ROWS)
        found = [ids_of_rank(rank) for rank in range(ranks)]
        mine = [np.stack(one, 1)[blocks.part_of(one[0], ranks) == 0] for one in found]
        heads = np.array([[len(one), int(counts.sum()), 0, 0, 0] for one, (_, counts) in zip(mine, found, strict=True)])
        self._received = [heads, np.concatenate(mine)]
        self.bytes = 0

    def rows(self, sent: np.ndarray, to: np.ndarray | None = None, come: np.ndarray | None = None) -> np.ndarray:
        """Returns the next message."""
        received = self._received.pop(0) if self._received else np.zeros((int(come.sum()), 1), np.int64)  # pyrefly: ignore
        self.bytes += received.nbytes
        return received


def ask(exchange: Exchange) -> IdRequests:
    """Returns the requests for ids of a step on rank 0, which has its first blocks."""
    blocks = Blocks.of_table(MANAGED_ROWS)
    ids = np.repeat(*ids_of_rank(0))
    return IdRequests(exchange, [ids], [lambda one: blocks.part_of(one, exchange.ranks)], np.zeros(3, np.int64))


def managed_bytes(ranks: int) -> int:
    """Returns the bytes of ids and rows that a rank receives in a step."""
    exchange = RecordedExchange(ranks)
    requests = ask(exchange)
    requests.rows([np.zeros(len(ids), np.int64) for ids, _ in requests.arrived])
    return exchange.bytes


def give_rows(ranks: int) -> float:
    """Returns the seconds in which a rank gives rows to the ids of a step that it is asked for, half of them new."""
    one, exchange = RowMap(Blocks.of_table(MANAGED_ROWS), "least_used", 0, ranks), RecordedExchange(ranks)
    ids, counts = ask(RecordedExchange(ranks)).arrived[0]
    one.update(ids[::2], counts[::2], 1, int(counts.sum()))

    def step() -> None:
        requests = ask(exchange)
        one.update(*requests.arrived[0], 2, int(requests.seen[0]))
        requests.rows([one.rows_of(requests.arrived[0][0])])

    return once(step)


def calls_for_requests(ranks: int) -> float:
    """Returns the seconds of the calls of a step, without the messages, in torch's group that sends none."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        context = DistributedContext(0, ranks, 0, min(ranks, PER_HOST), torch.device("cpu"))
        with patch("trainer.run.preemption.background_group", lambda _: dist.group.WORLD):  # Gloo would wait for others
            requests = StopRequests(context)
        calls = 1000
        return timed(lambda: [requests.all_reduce() for _ in range(calls)]) / calls
    finally:
        dist.destroy_process_group()


def state_of_auc() -> int:
    """Returns the bytes of the state of AUC after a million predictions."""
    histogram = LogitHistogram(torch.device("cpu"))
    logits = torch.randn(2**20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = (logits > 0).double()
    histogram.add(Samples(logits, labels, torch.ones_like(labels), logits.float(), None))
    histogram.add(Samples(logits, labels, torch.ones_like(labels), logits.float(), None))
    return pickled(histogram._bins)


PROPERTIES = TensorProperties(dtype=torch.float32)
Shape = tuple[int, int]


def shard_item(name: str, number: int, rows: int, columns: int, shards: int) -> WriteItem:
    """Returns the item of DCP for one of a table's row shards."""
    chunk = ChunkStorageMetadata(torch.Size([number * rows, 0]), torch.Size([rows, columns]))
    data = TensorWriteData(chunk, PROPERTIES, torch.Size([rows * shards, columns]))
    return WriteItem(MetadataIndex(name, chunk.offsets, 0), WriteItemType.SHARD, tensor_data=data)


@lru_cache(1)
def local_plans(ranks: int) -> list[SavePlan]:
    """Returns the save plan of each rank for 100,000 shards, dealt out in turn, and the dense part."""
    items: list[list[WriteItem]] = [[] for _ in range(ranks)]
    for number in range(TABLES * SHARDS):
        name, place = table_name(number // SHARDS), number % SHARDS
        items[number % ranks].append(shard_item(name, place, 200_000, 128, SHARDS))
    dense = [
        WriteItem(
            MetadataIndex(f"dense.over.{number}.weight", torch.Size([0, 0])),
            WriteItemType.TENSOR,
            tensor_data=TensorWriteData(
                ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([512, 512])), PROPERTIES, torch.Size([512, 512])
            ),
        )
        for number in range(DENSE_TENSORS)
    ]
    return [SavePlan([*of_rank, *dense]) for of_rank in items]


def table_name(number: int) -> str:
    """Returns the name of a table in a checkpoint."""
    return f"table.cat_{number}.weight"


@lru_cache(1)
def global_plan(ranks: int) -> tuple[list[SavePlan], Metadata]:
    """Plans a save of all ranks, as DCP does on rank 0."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({}, is_coordinator=True)
    return planner.create_global_plan([SavePlan([*plan.items]) for plan in local_plans(ranks)])


@lru_cache(1)
def metadata_of(ranks: int) -> Metadata:
    """Returns the content of DCP's .metadata, with a file for each rank."""
    plans, metadata = global_plan(ranks)
    results = [
        WriteResult(item.index, 10**8, _StorageInfo(f"__{rank}_0.distcp", place * 10**8, 10**8))
        for rank, plan in enumerate(plans)
        for place, item in enumerate(plan.items)
    ]
    metadata.storage_data = {result.index: result.storage_data for result in results}
    return metadata


def entries(ranks: int) -> dict[str, dict[str, int]]:
    """Returns the sizes and checksums of the files of a number of ranks."""
    return {f"__{rank}_0.distcp": {"bytes": 10**10, "crc32": 3_000_000_000} for rank in range(ranks)}


def in_folder(act: Callable[[str], float]) -> float:
    """Returns a figure that is found in a folder, which is then deleted."""
    with tempfile.TemporaryDirectory() as folder:
        return act(folder)


def commit(ranks: int, folder: str) -> float:
    """Returns the seconds in which rank 0 commits a checkpoint of a file for each rank."""
    checkpoints = Checkpoints(RunDirectory(folder))
    checkpoints.begin(1)
    return timed(lambda: checkpoints.commit(1, entries(ranks), {"state.json": "{}"}))


def list_(ranks: int, folder: str) -> float:
    """Returns the seconds in which rank 0 searches for checkpoints to delete after a save."""
    checkpoints = Checkpoints(RunDirectory(folder))
    for step in range(CHECKPOINTS):
        checkpoints.begin(step)
        checkpoints.commit(step, entries(ranks), {})
    keep = Retention(newest=CHECKPOINTS)

    def look() -> None:
        found = checkpoints.with_predecessors()
        expired(keep, [*found], [], {}, found)

    return timed(look)


def verify(ranks: int, folder: str) -> float:
    """Returns the seconds in which rank 0 reads back a file of one byte for each rank."""
    for name in entries(ranks):
        Path(folder, name).write_bytes(b"0")
    fs = RunDirectory(folder).fs
    return timed(lambda: find_damage(fs, folder, dict.fromkeys(entries(ranks), entry_of(b"0"))))


@cache
def shapes() -> dict[str, torch.Size]:
    """Returns the shapes of the tensors of a rank: two of each table, and the dense ones."""
    tables = {table_name(number): torch.Size([40_000_000, 128]) for number in range(TABLES)}
    states = {f"{name}.momentum1": torch.Size([40_000_000]) for name in tables}
    return tables | states | {f"dense.over.{number}.weight": torch.Size([512, 512]) for number in range(DENSE_TENSORS)}


def read_metadata(ranks: int, folder: str) -> float:
    """Returns the seconds in which a rank reads .metadata."""
    with Path(folder, ".metadata").open("wb") as file:
        pickle.dump(metadata_of(ranks), file)
    return timed(lambda: CheckpointReader(folder).read_metadata())


def load_plan(ranks: int) -> int:
    """Plans rank 0's reads of its part of 100,000 shards; returns the number of reads."""
    metadata, found = metadata_of(ranks), 0
    for plan in local_plans(ranks)[:1]:
        chunks: dict[str, list[ChunkStorageMetadata]] = {}
        for item in plan.items:
            assert item.tensor_data
            chunks.setdefault(item.index.fqn, []).append(item.tensor_data.chunk)
        for name, of_rank in chunks.items():
            saved = metadata.state_dict_metadata[name]
            assert isinstance(saved, TensorStorageMetadata)
            found += len(create_read_items_for_chunk_list(name, saved, of_rank))
    return found


def collective_rows() -> list[Row]:
    """Returns the rows that are measured between processes; `of_processes` has their values."""
    names = (
        ("start", "first Gloo group"),
        ("start", "another Gloo group"),
        ("step", "requests: all-reduce of one number"),
        ("save", "gather_to_all of a small object"),
        ("start", "broadcast_from_rank0 of a small object"),
    )
    return [Row(phase, name, SECONDS, lambda _: 0.0, PROCESSES) for phase, name in names]


def of_processes() -> dict[int, dict[str, float]]:
    """Returns the seconds of collectives on rank 0, by number of processes and name of the row."""
    context, found = multiprocessing.get_context("fork"), {}
    for ranks in PROCESSES:
        port, queue = free_port(), context.Queue()
        processes = [context.Process(target=exchange, args=(rank, ranks, port, queue)) for rank in range(ranks)]
        for process in processes:
            process.start()
        seconds = queue.get(timeout=60)
        for process in processes:
            process.join()
        found[ranks] = dict(zip([row.name for row in collective_rows()], seconds, strict=True))
    return found


def free_port() -> int:
    """Returns a free port. Rank 0 opens the store, as threads do not survive a fork."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def exchange(rank: int, ranks: int, port: int, results: Any) -> None:
    """Measures collectives on a rank."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    store = dist.TCPStore("localhost", port, ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=30))
    first = time.perf_counter() - started
    dist.barrier()
    started = time.perf_counter()
    group = dist.new_group(backend="gloo")
    another = time.perf_counter() - started
    assert isinstance(group, dist.ProcessGroup)
    dist.barrier(group)
    number, objects = torch.tensor(0), [None] * ranks
    seconds = (
        first,
        another,
        median_seconds(lambda: dist.all_reduce(number, dist.ReduceOp.MAX, group)),
        median_seconds(lambda: dist.all_gather_object(objects, {}, group)),
        median_seconds(lambda: dist.broadcast_object_list([None, None], 0, group)),
    )
    dist.barrier(group)
    if rank == 0:
        results.put(seconds)
    dist.destroy_process_group()


def median_seconds(act: Callable[[], object]) -> float:
    """Returns the median of some calls."""
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def of_other_sizes() -> list[tuple[str, str, str]]:
    """Returns what grows with the age of a run instead."""
    found = []
    keep = Retention(newest=3, every_steps=1)
    for checkpoints in (MANY_CHECKPOINTS // 10, MANY_CHECKPOINTS):
        steps = list(range(checkpoints))
        for name, rule in (("every step", keep), ("the newest", Retention(newest=checkpoints))):
            seconds = timed(lambda rule=rule, steps=steps: expired(rule, steps, [], {}, {}))
            found.append((f"retention, which keeps {name}", f"{checkpoints:,} checkpoints", shown(seconds, SECONDS)))
    for what, act, sizes in (
        ("metrics.jsonl, read at resume", read_lines, (10**5, 10**6)),
        ("TensorBoard, opened at resume", open_board, (10**4, 10**5)),
    ):
        for lines in sizes:
            seconds, memory, size = in_child(partial(act, lines))
            size_shown = f"{lines:,} lines, {shown(size, BYTES)}"
            found.append((what, size_shown, shown(seconds, SECONDS)))
            found.append((f"{what.partition(',')[0]}, most memory of rank 0", size_shown, shown(memory, BYTES)))
    for what, size in zip(("pickled", "beside it, as bytes"), apart(million_files()), strict=True):
        found.append((f"list of files for all ranks, {what}", f"{MANY_FILES:,} files", shown(size, BYTES)))
    return found


def million_files() -> FileSet:
    """Returns files that are named by day and number, each of three row groups, of which the last may have any rows."""
    random, places = np.random.default_rng(0), range(MANY_FILES)
    rows = np.full((MANY_FILES, 3), GROUP_ROWS)
    rows[:, 2] = random.integers(1, GROUP_ROWS, MANY_FILES)
    columns = {
        "url": [f"s3://bucket/train/day={place // 1000:04d}/part-{place % 1000:05d}.parquet" for place in places],
        "version": [""] * MANY_FILES,
        "size": random.integers(2**27, 2**28, MANY_FILES),
        "row_groups": [*rows],
        "index": [None] * MANY_FILES,
        "schema": np.zeros(MANY_FILES, np.int32),
    }
    return FileSet(DataFiles.of(Outlines(pa.table(columns, COLUMNS), (pa.schema([("label", pa.float32())]),))))


def in_child(act: Callable[[], Any]) -> Any:
    """Runs a function in a separate process and returns its result."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(act()))
    process.start()
    found = queue.get()
    process.join()
    return found


def open_board(lines: int) -> tuple[float, float, float]:
    """Opens TensorBoard's files as a run does that resumes; returns the seconds, the memory and their size."""
    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder) as board:
            for step in range(lines):
                board.add_scalar("loss/train", 0.1234567890123, step)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        with SummaryWriter(folder, purge_step=lines + 1) as board:
            board.add_scalar("loss/train", 0.1234567890123, lines + 1)
        seconds = time.perf_counter() - started
        return seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, size


def read_lines(lines: int) -> tuple[float, float, float]:
    """As `open_board`, for reading a metrics.jsonl from its end."""
    names = ("epoch", "loss", "samples_per_second", "samples_per_second_per_rank", "data_wait", "step_seconds_p50")
    others = ("step_seconds_p99", "memory_gib", "time", "rate/dense", "rate/sparse")
    record = dict.fromkeys((*names, *others), 0.1234567890123)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "metrics.jsonl")
        with file.open("w") as output:
            for step in range(lines):
                output.write(json.dumps({"step": step, **record}) + "\n")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        JsonLines(RunDirectory(folder), "metrics.jsonl", lines)
        seconds = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return seconds, (after - before) * 1024, file.stat().st_size


if __name__ == "__main__":
    main()
