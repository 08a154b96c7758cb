"""Loads the exported model of this directory; needs only torch, or for model.onnx only NumPy and onnxruntime.

from load import load

model = load()
print(model({"price": [1.5, None], "country": [7, 3]}))

A directory with changes.bin holds the differences from its predecessor, an export that manifest.json names and whose
directory must be beside it. A model can take these changes in place: model.apply(read_changes(directory)).

A column is a list with a value for each sample, None where it is missing, or a tensor; of model.onnx a NumPy array. A
vector is a list of numbers, and a tensor of vectors is [B, width]. A tensor or an array of integers has an id for every
sample. Columns of strings are hashed here, as numbers of 64 bits; a string may be bytes, and in text, such as JSON, a
byte that is not UTF-8 is one of U+DC80 to U+DCFF, as Python's error handler surrogateescape writes it.
Rules of the user's own without a version in torch run here, from rules/, and need NumPy. Every other rule is in the
model. signature.json describes the columns.
"""

import contextlib
import importlib.util
import json
import math
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trainer.rules.dense import has_dense_value
from trainer.rules.hashing import hash_bytes, is_outside
from trainer.rules.id_lists import allowed_weights, is_weight, kept_range
from trainer.rules.lookups import overlap_parts
from trainer.rules.plain_types import bytes_of
from trainer.rules.registry import checked_rows

