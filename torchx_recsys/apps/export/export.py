"""`python -m trainer export`: from a checkpoint to a directory that serves."""

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pydantic
from torch import nn

from torchx_recsys.apps.export import load
from torchx_recsys.apps.export.carried import write_loader
from torchx_recsys.apps.export.delta import Delta, WholeExportError, keep_changes
from torchx_recsys.apps.export.directory import current_or_none, files_of, is_there, publish, write_manifest
from torchx_recsys.apps.export.onnx import check_onnx, save_onnx
from torchx_recsys.apps.export.program import (
    check_compiler,
    check_parity,
    compile_program,
    export_program,
    save_program,
)
from torchx_recsys.apps.export.publishing import check_beside_current, check_rules, refusals_noted, segments_of
from torchx_recsys.apps.export.quantized import measure, quantize_tables, render
from torchx_recsys.apps.export.reference import (
    SplitRows,
    first_rows,
    parity,
    plain_answers,
    read_rows,
    rows_of_samples,
    saved_id_map,
    trained_parity,
)
from torchx_recsys.apps.export.rules import ids_with_rows
from torchx_recsys.apps.export.served import Rules, ServedModel
from torchx_recsys.apps.export.shards import TableShards, write_in_shards
from torchx_recsys.apps.export.signature import column_types, items_in, lists_in, signature, type_of_ids
from torchx_recsys.apps.export.tables import replace_tables
from torchx_recsys.apps.export.weights import SavedWeights, load_dense, load_model, read_managed
from trainer.checkpoint.choice import NEWEST, find_checkpoint
from trainer.checkpoint.store import MANIFEST, Checkpoint, FileEntry
from trainer.config.data import DataConfig
from trainer.config.features import columns_of
from trainer.config.root import Config, load_config
from trainer.config.train import PublishConfig
from trainer.core.errors import InputError, some_of
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import digest, named, read_text
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import find_files
from trainer.data.segments import data_of_segment
from trainer.models.embeddings import name_in_model, table_of_weight
from trainer.models.outputs import model_outputs
from trainer.rules.vocabulary import check_fingerprints

TOLERANCE = 1e-6  # for answers in float32: compilers and processors sum in different orders


def export(
    config: Config,
    out: str,
    to: str,
    checkpoint: str = NEWEST,
    split: Literal["train", "validation", "test"] = "validation",
    averages: bool | None = None,
    quantize: Literal["none", "int8", "int4"] = "none",
    compile: bool = False,
    format: Literal["torch", "onnx"] = "torch",
    shard_bytes: pydantic.PositiveInt | None = None,
    delta: bool = False,
    anyway: bool = False,
) -> None:
    """Exports a checkpoint of a run as a directory that serves. CONFIG is a TOML file, such as RUN_DIR/config.toml.

    The directory TO/step-N holds model.pt2 (torch.export; it includes the data rules, so it takes raw columns),
    signature.json, parity.json (rows of the split with the trainer's answers, which the exported model has reproduced),
    load.py (a loader that needs torch alone, or for ONNX NumPy and onnxruntime) and, written last, manifest.json. Then
    TO/current.json names the directory. Takes three times the memory of the tables, four times with --compile; 0.7 GB
    with --shard-bytes.

    Args:
        config: The configuration, whose features must be those of the run.
        out: The run directory, any fsspec URL.
        to: Directory to write to, any fsspec URL.
        checkpoint: newest, best (by checkpoint.keep.best of RUN_DIR/config.toml), or the number of a step.
        split: The split of the configuration to take the parity rows from; they are part of the export.
        averages: Whether to export averaged weights. Unset: as evaluations take them.
        quantize: Bits of the tables' values: none for float32, int8 or int4, with a scale and a bias for each row. The
            metrics of the split before and after are printed, and written to signature.json.
        compile: Add the model as machine code for CPUs (compiled.pt2), which needs g++.
        format: torch, or onnx for model.onnx and model.onnx.data instead of model.pt2, which onnxruntime runs.
        shard_bytes: Write the tables, which may be larger than a host's memory, beside the program, to files of at most
            this many bytes. The loader maps the files into memory. Unset: the tables are in the program.
        delta: Write only what differs from the export that TO/current.json names, whose directory is then needed, too.
            An export is whole if it is the first, or if too much differs; a line prints the reason.
        anyway: Export even if a rule of [publish] does not hold.

    Raises:
        InputError: A rule of [publish] does not hold, there is no such checkpoint, the checkpoint is another model's or
            has weights that are not finite, the data or the model cannot be used, or the directory cannot be written.
    """
    run, segments, chosen = RunDirectory(out), [], None
    rules = PublishConfig() if anyway else config.publish
    if config.data.segments.path:
        chosen = find_checkpoint(run, "--out", checkpoint, "--checkpoint")
        segments = segments_of(run, chosen)
        with refusals_noted(to, chosen.step):
            check_rules(rules, segments, config.data)
        if segments and not getattr(config.data, split):
            config = config.model_copy(update={"data": data_of_segment(config.data, segments[-1]["segment"], split)})
    if not getattr(config.data, split):
        there = next((name for name in ("validation", "test", "train") if getattr(config.data, name)), None)
        take = f"take --split {there}, or " if there else ""
        raise InputError(f"--split is {split}, but data.{split} is empty; {take}name its files")
    ema = config.optimizer.ema
    averages = ema.decay is not None and ema.evaluate if averages is None else averages
    choices = Choices(split, averages, quantize, compile, format, shard_bytes)
    choices.check(delta, bool(config.data.features_of_tables()))
    # Only once: finding it reads it whole, and the run may meanwhile have a newer one than the rules were checked for.
    chosen = chosen or find_checkpoint(run, "--out", checkpoint, "--checkpoint")
    name, fingerprint = f"step-{chosen.step}", choices.fingerprint(config, chosen)
    if is_there(to, name, fingerprint):
        print(f"step {chosen.step:,} is in {without_secrets(to)} already, and is whole")
        return
    with named("--to", to):
        before = current_or_none(RunDirectory(to, "--to"))
    _check_features(config.data, chosen)
    check_fingerprints(config.data.sparse, chosen.train_state.get("vocabularies", {}), chosen.url)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, name)
        folder.mkdir()
        expected, known = _write(config, chosen, choices, folder)
        write_manifest(folder, fingerprint, known)
        if segments:
            with refusals_noted(to, chosen.step):
                check_beside_current(rules, folder, to, segments[-1]["segment"])
        changes = _only_changes(folder, to) if delta else None
        if changes:
            write_manifest(folder, fingerprint, known, changes.predecessor)
        forms = (False, True) if compile else (False,)
        worst = max(check_parity(folder, expected, config.model.name, form) for form in forms)
        size = sum(Path(folder, file).stat().st_size for file in files_of(folder))
        url = publish(folder, to, name, before)
    print(f"step {chosen.step:,}: {size / 2**20:,.1f} MiB are in {without_secrets(url)}")
    if changes:
        print(f"{changes.rows:,} rows differ from {Path(changes.predecessor.directory).name}, which has to stay there")
    asked = "trainer" if quantize == "none" else "quantized model"
    print(f"rows of data.{split} have the {asked}'s answers, to within {worst:.1g}")


