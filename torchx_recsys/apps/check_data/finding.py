"""A finding of a check: a fault of a data set, or a note."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """A fault: training would refuse the data or learn nothing useful (error), or may suffer (warning); or a note.

    Attributes:
        severity: How bad it is; a note is no fault.
        check: Name of the check, which stays the same in all versions.
        where: The split or the files with the fault.
        column: The column; empty for a finding about files or rows.
        found: The finding in words, with figures.
        remedy: What to do.
    """

    severity: Severity
    check: str
    where: str
    column: str
    found: str
    remedy: str


def by_severity(findings: list[Finding]) -> list[Finding]:
    """Sorts findings by severity, the worst first, otherwise in their order."""
    return sorted(findings, key=lambda one: ORDER.index(one.severity))


def percent(part: float, whole: float = 1.0) -> str:
    """Formats a share in percent; even a few in a million are not shown as 0 %."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.2g} %" if 0 < share < 10 else f"{share:.0f} %"
