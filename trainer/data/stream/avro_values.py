"""Decodes values of Avro, with or without the five bytes of a schema registry before them."""

import io
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError, first_line
from trainer.data.stream.avro_types import Registry, Schema, read_schema
from trainer.data.stream.decode import IS_NEW, Decoded, Decoder, Unreadable

HEADER_BYTES = 5  # a byte of zero, and the number of the schema that the value was written with
BLOCK = 1024  # number of values that are Python's objects at once; 8192 take longer, as they do not fit into a cache
LOSSLESS = {
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.float64()),
    (pa.float32(), pa.float64()),
    (pa.int32(), pa.float32()),
    (pa.int64(), pa.float64()),
    (pa.int64(), pa.float32()),
}
"""Types of a writer and of a column between which Avro converts; pyarrow refuses values that change."""


class AmbiguousValue(Exception):
    """A value can be read with and without a header, so that the others have to decide."""


class AvroDecoder(Decoder):
    """Decodes values of Avro.

    With a registry, each value has five bytes before it. Without, they are recognised: the rest is a value of the
    schema. A value that can be read both ways, as a short one by chance, is read as all others of its row group that
    can be read only one way; if there are none, or of both kinds, it is unreadable.

    Args:
        schema: The columns.
        base: The schema of data.stream.schema_file; unset: values are read as they were written.
        registry: Has the schemas that values were written with; unset: it is `base`.
        left_out: As in `Decoder`.
    """

    def __init__(
        self, schema: pa.Schema, base: Schema | None, registry: Registry | None, left_out: dict[str, str]
    ) -> None:
        super().__init__(schema, left_out)
        self._base, self._registry = base, registry
        self._checked: dict[int, str] = {}  # reasons against schemas of the registry, by number

    @classmethod
    def of(cls, config: StreamConfig, schema: pa.Schema | None, values: Sequence[bytes]) -> "AvroDecoder":
        """Makes a decoder; arguments and errors are those of `make_decoder`."""
        base = read_schema(config.schema_file) if config.schema_file else None
        registry = Registry(config.registry, config.timeout_seconds) if config.registry else None
        if base and schema is not None:
            _check_fields(base, schema)
        whole = base
        if whole is None and schema is None:
            assert registry
            whole = _first_schema(values, registry)
        left_out = whole.left_out if whole and schema is None else {}
        found = whole.columns if whole and schema is None else schema
        assert found is not None
        if not found.names:
            raise InputError("the Avro schema of data.stream has no field of a plain type, so there are no columns")
        return cls(found, base, registry, left_out)

    def decode_readable(self, values: Sequence[bytes], columns: Sequence[str] | None = None) -> Decoded:
        """Decodes all values that can be read."""
        schema = self.columns_of(columns)
        try:
            starts = range(0, len(values), BLOCK)
            parts = [self._decoded(values[start : start + BLOCK], start, schema, len(starts) == 1) for start in starts]
        except AmbiguousValue:
            parts = [self._decoded(values, 0, schema, is_whole=True)]
        faults = tuple(fault for _, found in parts for fault in found)
        rows = np.ones(len(values), np.int64)
        rows[[fault.place for fault in faults]] = 0
        table = pa.concat_tables([table for table, _ in parts]) if parts else schema.empty_table()
        return Decoded(table.combine_chunks(), rows, faults)

    def _decoded(
        self, values: Sequence[bytes], start: int, schema: pa.Schema, is_whole: bool
    ) -> tuple[pa.Table, list[Unreadable]]:
        """Returns the rows of values from number `start` on, and the faults."""
        trees, places, faults = list[dict](), list[int](), list[Unreadable]()
        registered = self._registry is not None
        found = self._read_all(values, self._read_registered) if registered else self._read_either(values, is_whole)
        for place, tree in enumerate(found, start):
            if isinstance(tree, ValueError):
                faults.append(Unreadable(place, first_line(tree)))
            else:
                trees.append(tree)
                places.append(place)
        wrong = dict[int, str]()
        arrays = _arrays(trees, schema)
        if arrays is None:
            columns = zip(schema, _columns(trees, schema.names), strict=True)
            arrays = [_array(column, field, wrong) for field, column in columns]
        if wrong:
            kept = pa.array([place not in wrong for place in range(len(trees))])
            arrays = [array.filter(kept) for array in arrays]
            faults += [Unreadable(places[place], reason) for place, reason in wrong.items()]
            faults.sort(key=lambda fault: fault.place)
        return pa.table(arrays, schema=schema), faults

    def _read_all(self, values: Sequence[bytes], read: Callable[[bytes], dict]) -> list[dict | ValueError]:
        """Returns the fields of each value, or what is wrong with it."""
        found = list[dict | ValueError]()
        for value in values:
            try:
                found.append(read(value))
            except ValueError as error:
                found.append(error)
        return found

    def _read_either(self, values: Sequence[bytes], is_whole: bool) -> list[dict | ValueError]:
        """Returns the fields of each value, with or without a header, by the schema of data.stream.schema_file.

        Raises:
            AmbiguousValue: A value can be read both ways, and these are not all values.
        """
        assert self._base
        schema = self._base.parsed
        found = self._read_all(values, partial(_read, start=0, written=schema))
        places = [place for place, value in enumerate(values) if value[:1] == b"\0" and len(value) >= HEADER_BYTES]
        if not places:
            return found
        after = self._read_all([values[place] for place in places], partial(_read, start=HEADER_BYTES, written=schema))
        both = []
        with_header = 0
        for place, other in zip(places, after, strict=True):
            if isinstance(other, ValueError):
                continue
            if isinstance(found[place], ValueError):
                found[place] = other
                with_header += 1
            else:
                both.append((place, other))
        if both and not is_whole:
            raise AmbiguousValue
        bare = sum(isinstance(one, dict) for one in found) - with_header - len(both)
        for place, other in both:
            if with_header and not bare:
                found[place] = other
            elif with_header or not bare:
                found[place] = ValueError(
                    "it can be read with and without the five bytes of a schema registry; set data.stream.registry"
                )
        return found

    def _read_registered(self, value: bytes) -> dict:
        """Reads a value by the schema that its header names."""
        assert self._registry
        if value[:1] != b"\0" or len(value) < HEADER_BYTES:
            raise ValueError(
                "it does not begin with the five bytes of a schema registry, as data.stream.registry is set"
            )
        number = int.from_bytes(value[1:HEADER_BYTES], "big")
        written = self._registry.schema(number)
        if self._base:
            return _read(value, HEADER_BYTES, written.parsed, self._base.parsed)
        if number not in self._checked:
            self._checked[number] = self._against(written)
        if self._checked[number]:
            raise ValueError(f"schema {number} of data.stream.registry: {self._checked[number]}")
        return _read(value, HEADER_BYTES, written.parsed)

    def _against(self, written: Schema) -> str:
        """Returns why values of another schema have no place in the columns; empty if they have."""
        for name, dtype in written.types.items():
            if name not in self.schema.names:
                self.leave_out(name, dtype if isinstance(dtype, str) else IS_NEW)
                continue
            column = self.schema.field(name).type
            if dtype != column and (dtype, column) not in LOSSLESS:
                return f"its field '{name}' is of type {dtype}, and the column of type {column}"
        return ""