@dataclass(frozen=True)
class Choices:
    """The flags that decide the files of an export, under their names."""

    split: str
    averages: bool
    quantize: str
    compile: bool
    format: str
    shard_bytes: int | None

    def check(self, delta: bool, has_tables: bool) -> None:
        """Refuses flags that exclude each other, need tables that the model lacks, or need a missing package.

        Args:
            delta: Whether to write only changes; not a field, because it does not affect the model.
            has_tables: Whether any feature of the model has a table.

        Raises:
            InputError: The message names the flags.
        """
        flags = {"--compile": self.compile, "--format": self.format, "--shard-bytes": self.shard_bytes or False}
        if delta and (others := [flag for flag, value in flags.items() if value not in (False, "torch")]):
            raise InputError(f"--delta is True, and {others[0]} is {flags[others[0]]}; leave one of them out")
        if self.compile and self.format == "onnx":
            raise InputError("--compile is True, which compiles model.pt2, but --format is onnx; leave one of them out")
        if self.shard_bytes and (self.compile or self.quantize != "none" or self.format == "onnx"):
            flags = {"--compile": self.compile, "--quantize": self.quantize, "--format": self.format}
            flag = next(flag for flag, value in flags.items() if value not in (False, "none", "torch"))
            raise InputError(f"--shard-bytes is {self.shard_bytes}, and {flag} is {flags[flag]}; leave one of them out")
        of_tables = {"--quantize": self.quantize, "--shard-bytes": self.shard_bytes or "none"}
        if not has_tables and (flag := next((flag for flag, value in of_tables.items() if value != "none"), None)):
            raise InputError(f"{flag} is {of_tables[flag]}, but the model has no tables; leave it out")
        if self.format == "onnx":
            check_onnx()
        if self.compile:
            check_compiler()

    def fingerprint(self, config: Config, checkpoint: Checkpoint) -> str:
        """Returns a text that changes with the checkpoint, the configuration and the choices."""
        made_of = [read_text(f"{checkpoint.url}/{MANIFEST}"), config.model_dump(mode="json"), asdict(self)]
        return digest(made_of)


