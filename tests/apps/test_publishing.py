"""[publish]: what must hold before a run over segments is exported, and the way back."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from jobs import config

from apps.export.publishing import check_rules
from trainer.config.publish import PublishConfig
from trainer.core.errors import InputError

SEGMENTS, ROWS = 8, 1500
RULES = {"metric": "log_loss", "worse_by": 0.05, "calibration_by": 1.5, "label_rate_by": 1.5, "least_samples": 0.6}


def write_day(folder, day, change=lambda table: table):
    """Writes a day's rows, whose labels follow from two of their features."""
    random = np.random.default_rng(day)
    dense = {f"d{i}": random.standard_normal(ROWS).astype(np.float32) for i in range(2)}
    sparse = {f"s{i}": random.integers(0, 100 + i, ROWS).astype(np.int32) for i in range(6)}
    chance = 1 / (1 + np.exp(-2 * dense["d0"] + dense["d1"] - 0.02 * (sparse["s0"] - 50)))
    table = {**dense, **sparse, "label": (random.random(ROWS) < chance).astype(np.float32)}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(change(table)), folder / f"{day:02d}.parquet", row_group_size=500)


def changed(**columns):
    return lambda table: table | {name: change(table) for name, change in columns.items()}


FAULTS = {
    "labels flipped": (changed(label=lambda day: 1 - day["label"]), "log_loss is "),
    "a feature zeroed": (changed(d0=lambda day: 0 * day["d0"]), "log_loss is "),
    "a feature negated": (changed(d0=lambda day: -day["d0"]), "log_loss is "),
    "a feature in other units": (changed(d0=lambda day: 100 * day["d0"]), "log_loss is "),
    "two features swapped": (changed(d0=lambda day: day["d1"], d1=lambda day: day["d0"]), "log_loss is "),
    "labels lost": (changed(label=lambda day: day["label"] * (day["s1"] % 10 == 0)), "label_rate is 0.0"),
    "all clicks": (changed(label=lambda day: 0 * day["label"] + 1), "label_rate is 1.0"),
    "half of the files missing": (lambda day: {name: values[:700] for name, values in day.items()}, "has 700 samples"),
    "clicks doubled": (
        changed(label=lambda day: np.maximum(day["label"], (day["s1"] % 2 == 0).astype(np.float32))),
        "calibration is 0.6",
    ),
}
"""What happened to a day, and the rule by which its model is refused."""


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Eight clean days and a run over them, with an export of the last."""
    folder = tmp_path_factory.mktemp("clean")
    for day in range(SEGMENTS):
        write_day(folder / "days", day)
    write_run(folder, RULES)
    train(folder)
    return folder


def write_run(folder, rules, days=None):
    tree = config(folder, data__segments={"path": str(path_of(days or folder))}, publish=rules)
    del tree["data"]["train"], tree["train"]["steps"]
    return write_config(folder / "config.toml", tree)


def train(folder):
    done = run_trainer("train", folder / "config.toml", "--out", folder / "run")
    assert done.returncode == 0, done.stderr


def path_of(folder):
    return folder / "days/{segment}.parquet"


def export(folder, *flags):
    return run_trainer("export", folder / "config.toml", "--out", folder / "run", "--to", folder / "exports", *flags)


def current(folder):
    return json.loads((folder / "exports/current.json").read_text())["directory"]


def test_clean_days_are_published(clean):
    lines = [json.loads(line) for line in (clean / "run/segments.jsonl").read_text().splitlines()]
    assert len(lines) == SEGMENTS
    for number in range(3, SEGMENTS + 1):  # the first days teach the most
        check_rules(PublishConfig(**RULES), lines[:number])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_of_a_bad_day_is_refused_by_the_rule(clean, fault):
    """The rules see what a run over the day would record: the metrics of the model before it is trained on."""
    change, message = FAULTS[fault]
    lines = [json.loads(line) for line in (clean / "run/segments.jsonl").read_text().splitlines()]
    folder = clean / fault.replace(" ", "-")
    write_day(folder, 99, change)
    day = folder / "99.parquet"
    flags = ("--data.segments.path", "None", "--data.test", day)
    done = run_trainer("evaluate", clean / "config.toml", "--out", clean / "run", *flags)
    assert done.returncode == 0, done.stderr
    before = json.loads((clean / "run/evaluation-test.json").read_text())
    line = {"segment": "99", "samples": pq.read_metadata(day).num_rows, "before": before}
    with pytest.raises(InputError, match="not published: segment 99: ") as refused:
        check_rules(PublishConfig(**RULES), [*lines, line])
    assert message in str(refused.value)


def test_publish_refuse_go_on_and_roll_back(clean, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(clean / "days", folder / "days")
    write_run(folder, RULES)
    train(folder)
    assert export(folder).returncode == 0
    first = current(folder)
    write_day(folder / "days", SEGMENTS, FAULTS["labels flipped"][0])
    train(folder)
    refused = export(folder)
    assert refused.returncode == 2
    assert "not published: segment 08: log_loss is " in refused.stderr
    assert "--anyway True publishes all the same" in refused.stderr
    assert current(folder) == first
    assert export(folder, "--anyway", "True").returncode == 0
    second = current(folder)
    assert second != first
    back = run_trainer("rollback", "--to", folder / "exports")
    assert (back.returncode, current(folder)) == (0, first)
    assert f"names {first}, before it was {second}" in back.stdout
    again = run_trainer("rollback", "--to", folder / "exports")
    assert again.returncode == 2
    assert again.stderr == f"error: --to is '{folder}/exports', which has no export before {first}\n"
    nothing = run_trainer("rollback", "--to", tmp_path)
    assert (nothing.returncode, "where nothing is exported" in nothing.stderr) == (2, True)


def test_weights_that_are_not_finite_are_not_exported(clean, tmp_path):
    file = write_run(tmp_path, {}, clean)
    words = ("--optimizer.dense.learning_rate", "1e30", "--data.segments.most", "1")
    assert run_trainer("train", file, "--out", tmp_path / "run", *words).returncode == 0
    done = run_trainer("export", file, "--out", tmp_path / "run", "--to", tmp_path / "exports")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "has weights that are not finite: " in done.stderr
    assert not (tmp_path / "exports/current.json").exists()


@pytest.mark.parametrize(
    ("publish", "message"),
    [
        ({"worse_by": 0.1}, "publish.worse_by is 0.1, but publish.metric is unset; set both or none"),
        ({"window": 3}, "publish.window is 3, but there is no rule that compares; set one or none"),
        ({"calibration_by": 1.0}, "publish.calibration_by is 1.0"),
        ({"least_samples": 2.0}, "publish.least_samples is 2.0"),
        ({"metric": "nosuch"}, "publish.metric needs 'nosuch', which evaluate.metrics has not; it has: auc"),
        (
            {"metric": "label_rate"},
            "publish.metric is 'label_rate', which is neither better when higher nor when lower",
        ),
    ],
)
def test_wrong_rules_are_one_line(clean, tmp_path, publish, message):
    file = write_run(tmp_path, publish, clean)
    done = run_trainer("export", file, "--out", clean / "run", "--to", tmp_path / "exports")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr
    assert not (tmp_path / "exports").exists()
