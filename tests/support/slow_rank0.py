"""Two ranks, of which rank 0 works for longer than a collective may take."""

import time
from pathlib import Path

from ranks import run_on_ranks

from trainer.core.distributed import broadcast_when_done, process_group
from trainer.core.errors import InputError

COLLECTIVE_SECONDS = 2.0


def make_slowly(folder: Path, refusal: str | None) -> None:
    """Every rank writes what rank 0 made, or its exit code, to a file of its own."""
    run_on_ranks(2, _rank, folder, refusal)


def _rank(folder: Path, refusal: str | None) -> None:
    with process_group(COLLECTIVE_SECONDS) as context:

        def make() -> str:
            time.sleep(2 * COLLECTIVE_SECONDS)
            if refusal:
                raise InputError(refusal)
            return f"made by rank {context.rank}"

        try:
            found = broadcast_when_done(context, make)
        except SystemExit as leaving:
            found = f"exit code {leaving.code}"
        (folder / f"rank-{context.rank}").write_text(found)
