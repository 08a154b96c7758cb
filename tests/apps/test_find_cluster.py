"""`python -m trainer plan --find`: the cheapest and the smallest cluster of all that fit, checked by brute force."""

import re
import tomllib
from pathlib import Path

import pytest
import torch
from plan_command import planned, refused, write_tables

from torchx_recsys.apps.plan.clusters import parse_cluster
from torchx_recsys.apps.plan.find import QUICK_TRIES
from torchx_recsys.apps.plan.planning import plan_on
from torchx_recsys.apps.plan.prices import SHIPPED
from torchx_recsys.planner.hardware import HOSTS
from trainer.commands import read_command
from trainer.training.sharded_model import build_unsharded_model

pytestmark = pytest.mark.slow

HEAD = re.compile(
    r"(\d+) clusters: (\d+) searched, of which (\d+) fit(, \d+ proven to be worse than those below)?"
    r"(?:, (\d+) proven to be too small)?\n"
)
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
    memory = {"planner__memory_gib": 2.0, "planner__host_memory_gib": 0.25}
    return write_tables(tmp_path, {f"s{i}": 4_000_000 for i in range(6)}, hotness=40.0, batch=4096, **memory)


@pytest.fixture
def prices(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text(PRICES)
    return file


def brute_force(config, hosts):
    """Returns cluster, ranks, price of an hour and milliseconds of each cluster that fits, by searching all."""
    model = build_unsharded_model(config, torch.device("meta"))
    batch, found = config.data.global_batch_size, []
    for name, price in hosts.items():
        for nodes in range(1, 65):
            if batch % (ranks := nodes * max(1, HOSTS[name].gpus)) == 0:
                planned = plan_on(model, config, parse_cluster(f"{name}:{nodes}"), QUICK_TRIES)
                if planned.fits:
                    found.append((f"{name}:{nodes}", ranks, nodes * price, planned.step.total))
    return found


@pytest.mark.more("five processor seconds; bounds are checked")
@pytest.mark.few(1, "one stands for all")
@pytest.mark.sample(1)
@pytest.mark.parametrize("plenty", [(), ("--planner.memory-gib", "40", "--data.global-batch-size", "3840")])
def test_the_answer_is_that_of_brute_force(large, prices, capsys, plenty):
    """Every answer, and both lists whole, though most clusters are not searched, with scarce memory or plenty."""
    text = planned(capsys, large, "--find", "h100_1", "a100_1", "h100", "--prices", prices, *plenty)
    hosts = {name: price for name, price in tomllib.loads(PRICES)["hosts"].items() if HOSTS[name].gpu}
    settings = read_command(["plan", str(large), *plenty]).keywords["config"]
    fitting = brute_force(settings, hosts)
    looked_at, searched, fit, small = (int(HEAD.match(text)[group] or 0) for group in (1, 2, 3, 5))
    batch = settings.data.global_batch_size
    assert looked_at == sum(batch % (nodes * HOSTS[name].gpus) == 0 for name in hosts for nodes in range(1, 65))
    assert fit <= searched < looked_at - small
    assert (0 if plenty else 1) <= small <= looked_at - len(fitting) < looked_at
    answers = {
        "smallest": min(fitting, key=lambda one: one[1:3]),
        "cheapest": min(fitting, key=lambda one: one[2:]),
        "per sample": min(fitting, key=lambda one: one[2] * one[3]),
        "fastest": min(fitting, key=lambda one: one[3]),
    }
    for name, (cluster, *_) in answers.items():
        assert re.search(rf"^{name} +([\w:]+): ", text, re.MULTILINE)[1] == cluster
    by_hour, by_sample = (
        re.findall(r"^([\w:]+) +\d+ +[\d.,]+ +[\d.,]+ +[\d.]+ ", part, re.MULTILINE)
        for part in text.split("by the price of a sample")
    )
    assert by_hour == [one[0] for one in sorted(fitting, key=lambda one: one[2:])][:8]
    assert by_sample == [one[0] for one in sorted(fitting, key=lambda one: one[2] * one[3])][:8]


@pytest.mark.more("brute force checks the others")
def test_clusters_by_the_hundred_are_found(large, capsys):
    """All hosts with a price, and 19 numbers of each: those that 2 ** 16 * 3 * 5 samples can be shared by."""
    batch = 2**16 * 3 * 5
    text = planned(capsys, large, "--find", "all", "--data.global-batch-size", batch, "--planner.memory-gib", "24")
    hosts = tomllib.loads(Path(SHIPPED).read_text())["hosts"]
    looked_at, searched = map(int, HEAD.match(text).groups()[:2])
    assert looked_at == 19 * len(hosts) >= 140
    assert searched < looked_at / 2
    assert f"{45 * len(hosts)} more are left out, as their ranks do not divide data.global_batch_size, {batch}" in text


@pytest.mark.more("computes for seconds")
def test_a_batch_that_more_clusters_share_is_named(large, prices, capsys):
    words = (large, "--find", "h100", "--prices", prices, "--data.global-batch-size")
    text = planned(capsys, *words, 65536)
    other, share = map(int, re.search(r"; --data.global-batch-size (\d+) lets (\d+) take part", text).groups())
    near = [size for size in range(65536 * 95 // 100 + 1, 65536 * 105 // 100 + 1) if size % 8 == 0]
    sharing = {size: sum(size % (8 * nodes) == 0 for nodes in range(1, 65)) for size in near}
    assert share == sharing[other] == max(sharing.values())
    assert planned(capsys, *words, other).startswith(f"{share} clusters: ")


def test_the_price_of_a_sample_is_that_of_its_time(large, prices, capsys):
    text = planned(capsys, large, "--find", "h100", "--prices", prices)
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
        (["--find"], "--find names no host; write all, or hosts such as h100"),
        (["--find", "h100:8"], "--find names 'h100:8', but takes hosts without a number; write h100, or --on h100:8"),
        (
            ["--find", "h100", "--planner.plan", "p.json"],
            "planner.plan is 'p.json', but --find plans for many clusters",
        ),
        (["--find", "h100", "--planner.hardware", "a100"], "planner.hardware is 'a100', but --find plans for many"),
        (["--find", "h100", "--vary", "all"], "--vary cannot be given with --find; leave one of them out"),
        (["--find", "h100", "--world-size", "8"], "--world-size cannot be given with --find; leave one of them out"),
        (["--find", "h100", "--on", "h100:1"], "--on cannot be given with --find; leave one of them out"),
        (["--find", "h100", "--out", "plan.json"], "--out cannot be given with --find"),
    ],
)
def test_what_cannot_be_found_is_one_line(large, prices, capsys, words, message):
    assert refused(capsys, large, "--prices", prices, *words).startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("h100_1 = 4.0", "h10 = 4.0", "hosts.h10 is no known host; did you mean 'h100'?"),
        ("4.0", "-4.0", "hosts.h100_1 is -4.0: input should be greater than 0"),
        ("date = 2026-01-02\n", "", "'date' is missing; it has no default"),
        ('"EUR"', "", "which is not TOML: "),
        ("4.0", '"cheap"', "hosts.h100_1 is 'cheap': input should be a valid number"),
        ("4.0", "nan", "hosts.h100_1 is nan: input should be a finite number"),
        (PRICES, "", "'date' is missing; it has no default"),
        (PRICES.partition("[hosts]")[2], "", "which has no hosts; name at least one under [hosts]"),
        ("[hosts]", "region = 'us'\n[hosts]", "unknown key 'region'; known: currency, date, hosts, source"),
    ],
)
def test_a_wrong_price_file_is_one_line(large, prices, capsys, old, new, message):
    prices.write_text(PRICES.replace(old, new, 1))
    line = refused(capsys, large, "--find", "all", "--prices", prices)
    assert line.startswith(f"error: --prices is '{prices}'")
    assert message in line
    assert "only --find uses prices" in refused(capsys, large, "--on", "h100:1", "--prices", prices)


def test_price_files_without_a_gpu_or_out_of_reach_are_one_line(large, tmp_path, capsys):
    (tmp_path / "cpu.toml").write_text(PRICES.partition("h100_1")[0] + '"cpu.2xlarge" = 0.5')
    for name, message in (("cpu.toml", "--prices has no host with GPUs"), ("no.toml", "No such file or directory")):
        assert message in refused(capsys, large, "--find", "all", "--prices", tmp_path / name)


@pytest.mark.more("computes for seconds")
def test_all_hosts_and_one_more_are_looked_at(large, prices, capsys):
    text = planned(capsys, large, "--find", "all", "cpu.2xlarge", "--prices", prices)
    with_gpus = [name for name in tomllib.loads(PRICES)["hosts"] if HOSTS[name].gpu]
    clusters = sum(
        4096 % (max(1, HOSTS[name].gpus) * n) == 0 for name in [*with_gpus, "cpu.2xlarge"] for n in range(1, 65)
    )
    assert text.startswith(f"{clusters} clusters: ")
