"""A finding: one thing that is wrong with a data set, or worth knowing."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: training would refuse it or learn nothing of use (error), or may suffer (warning).

    Attributes:
        severity: How bad it is; a note is no fault.
        check: Name of the check, which stays the same in all versions.
        where: The split, or the files.
        column: The column; empty if it is about files or rows.
        found: What was found, with figures.
        remedy: What to do.
    """

    severity: Severity
    check: str
    where: str
    column: str
    found: str
    remedy: str


def by_severity(findings: list[Finding]) -> list[Finding]:
    """Returns findings, the worst first, otherwise in their order."""
    return sorted(findings, key=lambda one: ORDER.index(one.severity))


def percent(part: float, whole: float = 1.0) -> str:
    """Returns a part of a whole in words; of a few in a million, still not 0 %."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.2g} %" if 0 < share < 10 else f"{share:.0f} %"