Tensor = Any
"""A tensor of torch, or an array of NumPy, whose functions that are used here have the same names."""
Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]
Stays = Callable[[int, list[Any]], list[Any]]
Embeddings = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Returns the embeddings of rows, `[N]` to `[N, D]` float32, by feature."""

ONNX = "model.onnx"
ROWS, TABLES = "rows.pt2", "tables.json"  # files of a model with tables in shards
CHANGES, INDEX = "changes.bin", "changes.json"  # files of an export that holds its differences from another
SMALL_BYTES = 1 << 20  # size up to which checksums of files are always compared
NO_ID = -(2**63)  # a missing id in exports of version 1; later versions have inputs that mark missing ids
MOST_NAMED = 20  # maximum number of columns in a message
LARGEST = (2 - 2**-23) * 2.0**127  # the largest value of float32
NUMBERS = ("float", "bfloat", "int", "uint", "bool")  # beginnings of the names of types
LOADS = threading.Lock()  # torch refuses to read two programs at once


class ColumnError(ValueError):
    """A column is unusable; the message names it."""


def load(
    directory: str | Path = Path(__file__).parent,
    compiled: bool = False,
    verify: bool = False,
    embeddings: Embeddings | None = None,
) -> "Model":
    """Returns the model of a directory.

    Args:
        directory: `step-N` of an export; this file's own if unset.
        compiled: Whether to run the compiled model, which an export with --compile has.
        verify: Whether to compare the checksums of all files; else those of small files, and all sizes.
        embeddings: Looks rows up elsewhere, such as in a store, for an export with tables in shards. tables.json names
            the features of each table. Unset: the tables are files of the directory.

    Raises:
        ValueError: The directory is no whole export, a file is damaged, or an export that it changes is missing.
    """
    return Model(Path(directory), compiled, verify, embeddings)


class Export(NamedTuple):
    """An export, by its manifest.

    Attributes:
        directory: Its directory.
        files: Size and checksum of each file, by name.
        crc32: CRC-32 of the manifest, which identifies the export.
        predecessor: The export that this one changes: its directory's name, and the CRC-32 of its manifest. None for a
            whole export.
    """

    directory: str
    files: dict[str, dict[str, int]]
    crc32: int
    predecessor: dict[str, Any] | None


ReadManifest = Callable[[str], bytes]
"""Returns the manifest in a directory."""


def export_in(directory: str, read: ReadManifest) -> Export:
    """Returns the export in a directory.

    Raises:
        ValueError: The manifest is missing or damaged.
    """
    try:
        text = read(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{directory} is no whole export: manifest.json, which is written last, is missing") from None
    if (found := _export(directory, text)) is None:
        raise ValueError(f"{directory} is no whole export: manifest.json is damaged; copy the directory again")
    return found


def _export(directory: str, text: bytes) -> Export | None:
    """Returns the export that a manifest describes; None if the manifest is damaged."""
    try:
        manifest = json.loads(text)
        found = Export(directory, manifest["files"], zlib.crc32(text), manifest.get("predecessor"))
        is_whole = (CHANGES in found.files) == (found.predecessor is not None)
        shapes = [(entry, {"bytes": int, "crc32": int}) for entry in found.files.values()]
        shapes += [(found.predecessor, {"directory": str, "crc32": int})] if found.predecessor is not None else []
        is_whole &= all({key: type(value) for key, value in one.items()} == kinds for one, kinds in shapes)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if is_whole else None


def chain_of(directory: str, read: ReadManifest) -> list[Export]:
    """Returns the exports that make up an export: a whole one, then the changes up to the export itself.

    Raises:
        ValueError: A manifest is missing, or belongs to another export.
    """
    chain = [export_in(directory, read)]
    while link := chain[0].predecessor:
        changing, beside = chain[0].directory, os.path.join(os.path.dirname(directory), link["directory"])
        try:
            chain.insert(0, export_in(beside, read))
        except ValueError:
            raise ValueError(f"{beside} is missing, which {changing} changes; copy that export there") from None
        if chain[0].crc32 != link["crc32"]:
            raise ValueError(f"{beside} is not the export that {changing} changes; copy that export there")
    return chain


class Changes:
    """The changes that lead from the model of one export to the model of the next, in memory.

    Args:
        export: The next export.

    Attributes:
        export: The same.
        signature: Its signature.
        tensors: The changed tensors by name: the numbers of rows, None for all of them, and their values.
    """

    def __init__(self, export: Export) -> None:
        import torch

        self.export, folder = export, Path(export.directory)
        self.signature: dict[str, Any] = json.loads((folder / "signature.json").read_text())
        content = bytearray((folder / CHANGES).stat().st_size)
        with (folder / CHANGES).open("rb") as file:  # not mapped: its pages would be read while the model waits
            file.readinto(content)
        part = partial(_part, torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0))
        self.tensors: dict[str, tuple[Tensor | None, Tensor]] = {}
        for name, entry in json.loads((folder / INDEX).read_text())["tensors"].items():
            shape, rows = entry["shape"], None
            if "numbers" in entry:
                shape = [entry["rows"], *shape[1:]]
                rows = part(entry["numbers"], torch.int64, shape[:1])
            self.tensors[name] = rows, part(entry["values"], getattr(torch, entry["dtype"]), shape)

    @property
    def rows(self) -> int:
        """The number of changed rows, in tensors that are not written whole."""
        return sum(len(rows) for rows, _ in self.tensors.values() if rows is not None)


def read_changes(directory: str | Path, verify: bool = False) -> Changes:
    """Returns the changes of an export, for `Model.apply`. May run while the model answers.

    Args:
        directory: `step-N` of an export that holds changes.
        verify: As for `load`.

    Raises:
        ValueError: The directory holds no changes, or a file is damaged.
    """
    export = export_in(os.path.realpath(directory), _manifest)
    if export.predecessor is None:
        raise ValueError(f"{directory} is a whole export; load it")
    _check_files(export, verify)
    return Changes(export)


class Model:
    """An exported model; a function from columns to outputs by name, which several threads may call at once.

    Args:
        directory: As for `load`.
        compiled: The same.
        verify: The same.
        embeddings: The same.

    Attributes:
        signature: The content of signature.json: columns with their types and rules, inputs in order, outputs.
        run: Returns the outputs for `inputs`.
        export: The export that the model is.
        tensors: The weights and lists of ids to which changes apply, by name. Empty if the model takes no changes.
    """

    def __init__(self, directory: Path, compiled: bool, verify: bool, embeddings: Embeddings | None = None) -> None:
        chain = chain_of(os.path.realpath(directory), _manifest)
        for export in chain:
            _check_files(export, verify)
        self.export, whole = chain[0], Path(chain[0].directory)
        self.signature: dict[str, Any] = json.loads((whole / "signature.json").read_text())
        is_onnx = self.signature.get("format") == "onnx"
        if compiled and not (directory / "compiled.pt2").exists():
            raise ValueError(f"{directory} has no compiled model; export with --compile True")
        if embeddings and (compiled or "shards" not in self.signature):
            raise ValueError(f"{directory} has its tables in the program; export with --shard-bytes to look rows up")
        self.tensors: dict[str, Tensor] = {}
        if is_onnx:
            self.run = _of_onnx(whole)
        elif compiled or "shards" in self.signature:
            self.run = _of_torch(whole, compiled, embeddings)
        else:
            self.run, self.tensors = program_of(whole / "model.pt2")
        for export in chain[1:]:
            self.apply(Changes(export))
        rules = _own_rules(directory, self.signature["columns"])
        self._read = _Reader("numpy", "ndarray", rules) if is_onnx else _Reader("torch", "Tensor", rules)
        self._names = [*dict.fromkeys(column["name"] for column in self.signature["columns"])]

    def __call__(self, columns: dict[str, Any]) -> dict[str, Tensor]:
        """Returns the outputs by name for columns.

        Raises:
            ColumnError: A column is missing, unknown, of another type or length, or has a value that is not allowed.
        """
        return self.run(self.inputs(columns))

    def apply(self, changes: Changes) -> None:
        """Turns the model in place into the model of the next export. No thread may call the model meanwhile.

        Raises:
            ValueError: The changes are of another model; nothing is changed.
        """
        import torch

        predecessor = changes.export.predecessor
        if not (self.tensors and predecessor and predecessor["crc32"] == self.export.crc32):
            raise ValueError(f"{changes.export.directory} does not change the model of {self.export.directory}")
        with torch.no_grad():
            for name, (rows, values) in changes.tensors.items():
                tensor = self.tensors[name]
                tensor.copy_(values) if rows is None else _words(tensor).index_copy_(0, rows, _words(values))
        self.export, self.signature = changes.export, changes.signature

    def inputs(self, columns: dict[str, Any]) -> dict[str, Tensor]:
        """Returns columns as the model's input tensors, in its order; raises the same errors.

        A model of the vectors of queries and items takes the columns of one side alone: those of the other are missing.
        """
        columns = self._of_both_sides(columns)
        self._check(columns)
        found: dict[str, Tensor] = {}
        for column in self.signature["columns"]:  # one column may serve several features
            given = self._read(column, columns)
            found |= self._read.times(column, found, given) if column.get("is_factor") else given
        return {entry["name"]: found[entry["name"]] for entry in self.signature["inputs"]}

    def _of_both_sides(self, columns: dict[str, Any]) -> dict[str, Any]:
        is_of_vectors = all(output["kind"] == "vector" for output in self.signature["outputs"])
        of_items = self.signature.get("items", {}).get("columns", []) if is_of_vectors else []
        sides = of_items, [name for name in self._names if name not in of_items]
        absent = [side for side in sides if of_items and not {*side} & columns.keys()]
        first = next(iter(columns.values()), None)
        if len(absent) != 1 or not isinstance(first, list | self._read.array):
            return columns
        return {**columns, **{name: [None] * len(first) for name in absent[0]}}

    def _check(self, columns: dict[str, Any]) -> None:
        for name in columns:
            if name not in self._names:
                raise ColumnError(f"column '{name}' is unknown; the model takes {_some_of(self._names)}")
        for name in self._names:
            if name not in columns:
                raise ColumnError(f"column '{name}' is missing; the model takes {_some_of(self._names)}")
            values = columns[name]
            is_scalar = not hasattr(values, "__len__") or getattr(values, "ndim", 1) == 0
            if isinstance(values, str | bytes | dict) or is_scalar:
                raise ColumnError(f"column '{name}' is {_kind(values)}; it must be a list of values")
        first = self._names[0]
        rows = len(columns[first])
        for name in self._names:
            if (length := len(columns[name])) != rows:
                there = _plural(length, "value")
                raise ColumnError(f"column '{name}' has {there}, but '{first}' has {rows}; make them equal")
        if rows == 0:
            raise ColumnError(f"column '{first}' is empty; send at least one sample")


def program_of(file: Path) -> tuple[Run, dict[str, Tensor]]:
    """Returns a program with its tables in it as a function, and the tensors that the function uses, by name."""
    import torch

    with LOADS:
        program = torch.export.load(file)
    module = program.module()
    names = (*program.state_dict, *program.constants)
    return torch.inference_mode()(module), {name: getattr(module, name) for name in names}


def _of_torch(directory: Path, compiled: bool, embeddings: Embeddings | None) -> Run:
    import torch

    if compiled:
        return torch.inference_mode()(torch._inductor.aoti_load_package(str(directory / "compiled.pt2")))
    return torch.inference_mode()(_InShards(directory, embeddings or _InFiles(directory)))


def _of_onnx(directory: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)  # as in torch; 0 means one for each core
    session = onnxruntime.InferenceSession(directory / ONNX, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


class _InShards:
    """A model whose tables are beside its programs: only the rows of a call are read.

    Args:
        directory: As for `load`.
        embeddings: Looks rows up.
    """

    def __init__(self, directory: Path, embeddings: Embeddings) -> None:
        import torch

        with LOADS:
            rows, model = (torch.export.load(directory / name) for name in (ROWS, "model.pt2"))
        self._rows, self._model = rows.module(), model.module()
        self._embeddings = embeddings

    def __call__(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return self._model(inputs, self._embeddings(self._rows(inputs)))


class _InFiles:
    """Looks rows up in the files of tables, which are mapped into memory.

    Args:
        directory: As for `load`.
    """

    def __init__(self, directory: Path) -> None:
        index = json.loads((directory / TABLES).read_text())
        tables = [(_Table(directory, table), table["features"]) for table in index["tables"].values()]
        self._tables = {feature: table for table, features in tables for feature in features}

    def __call__(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._tables[name](one) for name, one in rows.items()}


class _Table:
    def __init__(self, directory: Path, table: dict[str, Any]) -> None:
        import torch

        dtype, self._columns = getattr(torch, table["dtype"]), table["columns"]
        self._starts = torch.tensor([file["first_row"] for file in table["files"]])
        self._files = [
            torch.from_file(str(directory / file["name"]), size=file["rows"] * self._columns, dtype=dtype)
            for file in table["files"]
        ]

    def __call__(self, rows: Tensor) -> Tensor:
        """Returns the embeddings of rows, `[N]` to `[N, D]` float32."""
        import torch

        found = torch.empty(len(rows), self._columns)
        places = torch.searchsorted(self._starts, rows, right=True) - 1
        for place in places.unique().tolist():
            here = places == place
            found[here] = self._files[place].view(-1, self._columns)[rows[here] - self._starts[place]].float()
        return found


def _manifest(directory: str) -> bytes:
    return Path(directory, "manifest.json").read_bytes()


def _check_files(export: Export, verify: bool) -> None:
    for name, entry in export.files.items():
        file = Path(export.directory, name)
        looks_at = verify or entry["bytes"] <= SMALL_BYTES  # a changed bit in a signature could cause any error later
        if not file.is_file() or file.stat().st_size != entry["bytes"] or (looks_at and _crc32(file) != entry["crc32"]):
            raise ValueError(f"{file} is damaged or missing; copy the directory again")


def _crc32(file: Path) -> int:
    total = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            total = zlib.crc32(block, total)
    return total


def _part(content: Tensor, start: int, dtype: Any, shape: list[int]) -> Tensor:
    """Returns the tensor that begins at a byte of a file's content."""
    size = math.prod(shape) * dtype.itemsize
    return content[start : start + size].view(dtype).view(shape)


