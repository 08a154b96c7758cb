"""Values of records, written without the program: a row as an object of JSON, as Avro, or a table as Arrow IPC."""

import io
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainer.config.stream import StreamConfig


def json_value(row: Mapping[str, Any]) -> bytes:
    """Returns a row as an object of JSON; times are in ISO's form."""
    return json.dumps(row, default=lambda one: float(one) if isinstance(one, Decimal) else _iso(one)).encode()


def _iso(one: Any) -> str:
    is_fine = getattr(one, "microsecond", 0) % 1000
    how = {"timespec": "microseconds" if is_fine else "milliseconds"} if hasattr(one, "hour") else {}
    return one.isoformat(**how).replace("+00:00", "Z")


def avro_values(schema: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], before: bytes = b"") -> list[bytes]:
    """Returns rows as values of Avro, each with some bytes before it."""
    import fastavro

    parsed, found = fastavro.parse_schema(dict(schema)), []
    for row in rows:
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, parsed, dict(row))
        found.append(before + sink.getvalue())
    return found


def header(number: int) -> bytes:
    """Returns the five bytes that a schema registry has before a value."""
    return b"\0" + number.to_bytes(4, "big")


def arrow_value(table: pa.Table) -> bytes:
    """Returns a table as a stream of Arrow IPC."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def stream_config(format: str = "json", **changes: Any) -> StreamConfig:
    """Returns a section of a topic."""
    return StreamConfig.model_validate({"brokers": "nowhere:1", "topic": "clicks", "format": format} | changes)


def avro_config(folder: Path, schema: Mapping[str, Any], **changes: Any) -> StreamConfig:
    """Returns a section of a topic of Avro, whose schema file is written into a folder."""
    file = folder / "schema.avsc"
    file.write_text(json.dumps(schema))
    return stream_config("avro", schema_file=str(file), **changes)
