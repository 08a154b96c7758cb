"""Decodes the values of a topic's records to Arrow columns: JSON, Avro or Arrow IPC, as data.stream.format names it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError
from trainer.core.registry import find_by_name
from trainer.data.stream.manifest import LOG_FIELDS

SHOWN = 40  # number of characters of a value that messages show
MOST_LEFT_OUT = 100  # largest number of fields that are remembered, as names may be random
DECODERS = {
    "json": "trainer.data.stream.json_values:JsonDecoder",
    "avro": "trainer.data.stream.avro_values:AvroDecoder",
    "arrow": "trainer.data.stream.arrow_values:ArrowDecoder",
}
OWN_NAMES = frozenset(field.name for field in LOG_FIELDS)
IS_OWN = "columns of the log have that name"
IS_NEW = "the columns of the first segment have no such field"


class Unreadable(ValueError):
    """A value that cannot be read as the schema's columns.

    Attributes:
        place: Its number among the values.
        reason: What is wrong with it, without a line break.
    """

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(f"value {place}: {reason}")
        self.place, self.reason = place, reason


@dataclass(frozen=True)
class Decoded:
    """Values as columns.

    Attributes:
        table: The rows of all values that could be read, in their order.
        rows: Number of rows of each value, `[V]` int64: 0 for one that could not be read, else 1, or any number with
            Arrow IPC.
        faults: The values that could not be read, in their order.
    """

    table: pa.Table
    rows: np.ndarray
    faults: tuple[Unreadable, ...] = ()


class Decoder(ABC):
    """Decodes values of one format to the columns of one schema. Several threads may use it.

    No value is converted without a word: a value of another type than its column's makes its record unreadable. A
    field that a record lacks is null.

    Attributes:
        schema: The columns, without `LOG_FIELDS`.
        left_out: Fields that are in values and not among the columns, each with the reason. It grows while values are
            decoded; the caller reports it.
    """

    def __init__(self, schema: pa.Schema, left_out: dict[str, str] | None = None) -> None:
        self.schema = schema
        self.left_out = {} if left_out is None else left_out

    @abstractmethod
    def decode_readable(self, values: Sequence[bytes], columns: Sequence[str] | None = None) -> Decoded:
        """Decodes all values that can be read, and names the others in `faults`.

        Args:
            values: The values.
            columns: Columns to decode. Unset: all columns.

        Raises:
            InputError: A schema that the values need cannot be used.
            StorageError: The schema registry does not answer now.
        """

    def decode(self, values: Sequence[bytes], columns: Sequence[str] | None = None) -> Decoded:
        """Decodes values, all of which must be readable; arguments and errors are those of `decode_readable`.

        Raises:
            Unreadable: The first value that cannot be read.
        """
        found = self.decode_readable(values, columns)
        if found.faults:
            raise found.faults[0]
        return found

    def leave_out(self, name: str, reason: str) -> None:
        """Remembers a field that is no column."""
        if len(self.left_out) < MOST_LEFT_OUT:
            self.left_out.setdefault(name, IS_OWN if name in OWN_NAMES else reason)

    def columns_of(self, columns: Sequence[str] | None) -> pa.Schema:
        """Returns the fields of some of the columns, or of all of them."""
        return self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])


def make_decoder(config: StreamConfig, schema: pa.Schema | None, values: Sequence[bytes] = ()) -> Decoder:
    """Makes the decoder of a topic's values.

    Args:
        config: Names the format, and what belongs to it.
        schema: The columns, such as those of an earlier segment; `LOG_FIELDS` in it are left out. Unset: the columns of
            data.stream.columns or data.stream.schema_file, and of the values.
        values: The first values of the topic, which decide the types that nothing else does.

    Raises:
        InputError: A key of data.stream cannot be used, or values do not decide the schema.
        StorageError: The schema file or the registry cannot be read now.
    """
    if schema is not None:
        schema = pa.schema([field for field in schema if field.name not in OWN_NAMES])
    try:
        found = find_by_name("data.stream.format", config.format, DECODERS)
    except ModuleNotFoundError as error:
        raise InputError(
            f"data.stream.format is '{config.format}', which needs the package {error.name}; "
            "pip install 'torchx-recsys[kafka]'"
        ) from error
    return found.of(config, schema, values)


def shown(value: object) -> str:
    """Returns the beginning of a value for messages, in one line."""
    text = str(value).encode("unicode_escape", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
