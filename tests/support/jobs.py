"""Several training runs in one process group, for tests that compare runs."""

import functools
import inspect
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from forked import run_forked

LABELS = ["label"]


def numbers_of_ranks(whole: bool) -> tuple[int, ...]:
    """Returns the numbers of ranks to compare: where plans are not the subject, four prove little that two do not."""
    return (1, 2, 4) if whole else (1, 2)


def write_rows(
    folder: Path, sizes: list[int], seed: int = 0, row_group_size: int = 64, sparse_features: int = 6
) -> Path:
    """Writes one Parquet file for each size: dense `d0`, `d1`; sparse `s0` .. `s5` of 100 + i rows; `label`."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    start = 0
    for number, size in enumerate(sizes):
        sparse = {f"s{i}": random.integers(0, 100 + i, size).astype(np.int32) for i in range(sparse_features)}
        dense = {f"d{i}": random.standard_normal(size).astype(np.float32) for i in range(2)}
        logit = dense["d0"] - 0.5 * dense["d1"] + 0.02 * (sparse["s0"] - 50)
        label = (random.random(size) < 1 / (1 + np.exp(-logit))).astype(np.float32)
        row_id = np.arange(start, start + size)
        table = pa.table({**dense, **sparse, "label": label, "row_id": row_id})
        pq.write_table(table, folder / f"part-{number:02d}.parquet", row_group_size=row_group_size)
        start += size
    return folder


def config(data: Path, **changes: object) -> dict:
    """Returns a small configuration; `changes` are `section__key=value`."""
    tree: dict = {
        "data": {
            "train": [str(data)],
            "global_batch_size": 64,
            "shuffle_window_rows": 50,
            "dense": {"d0": {}, "d1": {}},
            "sparse": {f"s{i}": {"rows": 100 + i} for i in range(6)},
        },
        "model": {"embedding_dim": 16, "dense_layers": [16], "over_layers": [16]},
        "optimizer": {
            "sparse": {"name": "sgd", "learning_rate": 0.5},
            "dense": {"name": "sgd", "learning_rate": 0.1},
        },
        "planner": {"min_columns": 8},
        "train": {"steps": 20, "compile": False},  # or jobs that go on until they are stopped would compile first
        "report": {"interval_steps": 1, "tensorboard": False},
    }
    for path, value in changes.items():
        *sections, key = path.split("__")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = value
    return tree


def launch(jobs: list[dict], ranks: int, folder: Path) -> str:
    """Runs the jobs one after the other in one process group of `ranks` ranks on Gloo; returns their output.

    Args:
        jobs: `{"config": {...}, "out": ...}`; also `resume`, and `count` to write the bytes that were sent.
        ranks: The number of ranks.
        folder: Of the output.
    """
    return launch_rounds([(ranks, jobs)], folder)


def launch_rounds(rounds: list[tuple[int, list[dict]]], folder: Path) -> str:
    """Runs jobs on one number of ranks after another; returns their output."""
    return run_forked(run_rounds, rounds, folder=folder)


def losses(out: Path) -> list[float]:
    """Returns the loss of every step of a run, checking that each step is there once and in order."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def saved_tensors(out: Path, step: int) -> dict:
    """Returns the tensors of a checkpoint, whole, read without a process group."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    reader = FsspecReader(str(out / "checkpoints" / f"step-{step:09d}"))
    entries = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in entries.items()}
    dcp.load(tensors, storage_reader=reader)
    return tensors


def count_sent_bytes() -> dict[str, list[int]]:
    """Counts, from here on, the bytes of embeddings and of `ids` that this rank sends to others, call by call."""
    import torch
    import torch.distributed as dist

    sent: dict[str, list[int]] = {"all_to_all": [], "reduce_scatter": [], "all_gather": [], "ids": []}
    rank = dist.get_rank()

    world = dist.get_world_size()

    def to_others(call: dict) -> int:
        tensor, splits = call["input"], call.get("input_split_sizes") or [len(call["input"]) // world] * world
        return (sum(splits) - splits[rank]) * tensor[:1].nbytes

    def counting(original, count, bytes_of):
        @functools.wraps(original)
        def call(*args, **kwargs):
            given = inspect.signature(original).bind(*args, **kwargs).arguments
            tensor = given.get("input", given.get("input_tensor"))
            of_ids = tensor.dtype in (torch.int32, torch.int64)  # and of their lengths
            (sent["ids"] if of_ids else count).append(bytes_of(given))
            return original(*args, **kwargs)

        return call

    for function, name, bytes_of in (
        ("all_to_all_single", "all_to_all", to_others),
        ("reduce_scatter_tensor", "reduce_scatter", lambda call: call["input"].nbytes * (world - 1) // world),
        ("all_gather_into_tensor", "all_gather", lambda call: call["input_tensor"].nbytes * (world - 1)),
    ):
        setattr(dist, function, counting(getattr(dist, function), sent[name], bytes_of))
    return sent


def run_jobs(jobs: list[dict]) -> None:
    """Runs jobs on this rank."""
    from trainer.config.root import Config
    from trainer.core.console import quiet_libraries
    from trainer.core.distributed import process_group
    from trainer.training.loop import run
    from trainer.training.setup import begin_job

    quiet_libraries()
    with process_group() as context:
        for job in jobs:
            sent = count_sent_bytes() if job.get("count") else None
            settings = Config.model_validate(job["config"])
            with begin_job(settings, job["out"], job.get("resume", "auto"), context) as held:
                run(held)
            if sent is not None:
                Path(job["out"], f"sent-{context.rank}.json").write_text(json.dumps(sent))


def run_rounds(rounds: list[tuple[int, list[dict]]]) -> None:
    """Runs jobs on forked ranks."""
    from ranks import run_on_ranks

    for ranks, jobs in rounds:
        run_on_ranks(ranks, run_jobs, jobs)
