"""What a run measured, and what the planner forecasts of it: in run.json, and by `plan --run` as a table and a page."""

import json
import re

import pytest
from command import run_trainer, write_config
from jobs import config as uncalibrated
from jobs import losses

from torchx_recsys.planner.topology import cpu_speeds
from trainer.__main__ import main as trainer
from trainer.plan.measurements import Calibration, save_calibration

GIB = 2**30
STEPS = 24
PARTS = ("input", "forward", "exchange", "backward", "update", "other")


def facts(out):
    return json.loads((out / "run.json").read_text())


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """Returns configurations of a host whose speeds were measured."""
    file = tmp_path_factory.mktemp("calibrated") / "host.toml"
    about = {"date": "2026-01-31", "host": "alpha", "processor": "a processor", "device": "cpu", "ranks": 2}
    save_calibration(Calibration(**about, input_samples_per_second=1e5, speeds=cpu_speeds(1e7)), str(file))

    def config(data, **changes):
        return uncalibrated(data, planner__calibration=str(file), **changes)

    return config


def compared(out, *words):
    """Returns the numbers and the page of a run's forecast."""
    json_file, page = out.parent / f"{out.name}.json", out.parent / f"{out.name}.html"
    assert trainer(["plan", *words, "--run", str(out), "--out", str(json_file), "--page", str(page)]) == 0
    return json.loads(json_file.read_text()), page.read_text()


