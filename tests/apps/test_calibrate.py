"""The speeds of a host, measured by the real command on little data, and the plans that count with them."""

import signal
import time
import tomllib

import numpy as np
import pytest
import tomli_w
from command import run_trainer, start_trainer, write_config
from jobs import config

from torchx_recsys.apps.calibrate.timing import explain
from torchx_recsys.planner.topology import cpu_speeds
from trainer.__main__ import main as trainer
from trainer.config.root import Config
from trainer.plan.measurements import Calibration, load_calibration, save_calibration
from trainer.plan.topology import topology_to_plan_for

# Lookups so large that no noise hides them in the time of a call.
SMALL = ["--batch-size", 8192, "--table-mib", 4, "--exchange-mib", 1, "--repeats", 2]
OF_EXCHANGES = {"all_to_all_byte", "reduce_scatter_byte", "all_gather_byte", "all_reduce_byte"}


@pytest.fixture
def calibration():
    return Calibration(
        date="2026-01-31",
        host="alpha",
        processor="a processor",
        device="cpu",
        ranks=2,
        input_samples_per_second=1e5,
        speeds=cpu_speeds(1e7),
    )


@pytest.mark.more("measures for half a minute")
@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [0, 2])
def test_a_host_is_measured_once_for_all_plans(ranks, tmp_path):
    file = tmp_path / "host.toml"
    done = run_trainer("calibrate", "--out", file, "--scratch", tmp_path / "scratch", *SMALL, ranks=ranks)
    assert done.returncode == 0, done.stderr
    found = tomllib.loads(file.read_text())
    unmeasured = {"network_byte"} | (set() if ranks else OF_EXCHANGES)
    assert set(found["assumed"]) == unmeasured
    assert (found["version"], found["device"], found["ranks"]) == (2, "cpu", ranks or 1)
    # Work that cannot be free; of figures that share a measurement, a busy machine may leave one with nothing.
    for names in (("bag", "lookup_byte"), ("replicated_byte",), ("flop", "batched_flop", "dense_byte", "step")):
        assert sum(found["speeds"][name] for name in names) > 0
    assert found["input_samples_per_second"] > 0
    printed = {line[:20].strip() for line in done.stdout.splitlines()}
    assert {name.replace("_", " ") for name in found["speeds"]} <= printed
    assert f"--planner.calibration {file}" in done.stdout.splitlines()[-1]
    assert not [*(tmp_path / "scratch").iterdir()]
    plan = run_trainer(
        "plan",
        write_config(tmp_path / "config.toml", config(tmp_path / "data")),
        *("--planner.calibration", file, "--planner.host-memory-gib", 1),
    )
    assert plan.returncode == 0, plan.stderr


@pytest.mark.more("test_predict_killed.py stops a prediction so")
@pytest.mark.sample(1)
@pytest.mark.parametrize(("ranks", "code"), [(0, 75), (2, 1)])
def test_a_signal_stops_it_and_leaves_no_file(ranks, code, tmp_path):
    file, scratch, errors = tmp_path / "host.toml", tmp_path / "scratch", tmp_path / "errors"
    words = ["calibrate", "--out", file, "--scratch", scratch, *SMALL]
    job = start_trainer(words, tmp_path / "output", errors, ranks)
    while not [*scratch.glob("**/run-0")]:  # while it measures steps, a session takes the signals
        assert job.poll() is None, errors.read_text()
        time.sleep(0.01)
    job.send_signal(signal.SIGTERM)
    assert job.wait(600) == code, errors.read_text()
    assert not [*tmp_path.glob("host.toml*")]
    assert "planner.calibration" not in (tmp_path / "output").read_text()
    assert "Traceback" not in errors.read_text()


def test_plans_count_with_the_speeds_of_the_file(tmp_path, calibration):
    save_calibration(calibration, str(tmp_path / "host.toml"))
    assert load_calibration(str(tmp_path / "host.toml"), "cpu") == calibration
    settings = Config.model_validate(config(tmp_path, planner__calibration=str(tmp_path / "host.toml")))
    ranks = topology_to_plan_for(settings.data, settings.planner, settings.comms, settings.train, 4, 4, "cpu")
    assert ranks.speeds == calibration.speeds
    assert ranks.speeds_source == "measured on alpha (a processor), 2026-01-31"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda tree: tree.pop("date"), "which is no calibration: 'date' is missing; it has no default"),
        (lambda tree: tree.update(version=3), "which is no calibration: version is 3"),
        (
            lambda tree: tree.update(version=1),
            "of version 1, without the speeds that plans count with now; measure anew",
        ),
        (lambda tree: tree["speeds"].update(bag=-1.0), "which is no calibration: speeds.bag is -1.0"),
        (lambda tree: tree["speeds"].update(bag=float("nan")), "which is no calibration: speeds.bag is nan"),
        (lambda tree: tree["speeds"].pop("flop"), "which is no calibration: 'speeds.flop' is missing"),
        (lambda tree: tree.update(speed=3), "which is no calibration: unknown key 'speed'; did you mean 'speeds'?"),
        (lambda tree: tree.update(device="cuda"), "measured on cuda; the ranks planned for have cpu: calibrate on"),
    ],
)
def test_a_wrong_file_leads_to_one_line(tmp_path, calibration, change, line, capsys):
    tree = calibration.model_dump()
    change(tree)
    file = tmp_path / "host.toml"
    file.write_text(tomli_w.dumps(tree))
    planned = write_config(tmp_path / "config.toml", config(tmp_path, planner__calibration=str(file)))
    assert trainer(["plan", str(planned)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: planner.calibration is '{file}', {line}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "line"), [("[", "which is not TOML: "), (None, "which cannot be used: ")], ids=["no TOML", "missing"]
)
def test_a_file_that_cannot_be_read_leads_to_one_line(tmp_path, text, line, capsys):
    file = tmp_path / "host.toml"
    if text:
        file.write_text(text)
    planned = write_config(tmp_path / "config.toml", config(tmp_path, planner__calibration=str(file)))
    assert trainer(["plan", str(planned)]) == 2
    assert capsys.readouterr().err.startswith(f"error: planner.calibration is '{file}', {line}")


@pytest.mark.parametrize("flag", ["--batch-size", "--table-mib", "--exchange-mib", "--repeats"])
def test_sizes_must_be_positive(flag, capsys):
    assert trainer(["calibrate", flag, "0"]) == 2
    assert capsys.readouterr().err == f"error: {flag} is 0; it must be 1 or more\n"


def test_figures_explain_what_was_measured():
    counts = np.random.default_rng(0).uniform(1, 100, (12, 3))
    assert explain(counts, counts @ [0.5, 7.0, 30.0]) == pytest.approx([0.5, 7.0, 30.0])


def test_no_figure_is_negative():
    """Two measurements of which one of more work took less time; the other figure explains both."""
    counts = [(1.0, 10.0), (2.0, 10.0)]
    found = explain(counts, [100.0, 90.0])
    assert found[0] == 0.0
    assert found[1] == pytest.approx(9.5, rel=0.02)