def _check_features(data: DataConfig, chosen: Checkpoint) -> None:
    """Refuses features whose rules differ from the rules of training."""
    trained = load_config(f"{chosen.url}/config.toml").data.rules()
    for kind, ours in data.rules().items():
        theirs = trained[kind]
        if [*ours] != [*theirs]:
            raise InputError(f"data.{kind} names {some_of(ours)}, but the run has {some_of(theirs)}; make them equal")
        for name in ours:
            for key, now in ours[name].items():
                if now != (then := theirs[name][key]):
                    raise InputError(
                        f"data.{kind}.{name}.{key} is {now!r}, but the run was trained with {then!r}; use that"
                    )


def _only_changes(folder: Path, to: str) -> Delta | None:
    """Reduces the export to its changes; prints the reason and returns None if it stays whole."""
    try:
        return keep_changes(folder, to)
    except WholeExportError as error:
        print(f"--delta is True, but the export is whole: {without_secrets(error)}")
        return None


def _write(
    config: Config, chosen: Checkpoint, choices: Choices, folder: Path
) -> tuple[dict[str, Any], dict[str, FileEntry]]:
    """Writes all files but the manifest; returns the parity rows, and the known entries of files."""
    data, split = config.data, choices.split
    files = find_files(f"data.{split}", getattr(data, split), data)
    weights = SavedWeights(chosen, config.optimizer.ema, choices.averages)
    weights.types.check(data, files.files)
    types, lists = column_types(files, data), lists_in(files, data)
    described = signature(data, types, lists, model_outputs(config))
    described |= {"model": config.model.name, "step": chosen.step, "averages": choices.averages, "tables": "float32"}
    described |= {"format": choices.format, "split": split, **items_in(config)}
    state = read_managed(chosen) if data.managed_tables else {}
    rows = partial(read_rows, files, config.data, saved_id_map(config, chosen.train_state, state))
    listed = ids_with_rows(data, {table: state[f"managed.{name_in_model(table)}.ids"] for table in data.managed_tables})
    unsigned = [name for name, one in data.sparse.items() if type_of_ids(types[columns_of(name, one)[0]]) == "uint64"]
    rules = partial(Rules, data, lists, unsigned)
    known: dict[str, FileEntry] = {}
    if choices.shard_bytes:
        shards, samples = TableShards(weights, data, choices.shard_bytes), first_rows(rows)
        written, known = write_in_shards(config, shards, samples, rules, listed, described, folder)
    else:
        written = _write_whole(config, weights, choices, rows, rules(listed), described, folder)
    _write_json(folder / "signature.json", described)
    expected = {"tolerance": TOLERANCE, **written}
    _write_json(folder / "parity.json", expected)
    write_loader(data, folder)
    return expected, known


def _write_whole(
    config: Config,
    weights: SavedWeights,
    choices: Choices,
    rows: Callable[[], Iterator[SplitRows]],
    rules: Rules,
    described: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """Writes the program with its tables, completes the signature, and returns the parity rows and answers."""
    model, outputs, split, quantize = (
        load_model(config, weights),
        model_outputs(config),
        choices.split,
        choices.quantize,
    )
    _check_finite(model, weights.url)
    samples = first_rows(rows)
    tables = {table_of_weight(name): one for name, one in model.named_parameters()}
    rows_of = rows_of_samples(samples, config.data)
    needed = {
        table: tables[table][one] for table, one in rows_of.items() if table in tables
    }  # a model may leave some out
    written = trained_parity(load_dense(config, weights), needed, outputs, samples, config.data)
    replace_tables(model, config.data)
    if quantize != "none":
        described |= {"tables": quantize, "quality": _quantize(model, config, weights.types, rows, split, quantize)}
        written = parity(model, plain_answers, outputs, samples)
    program = export_program(ServedModel(model, rules, outputs).eval(), described, config.model.name)
    if choices.compile:
        compile_program(program, folder / "compiled.pt2")
    if choices.format == "onnx":
        save_onnx(program, described, config.model.name, folder / load.ONNX)
    else:
        save_program(program, folder / "model.pt2")
    return written


def _check_finite(model: nn.Module, url: str) -> None:
    for name, weight in model.state_dict().items():
        if weight.is_floating_point() and not weight.isfinite().all():
            raise InputError(f"the checkpoint at {url} has weights that are not finite: {name}; use another")


def _quantize(
    model: nn.Module,
    config: Config,
    types: RecordedTypes,
    rows: Callable[[], Iterator[SplitRows]],
    split: str,
    quantize: str,
) -> dict[str, Any]:
    """Quantizes the tables, and returns the metrics of the split before and after."""
    before = measure(model, config, types, rows())
    quantize_tables(model, quantize)
    after = measure(model, config, types, rows())
    print(render(split, before, after, quantize))
    return {"split": split, "float32": before, quantize: after}


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n")
