"""Requests a profile of a running job.

python -m trainer profile --out runs/mine --steps 5
"""

from trainer.config.train import ProfileConfig
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import place, without_secrets
from trainer.core.section import validate
from trainer.core.storage import named
from trainer.extensions.profiler import profiler
from trainer.run import lock


def profile(
    out: str, steps: int = 5, ranks: list[int] | None = None, stacks: bool = False, memory: bool = False
) -> None:
    """Requests a profile of the job that is writing to a run directory; the job starts it within seconds.

    Works the same on every scheduler: the request is a file in the run directory, which rank 0 looks for.

    Args:
        out: The run directory, any fsspec URL.
        steps: Steps to record.
        ranks: Ranks that write a trace. Unset: rank 0. The table covers all ranks.
        stacks: Record Python's stacks as well, which stalls training for some 20 s when the trace is written.
        memory: Record allocations as well, with a snapshot of the GPU's memory.

    Raises:
        InputError: An argument is out of range, or no job is writing to the run directory.
    """
    tree = {"steps": steps, "ranks": [0] if ranks is None else ranks, "stacks": stacks, "memory": memory}
    request = validate(ProfileConfig, tree, lambda _: "--")
    run = RunDirectory(out)
    with named("--out", out):
        if run.read(lock.FILE) is None:
            raise InputError(
                f"--out is {place(out)}, which no job is writing to; name the run directory of a running job"
            )
        run.write_json(profiler.REQUEST_FILE, request.model_dump(exclude_none=True))
    print(
        f"requested; the job looks for it every {profiler.POLL_SECONDS:.0f} s, prints the table in its log and "
        f"writes the traces to {without_secrets(run.url_of(profiler.FOLDER))}"
    )
