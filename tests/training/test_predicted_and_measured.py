"""What a plan predicts of a run, and what the run measured: in run.json, on the console and as a page."""

import json
import re

import pytest
from command import run_trainer, write_config
from jobs import config as uncalibrated
from jobs import losses

from trainer.__main__ import main as trainer
from trainer.plan.calibration import Calibration, save_calibration
from trainer.plan.search.speeds import cpu_speeds

GIB = 2**30
STEPS = 24
PARTS = ("wait for data", "exchange of ids", "forward", "backward and updates", "anything else")


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


def bars(page, title):
    """Returns the values of a figure's lying bars, by name, predicted before measured."""
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


def test_it_predicts_what_the_planner_says_of_this_plan(run, capsys):
    out, file, _ = run
    assert trainer(["plan", str(file), "--world-size", "2", "--planner.plan", str(out / "plan.json")]) == 0
    text, predicted = capsys.readouterr().out, facts(out)["predicted"]
    assert float(re.search(r"^step +([\d.]+) ms", text, re.M)[1]) == pytest.approx(predicted["step_ms"], rel=5e-3)
    assert re.search(r"^figures +(.*)", text, re.M)[1] == predicted["figures"]
    slowest = {name: float(value) for name, value in re.findall(r"^([a-z ]+?) {2,}([\d.]+) +[\d.]+ +\d+%$", text, re.M)}
    parts = predicted["parts"]
    assert sum(parts.values()) == pytest.approx(predicted["step_ms"])
    assert parts["exchange of ids"] == pytest.approx(slowest["exchange of ids"], abs=1e-3)
    forward = slowest["lookup"] + slowest["exchange of embeddings"] + slowest["dense part"] / 3
    assert parts["forward"] == pytest.approx(forward, abs=2e-3)


def test_nothing_is_predicted_where_nothing_was_measured(rows, tmp_path, capsys):
    file, out = write_config(tmp_path / "config.toml", uncalibrated(rows)), tmp_path / "out"
    assert trainer(["train", str(file), "--out", str(out)]) == 0
    assert "predicted" not in facts(out)
    said, page = capsys.readouterr().out, (out / "plan.html").read_text()
    assert "predicted " not in said
    assert not re.search(r"^embeddings of the slowest rank.*ms", said, re.MULTILINE)
    assert bars(page, "Measured")["step"] == [pytest.approx(facts(out)["measured"]["step_ms"], rel=1e-3)]
    assert len(bars(page, "Measured memory")["fullest rank"]) == 1


def test_memory_of_a_process_is_measured_and_not_predicted(run):
    out, _, _ = run
    assert facts(out)["predicted"].keys() == {"step_ms", "parts", "figures"}
    measured = max(facts(out)["measured"]["memory_bytes"]) / GIB
    assert bars((out / "plan.html").read_text(), "Measured memory")["fullest rank"] == [
        pytest.approx(measured, rel=1e-3)
    ]


def test_a_finished_run_has_measured_its_parts(run):
    """The wait is in forward, and nowhere else."""
    out, _, _ = run
    measured = facts(out)["measured"]
    assert tuple(measured["parts"]) == PARTS
    assert 50 <= measured["parts"]["forward"] <= measured["step_ms"]
    assert sum(measured["parts"].values()) == pytest.approx(measured["step_ms"], rel=0.2)
    assert all(time > 0 for time in measured["parts"].values())
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert len(measured["memory_bytes"]) == 2
    assert measured["memory_bytes"][0] >= last["memory_gib"] * GIB * 0.999


def test_its_page_has_both_side_by_side(run):
    out, _, _ = run
    about, page = facts(out), (out / "plan.html").read_text()
    times = bars(page, "Predicted and measured")
    for number, of in enumerate(("predicted", "measured")):
        assert times["step"][number] == pytest.approx(about[of]["step_ms"], rel=1e-3)
        for name in PARTS:
            assert times[name][number] == pytest.approx(about[of]["parts"].get(name, 0.0), rel=1e-3, abs=1e-6)
    assert page.count("why here</summary>") == 6
    assert "<h2>Time of the ranks</h2>" in page


def test_the_console_has_it_in_a_line(run):
    out, _, text = run
    about = facts(out)
    step, of_step = (about[of]["step_ms"] for of in ("measured", "predicted"))
    memory = max(about["measured"]["memory_bytes"]) / GIB
    line = f"step {step:.3g} ms, predicted {of_step:.3g}; "
    line += f"memory {memory:.3g} GiB of the fullest rank; plan.html has the parts"
    assert line in text.splitlines()


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


def test_a_run_that_fails_has_measured_nothing(rows, tmp_path, calibrated):
    tree = calibrated(rows, data__dense__d0={"transform": "log1p"}, train__nonfinite="error")
    tree["optimizer"]["dense"]["learning_rate"] = 1e30
    file, out = write_config(tmp_path / "config.toml", tree), tmp_path / "out"
    assert trainer(["train", str(file), "--out", str(out)]) == 2
    assert facts(out)["predicted"]["step_ms"] > 0
    assert "measured" not in facts(out)
    assert not (out / "plan.html").exists()


def test_a_model_that_cannot_be_traced_is_measured_all_the_same(rows, tmp_path, calibrated):
    tree = calibrated(rows, model__name="custom:Branching")
    file, out = write_config(tmp_path / "config.toml", tree), tmp_path / "out"
    assert trainer(["train", str(file), "--out", str(out)]) == 0
    about = facts(out)
    times = bars((out / "plan.html").read_text(), "Predicted and measured")["step"]
    assert times == pytest.approx([about["predicted"]["step_ms"], about["measured"]["step_ms"]], rel=1e-3)


def test_a_run_that_cannot_be_predicted_is_measured_all_the_same(rows, tmp_path, capsys):
    """Speeds are only needed to plan, which this run does not: it has its plan."""
    file, out, earlier = (
        write_config(tmp_path / "config.toml", uncalibrated(rows)),
        tmp_path / "out",
        tmp_path / "earlier",
    )
    assert trainer(["train", str(file), "--out", str(earlier)]) == 0
    gone = ["--planner.calibration", str(tmp_path / "gone.toml")]
    capsys.readouterr()
    assert trainer(["train", str(file), "--out", str(out), "--planner.plan", str(earlier / "plan.json"), *gone]) == 0
    text, about, page = capsys.readouterr().out, facts(out), (out / "plan.html").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("this run is not predicted: ")]
    assert "gone.toml" in line
    assert "predicted" not in about
    assert bars(page, "Measured")["step"] == [pytest.approx(about["measured"]["step_ms"], rel=1e-3)]
    assert losses(out) == losses(earlier)


def test_a_plan_of_torchrec_is_compared(rows, tmp_path, calibrated):
    file, out = write_config(tmp_path / "config.toml", calibrated(rows, planner__engine="torchrec")), tmp_path / "out"
    assert run_trainer("train", file, "--out", out, ranks=2).returncode == 0
    assert facts(out).keys() >= {"predicted", "measured"}
    assert len(bars((out / "plan.html").read_text(), "Predicted and measured")["step"]) == 2


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
    page = (out / "plan.html").read_text()
    assert "which the planner would not choose and cannot rate" in page
    assert "Predicted and measured" in page
