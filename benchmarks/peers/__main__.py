"""Trains the same model with this project, plain torch, TorchRec and other libraries, in turn.

Writes docs/explanation/performance.md.
Takes 15 minutes of a quiet machine, and 6 GB of disk.

Peers are installed from the package index into separate environments below `.peers`, which see torch and the other
packages of this environment. `--repeats N` trains each N times.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from operator import truediv
from pathlib import Path

from benchmarks.machine import available_cores, describe_machine
from benchmarks.peers import rows
from benchmarks.peers.run import Case
from docs.generate import ROOT, table, write_measured

PAGE = ROOT / "docs" / "explanation" / "performance.md"
ENVIRONMENTS = ROOT / ".peers"
MIB = 2**20


@dataclass(frozen=True)
class Peer:
    """A library or loop to measure.

    Attributes:
        name: Its name in the tables.
        loop: Its file in `loops`.
        models: The models that it has.
        package: Its package and release, installed without dependencies; unset if nothing is installed.
        needs: The dependencies that it needs.
    """

    name: str
    loop: str
    models: tuple[str, ...] = ("deepfm",)
    package: str = ""
    needs: tuple[str, ...] = ()


PEERS = (  # this project right after plain torch, as a shared machine's speed changes from minute to minute
    Peer("plain torch, rows in memory", "plain_loop", ("deepfm", "dlrm")),
    Peer("torchx-recsys, compiled and fused", "this_trainer_compiled", ("deepfm", "dlrm")),
    Peer("torchx-recsys", "this_trainer", ("deepfm", "dlrm")),
    Peer("TorchRec as in golden_training", "golden_training", ("deepfm", "dlrm")),
    Peer("torch-rechub", "rechub_trainer", package="torch-rechub==0.9.0", needs=("pandas", "scikit-learn")),
    Peer("deepctr-torch", "deepctr_fit", package="deepctr-torch==0.3.0", needs=("scikit-learn",)),
    Peer(
        "FuxiCTR",
        "fuxictr_fit",
        package="fuxictr==2.3.10",
        needs=("pandas", "scikit-learn", "h5py", "polars", "pyyaml", "ray"),
    ),
    Peer(
        "RecBole",
        "recbole_trainer",
        package="recbole==1.2.1",
        needs=("numpy<2", "pandas<3", "scikit-learn", "colorlog", "colorama", "thop", "texttable", "ray", "pyyaml"),
    ),
)
CASES = {
    "small": ("movielens", "deepfm", [64, 32], 1024, 24, 3e-4),
    "small-8192": ("movielens", "deepfm", [64, 32], 8192, 16, 1e-3),
    "large": ("made_up", "dlrm", [256, 128], 8192, 4, 1e-3),
}
"""By name: the rows, the model, the layers over its embeddings, the batch, passes over the rows, and Adam's rate.

The small batches train for seconds, as the speed of a shared machine changes within seconds.
"""


def main() -> None:
    """Measures all and rewrites the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each, in turn")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "peers", help="directory of rows and results")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    given = parser.parse_args()
    for name in given.cases:
        folder = given.out / name
        found = measure(name, folder, given.repeats)
        (folder / "results.json").write_text(json.dumps(found, indent=1))
        write_measured(PAGE, f"peers-{name}", render(found))
        print(render(found))


