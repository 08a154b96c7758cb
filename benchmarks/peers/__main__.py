"""Trains the same model with this project, plain torch, TorchRec and other libraries, in turn.

Writes docs/explanation/performance.md.
Takes half an hour of a quiet machine, and 1.2 GB of disk.

Peers are installed from the package index into separate environments below `.peers`, which see torch and the other
packages of this environment. `--repeats N` has N turns.
"""

import argparse
import json
import os
import shutil
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
from pathlib import Path

from benchmarks.machine import available_cores, describe_machine
from benchmarks.peers import rows
from benchmarks.peers.run import Case
from docs.generate import ROOT, table, write_measured

PAGE = ROOT / "docs" / "explanation" / "performance.md"
ENVIRONMENTS = ROOT / ".peers"
MIB = 2**20
COMPILED = "compiled"  # directory of the caches of compiled code, empty in the first turn of a case


@dataclass(frozen=True)
class Peer:
    """A library or loop to measure.

    Attributes:
        name: Its name in the tables.
        loop: Its file in `loops`.
        models: The models that it has.
        package: Its package and release, installed without dependencies; unset if nothing is installed.
        needs: The dependencies that it needs.
        every: It takes part in each turn of this number; more than 1 for peers so slow that few turns suffice.
    """

    name: str
    loop: str
    models: tuple[str, ...] = ("deepfm",)
    package: str = ""
    needs: tuple[str, ...] = ()
    every: int = 1


PLAIN, DEFAULTS, EAGER = (
    "plain torch, rows in memory",
    "torchx-recsys, defaults, ten minutes and more",
    "torchx-recsys, eager",
)
PEERS = (  # this project right after plain torch, as a shared machine's speed changes from minute to minute
    Peer(PLAIN, "plain_loop", ("deepfm", "dlrm", "hstu")),
    Peer(DEFAULTS, "this_trainer", ("deepfm", "dlrm", "hstu")),
    Peer(EAGER, "this_trainer_eager"),
    Peer("TorchRec as in golden_training", "golden_training", ("deepfm", "dlrm")),
    Peer("torch-rechub", "rechub_trainer", package="torch-rechub==0.9.0", needs=("pandas", "scikit-learn"), every=3),
    Peer("deepctr-torch", "deepctr_fit", package="deepctr-torch==0.3.0", needs=("scikit-learn",), every=3),
    Peer(
        "FuxiCTR",
        "fuxictr_fit",
        package="fuxictr==2.3.10",
        needs=("pandas", "scikit-learn", "h5py", "polars", "pyyaml", "ray"),
        every=3,
    ),
    Peer(
        "RecBole",
        "recbole_trainer",
        package="recbole==1.2.1",
        needs=("numpy<2", "pandas<3", "scikit-learn", "colorlog", "colorama", "thop", "texttable", "ray", "pyyaml"),
        every=3,
    ),
)


@dataclass(frozen=True)
class Workload:
    """What all peers train.

    Attributes:
        rows: The function of `rows` that makes the rows.
        model: The model.
        layers: Widths of the hidden layers over the embeddings.
        batch: Samples of a step.
        epochs: Passes over the rows, with which this project trains for some seconds: a shared machine's speed changes
            within seconds.
        learning_rate: Of Adam.
        dim: Columns of an embedding.
    """

    rows: str
    model: str
    layers: list[int]
    batch: int
    epochs: int
    learning_rate: float = 1e-3
    dim: int = 16


CASES = {
    "deepfm-1024": Workload("movielens", "deepfm", [64, 32], 1024, 12, 3e-4),
    "deepfm-8192": Workload("movielens", "deepfm", [64, 32], 8192, 24),
    "dlrm-1024": Workload("made_up", "dlrm", [256, 128], 1024, 3),
    "dlrm-8192": Workload("made_up", "dlrm", [256, 128], 8192, 3),
    "hstu-128": Workload("histories", "hstu", [64, 32], 128, 2, dim=32),
    "hstu-1024": Workload("histories", "hstu", [64, 32], 1024, 2, dim=32),
}
UNITS = 2
LONG_RUN = 600
"""Seconds of the run that the time for compiling is counted in."""


