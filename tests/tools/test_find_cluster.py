"""`python -m trainer plan --find`: the cheapest and the smallest cluster of all that fit, checked by brute force."""

import re
import tomllib
from pathlib import Path

import pytest
from command import write_config
from jobs import config

from trainer.__main__ import main as trainer
from trainer.plan.hardware import HOSTS
from trainer.plan.prices import SHIPPED
from trainer.tools.plan.find import NODES

NO_HOST = ("--planner.host-memory-gib", "0.001")
PRICES = """
date = 2026-01-02
currency = "EUR"
source = "a test"
[hosts]
h100_1 = 4.0
a100_1 = 1.5
h100 = 25.0
"cpu.2xlarge" = 0.5
"""


@pytest.fixture
def large(tmp_path):
    """A configuration of tables of 6 GiB and a batch that 3 ranks do not share."""
    tree = config(
        tmp_path / "nowhere",
        data__sparse={f"s{i}": {"rows": 4_000_000, "hotness": 40.0} for i in range(6)},
        data__global_batch_size=4096,
        model__embedding_dim=64,
        planner__memory_gib=2.0,
        planner__host_memory_gib=0.25,
    )
    return write_config(tmp_path / "config.toml", tree)


@pytest.fixture
def prices(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text(PRICES)
    return file


def said(capsys, *words):
    assert trainer(["plan", *map(str, words)]) == 0
    return capsys.readouterr().out


def by_on(capsys, large, clusters):
    """Returns the milliseconds of each cluster that fits, by planning for all of them at once."""
    lines = [line.split() for line in said(capsys, large, "--on", *clusters).splitlines()]
    rows = [line for line in lines if line and line[0] in clusters and line[1].isdigit()]
    return {cluster: float(words[0]) for cluster, _, *words in rows if words[0] != "does"}


def test_the_answer_is_that_of_brute_force(large, prices, capsys):
    text = said(capsys, large, "--find", "h100_1", "a100_1", "h100", "--prices", prices)
    hosts = {name: price for name, price in tomllib.loads(PRICES)["hosts"].items() if HOSTS[name].gpu}
    size = {f"{name}:{nodes}": nodes * HOSTS[name].gpus for name in hosts for nodes in NODES}
    tried = [cluster for cluster, ranks in size.items() if 4096 % ranks == 0]
    fitting = by_on(capsys, large, tried)
    price = {cluster: int(cluster.partition(":")[2]) * hosts[cluster.partition(":")[0]] for cluster in fitting}
    assert text.startswith(f"{len(tried)} clusters, of which {len(fitting)} fit\n")
    assert 0 < len(fitting) < len(tried)
    answers = {name: re.search(rf"^{name} +([\w:]+): ", text, re.MULTILINE)[1] for name in ("smallest", "cheapest")}
    assert size[answers["smallest"]] == min(size[cluster] for cluster in fitting)
    assert price[answers["cheapest"]] == min(price.values())
    listed = re.findall(r"^([\w:]+) +\d+ +([\d.,]+) ", text.partition("by the price of a sample")[0], re.MULTILINE)
    assert [float(cost) for _, cost in listed] == sorted(price.values())[: len(listed)]


def test_the_price_of_a_sample_is_that_of_its_time(large, prices, capsys):
    text = said(capsys, large, "--find", "h100", "--prices", prices)
    rows = re.findall(r"^h100:(\d+) +\d+ +([\d.,]+) +([\d.,]+) +([\d.e-]+)", text, re.MULTILINE)
    assert rows
    for nodes, per_hour, per_billion, milliseconds in rows:
        assert float(per_hour.replace(",", "")) == 25.0 * int(nodes)
        seconds = float(milliseconds) / 1000 * 1e9 / 4096
        found, expected = float(per_billion.replace(",", "")), 25.0 * int(nodes) * seconds / 3600
        assert found == pytest.approx(expected, rel=0.06, abs=0.01)
    assert "EUR/hour" in text
    assert "Prices of 2026-01-02, from a test" in text


def test_the_shipped_prices_are_of_known_hosts_with_a_date_and_a_source():
    content = tomllib.loads(Path(SHIPPED).read_text())
    assert content["source"].startswith("https://")
    assert content["date"].year >= 2026
    assert set(content["hosts"]) <= set(HOSTS)
    assert len(content["hosts"]) >= 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--find", "h200"], "--find names 'h200', which the price file has no price of"),
        (["--find", "h1000"], "--find names 'h1000', which the price file has no price of; did you mean 'h100'?"),
        (
            ["--find", "h100_1", "--planner.memory-gib", "0.001", *NO_HOST],
            "--find looked at 7 clusters, and none fits; of h100_1:",
        ),
        (
            ["--find", "h100", "--data.global-batch-size", "7"],
            "data.global_batch_size is 7, which the ranks of no",
        ),
        (["--find", "h100", "--on", "h100:1"], "--on cannot be given with --find; leave one of them out"),
        (["--find", "h100", "--out", "plan.json"], "--out cannot be given with --find"),
    ],
)
def test_what_cannot_be_found_is_one_line(large, prices, capsys, words, message):
    assert trainer(["plan", str(large), "--prices", str(prices), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("h100_1 = 4.0", "h10 = 4.0", "hosts.h10 is no known host; did you mean 'h100'?"),
        ("4.0", "-4.0", "hosts.h100_1 is -4.0: input should be greater than 0"),
        ("date = 2026-01-02\n", "", "'date' is missing; it has no default"),
        ('"EUR"', "", "which is not TOML: "),
    ],
)
def test_a_wrong_price_file_is_one_line(large, prices, capsys, old, new, message):
    prices.write_text(PRICES.replace(old, new, 1))
    assert trainer(["plan", str(large), "--find", "all", "--prices", str(prices)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --prices is '{prices}'")
    assert message in error
    assert error.count("\n") == 1
    assert trainer(["plan", str(large), "--on", "h100:1", "--prices", str(prices)]) == 2
    assert "only --find uses prices" in capsys.readouterr().err