def measure(name: str, folder: Path, repeats: int) -> dict[str, list[dict]]:
    """Returns the measurements of all repeats by the peer's name; every second round runs in reverse order."""
    kind, model, layers, batch, epochs, learning_rate = CASES[name]
    if not (folder / "shape.json").exists():
        tables, dense = getattr(rows, kind)(folder)
        shape = {"tables": tables, "dense": dense}
        (folder / "shape.json").write_text(json.dumps(shape))
    shape = json.loads((folder / "shape.json").read_text())
    peers = [peer for peer in PEERS if model in peer.models]
    pythons = {peer: python_of(peer) for peer in peers}
    results: dict[str, list[dict]] = {peer.name: [] for peer in peers}
    for repeat in range(repeats):
        for peer in reversed(peers) if repeat % 2 else peers:
            case = Case(
                folder=str(folder.resolve()),
                model=model,
                layers=layers,
                batch=batch,
                epochs=epochs,
                dim=16,
                learning_rate=learning_rate,
                threads=available_cores(),
                started=time.time(),
                **shape,
            )
            results[peer.name].append(run(peer, pythons[peer], case, folder))
            print(f"{name}, repeat {repeat + 1}/{repeats}: {peer.name}", file=sys.stderr, flush=True)
    return results


def run(peer: Peer, python: str, case: Case, folder: Path) -> dict:
    """Trains once with a peer and returns its measurements."""
    file = folder.resolve() / "case.json"
    file.write_text(json.dumps(vars(case)))
    program = Path(__file__).with_name("run.py")
    environment = os.environ | {"OMP_NUM_THREADS": str(case.threads), "TQDM_DISABLE": "1"}
    if not peer.package:
        environment["PYTHONPATH"] = str(ROOT)
    # In a directory of its own: RecBole leaves logs where it runs.
    with tempfile.TemporaryDirectory() as elsewhere:
        words = [python, program, peer.loop, file]
        done = subprocess.run(words, cwd=elsewhere, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{done.stdout[-2000:]}{done.stderr[-4000:]}\n{peer.name} failed; the end of what it said is above"
        )
    return json.loads(done.stdout.splitlines()[-1])


def python_of(peer: Peer) -> str:
    """Returns the Python of a peer's environment, which is made unless it is there."""
    if not peer.package:
        return sys.executable
    folder = ENVIRONMENTS / peer.loop
    python = str(folder / "bin/python")
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        # torch is a gigabyte to install, and the same for all.
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
        (site / "shared.pth").write_text(sysconfig.get_path("purelib"))
        for words in (["--no-deps", peer.package], peer.needs):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *words], check=True)
        (folder / "ready").touch()
    return python


def render(found: dict[str, list[dict]]) -> str:
    """Returns the table of a case, the fastest first, with the date, machine and versions."""
    plain = rates(found[PEERS[0].name])
    lines = []
    for name, repeats in sorted(found.items(), key=lambda one: -statistics.median(rates(one[1]))):
        rate = statistics.median(rates(repeats))
        seconds = statistics.median(one["first_step_seconds"] for one in repeats)
        peak = statistics.median(one["peak_bytes"] for one in repeats)
        auc = statistics.median(one["auc"] for one in repeats)
        spread = f"{min(rates(repeats)):,.0f} to {max(rates(repeats)):,.0f}"
        lines.append(
            [
                name,
                f"{rate:,.0f} ({spread})",
                f"{statistics.median(map(truediv, rates(repeats), plain)):.2f}",
                f"{seconds:.1f} s",
                f"{peak / MIB:,.0f} MiB",
                f"{auc:.4f}",
            ]
        )
    headers = ["", "Samples/s (least to most)", "Of plain torch", "To the first step", "Peak memory", "Test AUC"]
    machine = describe_machine()
    packages = ", ".join(peer.package.replace("==", " ") for peer in PEERS if peer.package and peer.name in found)
    made = (
        f"{date.today():%Y-%m-%d}, {machine['processor']}, {machine['cores']} cores and as many threads, torch "
        f"{version('torch')}, torchrec {version('torchrec')}{', ' + packages if packages else ''}; medians of "
        f"{len(plain)} turns, in which each ran once; a ratio is to plain torch in the same turn."
    )
    return f"{table(headers, lines)}\n\n{made}"


def rates(repeats: list[dict]) -> list[float]:
    """Returns the samples per second of each repeat: the median of its passes but the first."""
    return [statistics.median(one["samples_per_second"]) for one in repeats]


if __name__ == "__main__":
    main()
