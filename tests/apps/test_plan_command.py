"""`python -m trainer plan` for clusters that are not there: numbers, reasons, next command, wrong input."""

import json
import re
import shlex

import numpy as np
import pytest
from plan_command import planned, refused, write_tables
from torchx.specs.finder import get_component

from torchx_recsys.planner.rank_memory import ON_GPU
from trainer.commands import read_command

GIB = 2**30
ROWS = {"s0": 40_000_000, "s1": 5_000_000, "s2": 5_000_000, "s3": 900_000, "s4": 1_000, "s5": 10}
BESIDE_TABLES = ("dense part", "exchange: latency", "other")


@pytest.fixture
def large(tmp_path):
    """A configuration of tables of 12 GiB, which has no data."""
    return write_tables(tmp_path, ROWS)


def number(pattern, text):
    return float(re.search(pattern, text)[1].replace(",", ""))


def placements(text):
    """Returns the rows of the table of tables, by name."""
    rows = {}
    for line in text.splitlines():
        name, *cells = re.split(r"  +", line)
        if name in ROWS:
            rows[name] = dict(zip(("shape", "placement", "ranks", "gib", "ms", "why"), cells, strict=True))
    return rows


def test_parts_of_a_step_and_tables_add_up(large, capsys):
    text = planned(capsys, large, "--on", "h100:2")
    rows = re.findall(r"\n([a-z: ]+?)  +([\d.]+) +([\d.]+)  \d+%", text)
    parts = {name: (float(slowest), float(mean)) for name, slowest, mean in rows}
    assert sum(slowest for slowest, _ in parts.values()) == pytest.approx(number(r"step +([\d.]+) ms", text), abs=0.004)
    of_tables = sum(mean for name, (_, mean) in parts.items() if name not in BESIDE_TABLES)
    assert sum(float(row["ms"]) for row in placements(text).values()) == pytest.approx(of_tables, rel=0.02, abs=0.003)
    cost, bound = number(r"the slowest rank ([\d.]+) ms", text), number(r"proven ([\d.]+) at least", text)
    assert number(r"gap +([\d.]+)%", text) == pytest.approx(100 * (cost / bound - 1), abs=0.06)
    assert bound <= of_tables + 0.003 <= cost + 0.006


def test_the_memory_is_that_of_the_shards(large, tmp_path, capsys):
    """Without state, and with table_wise shards, each on one of the ranks: weights, and copies of the batch's ids."""
    words = ("--planner.sharding-types", "table_wise", "--planner.reserve", "0.0")
    text = planned(capsys, large, "--on", "h100:1", *words, "--out", tmp_path / "plan.json")
    (module,) = json.loads((tmp_path / "plan.json").read_text())["modules"].values()
    of_ranks = np.zeros(8)
    for name, table in module.items():
        of_ranks[int(table["ranks"])] += ROWS[name] * 64 * 4
    rows = {
        name: [float(cell) for cell in cells.split()] for name, cells in re.findall(r"\nGPU: (.+?)  +([\d. ]+)", text)
    }
    fullest, _, least, mean = rows["tables"]
    assert (fullest, least, mean) == pytest.approx((of_ranks.max() / GIB, 0, of_ranks.mean() / GIB), abs=6e-4)
    total = rows.pop("all, of 79")[0]
    assert sum(row[0] for row in rows.values()) == pytest.approx(total, abs=1e-3 * len(rows))
    assert number(r"takes ([\d.]+) of 79 GiB of GPU memory", text) == pytest.approx(total, abs=0.05)
    assert rows["context"][0] + rows["communication"][0] < total - fullest


def test_a_saved_plan_is_rated_as_it_was(large, tmp_path, capsys):
    first = planned(capsys, large, "--on", "a100:2", "--out", tmp_path / "plan.json")
    again = planned(capsys, large, "--on", "a100:2", "--planner.plan", tmp_path / "plan.json")
    assert again.partition("\nNext:")[0].rstrip() == first.partition("\nNext:")[0].rstrip()


def test_a_worse_plan_is_further_from_the_same_bound(large, tmp_path, capsys):
    best = planned(capsys, large, "--on", "a100:2")
    forced = ("--planner.sharding-types", "row_wise", "--out", tmp_path / "rows.json")
    planned(capsys, large, "--on", "a100:2", *forced)
    rows = planned(capsys, large, "--on", "a100:2", "--planner.plan", tmp_path / "rows.json")
    assert {row["placement"] for row in placements(rows).values()} == {"row_wise fused"}
    bounds = [number(r"proven ([\d.]+) at least", text) for text in (best, rows)]
    assert bounds[0] == bounds[1]
    assert number(r"gap +([\d.]+)%", rows) > number(r"gap +([\d.]+)%", best) + 1


