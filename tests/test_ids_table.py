"""The table of results in docs/guides/ids.md, and what the text beside it says."""

import re
from pathlib import Path

from benchmarks.ids import RULES

PAGE = Path(__file__).parents[1] / "docs/guides/ids.md"


def test_the_text_says_what_was_measured():
    part = PAGE.read_text().partition("<!-- measured: ids -->")[2].partition("<!-- end -->")[0]
    found = {name: float(mean) for name, mean in re.findall(r"^\| (`.*) \| (\d\.\d+) \(", part, re.MULTILINE)}
    assert [*found] == [*RULES]
    numbered, whole, least_used, least_recent, hashed = found.values()
    assert abs(numbered - whole) < 0.002
    assert numbered > least_used > hashed > least_recent
