"""Short names: of contents, to tell whether they are the same, and of columns and tables, as files."""

import hashlib
import json
from typing import Any
from urllib.parse import quote

LONGEST_FILE_NAME = 200  # of the 255 bytes that file systems allow, beside a digest, a number and an ending


def digest(content: Any) -> str:
    """Returns a short name for a JSON-able value: equal values have equal names."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def as_file_name(name: str) -> str:
    """Returns the name of a column or table as the beginning of a file name: quoted as in URLs, long ones cut."""
    quoted = quote(name, safe="")
    if len(quoted) <= LONGEST_FILE_NAME:
        return quoted
    return f"{quoted[:LONGEST_FILE_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
