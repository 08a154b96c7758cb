"""Output comes in whole lines, and says one of a thing in the singular."""

import os
import re
import socket
import subprocess
import sys

import pytest
from command import write_config
from jobs import config, write_rows

from trainer.__main__ import main as trainer
from trainer.core.console import plural

WRONG = re.compile(
    r"(?<![\d.,:x-])1 (?:[a-z]+ )?(?:files|ranks|rows|samples|steps|tables|columns|features|hosts|replicas|errors|"
    r"warnings|notes|checkpoints|lines|ids|values|tensors|parts|epochs|groups|lanes|shards)\b"
)
PRINTS = "import sys; from trainer.core.console import write_whole_lines; write_whole_lines(); print({})"
TEXTS = ["'a line'", "'a line\\nand its last'", "'long ' * 20_000, file=sys.stderr"]


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("words", [["-m", "trainer", "tarin"], *(["-c", PRINTS.format(text)] for text in TEXTS)])
def test_each_line_is_written_together_with_its_end(words, buffered):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # which keeps writes apart
    environment = os.environ | {"PYTHONUNBUFFERED": buffered}
    with theirs:
        subprocess.run([sys.executable, *words], stdout=theirs, stderr=theirs, env=environment, check=False)
    writes = list(iter(lambda: ours.recv(1 << 20), b""))
    ours.close()
    assert writes
    assert all(written.endswith(b"\n") and written.strip() for written in writes), writes


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 row groups"), (1, "1 row group"), (2, "2 row groups"), (1200, "1,200 row groups")]
)
def test_a_number_of_things(number, said):
    assert plural(number, "row group") == said


def test_one_of_a_thing_is_singular_wherever_it_is_counted(tmp_path, capfd):
    data, out = write_rows(tmp_path / "data", [64]), tmp_path / "out"
    tree = config(data, train__epochs=1, data__validation=[str(data)], checkpoint__keep={"every_steps": 1})
    del tree["train"]["steps"]
    file = write_config(tmp_path / "config.toml", tree)
    new = write_rows(tmp_path / "new", [1])
    commands = [
        ["train", file, "--out", out],
        ["evaluate", file, "--out", out, "--split", "validation"],
        ["checkpoints", "--out", out, "--verify", "True"],
        ["check-data", file],
        ["schedule", file],
        ["plan", file, "--planner.host-memory-gib", "1"],
        ["predict", out / "config.toml", "--out", out, "--source", new, "--to", tmp_path / "parts"],
        ["vocabulary", "--source", data, "--columns", "s0", "--out", tmp_path / "vocabulary"],
        ["export", out / "config.toml", "--out", out, "--to", tmp_path / "exported", "--split", "validation"],
    ]
    printed = ""
    for words in commands:
        assert trainer([str(word) for word in words]) == 0, capfd.readouterr().err
        printed += capfd.readouterr().out
    assert "64 samples in 1 file, 1 step per epoch, 1 rank on cpu" in printed
    assert "64 rows in 1 file" in printed
    assert "1 row in 1 part" in printed
    assert "every 1 step" in printed
    assert not WRONG.findall(printed)
