"""Short names for contents, to tell whether they are the same."""

import hashlib
import json
from typing import Any


def digest(content: Any) -> str:
    """Returns a short name for a JSON-able value: equal values have equal names."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
