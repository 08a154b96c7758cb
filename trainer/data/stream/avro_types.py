"""The schemas of Avro's values: the Arrow types of their fields, and the registry that has the schemas of a topic."""

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from threading import Lock
from typing import Any

import fastavro
import fsspec
import pyarrow as pa

from trainer.core.errors import InputError, StorageError, first_line
from trainer.core.secrets import without_secrets
from trainer.core.storage import named
from trainer.data.stream.decode import IS_OWN, OWN_NAMES

PRIMITIVES = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
REGISTRY_BYTES = 16 << 20  # largest answer of a registry
PAUSE_SECONDS = 1.0


class Schema:
    """A schema of records.

    Attributes:
        parsed: For fastavro. It has no logical types but decimals: times are read as the integers that they are.
        types: Arrow types of its fields; a text with the reason for a field that no column can be.
    """

    def __init__(self, tree: Any) -> None:
        """Takes a schema as Avro writes it in JSON.

        Raises:
            ValueError: It is no schema, or not that of a record.
        """
        try:
            self.parsed = fastavro.parse_schema(_without_times(tree))
            whole: Any = fastavro.schema.expand_schema(tree)
        except Exception as error:  # fastavro raises what a wrong schema leads to
            raise ValueError(f"it is no schema of Avro ({first_line(error)})") from error
        if not isinstance(whole, dict) or whole.get("type") != "record":
            raise ValueError("it is not the schema of a record")
        self.types: dict[str, pa.DataType | str] = {
            field["name"]: IS_OWN if field["name"] in OWN_NAMES else _arrow_type(field["type"])
            for field in whole["fields"]
        }

    @property
    def columns(self) -> pa.Schema:
        """The fields that can be columns."""
        return pa.schema([(name, dtype) for name, dtype in self.types.items() if not isinstance(dtype, str)])

    @property
    def left_out(self) -> dict[str, str]:
        """The fields that no column can be, with the reasons."""
        return {name: reason for name, reason in self.types.items() if isinstance(reason, str)}


def read_schema(url: str) -> Schema:
    """Reads data.stream.schema_file.

    Raises:
        InputError: It cannot be used.
    """
    key = "data.stream.schema_file"
    with named(key, url):
        fs, path = fsspec.core.url_to_fs(url)
        text = fs.cat_file(path)
    try:
        return Schema(json.loads(text))
    except ValueError as error:
        raise InputError(f"{key} is '{without_secrets(url)}': {first_line(error)}; name a .avsc file") from error


def _without_times(tree: Any) -> Any:
    """Returns a schema without its logical types, but decimals; defaults of fields stay as they are."""
    if isinstance(tree, list):
        return [_without_times(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    is_decimal = tree.get("logicalType") == "decimal"
    return {
        key: value if key == "default" else _without_times(value)
        for key, value in tree.items()
        if key != "logicalType" or is_decimal
    }


def _arrow_type(tree: Any, inside: bool = False) -> pa.DataType | str:
    """Returns the Arrow type of a field, or the reason why there is none; lists and maps have plain values inside."""
    if isinstance(tree, list):
        branches = [one for one in tree if one != "null"]
        if len(branches) != 1:
            return "it is a union of several types" if branches else "it is always null"
        return _arrow_type(branches[0], inside)
    if isinstance(tree, str):
        return PRIMITIVES.get(tree, "it is always null" if tree == "null" else "it is a record in a record")
    kind = tree["type"]
    if not isinstance(kind, str):
        return _arrow_type(kind, inside)
    if kind == "record":
        return "it is a record in a record"
    if kind in ("array", "map"):
        if inside:
            return f"it has {kind}s inside of lists or maps"
        inner = _arrow_type(tree["items" if kind == "array" else "values"], inside=True)
        if isinstance(inner, str):
            return inner
        return pa.list_(inner) if kind == "array" else pa.map_(pa.string(), inner)
    if tree.get("logicalType") == "decimal" and 1 <= (precision := int(tree.get("precision", 0))) <= 76:
        make = pa.decimal128 if precision <= 38 else pa.decimal256
        return make(precision, int(tree.get("scale", 0)))
    if kind == "fixed":
        return pa.binary(tree["size"])
    return LOGICAL.get((kind, tree.get("logicalType", ""))) or PRIMITIVES.get(kind, f"it is of the type {kind}")


class Registry:
    """A schema registry: schemas by their number, each requested once.

    Args:
        url: As in data.stream.registry.
        timeout_seconds: Bound of all attempts to get a schema.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._url, self._timeout = url.rstrip("/"), timeout_seconds
        self._known: dict[int, Schema | str] = {}
        self._lock = Lock()

    def schema(self, number: int) -> Schema:
        """Returns a schema.

        Raises:
            ValueError: The registry has none of that number, or none that can be used.
            InputError: The registry refuses access.
            StorageError: It does not answer.
        """
        with self._lock:
            if number not in self._known:
                self._known[number] = self._made(number)
            found = self._known[number]
        if isinstance(found, str):
            raise ValueError(f"schema {number} of data.stream.registry: {found}")
        return found

    def _made(self, number: int) -> Schema | str:
        answer = self._answer(f"/schemas/ids/{number}")
        if isinstance(answer, str):
            return answer
        if (kind := answer.get("schemaType", "AVRO")) != "AVRO" or "schema" not in answer:
            return f"it is no schema of Avro, but {kind}"
        if answer.get("references"):
            return "it refers to other schemas, which is not supported; write it in one piece"
        try:
            return Schema(json.loads(answer["schema"]))
        except ValueError as error:
            return first_line(error)

    def _answer(self, path: str) -> Mapping[str, Any] | str:
        """Returns an answer, or the reason why there is none now or later; tries again within the bound."""
        key = f"data.stream.registry is '{without_secrets(self._url)}', which"
        deadline = time.monotonic() + self._timeout
        while True:
            left = deadline - time.monotonic()
            try:
                with urllib.request.urlopen(self._request(path), timeout=max(left, PAUSE_SECONDS)) as answer:
                    found = json.loads(answer.read(REGISTRY_BYTES))
                if isinstance(found, dict):
                    return found
                raise InputError(f"{key} answers with something else than a schema registry; check the URL")
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return "there is no schema of that number"
                if error.code < 500 and error.code != 429:
                    raise InputError(
                        f"{key} refuses access ({error.code} {error.reason}); check its user name and password"
                    ) from error
                reason = f"{error.code} {error.reason}"
            except ValueError as error:  # no JSON, or no URL
                raise InputError(f"{key} cannot be used ({first_line(error)}); check the URL") from error
            except OSError as error:  # as from a name that cannot be looked up, or a connection that ends
                reason = first_line(error)
            if time.monotonic() + PAUSE_SECONDS > deadline:
                raise StorageError(
                    f"{key} has not answered within data.stream.timeout_seconds ({self._timeout:g}): {reason}; "
                    "check the URL, and that the registry runs"
                )
            time.sleep(PAUSE_SECONDS)

    def _request(self, path: str) -> urllib.request.Request:
        parts = urllib.parse.urlsplit(self._url)
        userinfo, _, host = parts.netloc.rpartition("@")
        request = urllib.request.Request(parts._replace(netloc=host).geturl() + path)
        if userinfo:
            secret = base64.b64encode(urllib.parse.unquote(userinfo).encode()).decode()
            request.add_header("Authorization", f"Basic {secret}")
        return request
