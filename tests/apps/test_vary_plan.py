"""`python -m trainer plan --vary`: the effect of one change is that of the same flag."""

import re

import pytest
from plan_command import planned, refused, write_tables

pytestmark = pytest.mark.slow

FLAGS = {
    "batch 4,096 for 8,192": ["--data.global-batch-size", "4096"],
    "embedding_dim 128 for 64": ["--model.embedding-dim", "128"],
    "table_precision fp16 for fp32": ["--model.table-precision", "fp16"],
    "comms bf16 for fp32": ["--comms.forward", "bf16", "--comms.backward", "bf16"],
}


@pytest.fixture
def small(tmp_path):
    return write_tables(tmp_path, {f"s{i}": 10 ** (i + 1) for i in range(6)}, hotness=2.0, batch=8192)


def milliseconds(text):
    return {
        found[1]: float(found[2]) for line in text.splitlines() if (found := re.match(r"(\S.*?)  +([\d.]+)  ", line))
    }


def test_an_effect_is_that_of_the_flag(small, capsys):
    found = milliseconds(planned(capsys, small, "--on", "a100:1", "--vary", "all"))
    assert found.keys() >= {*FLAGS, "as it is", "2 times the ids of a sample", "the largest table once more"}
    for change, flags in {"as it is": [], **FLAGS}.items():
        (alone,) = (
            float(time) for time in re.findall(r"step +([\d.e-]+) ms", planned(capsys, small, "--on", "a100:1", *flags))
        )
        assert found[change] == pytest.approx(alone, abs=6e-4, rel=6e-3), change


def test_changes_that_save_most_of_a_sample_come_first(small, capsys):
    text = planned(capsys, small, "--on", "a100:1", "--vary", "batch", "hotness")
    rows = [line for line in text.partition("\n\nFigures: ")[0].splitlines()[4:] if line]
    samples = [float(re.findall(r"\d+\.\d{4}", row)[0]) for row in rows[1:]]
    assert len(samples) == 4
    assert samples == sorted(samples)
    assert not re.search("comms|precision|dim", text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "a100:1", "--vary", "hotnes"], "--vary names 'hotnes'; did you mean 'hotness'?"),
        (["--on", "a100:1", "h100:1", "--vary", "all"], "--on names 2 clusters, but --vary takes one; name one"),
        (["--on", "a100:1", "--vary", "all", "--out", "p.json"], "--out cannot be given with --vary"),
        (
            ["--on", "a100:1", "--vary", "all", "--planner.memory-gib", "0.001", "--planner.host-memory-gib", "0.001"],
            "--vary needs a plan to begin with, and a100:1 does not fit",
        ),
    ],
)
def test_what_cannot_be_varied_is_one_line(small, capsys, words, message):
    assert refused(capsys, small, *words).startswith(f"error: {message}")