def test_every_table_says_why(large, capsys):
    """Where memory is scarce it has a price, and what is faster is refused for it."""
    rich = planned(capsys, large, "--on", "h100:1")
    assert "not scarce" in rich
    poor = planned(capsys, large, "--on", "h100:1", "--planner.memory-gib", "1.5")
    assert number(r"one more GiB on every GPU saves ([\d.]+) ms", poor) > 0
    for text in (rich, poor):
        reasons = {name: row["why"] for name, row in placements(text).items()}
        assert reasons.keys() == ROWS.keys()
        assert all(re.search(r"\w+ \w+.*: .*(ms|iB)", reason) for reason in reasons.values()), reasons
    assert any("worth" in row["why"] or "more than a rank's" in row["why"] for row in placements(poor).values())


def test_tables_in_host_memory_are_named(large, capsys):
    on_gpu = planned(capsys, large, "--on", "h100:1")
    assert "in host" not in on_gpu
    words = [("s0", "fused_uvm"), ("s2", "fused_uvm_caching"), ("s4", "fused_uvm"), ("s5", "fused_uvm")]
    flags = [word for table, kernel in words for word in (f"--planner.tables.{table}.compute-kernels", kernel)]
    (line,) = re.findall(r"\nin host +(.*)", planned(capsys, large, "--on", "h100:1", *flags))
    assert re.fullmatch(r"4 tables: s0 \(whole\), s2 \(\d+% of its rows in a cache\), s4 \(whole\), s5 \(whole\)", line)


@pytest.mark.parametrize(
    ("flags", "copies"),
    [
        ((), True),
        (("--checkpoint.asynchronous", "false"), False),
        (("--checkpoint.asynchronous", "false", "--checkpoint.full-every", "5"), True),
    ],
)
def test_a_copy_of_the_state_that_no_memory_is_left_for_is_told(large, capsys, flags, copies):
    assert "\nsaves " not in planned(capsys, large, "--on", "h100:1", *flags)
    text = planned(capsys, large, "--on", "h100:1", "--planner.host-memory-gib", "1.5", *flags)
    (most,) = re.findall(
        r"\nsaves +a save copies the state, with which a rank takes up to ([\d.]+) of 1.5 GiB of host memory; use more "
        "ranks, or hosts with more memory",
        text,
    )
    assert float(most) > 1.5  # what is on GPUs is always copied
    text = planned(capsys, large, "--world-size", "2", "--planner.host-memory-gib", "10", *flags)
    fullest = number(r"fits +yes: the fullest rank takes ([\d.]+) of", text)
    (kept,) = re.findall(r"\nhost: tables +([\d.]+)", text)
    found = re.findall(
        r"\nsaves +.*takes up to ([\d.]+) of 10 GiB of host memory; checkpoint.asynchronous = false and", text
    )
    assert [float(most) for most in found] == [pytest.approx(fullest + float(kept), rel=0.01)] * copies


@pytest.mark.slow
def test_clusters_are_compared_and_one_that_is_too_small_is_last(large, capsys):
    text = planned(
        capsys,
        large,
        "--on",
        "h100_1:1",
        "a100:2",
        "h100:2",
        "--planner.host-memory-gib",
        "4.0",
        "--planner.reserve",
        "0.9",
    )
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["h100:2", "a100:2", "h100_1:1"]
    assert float(lines[2].split()[2]) < float(lines[3].split()[2])
    assert "does not fit" in lines[4]
    # The largest table fits, beside the process, neither in a tenth of the GPU's memory nor in 4 GiB of the host's.
    largest = (1 + ON_GPU.fragmentation) * ROWS["s0"] * 64 * 4 + ON_GPU.context
    needed = number(r"h100_1:1 does not fit: a rank needs at least ([\d.]+) times", text)
    assert largest < needed * 7.9 * GIB < 1.02 * largest
    assert "71.1 GiB for planner.reserve" in text


def test_the_next_command_runs_the_job_as_planned(large, capsys):
    words = ("--data.sparse.s0.rows", "1000", "--planner.sharding-types", "row_wise", "table_wise")
    text = planned(capsys, large, "--on", "h100:4", *words, "--out", str(large.parent / "p.json"))
    command = shlex.split(re.search(r"Next:  (.*)", text)[1])
    assert command[:3] == ["torchx", "run", "dlrm.multi_node"]
    assert command[command.index("-j") + 1] == "4x8"
    assert command[command.index("-h") + 1] == "h100"
    assert get_component("dlrm.multi_node")
    flags = command[command.index("--") + 1 :]
    assert flags == [*words, "--planner.plan", str(large.parent / "p.json")]
    job = read_command(["train", command[command.index("--config") + 1], "--out", "nowhere", *flags])
    assert job.keywords["config"].data.sparse["s0"].rows == 1000


