"""What users of other trainers are told to write here exists: every key, its value, component, metric and command."""

import re
from pathlib import Path

from torchx.specs.finder import get_component

from trainer.commands import COMMANDS
from trainer.config.help import described
from trainer.config.root import Config
from trainer.metrics.registry import built_in

PAGE = (Path(__file__).parent.parent / "docs/reference/coming_from.md").read_text()
KEYS = {f"{section.path}.{key.name}": key for section in described(Config) for key in section.keys}
COMPONENTS = ("dlrm.", "data.", "tools.")
CODE = re.compile(r"`([^`]+)`")
REPLACED = ("TARGET", "package.module")  # in values, by the reader


def rows():
    """The rows of all tables: what they write, what to write here, and notes."""
    lines = [re.split(r" *\| *", line)[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
    return [row for row in lines if row[0] not in ("Theirs", "---")]


def written(pattern):
    """The code to be written here that begins with a pattern, in all columns but theirs."""
    found = {code for _, *cells in rows() for cell in cells for code in CODE.findall(cell)}
    return sorted(code for code in found if re.match(pattern, code))


def takes(key, value):
    """Whether every word of a value is in the type or the meaning of a key."""
    words = {"true", "false", *re.findall(r"\w+", f"{KEYS[key].type} {KEYS[key].meaning}")}
    return set(re.findall(r"\w+", value)) <= words


def test_every_row_says_what_to_write_or_no():
    for row in rows():
        assert len(row) == 3, row
        assert CODE.search(row[1]) or row[1] in ("no", "any URL", "the same command again") or row[1][0] == "[", row
    assert len(rows()) > 100


def test_every_key_and_component_exists():
    named = [code.partition(" = ") for code in written(r"[a-z]+\.[A-Za-z_.]+( =|$)")]
    unknown = [name for name, *_ in named if not name.startswith(COMPONENTS) and name not in KEYS]
    assert unknown == []
    for name, *_ in named:
        assert name in KEYS or get_component(name)
    values = [(name, value) for name, _, value in named if value and not any(one in value for one in REPLACED)]
    assert len(values) > 10
    assert [pair for pair in values if not pair[0].endswith(".metrics") and not takes(*pair)] == []


def test_a_value_that_a_key_does_not_take_is_found():
    assert takes("optimizer.sparse.schedule.decay", '"cosine"')
    assert not takes("optimizer.sparse.schedule.decay", '"cosin"')
    assert not takes("data.sparse.NAME.pooling", '"non"')
    assert not takes("model.task_weighting", '"paretto"')


def test_every_metric_is_known():
    names = [name for code in written(r".*\.metrics = ") for name in re.findall(r'"([^"]+)"', code)]
    assert len(names) > 8
    assert [name for name in names if built_in(name) is None] == []


def test_every_command_exists():
    commands = [code.split()[3] for code in written("python -m trainer ")]
    assert commands
    assert set(commands) <= COMMANDS.keys()
