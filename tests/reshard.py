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

from trainer.checkpoint import Checkpoint, Checkpoints
from trainer.checkpoint_files import ChecksumWriter
from trainer.config import Config
from trainer.data.files import find_files
from trainer.data.lanes import Lanes
from trainer.data.loader import Loader
from trainer.distributed import Ranks, from_main, gather_to_all, process_group
from trainer.job import Job, build_job
from trainer.quiet import hush
from trainer.restore import restore
from trainer.run_directory import RunDirectory
from trainer.snapshot import Snapshot
from trainer.state import all_tensors


def rehearsed_job(config: Config, ranks: Ranks) -> Job:
    job = build_job(config, ranks)
    files = find_files("train", config.data.train, config.data)
    lanes = Lanes(files.rows, 8, config.data.global_batch_size)
    loader = Loader(files, config.data, lanes, ranks.rank, ranks.world_size, 0, True)
    job.rehearse(next(loader.batches(0, 1)))
    return job


def move(start: Checkpoint, job: Job, out: str, ranks: Ranks) -> None:
    tensors = all_tensors(job.model, job.optimizers)
    restore(start, tensors, ranks)
    checkpoints = Checkpoints(RunDirectory(out))
    from_main(ranks, lambda: checkpoints.begin(start.step))
    writer = ChecksumWriter(checkpoints.url(start.step))
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.save(Snapshot().take(tensors), storage_writer=writer, planner=planner)
    entries = {name: entry for part in gather_to_all(writer.entries, ranks) for name, entry in part.items()}
    from_main(ranks, lambda: checkpoints.commit(start.step, entries, {"state.json": json.dumps({"step": start.step})}))


def main(file: str) -> None:
    hush()
    with process_group() as ranks:
        for task in json.loads(Path(file).read_text()):
            job = rehearsed_job(Config.model_validate(task["config"]), ranks)
            for before, after in task["moves"].items():
                start = from_main(ranks, lambda before=before: Checkpoints(RunDirectory(before)).newest())
                move(start, job, after, ranks)


if __name__ == "__main__":
    main(sys.argv[1])
