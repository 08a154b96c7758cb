"""Restores checkpoints under other plans without a step in between, for tests that compare them.

`torchrun --nproc-per-node N tests/reshard.py MOVES.json`, where MOVES.json is a list of {"config": {...}, "moves":
{FROM: TO}}: FROM is a run directory whose newest checkpoint is restored under the configuration's plan, TO where the
state is then written, as another run's checkpoint of the same step.
"""

import json
import sys
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from trainer.checkpoint.io import ChecksumWriter
from trainer.checkpoint.restore import restore
from trainer.checkpoint.staging import StagingBuffers
from trainer.checkpoint.store import Checkpoint, Checkpoints
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all, process_group
from trainer.core.logging import quiet_libraries
from trainer.core.run_directory import RunDirectory
from trainer.data.dataset import find_files
from trainer.data.loader import Loader
from trainer.data.order import Lanes
from trainer.training.sharded_model import ShardedModel, build_sharded_model


def rehearsed_job(config: Config, ranks: DistributedContext) -> ShardedModel:
    job = build_sharded_model(config, ranks)
    files = find_files("train", config.data.train, config.data)
    lanes = Lanes(files.rows, 8, config.data.global_batch_size)
    loader = Loader(files, config.data, lanes, ranks.rank, ranks.world_size, 0, True)
    job.initialize_optimizer_state(next(loader.batches(0, 1)))
    return job


def move(start: Checkpoint, job: ShardedModel, out: str, ranks: DistributedContext) -> None:
    tensors = job.tensors()
    restore(start, tensors, ranks)
    checkpoints = Checkpoints(RunDirectory(out))
    broadcast_from_rank0(ranks, lambda: checkpoints.begin(start.step))
    writer = ChecksumWriter(checkpoints.url(start.step))
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.save(StagingBuffers().stage(tensors), storage_writer=writer, planner=planner)
    entries = {name: entry for part in gather_to_all(writer.entries, ranks) for name, entry in part.items()}
    broadcast_from_rank0(
        ranks, lambda: checkpoints.commit(start.step, entries, {"state.json": json.dumps({"step": start.step})})
    )


def main(file: str) -> None:
    quiet_libraries()
    with process_group() as ranks:
        for task in json.loads(Path(file).read_text()):
            job = rehearsed_job(Config.model_validate(task["config"]), ranks)
            for before, after in task["moves"].items():
                start = broadcast_from_rank0(ranks, lambda before=before: Checkpoints(RunDirectory(before)).newest())
                move(start, job, after, ranks)


if __name__ == "__main__":
    main(sys.argv[1])