def test_a_host_without_gpus_has_the_ranks_that_it_is_given(large, capsys):
    text = planned(capsys, large, "--on", "cpu.8xlarge:2x4")
    assert text.startswith("cpu.8xlarge:2x4: 8 ranks on 2 hosts of cpu.8xlarge\n")
    assert "GPU" not in text


def test_a_thousand_ranks_are_a_few_lines(large, capsys):
    text = planned(capsys, large, "--on", "h100:128")
    assert len(text.splitlines()) < 50
    assert "1,024 GPUs on 128 hosts" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "h10:2"], "--on is 'h10:2', but 'h10' is no known host; did you mean 'h100'?"),
        (["--on", "h100"], "--on is 'h100'; write HOST:NODES, such as h100:8, or HOST:NODESxRANKS"),
        (["--on", "h100:two"], "--on is 'h100:two'; write HOST:NODES"),
        (["--on", "h100:70000"], "--on is 'h100:70000', which makes 560000 ranks; use 1 to 65536"),
        (["--on", "h100:8", "--vary", "bacth"], "--vary names 'bacth'; did you mean 'batch'?"),
        (["--on", "h100:1", "a100:1", "--vary", "all"], "--on names 2 clusters, but --vary takes one; name one"),
        (["--on", "h100:1", "--vary", "all", "--page", "p.html"], "--page cannot be given with --vary"),
        (["--world-size", "0"], "--world-size is 0; it must be at least 1"),
        (["--on", "h100:1", "--page", "/nowhere/p.html"], "--page is '/nowhere/p.html', which cannot be used: "),
        (["--on", "h100:1", "--out", "/nowhere/p.json"], "--out is '/nowhere/p.json', which cannot be used: "),
        (["--on", "h100:1", "--out", ""], "--out is empty; name a file, any fsspec URL, or leave it out"),
        (["--on", "h100:1", "--planner.calibration", "/nowhere"], "planner.calibration is '/nowhere', which cannot be"),
        (["--on", "h100:-1"], "--on is 'h100:-1'; write HOST:NODES"),
        (["--on", "h100:0"], "--on is 'h100:0', which makes 0 ranks; use 1 to 65536"),
        (["--on", "h100:1x9"], "--on is 'h100:1x9', with 9 ranks on a host; h100 has 1 to 8"),
        (["--on"], "--on names no cluster; write HOST:NODES"),
        (["--on", "h100:2", "--world-size", "16"], "--world-size cannot be given with --on; leave one of them out"),
        (["--on", "h100:2", "--planner.hardware", "a100"], "planner.hardware is 'a100' and --on is 'h100:2'"),
        (["--on", "h100:3"], "h100:3 has 24 ranks, which do not divide data.global_batch_size, 16384; use another"),
        (["--on", "h100:1", "a100:1", "--out", "p.json"], "--on names 2 clusters, but --out takes one; name one"),
        (["--on", "h100:1", "--planner.engine", "torchrec"], "planner.engine is 'torchrec', but this version has one"),
        (
            ["--on", "h100:1", "--planner.plan", "/nowhere.json"],
            "planner.plan is '/nowhere.json', which cannot be used",
        ),
        (
            ["--on", "cpu.2xlarge:1", "--planner.host-memory-gib", "5"],
            "cpu.2xlarge:1 does not fit: a rank needs at least 2.91 times its memory, 5 GiB of host memory",
        ),
    ],
)
def test_wrong_input_is_one_line(large, capsys, words, message):
    assert refused(capsys, large, *words).startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "h100:2"], "a plan for 8 ranks; this job has 16"),
        (["--on", "h100:1", "--data.sparse.s3.rows", "7"], "where table 's3' is (900000, 64); the model's is (7, 64)"),
        (["--on", "h100:1", "--planner.sharding-types", "row_wise"], "which the planner would not choose"),
    ],
)
def test_a_plan_of_another_model_is_refused(large, tmp_path, capsys, words, message):
    planned(capsys, large, "--on", "h100:1", "--planner.sharding-types", "table_wise", "--out", tmp_path / "p.json")
    assert message in refused(capsys, large, *words, "--planner.plan", tmp_path / "p.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "cannot be read as a plan: it holds a list, not keys"),
        ("{}", "'world_size' is missing; it has no default"),
        ("model", "which is not JSON"),
    ],
)
def test_a_file_that_holds_no_plan_is_one_line(large, tmp_path, capsys, content, message):
    (tmp_path / "p.json").write_text(content)
    assert message in refused(capsys, large, "--on", "h100:1", "--planner.plan", tmp_path / "p.json")


def test_a_configuration_without_tables_is_one_line(tmp_path, capsys):
    line = refused(capsys, write_tables(tmp_path, {}), "--on", "h100:1")
    assert line.startswith("error: model.name is 'dlrm', which multiplies embeddings with each other, but data.sparse")
