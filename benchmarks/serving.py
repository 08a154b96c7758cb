"""Measures the size, latency and AUC of exported models.

Writes docs/guides/export_forms.md.
Takes some minutes of a quiet machine.

The numbers are those of one machine, so unlike the parts that `docs.generate` writes they follow no change of the code.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.fx import GraphModule
from torchrec.fx import Tracer
from torchrec.inference.modules import quantize_inference_model

from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.export.load import load
from torchx_recsys.apps.export.reference import ALONE, read_rows
from torchx_recsys.apps.export.weights import SavedWeights, load_model
from trainer.checkpoint.choice import NEWEST, find_checkpoint
from trainer.commands import read_command
from trainer.config.root import load_config
from trainer.core.run_directory import RunDirectory
from trainer.data.dataset import find_files
from trainer.training.id_map import make_id_map

PAGE = ROOT / "docs" / "guides" / "export_forms.md"
BATCHES = (1, 64, 4096)
TABLES = {"float32": "none", "int8": "int8", "int4": "int4"}
TORCHREC = "TorchRec int8, scripted"


class Run(NamedTuple):
    """A run to export.

    Attributes:
        config: The configuration.
        out: The run directory.
    """

    config: str
    out: str


class Latency(NamedTuple):
    """Milliseconds of a call: the median and the 99th percentile."""

    p50: float
    p99: float


def main() -> None:
    """Measures all formats and rewrites the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000, help="rows of the synthetic data set")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each latency")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_measured(PAGE, "serving", measure(Path(folder), arguments.rows, arguments.seconds))


def measure(folder: Path, rows: int, seconds: float) -> str:
    """Returns the table. All files go into `folder`."""
    runs = {
        "movielens": train("movielens", [], folder),
        "synthetic": train("synthetic", synthetic(folder, rows), folder),
    }
    exports = {
        name: {
            tables: export(run, folder / "exports" / name / tables, flag, "--compile", str(name == "synthetic"))
            for tables, flag in TABLES.items()
        }
        for name, run in runs.items()
    }
    lines = []
    for tables, directory in exports["synthetic"].items():
        changes = [auc_change(exports[name][tables], tables) for name in runs]
        lines.append([tables, *measured(directory, "model.pt2", seconds), *changes])
        lines.append([f"{tables}, compiled", *measured(directory, "compiled.pt2", seconds), *changes])
        onnx = export(runs["synthetic"], folder / "exports/onnx" / tables, TABLES[tables], "--format", "onnx")
        lines.append([f"{tables}, ONNX", *measured(onnx, "model.onnx*", seconds), *changes])
    lines.append([TORCHREC, *torchrec_quantized(runs["synthetic"], folder, seconds), "", ""])
    headers = ["Tables", "MiB", *(f"p50 / p99 ms, {size:,}" for size in BATCHES), *(f"AUC, {name}" for name in runs)]
    machine = describe_machine()
    return (
        f"{table(headers, lines)}\n\nMilliseconds of a call with 1, 64 and 4,096 samples of `synthetic`, on one thread "
        f"({machine['processor']}, torch {torch.__version__}); changes of the test AUC."
    )


def synthetic(folder: Path, rows: int) -> list[str]:
    """Makes the synthetic data set and returns its flags."""
    sizes = ["--rows", str(rows), "--validation-rows", str(rows // 8), "--test-rows", str(rows // 8)]
    read_command(["synthetic", "--out", str(folder / "synthetic"), *sizes])()
    splits = ("train", "validation", "test")
    return [word for split in splits for word in (f"--data.{split}", str(folder / "synthetic" / split))]


def train(config: str, flags: list[str], folder: Path) -> Run:
    """Trains a ready-made configuration."""
    out = str(folder / "runs" / config)
    read_command(["train", config, "--out", out, *flags])()
    return Run(f"{out}/config.toml", out)


def export(run: Run, to: Path, quantize: str, *flags: str) -> Path:
    """Exports a run with the metrics of the test split, and returns the directory."""
    words = ["--out", run.out, "--to", str(to), "--split", "test", "--quantize", quantize, *flags]
    read_command(["export", run.config, *words])()
    return to / json.loads((to / "current.json").read_text())["directory"]


def measured(directory: Path, files: str, seconds: float) -> list[str]:
    """Returns size and latencies of an exported model; `files` is the pattern of its file names."""
    model = load(directory, compiled=files == "compiled.pt2")
    inputs = [model.inputs(repeated(directory, size)) for size in BATCHES]
    found = [latency(partial(model.run, one), seconds) for one in inputs]
    return [size_of(*directory.glob(files)), *map(shown, found)]


def auc_change(directory: Path, tables: str) -> str:
    """Returns the change in AUC from quantizing."""
    quality = json.loads((directory / "signature.json").read_text()).get("quality")
    return f"{quality[tables]['auc'] - quality['float32']['auc']:+.6f}" if quality else ""


def repeated(directory: Path, size: int) -> dict[str, list[Any]]:
    """Returns `size` samples, the parity rows over and over."""
    columns = json.loads((directory / "parity.json").read_text())["columns"]
    return {name: (values * (size // len(values) + 1))[:size] for name, values in columns.items()}


@torch.inference_mode()
def latency(call: Callable[[], Any], seconds: float) -> Latency:
    """Measures calls for some seconds, after a few warm-up calls."""
    for _ in range(5):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        start = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - start))
    return Latency(*np.percentile(times, [50, 99]).tolist())


@torch.inference_mode()
def torchrec_quantized(run: Run, folder: Path, seconds: float) -> list[str]:
    """Returns size and latencies of the model after TorchRec's quantization for serving."""
    config = load_config(run.config)
    chosen = find_checkpoint(RunDirectory(run.out), "--out", NEWEST, "--checkpoint")
    model = load_model(config, SavedWeights(chosen, config.optimizer.ema, averages=False))
    files = find_files("data.test", config.data.test, config.data)
    batch = next(read_rows(files, config.data, make_id_map(config, ALONE))).batch
    scripted = script(model)
    torch.jit.save(scripted, folder / "scripted.pt")
    found = []
    for size in BATCHES:
        rows = torch.arange(size) % len(batch.weights)
        sparse = type(batch.sparse)(
            keys=batch.sparse.keys(),
            values=batch.sparse.values().view(len(batch.sparse.keys()), -1)[:, rows].flatten(),
            lengths=torch.ones(size * len(batch.sparse.keys()), dtype=torch.int32),
        )
        found.append(latency(partial(scripted, batch.dense[rows], sparse), seconds))
    return [size_of(folder / "scripted.pt"), *map(shown, found)]


def script(model: nn.Module) -> torch.jit.ScriptModule:
    """Returns the TorchScript of a model with quantized tables."""
    quantized = quantize_inference_model(model)
    graph = Tracer(leaf_modules=["IntNBitTableBatchedEmbeddingBagsCodegen"]).trace(quantized)
    return torch.jit.script(GraphModule(quantized, graph))


def size_of(*files: Path) -> str:
    """Returns the size of files in MiB."""
    return f"{sum(map(os.path.getsize, files)) / 2**20:,.1f}"


def shown(found: Latency) -> str:
    """Returns both numbers."""
    return f"{found.p50:.2f} / {found.p99:.2f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for onnxruntime
    main()
