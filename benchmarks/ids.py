"""Trains on MovieLens with each rule for ids, and compares the AUC.

Writes docs/guides/ids.md.
Takes a few minutes.

The numbers come from one machine, so unlike the output of `docs.generate` they do not follow changes of the code.
"""

import tempfile
from pathlib import Path

from benchmarks.models import Result, render, train
from docs.generate import ROOT, write_measured
from trainer.config.root import load_config

PAGE = ROOT / "docs" / "guides" / "ids.md"
FEATURE, WHOLE = "item_id", 1683  # a row for each of 1,682 films, and row 0
HALF = WHOLE // 2 + 1
RULES = {
    f"`error`, {WHOLE:,} rows": {},
    f"`managed`, {WHOLE:,} rows": {"ids": "managed"},
    f"`managed`, `least_used`, {HALF:,} rows": {"rows": HALF, "ids": "managed", "evict": "least_used"},
    f"`managed`, `least_recent`, {HALF:,} rows": {"rows": HALF, "ids": "managed", "evict": "least_recent"},
    f"`hash`, {HALF:,} rows": {"rows": HALF, "ids": "hash"},
}


def main() -> None:
    """Measures all rules and rewrites the table."""
    assert load_config("movielens").data.sparse[FEATURE].rows == WHOLE
    with tempfile.TemporaryDirectory() as folder:
        write_measured(PAGE, "ids", rules(Path(folder)))


def rules(folder: Path) -> str:
    """Returns the table of rules for film ids. Run directories go into `folder`."""
    results: dict[str, Result] = {}
    for number, (name, settings) in enumerate(RULES.items()):
        flags = [word for key, value in settings.items() for word in (f"--data.sparse.{FEATURE}.{key}", str(value))]
        results[name] = train(["movielens", *flags], folder / str(number), {"auc": "auc"})
    return render(results, {"auc": "Test AUC"}, "Ids of films")


if __name__ == "__main__":
    main()
