"""The guide on long histories as it is typed, from a log to a trained model."""

import json
import re
from pathlib import Path

import pytest
from shell import typed

ROOT = Path(__file__).parents[1]
TUTORIAL, GUIDE = ROOT / "docs/tutorials/from_a_log.md", ROOT / "docs/guides/long_histories.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def reader(tmp_path_factory, path):
    """The directory of a reader who has typed all commands, and what each printed."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("trainer", "components", "torchx_recsys"):
        (folder / name).symlink_to(ROOT / name)
    for page in (TUTORIAL, GUIDE):
        for _, block in FENCE.findall(page.read_text()):
            if name := re.match(r"# (\w+\.\w+)\n", block):
                (folder / name[1]).write_text(block)
    blocks = [block for language, block in FENCE.findall(GUIDE.read_text()) if language == "sh"]
    commands = "".join(blocks).replace("\\\n", " ").splitlines()
    return folder, {command: typed(command, folder, PATH=path) for command in commands}


def test_every_command_does_what_the_page_says(reader):
    folder, printed = reader
    for command, said in printed.items():
        assert not re.search(r"\b(error:|traceback|warning:)", said, re.IGNORECASE), f"$ {command}\n{said}"
    said = next(text for command, text in printed.items() if "check-data" in command)
    assert re.search(r"histories: [\d.]+ % are empty", said)
    assert (folder / "runs/long/evaluations.jsonl").exists()
    logs = [json.loads((folder / name / "log.json").read_text()) for name in ("data/log", "data/log-2")]
    assert logs[0]["fingerprint"] == logs[1]["fingerprint"] in logs[1]["continues"]