def main() -> None:
    """Measures all and rewrites the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("--repeats", type=int, default=9, help="turns, in which each runs once")
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
    """Returns the measurements of all turns by the peer's name; every second turn runs in reverse order."""
    workload = CASES[name]
    if not (folder / "shape.json").exists():
        tables, dense = getattr(rows, workload.rows)(folder)
        shape = {"tables": tables, "dense": dense}
        (folder / "shape.json").write_text(json.dumps(shape))
    shape = json.loads((folder / "shape.json").read_text())
    peers = [peer for peer in PEERS if workload.model in peer.models]
    pythons = {peer: python_of(peer) for peer in peers}
    shutil.rmtree(folder / COMPILED, ignore_errors=True)
    results: dict[str, list[dict]] = {peer.name: [] for peer in peers}
    for turn in range(repeats):
        taking_part = [peer for peer in peers if turn % peer.every == 0]
        for peer in reversed(taking_part) if turn % 2 else taking_part:
            case = Case(
                folder=str(folder.resolve()),
                model=workload.model,
                layers=workload.layers,
                batch=workload.batch,
                epochs=workload.epochs,
                dim=workload.dim,
                learning_rate=workload.learning_rate,
                threads=available_cores(),
                history=rows.LONGEST,
                units=UNITS,
                started=time.time(),
                **shape,
            )
            results[peer.name].append({"turn": turn} | run(peer, pythons[peer], case, folder))
            print(f"{name}, turn {turn + 1}/{repeats}: {peer.name}", file=sys.stderr, flush=True)
    return results


def run(peer: Peer, python: str, case: Case, folder: Path) -> dict:
    """Trains once with a peer and returns its measurements."""
    file = folder.resolve() / "case.json"
    file.write_text(json.dumps(vars(case)))
    program = Path(__file__).with_name("run.py")
    environment = os.environ | {
        "OMP_NUM_THREADS": str(case.threads),
        "TORCHINDUCTOR_CACHE_DIR": str(folder.resolve() / COMPILED),
        "XDG_CACHE_HOME": str(folder.resolve() / COMPILED),
        "TQDM_DISABLE": "1",
    }
    if not peer.package:
        environment["PYTHONPATH"] = str(ROOT)
    # In a directory of its own: RecBole leaves logs where it runs.
    with tempfile.TemporaryDirectory() as elsewhere:
        words = [python, program, peer.loop, file]
        done = subprocess.run(words, cwd=elsewhere, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{done.stdout[-2000:]}{done.stderr[-4000:]}\n{peer.name} failed; the end of its output is above"
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
    """Returns the table of a case, the defaults and then the fastest first, with the date, machine and versions."""
    plain = {one["turn"]: rate(one) for one in found[PLAIN]}
    ratios = {name: [rate(one) / plain[one["turn"]] for one in turns] for name, turns in found.items()}
    lines = []
    for name, turns in sorted(
        found.items(), key=lambda one: (one[0] != DEFAULTS, -statistics.median(map(rate, one[1])))
    ):
        rates = [rate(one) for one in turns]
        first, peak, auc = (
            statistics.median(one[kind] for one in turns) for kind in ("first_step_seconds", "peak_bytes", "auc")
        )
        lines.append(
            [
                name,
                f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
                f"{statistics.median(ratios[name]):.2f} ({min(ratios[name]):.2f} to {max(ratios[name]):.2f})",
                f"{first:.1f} s",
                f"{peak / MIB:,.0f} MiB",
                f"{auc:.4f}",
            ]
        )
    headers = ["", "Samples/s (least to most)", "Of plain torch", "To the first step", "Peak memory", "Test AUC"]
    shown = [table(headers, lines)]
    if EAGER in found:
        compiling = found[DEFAULTS][0]["start_seconds"] - found[EAGER][0]["start_seconds"]
        over_all = statistics.median(ratios[DEFAULTS]) * (1 - compiling / LONG_RUN)
        shown.append(
            f"Compiling took {compiling:.0f} s in the first turn, from an empty cache. With these seconds, the "
            f"defaults come to {over_all:.2f} of plain torch in a run of {LONG_RUN // 60} minutes."
        )
    return "\n\n".join([*shown, _made(found)])


def rate(one: dict) -> float:
    """Returns the samples per second of a turn: the median of its passes but the first."""
    return statistics.median(one["samples_per_second"])


def _made(found: dict[str, list[dict]]) -> str:
    machine, peers = describe_machine(), [peer for peer in PEERS if peer.name in found]
    packages = "".join(f", {peer.package.replace('==', ' ')}" for peer in peers if peer.package)
    seldom = [peer.name for peer in peers if peer.every > 1]
    turns = f"{len(found[PLAIN])} turns, in which each ran once"
    if seldom:
        turns += f" ({', '.join(seldom)} in {len(found[seldom[0]])} of them)"
    return (
        f"{date.today():%Y-%m-%d}, {machine['processor']}, {machine['cores']} cores and as many threads, torch "
        f"{version('torch')}, torchrec {version('torchrec')}{packages}; medians of {turns}; a ratio is to plain torch "
        "in the same turn, with the least and most."
    )


if __name__ == "__main__":
    main()
