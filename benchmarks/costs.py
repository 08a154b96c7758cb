"""Measures what each training feature costs.

Writes docs/explanation/step.md.
Takes a few minutes of a quiet machine.

The numbers come from one machine, so unlike the output of `docs.generate` they do not follow changes of the code.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bench.training import FEATURES
from docs.generate import ROOT, table, write_measured

PAGE = ROOT / "docs" / "explanation" / "step.md"
# Small: the whole table takes a few minutes on two cores.
SETTINGS = {"--rows": 20_000, "--global-batch-size": 512, "--steps": 10, "--repeats": 5}


def main() -> None:
    """Measures all features and rewrites the table."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "trainer", "bench", "features", "--out", folder]
        subprocess.run([*command, *(word for flag in SETTINGS.items() for word in map(str, flag))], check=True)
        measured = json.loads(Path(folder, "bench-features.json").read_text())
    write_measured(PAGE, "costs", render(measured))


def render(measured: dict[str, Any]) -> str:
    """Returns the table of costs, and the machine.

    Args:
        measured: The content of bench-features.json.
    """
    rows = []
    for one in measured["comparisons"]:
        times = sorted(without / with_it for with_it, without in zip(one["measured"], one["compared"], strict=True))
        keys = "<br>".join(f"`{key} = {json.dumps(value)}`" for key, value in FEATURES[one["what"]].items())
        rows.append([one["what"], keys, f"{1 / one['ratio']:.2f}", f"{times[0]:.2f} to {times[-1]:.2f}"])
    settings, machine = measured["settings"], measured["machine"]
    return (
        f"{table(['Feature', 'Keys', 'Time', 'Spread'], rows)}\n\n"
        f"Measured on {machine['cores']} cores ({machine['processor']}), {measured['world_size']} rank, torch "
        f"{measured['versions']['torch']}: {settings['steps']} steps of {settings['global_batch_size']:,} samples, "
        f"{settings['repeats']} times."
    )


if __name__ == "__main__":
    main()
