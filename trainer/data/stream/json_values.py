"""Decodes values that are objects of JSON, with pyarrow's reader, and names what is wrong with one that it refuses."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError, first_line
from trainer.data.stream.decode import IS_NEW, IS_OWN, OWN_NAMES, Decoded, Decoder, Unreadable, shown

BLANKS = b" \t\r\n"  # JSON's white space
ALIASES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "float"),
    *("double", "string", "large_string", "binary", "large_binary", "date32"),
)
TYPES = f"{', '.join(ALIASES)}, timestamp[ms], timestamp[ms, UTC], decimal128(10, 2), and list<...> of these"
TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, *(?:tz=)?([\w/+:-]+))?\]")
DECIMAL = re.compile(r"decimal128\((\d+), *(\d+)\)")
LIST = re.compile(r"list<(?:item: *|element: *)?(.+)>")
SAMPLED = 16  # number of values of a batch that are searched for new fields once there are any
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
KINDS = {
    bool: "a truth value",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


class JsonDecoder(Decoder):
    """Decodes objects of JSON.

    pyarrow's reader turns strings that look like times into times, and guesses types anew in each block. So types are
    decided once, here, and it always gets them.
    """

    def __init__(self, schema: pa.Schema, left_out: dict[str, str] | None = None) -> None:
        super().__init__(schema, left_out)
        for field in schema:
            if _read_as(field.type) is None:
                raise InputError(
                    f"column '{field.name}' is of type {field.type}, which values of JSON cannot have; types of "
                    f"data.stream.columns are {TYPES}"
                )

    @classmethod
    def of(cls, config: StreamConfig, schema: pa.Schema | None, values: Sequence[bytes]) -> "JsonDecoder":
        """Makes a decoder; arguments and errors are those of `make_decoder`."""
        if schema is not None:
            return cls(schema)
        if taken := OWN_NAMES.intersection(config.columns):
            raise InputError(f"data.stream.columns has '{min(taken)}', which is a column of the log; leave it out")
        given = {name: _parsed_type(f"data.stream.columns.{name}", text) for name, text in config.columns.items()}
        found, left_out = _inferred(values, given)
        if not found:
            raise InputError(
                "no record has a field of a plain value, so the topic has no columns; is data.stream.format 'json', "
                "and data.stream.topic the right one?"
            )
        return cls(pa.schema(list(found.items())), left_out)

    def decode_readable(self, values: Sequence[bytes], columns: Sequence[str] | None = None) -> Decoded:
        """Decodes all values that can be read; a block that fails is halved until the value is found."""
        schema = self.columns_of(columns)
        if columns is None and self.left_out:
            self._note_new(values[:: max(1, len(values) // SAMPLED)])
        tables, faults = list[pa.Table](), list[Unreadable]()
        self._decode(values, 0, schema, columns is None and not self.left_out, tables, faults)
        rows = np.ones(len(values), np.int64)
        rows[[fault.place for fault in faults]] = 0
        return Decoded(pa.concat_tables(tables) if tables else schema.empty_table(), rows, tuple(faults))

    def _decode(
        self,
        values: Sequence[bytes],
        start: int,
        schema: pa.Schema,
        strict: bool,
        tables: list[pa.Table],
        faults: list[Unreadable],
    ) -> None:
        """Decodes values from number `start` on into tables and faults; `strict` searches for new fields."""
        try:
            if values:
                tables.append(self._parsed(values, schema, strict))
        except (pa.ArrowException, ValueError) as error:
            if len(values) == 1:
                faults.append(Unreadable(start, _reason(values[0], schema) or first_line(error)))
                return
            half = len(values) // 2
            strict = strict and not self.left_out
            self._decode(values[:half], start, schema, strict, tables, faults)
            self._decode(values[half:], start + half, schema, strict, tables, faults)

    def _parsed(self, values: Sequence[bytes], schema: pa.Schema, strict: bool) -> pa.Table:
        """Returns a row for each value.

        Raises:
            ValueError: A value cannot be read; also as `pa.ArrowInvalid`.
        """
        # pyarrow's reader takes all of them for one text. As each value begins and ends with braces, and no string of
        # JSON has a line break, no two values can make one object; a value with several objects makes too many rows.
        # The check of braces also keeps a lone `null` from it, at which it crashes.
        for value in values:
            if not (value[:1] == b"{" and value[-1:] == b"}"):
                stripped = value.strip(BLANKS)
                if not (stripped[:1] == b"{" and stripped[-1:] == b"}"):
                    raise ValueError("it is no object of JSON")
        text = b"\n".join([*values, b""])
        if not text.isascii():
            text.decode()
        if b"\0" in text:
            raise ValueError("it has a byte of zero")
        read = pa.schema([(field.name, _read_as(field.type)) for field in schema])
        options = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)

        def parsed(unexpected: str) -> pa.Table:
            parse = pa_json.ParseOptions(explicit_schema=read, unexpected_field_behavior=unexpected)
            return pa_json.read_json(pa.BufferReader(text), options, parse)

        try:
            table = parsed("error" if strict else "ignore")
        except pa.ArrowInvalid as error:
            if not (strict and "unexpected field" in str(error)):
                raise
            self._note_new(values)
            table = parsed("ignore")
        if table.num_rows != len(values):
            raise ValueError("it is more than one object of JSON")
        arrays = [_converted(table.column(field.name), field.type) for field in schema]
        return pa.table(arrays, schema=schema) if arrays else table

    def _note_new(self, values: Iterable[bytes]) -> None:
        """Remembers fields that are not among the columns."""
        for value in values:
            try:
                found = json.loads(value)
            except (ValueError, RecursionError):
                continue
            for name in found if isinstance(found, dict) else ():
                if name not in self.schema.names:
                    self.leave_out(name, IS_NEW)


def _read_as(dtype: pa.DataType) -> pa.DataType | None:
    """Returns the type that pyarrow's reader is given for a column; None for a type that JSON cannot have.

    It would read days from integers, take times with a zone for times without, and turn numbers beyond the range of
    float32 into infinities.
    """
    if pa.types.is_list(dtype):
        inner = None if pa.types.is_list(dtype.value_type) else _read_as(dtype.value_type)
        return inner and pa.list_(inner)
    if pa.types.is_timestamp(dtype) or dtype == pa.date32():
        return pa.string()
    if dtype == pa.float32():
        return pa.float64()
    is_plain = dtype in [pa.type_for_alias(name) for name in ALIASES] or pa.types.is_decimal128(dtype)
    return dtype if is_plain else None


def _converted(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    """Returns a column in its own type; raises `pa.ArrowInvalid` if a value does not fit."""
    if column.type == dtype:
        return column
    made = column.cast(dtype)
    if pa.types.is_list(dtype) and dtype.value_type == pa.float32():
        _check_range(pc.list_flatten(column), pc.list_flatten(made))  # pyrefly: ignore[missing-attribute]
    elif dtype == pa.float32():
        _check_range(column, made)
    return made


def _check_range(before: pa.ChunkedArray, after: pa.ChunkedArray) -> None:
    infinite = [pc.sum(pc.is_inf(one)).as_py() for one in (before, after)]  # pyrefly: ignore[missing-attribute]
    if infinite[0] != infinite[1]:
        raise pa.ArrowInvalid("a number does not fit into float32")


def _parsed_type(key: str, text: str) -> pa.DataType:
    """Returns the type that a text of data.stream.columns names.

    Raises:
        InputError: There is no such type, or JSON cannot have it.
    """
    text = text.strip()
    if found := LIST.fullmatch(text):
        inner = _parsed_type(key, found[1])
        if not pa.types.is_list(inner):
            return pa.list_(inner)
    elif found := TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    elif (found := DECIMAL.fullmatch(text)) and 1 <= int(found[1]) <= 38:
        return pa.decimal128(int(found[1]), int(found[2]))
    elif text in ALIASES:
        return pa.type_for_alias(text)
    raise InputError(f"{key} is '{text}', which is no type that values of JSON can have; types are {TYPES}")


def _inferred(
    values: Iterable[bytes], given: Mapping[str, pa.DataType]
) -> tuple[dict[str, pa.DataType], dict[str, str]]:
    """Returns the types of columns, given ones first, and the fields that no column can have, with reasons.

    A column has the type of its first value, but double if integers and other numbers occur. Strings are strings, even
    if they look like times. Values of other types make their records unreadable.
    """
    found: dict[str, pa.DataType | None] = dict(given)
    left_out: dict[str, str] = {}
    for value in values:
        try:
            tree = json.loads(value)
        except (ValueError, RecursionError):
            continue  # decoding reports it
        for name, one in tree.items() if isinstance(tree, dict) else ():
            if name in given:
                continue
            dtype = _type_of(one)
            if name in OWN_NAMES:
                left_out[name] = IS_OWN
            elif dtype is NESTED:
                if not found.get(name):
                    left_out.setdefault(name, "it has objects, or lists in lists, which are no columns")
            elif name not in left_out:
                found[name] = _wider(found.get(name), dtype)
    for name in [name for name, dtype in found.items() if dtype is None or name in left_out]:
        left_out.setdefault(name, f"it has no value in the first records; name its type in data.stream.columns.{name}")
        del found[name]
    return {name: dtype for name, dtype in found.items() if dtype is not None}, left_out


NESTED = "nested"


def _type_of(value: Any) -> Any:
    """Returns the type of a value; None if it is not known yet, NESTED if no column can have it."""
    if isinstance(value, list):
        inner: Any = None
        for one in value:
            dtype = _type_of(one)
            if dtype is NESTED or isinstance(dtype, pa.ListType) or isinstance(one, list):
                return NESTED
            inner = _wider(inner, dtype)
        return inner and pa.list_(inner)
    if isinstance(value, dict):
        return NESTED
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value < 1 << 63 else pa.uint64()
    return {float: pa.float64(), str: pa.string()}.get(type(value))


def _wider(known: pa.DataType | None, dtype: pa.DataType | None) -> pa.DataType | None:
    """Returns the type of a column so far, after a value of another type."""
    if known is None or dtype is None or known == dtype:
        return known or dtype
    if isinstance(known, pa.ListType) and isinstance(dtype, pa.ListType):
        return pa.list_(_wider(known.value_type, dtype.value_type))
    numbers = [pa.int64(), pa.uint64(), pa.float64()]
    both = known in numbers and dtype in numbers
    return numbers[max(numbers.index(known), numbers.index(dtype))] if both else known


def _reason(value: bytes, schema: pa.Schema) -> str | None:
    """Returns what is wrong with a value; None if nothing is found."""
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(items)
        if len(made) < len(items):
            names = [name for name, _ in items]
            twice.append(next(name for name in made if names.count(name) > 1))
        return made

    if not value.strip(BLANKS):
        return "it is empty"
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 (byte {error.start})"
    try:
        tree = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        return f"it is no object of JSON ({error.msg}, character {error.pos}: '{shown(text[error.pos :])}')"
    except (ValueError, RecursionError):
        return "it is no object of JSON that can be read: it has too many levels or digits"
    if not isinstance(tree, dict):
        return f"it is {KINDS.get(type(tree), 'null')}, and not an object of JSON"
    for field in schema:
        if field.name in tree and (kind := _misfit(tree[field.name], field.type)):
            return (
                f"column '{field.name}' has {kind} ('{shown(json.dumps(tree[field.name]))}'), and is of type "
                f"{field.type}; data.stream.columns decides types"
            )
    if twice:
        return f"field '{shown(twice[0])}' is there twice"
    return None


def _misfit(value: Any, dtype: pa.DataType) -> str | None:
    """Returns the kind of a value that does not fit a type; None if it fits."""
    if value is None:
        return None
    if pa.types.is_list(dtype):
        found = (_misfit(one, dtype.value_type) for one in value) if isinstance(value, list) else [KINDS[type(value)]]
        return next((one for one in found if one), None)
    if pa.types.is_boolean(dtype):
        fits = isinstance(value, bool)
    elif pa.types.is_integer(dtype):
        fits = isinstance(value, int) and not isinstance(value, bool)
        low = 0 if pa.types.is_unsigned_integer(dtype) else -(1 << dtype.bit_width - 1)
        if fits and not low <= value < (1 << dtype.bit_width) + low:
            return "an integer that does not fit"
    elif pa.types.is_floating(dtype):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if fits and dtype == pa.float32() and abs(value) > LARGEST_FLOAT32:
            return "a number that does not fit"
    elif pa.types.is_decimal(dtype):
        return None
    else:
        fits = isinstance(value, str)
        if fits and (pa.types.is_timestamp(dtype) or dtype == pa.date32()):
            try:
                pa.array([value]).cast(dtype)
            except pa.ArrowInvalid:
                zone = pa.types.is_timestamp(dtype) and ("with a zone" if dtype.tz else "without a zone")
                return f"a string that is no time {zone} of that precision" if zone else "a string that is no date"
    return None if fits else KINDS[type(value)]