def _read(value: bytes, start: int, written: Any, wanted: Any = None) -> dict:
    """Returns the fields of a value.

    Raises:
        ValueError: It is damaged, or of another schema.
    """
    source = io.BytesIO(value)
    if start:
        source.seek(start)
    try:
        found = fastavro.schemaless_reader(source, written, wanted)
    except (EOFError, IndexError) as error:
        raise ValueError("it is no value of the Avro schema: it ends too early") from error
    except Exception as error:  # fastavro raises what other wrong bytes lead to
        what = f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__
        raise ValueError(f"it is no value of the Avro schema ({what})") from error
    if source.tell() != len(value):
        raise ValueError(f"it has {len(value) - source.tell()} bytes after the end of its Avro value")
    return found  # pyrefly: ignore[bad-return]


def _arrays(trees: list[dict], schema: pa.Schema) -> list[pa.Array] | None:
    """Returns the columns of values all of which fit; None if one does not, or may be a map, which Avro has as a dict.

    It takes half as long as column after column.
    """
    if not schema.names or any(pa.types.is_map(field.type) for field in schema):
        return None
    try:
        found = pa.array(trees, pa.struct([(field.name, _read_as(field.type)) for field in schema])).flatten()
        return [array.cast(field.type) for array, field in zip(found, schema, strict=True)]
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _columns(trees: Sequence[dict], names: Sequence[str]) -> list[list[Any]]:
    """Returns the values of fields, None where a tree has no such field."""
    if len(names) > 1 and trees:
        try:
            return [[*column] for column in zip(*map(itemgetter(*names), trees), strict=True)]  # twice as fast
        except KeyError:
            pass
    return [[tree.get(name) for tree in trees] for name in names]


def _array(values: list[Any], field: pa.Field, wrong: dict[int, str]) -> pa.Array:
    """Returns a column; puts the reasons against values that do not fit into `wrong`, by their number."""
    dtype = _read_as(field.type)
    if pa.types.is_map(dtype):
        values = [None if value is None else [*value.items()] for value in values]
    try:
        return pa.array(values, dtype).cast(field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for place, value in enumerate(values):
            try:
                pa.array([value], dtype).cast(field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                values[place] = None
                wrong.setdefault(place, f"column '{field.name}', of type {field.type}: {first_line(error)}")
        return pa.array(values, dtype).cast(field.type)


def _read_as(dtype: pa.DataType) -> pa.DataType:
    """Returns the type that a column's values have before they are dates and times, which are integers in Avro."""
    if pa.types.is_list(dtype):
        return pa.list_(_read_as(dtype.value_type))
    if pa.types.is_map(dtype):
        return pa.map_(dtype.key_type, _read_as(dtype.item_type))
    if pa.types.is_temporal(dtype):
        return pa.int32() if dtype.bit_width == 32 else pa.int64()
    return dtype


def _first_schema(values: Sequence[bytes], registry: Registry) -> Schema:
    """Returns the schema of the first value that has any."""
    reason = "there are none"
    for value in values:
        if value[:1] == b"\0" and len(value) >= HEADER_BYTES:
            try:
                return registry.schema(int.from_bytes(value[1:HEADER_BYTES], "big"))
            except ValueError as error:
                reason = first_line(error)
        else:
            reason = "they do not begin with the five bytes of a schema registry"
    raise InputError(
        f"data.stream.registry has no schema for the first records: {reason}; name data.stream.schema_file"
    )


def _check_fields(base: Schema, schema: pa.Schema) -> None:
    """Refuses a schema file that lacks a column of an earlier segment, or has another type for it."""
    for field in schema:
        if (found := base.types.get(field.name)) != field.type:
            has = "no field of that name" if found is None else f"{found}"
            raise InputError(
                f"column '{field.name}' is of type {field.type} in the segment, and data.stream.schema_file has {has}; "
                "name a file with all fields of earlier segments"
            )
