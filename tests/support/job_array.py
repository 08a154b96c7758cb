"""A job array of lines of bash, as a component of one's own: a task for each seed."""

from torchx.specs import AppDef, Resource, Role

from components.launch import one_run_for_each


def bash(line: str, seeds: list[str], max_retries: int = 0) -> AppDef:
    """Runs a line of bash for each seed.

    Args:
        line: The line, which has the seed as SEED.
        seeds: The seeds.
        max_retries: Retries of each.
    """

    def run(out: str, seed: str) -> AppDef:
        words = ["-c", f"SEED={seed}; {line}"]
        role = Role("bash", "", entrypoint="bash", args=words, resource=Resource(1, 0, 100), max_retries=max_retries)
        return AppDef("bash", [role])

    return one_run_for_each(seeds, "out", run)
