"""Training beside other libraries: the loops that need none of them, and docs/explanation/performance.md."""

import importlib
import re
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import baselines
from benchmarks.peers import __main__ as peers
from benchmarks.peers import rows
from benchmarks.peers.run import Case, auc
from trainer.models.hstu import TransductionUnit

pytestmark = pytest.mark.more("a tool of contributors")

PAGE = Path(__file__).parents[2] / "docs/explanation/performance.md"
BATCH, EPOCHS, LONGEST = 128, 6, 12
OWN = [peer for peer in peers.PEERS if not peer.package]


def test_auc_is_that_of_the_other_benchmarks():
    random = np.random.default_rng(0)
    scores, labels = random.integers(0, 9, 50), random.integers(0, 2, 50)
    assert auc(scores, labels) == baselines.auc(scores, labels)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A function of a model, for rows whose labels follow from their ids."""
    folder, histories = tmp_path_factory.mktemp("rows"), tmp_path_factory.mktemp("histories")
    random = np.random.default_rng(1)
    for split, count in (("train", 40 * BATCH), ("test", 1000)):
        ids, dense = random.integers(0, 20, (count, 2)), random.standard_normal((count, 3)).astype(np.float32)
        rows.write(folder, split, dense, ids, (ids[:, 0] < 10).astype(np.float32))
        ids = random.integers(0, 20, (count, LONGEST + 1))
        ids[np.arange(LONGEST + 1) < random.integers(0, LONGEST, count)[:, None]] = rows.NO_ITEM
        rows.write_histories(histories, split, ids, (ids[:, -1] < 10).astype(np.float32))

    def of(model: str) -> Case:
        return Case(
            folder=str(histories if model == "hstu" else folder),
            model=model,
            tables=[20] if model == "hstu" else [20, 20],
            dense=0 if model == "hstu" else 3,
            dim=8,
            layers=[16, 8],
            batch=BATCH,
            epochs=EPOCHS,
            learning_rate=1e-2,
            threads=1,
            history=LONGEST,
            units=2,
            started=time.time(),
        )

    return of


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("peer", "model"),
    [(peer, model) for peer in OWN for model in peer.models],
    ids=lambda one: getattr(one, "loop", one),
)
def test_a_loop_learns_and_counts_its_steps(case, tmp_path, peer, model):
    found = peers.run(peer, peers.python_of(peer), case(model), tmp_path)
    assert found["auc"] > 0.95
    assert len(found["samples_per_second"]) == EPOCHS - 1
    assert found["first_step_seconds"] > 0
    assert found["start_seconds"] > 0
    assert found["peak_bytes"] > 100 * 2**20


def test_the_plain_unit_of_hstu_computes_what_the_trainers_does(monkeypatch):
    folder = Path(peers.__file__).parent
    monkeypatch.syspath_prepend(folder)
    monkeypatch.syspath_prepend(folder / "loops")
    config = SimpleNamespace(attention_heads=1, attention_block=256, target_time=None)
    inputs = SimpleNamespace(config=config, device="cpu", dropout=lambda from_the_end: nn.Identity())
    ours = TransductionUnit(8, LONGEST, inputs)
    nn.init.normal_(ours.by_distance)
    plain = importlib.import_module("plain_loop").Unit(8, LONGEST)
    plain.load_state_dict({name.replace("by_distance", "bias"): weights for name, weights in ours.state_dict().items()})
    tokens, present = torch.randn(2, LONGEST, 8), torch.arange(LONGEST) >= torch.tensor([[0], [5]])
    for asking in (LONGEST, 1):
        torch.testing.assert_close(plain(tokens, present, asking), ours(tokens, present, None, asking))


def turns(rates: list[float], first_step: float = 2.0, every: int = 1) -> list[dict]:
    """Returns measurements with these rates, in each turn of this number."""
    return [
        {"turn": place * every, "samples_per_second": [rate], "first_step_seconds": first_step}
        | {"start_seconds": first_step, "peak_bytes": 2**30, "auc": 0.7}
        for place, rate in enumerate(rates)
    ]


def test_a_table_has_the_defaults_first_then_the_fastest_and_ratios_to_plain_torch_in_the_same_turn():
    shown = peers.render(
        {
            peers.PLAIN: turns([100, 300, 200, 200]),
            peers.DEFAULTS: turns([200, 300, 300, 200], 14.0),
            peers.EAGER: turns([400, 600, 400, 400]),
            "RecBole": turns([50, 40], every=3),
        }
    ).splitlines()
    assert [line.partition("2.0 s")[0] for line in shown[3:6]] == [
        "| torchx-recsys, eager | 400 (400 to 600) | 2.00 (2.00 to 4.00) | ",
        "| plain torch, rows in memory | 200 (100 to 300) | 1.00 (1.00 to 1.00) | ",
        "| RecBole | 45 (40 to 50) | 0.35 (0.20 to 0.50) | ",
    ]
    assert shown[2] == (
        "| torchx-recsys, defaults, ten minutes and more | 250 (200 to 300) | 1.25 (1.00 to 2.00) | 14.0 s | 1,024 MiB "
        "| 0.7000 |"
    )
    assert "Compiling took 12 s in the first turn" in shown[7]
    assert "come to 1.23 of plain torch in a run of 10 minutes" in shown[7]  # 1.25 * 588 / 600
    assert "medians of 4 turns, in which each ran once (RecBole in 2 of them)" in shown[9]


@pytest.mark.parametrize("name", peers.CASES)
def test_the_documented_tables_have_all_peers(name):
    part = PAGE.read_text().partition(f"<!-- measured: peers-{name} -->")[2].partition("<!-- end -->")[0]
    model = peers.CASES[name].model
    shown = re.findall(r"^\| ([^|]+) \| [\d,]+ \(", part, re.MULTILINE)
    assert sorted(shown) == sorted(peer.name for peer in peers.PEERS if model in peer.models)
