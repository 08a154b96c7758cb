"""Training beside other libraries: the loops that need none of them, and docs/explanation/performance.md."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks import baselines
from benchmarks.peers import __main__ as peers
from benchmarks.peers import rows
from benchmarks.peers.run import Case, auc

pytestmark = pytest.mark.more("a tool of contributors")

PAGE = Path(__file__).parents[2] / "docs/explanation/performance.md"
BATCH, EPOCHS = 128, 6
OWN = [peer for peer in peers.PEERS if not peer.package]


def test_auc_is_that_of_the_other_benchmarks():
    random = np.random.default_rng(0)
    scores, labels = random.integers(0, 9, 50), random.integers(0, 2, 50)
    assert auc(scores, labels) == baselines.auc(scores, labels)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A function of a model, for rows whose labels follow from their ids."""
    folder = tmp_path_factory.mktemp("rows")
    random = np.random.default_rng(1)
    for split, count in (("train", 40 * BATCH), ("test", 1000)):
        ids, dense = random.integers(0, 20, (count, 2)), random.standard_normal((count, 3)).astype(np.float32)
        rows.write(folder, split, dense, ids, (ids[:, 0] < 10).astype(np.float32))

    def of(model: str) -> Case:
        return Case(
            folder=str(folder),
            model=model,
            tables=[20, 20],
            dense=3,
            dim=8,
            layers=[16, 8],
            batch=BATCH,
            epochs=EPOCHS,
            learning_rate=1e-2,
            threads=1,
            started=time.time(),
        )

    return of


@pytest.mark.sample(2)
@pytest.mark.parametrize("model", ["deepfm", "dlrm"])
@pytest.mark.parametrize("peer", OWN, ids=lambda peer: peer.loop)
def test_a_loop_learns_and_counts_its_steps(case, tmp_path, peer, model):
    found = peers.run(peer, peers.python_of(peer), case(model), tmp_path)
    assert found["auc"] > 0.95
    assert len(found["samples_per_second"]) == EPOCHS - 1
    assert found["first_step_seconds"] > 0
    assert found["peak_bytes"] > 100 * 2**20


def test_a_table_has_the_fastest_first_and_rates_beside_plain_torch_in_the_same_turn():
    def repeat(rate: float) -> dict:
        return {"samples_per_second": [rate], "first_step_seconds": 2.0, "peak_bytes": 2**30, "auc": 0.7}

    plain, ours = peers.PEERS[0].name, peers.PEERS[-1].name
    shown = peers.render(
        {plain: [repeat(100), repeat(300), repeat(200)], ours: [repeat(400), repeat(400), repeat(500)]}
    )
    first, second = shown.splitlines()[2:4]
    assert first == f"| {ours} | 400 (400 to 500) | 2.50 | 2.0 s | 1,024 MiB | 0.7000 |"
    assert second == f"| {plain} | 200 (100 to 300) | 1.00 | 2.0 s | 1,024 MiB | 0.7000 |"


@pytest.mark.parametrize("name", peers.CASES)
def test_the_documented_tables_have_all_peers(name):
    part = PAGE.read_text().partition(f"<!-- measured: peers-{name} -->")[2].partition("<!-- end -->")[0]
    model = peers.CASES[name][1]
    shown = re.findall(r"^\| ([^|]+) \| [\d,]+ \(", part, re.MULTILINE)
    assert sorted(shown) == sorted(peer.name for peer in peers.PEERS if model in peer.models)