def _words(rows: Tensor) -> Tensor:
    """Returns rows as numbers of 64 bits if their size allows: fewer numbers are copied faster."""
    import torch

    return rows.view(torch.int64) if rows.dim() > 1 and rows[0].nbytes % 8 == 0 and rows.is_contiguous() else rows


def _own_rules(directory: Path, columns: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the rules that are files of the export, by the input of their column."""
    found = {}
    for column in columns:
        if "source" in column:
            name, _, attribute = column["rule"].partition(":")
            spec = importlib.util.spec_from_file_location(name, directory / column["source"])
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            with _without_bytecode():
                spec.loader.exec_module(module)
            found[column["input"]] = getattr(module, attribute)(column["rows"], **column["options"])
    return found


@contextlib.contextmanager
def _without_bytecode() -> Iterator[None]:
    """Keeps Python from adding bytecode, which names directories of the machine, to the export."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


class _Reader:
    """Turns a column into inputs of the model.

    Args:
        library: The name of a library of arrays.
        array: The name of its array.
        rules: The rules that are not in the model, by the input that they turn into rows.
    """

    def __init__(self, library: str, array: str, rules: dict[str, Any]) -> None:
        self._rules = rules
        self._library = importlib.import_module(library)
        self.array = getattr(self._library, array)
        # NumPy would warn of numbers that are infinite in float32; these are refused anyway.
        self._quiet = partial(self._library.errstate, all="ignore") if library == "numpy" else contextlib.nullcontext

    def __call__(self, column: dict[str, Any], columns: dict[str, Any]) -> dict[str, Tensor]:
        """Returns the inputs of one of the columns by name; the errors of `Model.inputs`."""
        if column["kind"] == "beside":
            return {}
        values = self._with_none(columns[column["name"]], column["kind"] in ("number", "vector"))
        if column.get("lookup"):
            values = self._looked_up(column, columns)
        if column.get("overlap"):
            values = self._overlaps(column, columns)
        if column["kind"] == "weight":
            return self._single_weights(column, values, self._with_none(columns[column["ids"]]))
        stays = self._others(column, columns)
        if column["kind"] == "weights":
            return self._weights(column, values, self._with_none(columns[column["ids"]]), stays)
        if column["kind"] == "list":
            return self._lists(column, values, stays)
        kinds = {"number": self._numbers, "vector": self._vectors, "id": self._single, "time": self._single}
        return kinds[column["kind"]](column, values)

    def _vectors(self, column: dict[str, Any], values: Any) -> dict[str, Tensor]:
        name, library, width = column["name"], self._library, column["width"]
        if self._is_array(values):
            if values.ndim != 2 or values.shape[1] != width or not _dtype(values).startswith(NUMBERS):
                raise ColumnError(f"column '{name}' is {_of(values)}; it must be [B, {width}] of numbers")
            return {column["input"]: self._finite(column, values, values)}
        found = []
        for row, one in enumerate(values):
            vector = [None] * width if _is_null(one) else self._list(column, row, one, "numbers")
            if len(vector) != width:
                raise ColumnError(f"column '{name}', row {row}: {_plural(len(vector), 'number')}; it must be {width}")
            found.append([_number(name, row, value) for value in vector])
        return {column["input"]: self._finite(column, library.asarray(found, dtype=library.float64), values)}

    def _numbers(self, column: dict[str, Any], values: Any) -> dict[str, Tensor]:
        name, library = column["name"], self._library
        if self._is_array(values) and values.ndim == 2 and column["transform"] == "is_missing":
            values = library.zeros_like(values[:, 0])  # no row of an array lacks its vector
        if self._is_array(values):
            if values.ndim != 1 or not _dtype(values).startswith(NUMBERS):
                raise ColumnError(f"column '{name}' is {_of(values)}; it must be [B] of numbers")
            numbers = values
        else:
            if column["transform"] == "is_missing" and "keys" not in column:  # applies to a column of any type
                found = [math.nan if _is_null(value) else 0.0 for value in values]
            else:
                found = [_number(name, row, value) for row, value in enumerate(values)]
            numbers = library.asarray(found, dtype=library.float64)
        return {column["input"]: self._finite(column, numbers, values)}

    def _finite(self, column: dict[str, Any], numbers: Tensor, values: Any) -> Tensor:
        """Returns the numbers of values as float32, `[B]` or `[B, width]`, if all have a finite dense value."""
        library = self._library
        with self._quiet():
            numbers = library.asarray(numbers, dtype=getattr(library, column["type"]))
            takes_any = column.get("buckets") or column["transform"] == "is_missing"
            good = library.ones_like(numbers, dtype=bool) if takes_any else has_dense_value(numbers, column, library)
        if not good.all():
            row, *places = library.argwhere(~good)[0].tolist()
            value, at = values[row], "".join(f" at place {place}" for place in places)
            for place in places if value is not None else ():
                value = value[place]
            raise ColumnError(
                f"column '{column['name']}', row {row}: {'null' if value is None else value}{at} has no finite value "
                f"under the transform '{column['transform']}'"
            )
        return numbers

    def _single(self, column: dict[str, Any], values: Any) -> dict[str, Tensor]:
        if self._is_array(values):
            if values.ndim != 1 or not _dtype(values).startswith(("int", "uint")):
                raise ColumnError(f"column '{column['name']}' is {_of(values)}; it must be [B] of int64")
            ids = self._library.asarray(values, dtype=self._library.int64)
            present = self._library.ones_like(ids, dtype=bool)
        else:
            ids = self._ids([_id(column, row, value) for row, value in enumerate(values)])
            present = self._library.asarray([value is not None for value in values])
        _check_range(column, ids[present])
        if column["input"] in self._rules:
            ids[present] = self._rows(column, ids[present])
        return {column["input"]: ids, f"{column['input']}.present": present}

    def _looked_up(self, column: dict[str, Any], columns: dict[str, Any]) -> list[Any]:
        """Returns the values of each row's key: a list of ids, or the last number."""
        pairs, found = self._pairs(column, columns), []
        of_key, of_lists = (
            {"name": column[key] or column["name"], "kind": "id", "type": column["keys"]}
            for key in ("lookup", "lookup_in")
        )
        for row, key in enumerate(self._listed(columns[column["lookup"]])):
            wanted = None if key is None else _id(of_key, row, key)
            ids = [(None if _is_null(one) else _id(of_lists, row, one), value) for one, value in pairs[row]]
            found.append([value for one, value in ids if one == wanted is not None])
        return found if column["kind"] == "list" else [values[-1] if values else None for values in found]

    def _pairs(self, column: dict[str, Any], columns: dict[str, Any]) -> list[list[Any]]:
        """Returns the keys and values of each row: of maps, or of two columns of lists."""
        name, beside = column["name"], column["lookup_in"]
        values = columns[name]
        if beside is None:
            return [_pairs_of(column, row, one) for row, one in enumerate(values)]
        found = []
        for row, (keys, of_keys) in enumerate(zip(columns[beside], values, strict=True)):
            keys = self._list({"name": beside}, row, keys, "ids")
            of_keys = self._list(column, row, of_keys, "values")
            if len(keys) != len(of_keys):
                raise ColumnError(
                    f"column '{beside}', row {row}: {_plural(len(keys), 'id')} for {_plural(len(of_keys), 'value')} of "
                    f"'{name}'; each needs one"
                )
            found.append([*zip(keys, of_keys, strict=True)])
        return found

    def _overlaps(self, column: dict[str, Any], columns: dict[str, Any]) -> list[float | None]:
        """Returns the overlap of the ids of each row in two columns; None where it is undefined."""
        found = []
        sides = [self._listed(columns[column[key]]) for key in ("name", "overlap")]
        for row, both in enumerate(zip(*sides, strict=True)):
            first, second = (
                {_id(of, row, id) for id in self._ids_in(of, row, one) if not _is_null(id)}
                for of, one in zip(_compared(column), both, strict=True)
            )
            over, under = overlap_parts(len(first & second), len(first), len(second), column.get("overlap_as", "count"))
            found.append(over / under if under else None)
        return found

    def _ids_in(self, column: dict[str, Any], row: int, one: Any) -> list[Any]:
        """Returns the ids of a row, in a list or single."""
        is_one = isinstance(one, str | bytes) or not hasattr(one, "__iter__")
        return [one] if is_one and one is not None else self._list(column, row, one, "ids")

    def _listed(self, values: Any) -> list[Any]:
        """Returns values of a column as a list, with None for each null."""
        values = self._with_none(values)
        return values.tolist() if isinstance(values, self.array) else values

    def _others(self, column: dict[str, Any], columns: dict[str, Any]) -> "Stays":
        """Returns a function that leaves the places of a row's own id out of a list of the row."""
        if column.get("without") is None:
            return lambda row, one: one
        own, compared = (self._with_none(columns[column[key]]) for key in ("without", "without_in"))
        own = own.tolist() if isinstance(own, self.array) else own

        def others(row: int, one: list[Any]) -> list[Any]:
            ids = self._list({"name": column["without_in"]}, row, compared[row], "ids")
            if len(ids) != len(one):
                raise ColumnError(
                    f"column '{column['without_in']}', row {row}: {_plural(len(ids), 'id')} for "
                    f"{_plural(len(one), 'value')} of '{column['name']}'; each needs one"
                )
            if _is_null(own[row]):
                return one
            named = {"name": column["without"]}
            left_out = _comparable(named, row, own[row])
            pairs = zip(one, ids, strict=True)
            return [value for value, id in pairs if _is_null(id) or _comparable(named, row, id) != left_out]

        return others

    def _lists(self, column: dict[str, Any], values: Any, stays: "Stays") -> dict[str, Tensor]:
        ids: list[int] = []
        lengths = []
        for row, one in enumerate(values):
            present = [value for value in stays(row, self._list(column, row, one, "ids")) if not _is_null(value)]
            kept = _kept(column, present)
            ids += (_id(column, row, value) for value in kept)
            lengths.append(len(kept))
        found = self._ids(ids)
        _check_range(column, found)
        if column["input"] in self._rules:
            found = self._rows(column, found)
        return {f"{column['input']}.values": found, f"{column['input']}.lengths": self._ids(lengths)}

    def _rows(self, column: dict[str, Any], ids: Tensor) -> Tensor:
        """Returns the rows of ids by a rule that is not in the model."""
        given = importlib.import_module("numpy").asarray(ids) + column["offset"]
        try:
            return self._library.asarray(checked_rows(self._rules[column["input"]], given, column["rows"]))
        except ValueError as error:
            raise ColumnError(f"column '{column['name']}': {error}") from error

    def _single_weights(self, column: dict[str, Any], values: Any, ids: Any) -> dict[str, Tensor]:
        values, ids = (one.tolist() if isinstance(one, self.array) else one for one in (values, ids))
        weights = [
            0.0 if id is None else _weight(column, row, value)
            for row, (id, value) in enumerate(zip(ids, values, strict=True))
        ]
        return self._of_weights(column, weights)

    def _weights(self, column: dict[str, Any], values: Any, ids: Any, stays: "Stays") -> dict[str, Tensor]:
        found: list[float] = []
        for row, (one, weights) in enumerate(zip(ids, values, strict=True)):
            one, weights = self._list(column, row, one, "ids"), self._list(column, row, weights, "weights")
            if len(one) != len(weights):
                raise ColumnError(
                    f"column '{column['name']}', row {row}: {_plural(len(weights), 'weight')} for "
                    f"{_plural(len(one), 'id')} of '{column['ids']}'; each id needs one"
                )
            pairs = zip(stays(row, one), stays(row, weights), strict=True)
            found += _kept(column, [_weight(column, row, value) for id, value in pairs if not _is_null(id)])
        return self._of_weights(column, found)

    def _of_weights(self, column: dict[str, Any], weights: list[float]) -> dict[str, Tensor]:
        return {f"{column['input']}.weights": self._library.asarray(weights, dtype=self._library.float32)}

    def times(self, column: dict[str, Any], found: dict[str, Tensor], factors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights of ids that earlier columns gave, times those of a column."""
        ((name, factor),) = factors.items()
        with self._quiet():
            product = found[name] * factor
        if not self._library.isfinite(product).all():
            raise ColumnError(f"column '{column['name']}': its products with other weights of ids are not finite")
        return {name: product}

    def _list(self, column: dict[str, Any], row: int, one: Any, noun: str) -> list[Any]:
        """Returns the values of a row; none for None."""
        is_one = isinstance(one, str | bytes | dict) or not hasattr(one, "__iter__") or getattr(one, "ndim", 1) == 0
        if one is not None and is_one:
            raise ColumnError(f"column '{column['name']}', row {row}: {_shown(one)} is not a list of {noun}")
        return one.tolist() if hasattr(one, "tolist") else [*(one or ())]

    def _with_none(self, values: Any, of_numbers: bool = False) -> Any:
        """Returns values with None for each null; NaN in a column of numbers stays, as in training it is not null."""
        if self._is_array(values):
            return values
        return [
            None if _is_null(value) and not (of_numbers and isinstance(value, float)) else value for value in values
        ]

    def _is_array(self, values: Any) -> bool:
        """Returns whether values are an array of numbers; arrays of objects or strings are read like lists."""
        return isinstance(values, self.array) and getattr(values.dtype, "kind", "") not in ("O", "U", "T")

    def _ids(self, values: list[int]) -> Tensor:
        return self._library.asarray(values, dtype=self._library.int64)


def _pairs_of(column: dict[str, Any], row: int, one: Any) -> list[Any]:
    """Returns the keys and values of a map: an object, or a list of pairs."""
    if isinstance(one, dict):  # in JSON all keys are text
        is_text = column["keys"] == "string"
        return [(int(key) if not is_text and _is_integer(key) else key, value) for key, value in one.items()]
    pairs = [] if _is_null(one) else one
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise ColumnError(
            f"column '{column['name']}', row {row}: {_shown(one)} is not a map; send an object, or a list of pairs"
        )
    return pairs


def _is_integer(key: Any) -> bool:
    return isinstance(key, str) and key.isascii() and key.removeprefix("-").isdigit()


def _compared(column: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns entries for the ids in the two columns of an overlap."""
    return [{"name": column[key], "kind": "id", "type": column["keys"]} for key in ("name", "overlap")]


def _kept(column: dict[str, Any], values: list[Any]) -> list[Any]:
    """Returns the values of a list that the feature keeps."""
    if column.get("max_ids") is None:
        return values
    begin, end = kept_range(len(values), column["max_ids"], column["keep"])
    return values[begin:end]


def _comparable(column: dict[str, Any], row: int, value: Any) -> Any:
    """Returns an id, of text its bytes."""
    return _bytes(column, row, value) if isinstance(value, str) else getattr(value, "bytes", value)


def _weight(column: dict[str, Any], row: int, value: Any) -> float:
    if not isinstance(value, int | float) or not is_weight(value, column["pooling"], LARGEST):
        allowed = allowed_weights(column["pooling"])
        raise ColumnError(
            f"column '{column['name']}', row {row}: {_shown(value)} is not a weight; weights of ids are {allowed}"
        )
    return float(value)


def _is_null(value: Any) -> bool:
    """Returns whether a value is null: None, NaN, or pandas' markers in columns of text and times."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def _number(name: str, row: int, value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, int | float) or value != value:
        raise ColumnError(
            f"column '{name}', row {row}: {_shown(value)} is not a number; a missing one is null, in Python None"
        )
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _id(column: dict[str, Any], row: int, value: Any) -> int:
    if value is None:
        return NO_ID
    if column["kind"] == "time":
        value = _seconds(value)
    if column["type"] == "string":
        return int.from_bytes(hash_bytes(_bytes(column, row, value)), "little", signed=True)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ColumnError(f"column '{column['name']}', row {row}: {_shown(value)} is not an integer")
    low, high = (0, 2**64) if column["type"] == "uint64" else (-(2**63), 2**63)
    if not low <= value < high:
        raise ColumnError(f"column '{column['name']}', row {row}: {value} is not a number of type {column['type']}")
    return value - 2**64 if value >= 2**63 else value


def _bytes(column: dict[str, Any], row: int, value: Any) -> bytes:
    value = getattr(value, "bytes", value)  # of a UUID
    if type(value) is bytes:  # NumPy's bytes lack trailing zeros
        return value
    if not isinstance(value, str):
        raise ColumnError(f"column '{column['name']}', row {row}: {_shown(value)} is not a string")
    try:
        return bytes_of(value)
    except UnicodeEncodeError as error:
        half = f"{_shown(value[error.start])} is half of a character"
        raise ColumnError(f"column '{column['name']}', row {row}: {_shown(value)} is no text: {half}") from error


def _seconds(value: Any) -> Any:
    """Returns a time as whole seconds since 1970: text and objects without a zone are in UTC, integers are such."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return value
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime):
        return value
    return (value.replace(tzinfo=value.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)


def _check_range(column: dict[str, Any], ids: Tensor) -> None:
    if "range" not in column:
        return
    low, high = column["range"]
    wrong = ids[is_outside(ids, low, high)]
    if len(wrong):
        noun = "time" if column["kind"] == "time" else "id"
        raise ColumnError(f"column '{column['name']}': {noun} {wrong[0].item()} is outside [{low}, {high})")


def _some_of(names: list[str]) -> str:
    more = [f"and {len(names) - MOST_NAMED:,} more in signature.json"] if len(names) > MOST_NAMED else []
    return ", ".join([*names[:MOST_NAMED], *more])


def _kind(value: Any) -> str:
    """Returns the type of a value in terms of JSON, for clients of a server."""
    words = {type(None): "null", str: "a string", bytes: "a string", dict: "an object", bool: "a boolean"}
    return words.get(type(value)) or ("a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def _of(values: Tensor) -> str:
    return f"an array {list(values.shape)} of {_dtype(values)}"


def _plural(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
