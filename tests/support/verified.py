"""Verifies the checkpoints of a run on several ranks, for tests."""

import json
from pathlib import Path

from ranks import run_on_ranks

from trainer.checkpoint.store import Checkpoints
from trainer.checkpoint.verify import verify_together
from trainer.core.distributed import process_group
from trainer.core.run_directory import RunDirectory


def find_newest(run: str, out: str) -> None:
    """Writes the step of the newest good checkpoint, as this rank knows it, to `out/RANK`."""
    with process_group() as context:
        found = verify_together(context, lambda find: Checkpoints(RunDirectory(run)).newest(find))
        Path(out, str(context.rank)).write_text(json.dumps(found and found.step))


def find_newest_on(ranks: int, run: str, out: str) -> None:
    """Does so on forked ranks."""
    run_on_ranks(ranks, find_newest, run, out)
