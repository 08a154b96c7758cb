"""Writes an exported program in ONNX, which onnxruntime runs without torch."""

import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from trainer.core.errors import InputError, first_line

if TYPE_CHECKING:
    import onnx_ir

MEAN = 1  # torch's number of this mode of embedding_bag


def check_onnx() -> None:
    """Refuses to write ONNX without the packages for it.

    Raises:
        InputError: A package is not installed.
    """
    try:
        for name in ("onnx", "onnxscript", "onnxruntime"):
            import_module(name)
    except ImportError as error:
        raise InputError(
            f"--format is onnx, which needs the package {error.name}; pip install 'torchx-recsys[onnx]'"
        ) from error


def save_onnx(program: ExportedProgram, signature: dict[str, Any], name: str, file: Path) -> None:
    """Writes a program, and its weights to a second file, as an ONNX file holds at most 2 GB.

    Args:
        program: The program.
        signature: Names the inputs and outputs, in order.
        name: The model's name, for the message.
        file: The file; the file of the weights adds `.data`.

    Raises:
        InputError: ONNX lacks an operation, or an input has the name of an output.
    """
    import onnx_ir

    program._example_inputs = None  # otherwise torch writes checks of them, with column names in the code
    try:
        with _quiet():
            converted = torch.onnx.export(program.run_decompositions(LACKING), dynamo=True, verbose=False)
    except torch.onnx.OnnxExporterError as error:
        raise InputError(
            f"model.name is '{name}', which cannot be written in ONNX: {first_line(_cause(error))}; leave --format out"
        ) from error
    assert converted is not None
    _name_values(converted.model.graph, signature)
    _anonymize(converted.model)
    onnx_ir.save(converted.model, file, external_data=f"{file.name}.data")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the converter's progress messages."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _name_values(graph: "onnx_ir.Graph", signature: dict[str, Any]) -> None:
    """Gives inputs and outputs the names and sizes of the signature, and renames all other values."""
    import onnx_ir

    outer = [*zip(graph.inputs, signature["inputs"], strict=True)]
    outer += [*zip(graph.outputs, signature["outputs"], strict=True)]
    names = [entry["name"] for _, entry in outer]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--format is onnx, but column '{twice[0]}' has the name of an output; rename it")
    free = (name for place in itertools.count() if (name := f"value_{place}") not in names)
    computed = [value for node in graph.all_nodes() for value in node.outputs if not value.is_graph_output()]
    for value in (*graph.initializers.values(), *computed):
        value.name = next(free)
    for value in computed:
        value.shape = None  # readers of the file infer the shape from the sizes of the inputs
    for value, entry in outer:
        value.name = entry["name"]
        value.shape = onnx_ir.Shape(entry.get("shape", ["B", *_columns(value)]))


def _columns(output: "onnx_ir.Value") -> list[Any]:
    return [*(output.shape or ())][1:]


def _anonymize(model: "onnx_ir.Model") -> None:
    """Removes traces and module names, which reveal the exporting machine and code."""
    graph = model.graph
    for one in (model, graph, *graph.inputs, *graph.outputs, *graph.initializers.values()):
        one.metadata_props.clear()
        one.doc_string = None
    graph.name = "model"
    for place, node in enumerate(graph.all_nodes()):
        node.metadata_props.clear()
        node.doc_string, node.name = None, f"node_{place}"
        for value in node.outputs:
            value.metadata_props.clear()


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pools by adding each embedding to its bag, 100 times as fast as the converter's own loop over bags."""
    if mode > MEAN or per_sample_weights is not None or padding_idx is not None or not include_last_offset:
        return NotImplemented
    starts, ends = offsets[:-1], offsets[1:]
    bags = indices.new_zeros(indices.shape[0] + 1).index_add(0, ends, torch.ones_like(ends)).cumsum(0)[:-1]
    pooled = weight.new_zeros(ends.shape[0], weight.shape[1]).index_add(0, bags, weight[indices])
    if mode == MEAN:
        pooled = pooled / (ends - starts).clamp(min=1)[:, None]
    return pooled, bags, bags, bags  # only the first is read


def _searchsorted(
    keys: Tensor,
    ids: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Counts the keys below each id, bit by bit of the count, from the highest."""
    if out_int32 or right or side == "right" or sorter is not None or keys.dim() > 1:
        return NotImplemented
    count, every = torch.zeros_like(ids), keys.shape[0]
    for bit in reversed(range(every.bit_length())):
        more = count + (1 << bit)
        below = (more <= every) & (keys[(more - 1).clamp(max=every - 1)] < ids)
        count = torch.where(below, more, count)
    return count


LACKING: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.embedding_bag.padding_idx: _embedding_bag,
    torch.ops.aten.searchsorted.Tensor: _searchsorted,
}
"""Operations that ONNX lacks, or runs slowly, in ONNX's own."""
