"""Columns that say what an earlier column says: in other words, or in another unit."""

import numpy as np

from torchx_recsys.apps.check_data.profile import Profile

ENOUGH = 1000  # rows from which columns alike are no chance
LOOKED_AT = 2000
EQUAL = 1e-9  # of a correlation, from 1


class Copies:
    """The columns so far."""

    def __init__(self) -> None:
        self._ids: dict[bytes, str] = {}
        self._numbers: dict[str, np.ndarray] = {}

    def why_not(self, profile: Profile, sparse: bool) -> str:
        """Returns that a column adds nothing to an earlier one; empty if it does, and then remembers it."""
        if profile.first.sample.num_rows < ENOUGH:
            return ""
        if sparse and profile.kind in ("integer", "text"):
            # Codes count the ids in the order in which they occur first, so that names of the same things are equal.
            ids = profile.first_ids
            key = ids.codes.tobytes() + ids.row_of.tobytes()
            other = self._ids.setdefault(key, profile.name)
            return "" if other == profile.name else f"each of its ids goes with one of '{other}'"
        return "" if sparse else self._number(profile)

    def _number(self, profile: Profile) -> str:
        values = profile.numbers(profile.first)[:LOOKED_AT]
        spread = np.std(values)
        if not (np.isfinite(values).all() and spread > 0):
            return ""
        values = (values - values.mean()) / (spread * np.sqrt(len(values)))
        for name, other in self._numbers.items():
            if abs(values @ other) > 1 - EQUAL:
                return f"it is '{name}' in another unit"
        self._numbers[profile.name] = values
        return ""
