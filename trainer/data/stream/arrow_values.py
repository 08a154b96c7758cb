"""Decodes values that are streams of Arrow IPC."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError, first_line
from trainer.data.stream.decode import IS_NEW, IS_OWN, OWN_NAMES, Decoded, Decoder, Unreadable
from trainer.rules.plain_types import plain_column

FILE_MAGIC = b"ARROW1"
OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


class ArrowDecoder(Decoder):
    """Decodes streams of Arrow IPC, each with any number of rows; their fields may be in any order."""

    @classmethod
    def of(cls, config: StreamConfig, schema: pa.Schema | None, values: Sequence[bytes]) -> "ArrowDecoder":
        """Makes a decoder; the first value that can be read has the columns."""
        if schema is not None:
            return cls(schema)
        for value in values:
            try:
                found, _ = _read(value)
            except (pa.ArrowException, OSError, ValueError):
                continue  # decoding reports it
            left_out = {field.name: IS_OWN for field in found if field.name in OWN_NAMES}
            left_out |= {
                field.name: f"no column is of type {field.type}"
                for field in found
                if stored_type(field.type) is None and field.name not in left_out
            }
            left_out |= {name: "it is there twice" for name in found.names if found.names.count(name) > 1}
            fields = [(field.name, stored_type(field.type)) for field in found if field.name not in left_out]
            if fields:
                return cls(pa.schema(fields), left_out)
        raise InputError(
            "no record is a stream of Arrow IPC with a plain column, so the topic has no columns; is "
            "data.stream.format 'arrow', and data.stream.topic the right one?"
        )

    def decode_readable(self, values: Sequence[bytes], columns: Sequence[str] | None = None) -> Decoded:
        """Decodes all values that can be read."""
        parts, faults = list[pa.RecordBatch](), list[Unreadable]()
        rows = np.zeros(len(values), np.int64)
        for place, value in enumerate(values):
            try:
                schema, batches = _read(value)
                if not schema.equals(self.schema):  # to look at each field takes longer than to read the value
                    batches = self._in_columns(pa.Table.from_batches(batches, schema))
            except (pa.ArrowException, OSError, ValueError) as error:
                faults.append(Unreadable(place, first_line(error)))
            else:
                rows[place] = sum(batch.num_rows for batch in batches)
                parts += batches
        table = pa.Table.from_batches(parts, self.schema).select(self.columns_of(columns).names)
        # In one chunk: a stream may have a few rows only, and each chunk costs as much as many rows.
        return Decoded(table.combine_chunks(), rows, tuple(faults))

    def _in_columns(self, found: pa.Table) -> list[pa.RecordBatch]:
        """Returns the rows of a value with another schema as the columns; raises ValueError if they cannot be that."""
        self._check(found.schema)
        arrays = [_stored(found.column(field.name), field.type) for field in self.schema]
        return pa.table(arrays, schema=self.schema).to_batches()

    def _check(self, found: pa.Schema) -> None:
        """Refuses a value with other types than the columns; raises ValueError."""
        for field in self.schema:
            if found.names.count(field.name) != 1:
                number = "no" if field.name not in found.names else "more than one"
                raise ValueError(f"it has {number} column '{field.name}', which the first record has")
            dtype = found.field(field.name).type
            if stored_type(dtype) != field.type and not pa.types.is_null(dtype):  # a column of nulls has no type
                raise ValueError(
                    f"column '{field.name}' is of type {dtype}, and of type {field.type} in the first record"
                )
        if len(found) > len(self.schema):
            for name in set(found.names).difference(self.schema.names):
                self.leave_out(name, IS_NEW)


def _read(value: bytes) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Returns the schema and the rows of a stream.

    Raises:
        ValueError: It is damaged, or something else; also as `pa.ArrowException` or OSError.
    """
    if value.startswith(FILE_MAGIC):
        raise ValueError("it is a file of Arrow IPC, and not a stream; write it with pyarrow.ipc.new_stream")
    if not value:
        raise ValueError("it is empty")
    source = pa.BufferReader(value)
    with pa.ipc.open_stream(source, options=OPTIONS) as reader:
        schema, batches = reader.schema, [*reader]
    if source.tell() != len(value):
        raise ValueError(f"it has {len(value) - source.tell()} bytes after the end of its stream")
    for batch in batches:
        # Validated, because Arrow trusts the offsets and lengths in a stream and would read beyond its buffers.
        batch.validate(full=True)
    return schema, batches


def stored_type(dtype: pa.DataType, depth: int = 0) -> pa.DataType | None:
    """Returns the type of a column without its layout; None for a type that no column has.

    Dictionaries and runs differ from record to record, so their values are stored.
    """
    if isinstance(dtype, pa.BaseExtensionType):
        return stored_type(dtype.storage_type, depth)
    if pa.types.is_dictionary(dtype) or pa.types.is_run_end_encoded(dtype):
        return stored_type(dtype.value_type, depth)
    if pa.types.is_string_view(dtype) or pa.types.is_binary_view(dtype):
        return pa.large_string() if pa.types.is_string_view(dtype) else pa.large_binary()
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        inner = None if depth else stored_type(dtype.value_type, 1)
        return inner and (pa.large_list(inner) if pa.types.is_large_list(dtype) else pa.list_(inner))
    if pa.types.is_map(dtype):
        plain = stored_type(dtype.key_type, 1) == dtype.key_type and stored_type(dtype.item_type, 1) == dtype.item_type
        return dtype if plain and not depth else None
    if pa.types.is_nested(dtype) or pa.types.is_interval(dtype) or pa.types.is_null(dtype):
        return None
    return dtype


def _stored(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    """Returns a column without its layout."""
    return column if column.type == dtype else plain_column(column).cast(dtype)
