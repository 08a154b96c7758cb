"""The ledger of a run over segments, `segments.jsonl`: a line for each segment that is done, in the order of training.

Its lines follow from the checkpoints and evaluations.jsonl, so the ledger does not depend on where jobs were killed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trainer.core.run_directory import RunDirectory

LEDGER = "segments.jsonl"
Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SegmentPlace:
    """Where a segment is in the life of a run; a part of the train state.

    Attributes:
        name: Its name.
        number: Segments before it.
        first_step: Steps that the run took on those.
        last_step: Steps when it has been trained on.
        samples: Its samples.
        files: Number of its files.
        fingerprint: Changes with its files and their sizes.
        reached: The last name of it and those before; of a segment that came late, a later one than its own.
        contents: The same for the same files under other names; empty without rows.
    """

    name: str
    number: int
    first_step: int
    last_step: int
    samples: int
    files: int
    fingerprint: str
    reached: str
    contents: str = ""


class Ledger:
    """The segments that a run is done with; only rank 0 uses it.

    Args:
        run: The run directory.
        evaluates_each: Whether the model was evaluated on each segment before it was trained on it.
    """

    def __init__(self, run: RunDirectory, evaluates_each: bool = True) -> None:
        self._run, self._evaluates_each = run, evaluates_each

    def lines(self) -> list[dict[str, Any]]:
        """Returns the lines, oldest first; a segment that was trained on twice has two."""
        return self._run.read_records(LEDGER)

    def cut(self, steps: int) -> None:
        """Drops the lines of later steps, which a resumed run takes again."""
        lines = self.lines()
        kept = [line for line in lines if line["step"] <= steps]
        if len(kept) < len(lines):
            self._write(kept)

    def note(self, place: SegmentPlace) -> None:
        """Adds the line of a segment that is done, unless it is there."""
        lines = self.lines()
        if place.samples and any(line["samples"] and line["step"] == place.last_step for line in lines):
            return
        evaluated = {
            line["step"]: {name: value for name, value in line.items() if name not in ("step", "split")}
            for line in self._run.read_records("evaluations.jsonl")
            if line["split"] == "validation"
        }
        facts = {name: value for name, value in asdict(place).items() if name != "reached"}
        line: dict[str, Any] = {"step": facts.pop("last_step"), "segment": facts.pop("name"), **facts}
        line |= {"before": evaluated.get(place.first_step) if place.samples and self._evaluates_each else None}
        self._write(sorted([*lines, line], key=lambda one: one["step"]))  # last, unless an earlier line was lost

    def _write(self, lines: Sequence[Line]) -> None:
        # Durable like checkpoints: a segment whose line a power cut took would seem to have come late.
        self._run.write(LEDGER, "".join(f"{json.dumps(line)}\n" for line in lines))


def fingerprints(lines: Sequence[Line]) -> dict[str, str]:
    """Returns the fingerprint of each segment of a ledger, as the segment was when it was done last."""
    return {line["segment"]: line["fingerprint"] for line in lines}
