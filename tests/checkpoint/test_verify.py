"""Ranks verify a checkpoint together: each reads its part of the files, and all agree on what is good."""

import json
import shutil

import pytest
from forked import run_forked
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import config, launch, write_rows
from verified import find_newest_on

from trainer.checkpoint.verify import part_of_rank

SIZES = st.lists(st.integers(0, 10**12), max_size=40)


@settings(deadline=None)  # a busy machine is no fault
@given(SIZES, st.integers(1, 9))
def test_parts_are_all_files_once_and_about_as_large(sizes, ranks):
    entries = {f"__{number}_0.distcp": {"bytes": size, "crc32": number} for number, size in enumerate(sizes)}
    parts = [part_of_rank(entries, rank, ranks) for rank in range(ranks)]
    assert sorted(name for part in parts for name in part) == sorted(entries)
    assert all(entries[name] is entry for part in parts for name, entry in part.items())
    loads = [sum(entry["bytes"] for entry in part.values()) for part in parts]
    assert max(loads) - min(loads) <= 2 * max(sizes, default=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on 2 ranks with whole checkpoints after 1 and 3 steps, and a delta on each."""
    folder = tmp_path_factory.mktemp("verify")
    data = write_rows(folder / "data", [64])
    checkpoint = {"every_steps": 1, "full_every": 2, "keep": {"newest": 9}}
    tree = config(data, train__steps=4, data__global_batch_size=8, checkpoint=checkpoint)
    launch([{"config": tree, "out": str(folder / "run")}], 2, folder)
    return folder / "run"


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


HARM = {
    "nothing": (lambda folder: None, 4),
    "a flipped bit": (lambda folder: flip(folder / "step-000000004/__1_0.distcp"), 3),
    "a file cut short": (lambda folder: (folder / "step-000000004/state.json").write_text("{"), 3),
    "a missing file": (lambda folder: (folder / "step-000000004/__0_0.distcp").unlink(), 3),
    "a damaged manifest": (lambda folder: (folder / "step-000000004/manifest.json").write_text("{"), 3),
    "a flipped bit of what the newest builds on": (lambda folder: flip(folder / "step-000000003/.metadata"), 2),
    "all": (lambda folder: [flip(file) for file in folder.glob("*/config.toml")], None),
}


@pytest.mark.parametrize("harm", HARM)
def test_every_rank_knows_the_same_good_checkpoint(run, tmp_path, harm):
    change, step = HARM[harm]
    shutil.copytree(run, tmp_path / "run")
    change(tmp_path / "run/checkpoints")
    said = run_forked(find_newest_on, 3, str(tmp_path / "run"), str(tmp_path), folder=tmp_path)
    assert [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)] == [step] * 3
    skipped = {4: [], 3: [4], 2: [4, 3], None: [4, 3, 2, 1]}[step]
    lines = [line for line in said.splitlines() if "is skipped: " in line]
    assert [int(line.split()[1].removeprefix("step-")) for line in lines] == skipped