def refusal(capsys, *words):
    """Returns the one line with which a command is refused."""
    capsys.readouterr()
    assert trainer(["plan", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def bars(page, title):
    """Returns the values of a figure's lying bars, by name, forecast before measured."""
    section = page.split(f"<h2>{title}</h2>")[1].split("<h2>")[0]
    rows = re.findall(r'<span class="of">(.*?)</span><svg>.*?</svg><span>([\d.,e-]+) \w+</span>', section)
    found = {}
    for name, value in rows:
        name = name or [*found][-1]
        found.setdefault(name, []).append(float(value.replace(",", "")))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory, rows, calibrated):
    """A run on two ranks, whose steps wait 50 ms in forward; the run directory, the configuration, the console."""
    folder = tmp_path_factory.mktemp("compared")
    tree = calibrated(
        rows, train__steps=STEPS, model__name="custom:unhurried", planner__sharding_types=["row_wise", "table_wise"]
    )
    file, out = write_config(folder / "config.toml", tree), folder / "out"
    done = run_trainer("train", file, "--out", out, ranks=2)
    assert done.returncode == 0, done.stderr
    return out, file, done.stdout


@pytest.fixture(scope="module")
def both(run):
    """The numbers and the page of this run."""
    return compared(run[0])


def test_it_forecasts_what_the_planner_says_of_this_plan(run, both, capsys):
    out, file, _ = run
    forecast, measured = both[0]["forecast"], both[0]["measured"]
    capsys.readouterr()
    assert trainer(["plan", str(file), "--world-size", "2", "--planner.plan", str(out / "plan.json")]) == 0
    text = capsys.readouterr().out
    assert float(re.search(r"^step +([\d.]+) ms", text, re.M)[1]) == pytest.approx(forecast["step_ms"], rel=5e-3)
    assert re.search(r"^figures +(.*)", text, re.M)[1] == forecast["figures"]
    slowest = {
        name: float(value) for name, value in re.findall(r"^([a-z: ]+?) {2,}([\d.]+) +[\d.]+ +\d+%$", text, re.M)
    }
    parts = forecast["parts"]
    assert sum(parts.values()) == pytest.approx(forecast["step_ms"])
    assert parts["exchange"] == pytest.approx(slowest["exchange: ids"], abs=1e-3)
    forward = slowest["forward: lookup"] + slowest["exchange: embeddings"] + slowest["dense part"] / 3
    assert parts["forward"] == pytest.approx(forward, abs=2e-3)
    backward = slowest["exchange: gradients"] + slowest["update: tables"] + slowest["dense part"] * 2 / 3
    assert parts["backward"] == pytest.approx(backward, abs=2e-3)
    assert parts["input"] == parts["update"] == 0
    assert measured == facts(out)["measured"]


def test_updates_of_tables_are_forecast_where_they_are_measured(rows, tmp_path, calibrated):
    """With a cut in backward the tables are updated after it."""
    file, out = write_config(tmp_path / "config.toml", calibrated(rows, train__nonfinite="skip")), tmp_path / "out"
    assert trainer(["train", str(file), "--out", str(out)]) == 0
    parts = compared(out)[0]["forecast"]["parts"]
    assert parts["update"] > 0
    assert parts["backward"] < parts["update"] + parts["forward"]


def test_nothing_is_forecast_where_nothing_was_measured(rows, tmp_path, capsys):
    file, out = write_config(tmp_path / "config.toml", uncalibrated(rows)), tmp_path / "out"
    assert trainer(["train", str(file), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert not re.search(r"^embeddings of the slowest rank.*ms", said, re.MULTILINE)
    numbers, page = compared(out)
    assert "nothing is forecast" in capsys.readouterr().out
    assert numbers == {"measured": facts(out)["measured"]}
    assert bars(page, "Measured")["step"] == [pytest.approx(facts(out)["measured"]["step_ms"], rel=1e-3)]
    assert len(bars(page, "Measured memory")["fullest rank"]) == 1


def test_memory_of_a_process_is_measured_and_not_forecast(run, both):
    out, _, _ = run
    numbers, page = both
    assert numbers["forecast"].keys() == {"step_ms", "parts", "figures"}
    measured = max(facts(out)["measured"]["memory_bytes"]) / GIB
    assert bars(page, "Measured memory")["fullest rank"] == [pytest.approx(measured, rel=1e-3)]


def test_a_finished_run_has_measured_its_parts(run):
    """The wait is in forward, and nowhere else."""
    out, _, _ = run
    measured = facts(out)["measured"]
    assert tuple(measured["parts"]) == PARTS
    assert measured["parts"]["forward"] >= 50
    assert all(0 < time <= measured["step_ms"] for time in measured["parts"].values())  # medians need not add up
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert len(measured["memory_bytes"]) == 2
    assert measured["memory_bytes"][0] >= last["memory_gib"] * GIB * 0.999


def test_a_run_writes_facts_only(run):
    out, _, text = run
    assert "predicted" not in facts(out)
    assert facts(out)["rank_memory"]["host_memory_gib"] > 0
    assert not (out / "plan.html").exists()
    measured = facts(out)["measured"]
    memory = max(measured["memory_bytes"]) / GIB
    assert f"step {measured['step_ms']:.3g} ms; memory {memory:.3g} GiB of the fullest rank" in text.splitlines()
    assert f"torchx run tools.plan --run {out}" in text


def test_its_page_has_both_side_by_side(both):
    numbers, page = both
    times = bars(page, "Forecast and measured")
    for number, of in enumerate(("forecast", "measured")):
        assert times["step"][number] == pytest.approx(numbers[of]["step_ms"], rel=1e-3)
        for name in PARTS:
            assert times[name][number] == pytest.approx(numbers[of]["parts"][name], rel=1e-3, abs=1e-6)
    assert page.count("why here</summary>") == 6
    assert "<h2>Time of the ranks</h2>" in page


def test_its_table_has_both_side_by_side(run, capsys):
    out, _, _ = run
    assert trainer(["plan", "--run", str(out)]) == 0
    text, measured = capsys.readouterr().out, facts(out)["measured"]
    for name in PARTS:
        _, of_measured = re.search(rf"^{name} +([\d.]+) +([\d.]+)$", text, re.M).groups()
        assert float(of_measured) == pytest.approx(measured["parts"][name], abs=1e-3)


@pytest.mark.more("a detail")
def test_a_resumed_run_measures_anew(rows, tmp_path, calibrated):
    file, out = write_config(tmp_path / "config.toml", calibrated(rows)), tmp_path / "out"
    train = ["train", str(file), "--out", str(out), "--train.steps"]
    assert trainer([*train, "8"]) == 0
    first = facts(out)["measured"]
    assert trainer([*train, "16"]) == 0
    second = facts(out)["measured"]
    assert second["parts"] != first["parts"]
    assert trainer([*train, "16"]) == 0  # which takes no step
    assert facts(out)["measured"] == second


def test_a_run_that_fails_has_measured_nothing(rows, tmp_path, calibrated, capsys):
    tree = calibrated(rows, data__dense__d0={"transform": "log1p"}, train__nonfinite="error")
    tree["optimizer"]["dense"]["learning_rate"] = 1e30
    file, out = write_config(tmp_path / "config.toml", tree), tmp_path / "out"
    assert trainer(["train", str(file), "--out", str(out)]) == 2
    assert "measured" not in facts(out)
    line = refusal(capsys, "--run", out)
    assert line.startswith(f"error: --run is '{out}', which has not measured its steps")


def test_a_directory_that_holds_no_run_is_refused(tmp_path, capsys):
    assert refusal(capsys, "--run", tmp_path) == (
        f"error: --run is '{tmp_path}', which holds no run.json; name the directory of a run"
    )
    assert [*tmp_path.iterdir()] == []


def test_flags_of_plans_for_clusters_are_refused(run, capsys):
    out, _, _ = run
    assert refusal(capsys, "--run", out, "--on", "h100:1").startswith("error: --on cannot be given with --run")
    assert refusal(capsys).startswith("error: CONFIG is missing")


def test_a_run_of_an_earlier_version_is_read(run, both, tmp_path, capsys):
    """Its parts had other words, updates were measured with backward, and it wrote a forecast of its own."""
    out, _, _ = run
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    for name in ("config.toml", "plan.json"):
        (earlier / name).write_text((out / name).read_text())
    words = ("wait for data", "exchange of ids", "forward", "backward and updates", "anything else")
    parts = dict(zip(words, (1.0, 2.0, 60.0, 4.0, 5.0), strict=True))
    measured = {"step_ms": 72.0, "parts": parts, "memory_bytes": [GIB, 2 * GIB]}
    kept = {key: value for key, value in facts(out).items() if key != "rank_memory"}
    (earlier / "run.json").write_text(json.dumps(kept | {"measured": measured, "predicted": {"step_ms": 1.0}}))
    numbers, page = compared(earlier)
    assert numbers["measured"]["parts"] == {"input": 1, "exchange": 2, "forward": 60, "backward": 4, "other": 5}
    assert numbers["forecast"]["parts"] == both[0]["forecast"]["parts"]
    assert bars(page, "Forecast and measured")["backward"][1] == 4
    assert "earlier version" in capsys.readouterr().out


@pytest.mark.more("a detail")
def test_a_model_that_cannot_be_traced_is_compared_all_the_same(rows, tmp_path, calibrated):
    tree = calibrated(rows, model__name="custom:Branching")
    file, out = write_config(tmp_path / "config.toml", tree), tmp_path / "out"
    assert trainer(["train", str(file), "--out", str(out)]) == 0
    numbers, page = compared(out)
    times = bars(page, "Forecast and measured")["step"]
    assert times == pytest.approx([numbers["forecast"]["step_ms"], numbers["measured"]["step_ms"]], rel=1e-3)


@pytest.mark.more("a rare fault")
def test_a_calibration_that_is_gone_ends_the_forecast_and_not_the_run(rows, tmp_path, capsys, calibrated):
    """Speeds are only needed to plan, which this run does not: it has its plan."""
    file = write_config(tmp_path / "config.toml", uncalibrated(rows))
    out, earlier = tmp_path / "out", tmp_path / "earlier"
    assert trainer(["train", str(file), "--out", str(earlier)]) == 0
    gone = ["--planner.calibration", str(tmp_path / "gone.toml")]
    assert trainer(["train", str(file), "--out", str(out), "--planner.plan", str(earlier / "plan.json"), *gone]) == 0
    assert losses(out) == losses(earlier)
    assert "gone.toml" in refusal(capsys, "--run", out)
    there = calibrated(rows)["planner"]["calibration"]
    numbers, _ = compared(out, str(out / "config.toml"), "--planner.calibration", there)
    assert numbers["forecast"]["step_ms"] > 0


@pytest.mark.more("one plan stands for all")
def test_a_plan_by_hand_is_compared_though_it_cannot_be_rated(rows, tmp_path, calibrated):
    """The shards of a table are uneven, which the planner would not choose."""
    file, out = write_config(tmp_path / "config.toml", calibrated(rows)), tmp_path / "out"
    assert run_trainer("train", file, "--out", tmp_path / "even", ranks=2).returncode == 0
    tables = {}
    for number in range(6):
        rows_of = 100 + number
        tables[f"s{number}"] = {
            "sharding_type": "column_wise",
            "compute_kernel": "fused",
            "ranks": [0, 1],
            "shards": [
                {"offsets": [0, 0], "sizes": [rows_of, 12], "placement": "rank:0/cpu"},
                {"offsets": [0, 12], "sizes": [rows_of, 4], "placement": "rank:1/cpu"},
            ],
        }
    (path,) = json.loads((tmp_path / "even/plan.json").read_text())["modules"]
    (tmp_path / "plan.json").write_text(json.dumps({"world_size": 2, "modules": {path: tables}}))
    done = run_trainer("train", file, "--out", out, "--planner.plan", tmp_path / "plan.json", ranks=2)
    assert done.returncode == 0, done.stderr
    assert losses(out) == pytest.approx(losses(tmp_path / "even"), rel=1e-5)
    assert facts(out)["measured"]["step_ms"] > 0
    numbers, page = compared(out)
    assert numbers["forecast"]["step_ms"] > 0
    assert "which the planner would not choose and cannot rate" in page
    assert "Forecast and measured" in page
