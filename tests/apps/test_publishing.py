"""[publish]: what must hold before a run over segments is exported, and the way back."""

import gzip
import json
import re
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from jobs import config

from torchx_recsys.apps.export.publishing import NotPublished, check_rules
from trainer.__main__ import main as trainer
from trainer.config.root import load_config
from trainer.data.segments import contents_of

ROOT = Path(__file__).parents[2]
SEGMENTS, ROWS, VICTIM = 5, 1500, "20"
RULES = {"metric": "log_loss", "worse_by": 0.05, "calibration_by": 1.5, "label_rate_by": 1.5, "least_samples": 0.6}


def documented():
    """The configuration with rules that docs/guides/publishing.md shows."""
    page = (ROOT / "docs/guides/publishing.md").read_text()
    (text,) = re.findall(r"```toml\n# publish.toml\n(.*?)```", page, re.DOTALL)
    return tomllib.loads(text)


def run(*words):
    assert trainer([str(word) for word in words]) == 0


def lines_of(out, name="segments.jsonl"):
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def movielens(tmp_path_factory):
    """A directory with the 30 segments of MovieLens, the documented configuration, and a run over them."""
    folder = tmp_path_factory.mktemp("movielens")
    if trainer(["movielens", "--out", str(folder / "data")]):
        pytest.skip("cannot get MovieLens")
    path = {"path": str(folder / "data/segments/{segment}.parquet")}
    changes = {"data": {"segments": path}, "checkpoint": {"keep": {"newest": 12}}}
    write_config(folder / "config.toml", documented() | changes)
    run("train", folder / "config.toml", "--out", folder / "run")
    return folder


@pytest.mark.more("thirty segments")
def test_none_of_thirty_clean_segments_is_refused(movielens):
    lines, settings = lines_of(movielens / "run"), load_config(str(movielens / "config.toml"))
    assert len(lines) == 30
    for number in range(1, 31):
        check_rules(settings.publish, lines[:number], settings.data)


def changed(**columns):
    """Returns a function that changes columns of a table; each change takes all columns by name."""

    def change(table):
        found = {name: table[name].to_numpy() for name in table.column_names if name not in LISTS}
        for name, of_columns in columns.items():
            place, kind = table.schema.get_field_index(name), table.schema.field(name).type
            table = table.set_column(place, name, pa.array(of_columns(found), kind))
        return table

    return change


def kept(rows):
    return lambda table: table.filter(pa.array(rows(table["label"].to_numpy())))


LISTS = ("genres", "films_liked_before")
random = np.random.default_rng(0)
OTHERS = random.permutation(1683)
FAULTS = {
    "labels flipped": (changed(label=lambda day: 1 - day["label"]), "metric"),
    "labels of other rows": (changed(label=lambda day: random.permutation(day["label"])), "metric"),
    "labels all 0": (changed(label=lambda day: 0 * day["label"]), "label_rate_by"),
    "a tenth of the clicks": (
        changed(label=lambda day: day["label"] * (random.random(len(day["label"])) < 0.1)),
        "label_rate_by",
    ),
    "most negatives dropped": (kept(lambda label: (label > 0) | (random.random(len(label)) < 0.1)), "label_rate_by"),
    "a feature zeroed": (changed(user_like_rate_before=lambda day: 0 * day["age"]), "shift_by"),
    "a feature without worth zeroed": (changed(age=lambda day: 0 * day["age"]), "shift_by"),
    "a feature in other units": (changed(age=lambda day: 12 * day["age"]), "shift_by"),
    "ids numbered anew": (changed(item_id=lambda day: OTHERS[day["item_id"]]), "shift_by"),
    "ids all the same": (changed(item_id=lambda day: 0 * day["item_id"] + 1), "shift_by"),
    "ids unknown": (changed(item_id=lambda day: 0 * day["item_id"] + 1682), "shift_by"),
    "two features swapped": (
        changed(gender=lambda day: day["occupation"].clip(0, 1), occupation=lambda day: day["gender"]),
        "shift_by",
    ),
    "half of the rows missing": (lambda table: table.slice(0, 1600), "least_samples"),
    "rows duplicated": (lambda table: pa.concat_tables([table, table]), "most_samples"),
    "old files again": (None, "contents"),
}
"""What happened to a day, and the rule by which its model is refused."""


@pytest.mark.more("test_publish_refuse_go_on_and_roll_back refuses one")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_of_a_bad_day_is_refused_by_the_rule(movielens, fault):
    """The rules see what a run over the day would record: the metrics of the model before it is trained on."""
    change, rule = FAULTS[fault]
    segments, out = movielens / "data/segments", movielens / "run"
    settings, lines = load_config(str(movielens / "config.toml")), lines_of(out)
    earlier, victim = lines[: int(VICTIM)], lines[int(VICTIM)]
    name = f"{VICTIM} {fault}"
    day = segments / f"{name}.parquet"
    if change:
        pq.write_table(change(pq.read_table(segments / f"{VICTIM}.parquet")), day)
    else:
        shutil.copy(segments / "18.parquet", day)
    flags = ("--checkpoint", victim["first_step"], "--data.segments.path", "None", "--data.test", day)
    run("evaluate", movielens / "config.toml", "--out", out, *flags)
    before = json.loads((out / "evaluation-test.json").read_text())
    samples, contents = pq.read_metadata(day).num_rows, contents_of([str(day)])
    line = {"segment": name, "samples": samples, "contents": contents, "before": before}
    with pytest.raises(NotPublished, match=f"not published: segment {name}: ") as refused:
        check_rules(settings.publish, [*earlier, line], settings.data)
    assert refused.value.rule == rule, str(refused.value)


def export(folder, *flags, out="run", to="exports"):
    return run_trainer("export", folder / "config.toml", "--out", folder / out, "--to", folder / to, *flags)


def current(folder):
    return json.loads((folder / "exports/current.json").read_text())["directory"]


@pytest.mark.more("test_publish_refuse_go_on_and_roll_back refuses one")
def test_a_model_that_answers_otherwise_or_is_larger_is_refused(movielens, capfd):
    """The export of another model, whose segment is right, beside those of the run."""
    words = ["export", str(movielens / "config.toml"), "--to", str(movielens / "exports"), "--out"]
    for line in lines_of(movielens / "run")[-3:]:
        run(*words, movielens / "run", "--checkpoint", line["step"])
    there = sorted(path.name for path in (movielens / "exports").iterdir())
    others = [
        ("drift_by", ("--optimizer.dense.learning_rate", "1.0")),
        ("drift_by", ("--optimizer.dense.learning_rate", "1e-9")),
        ("size_by", ("--model.embedding_dim", "64")),
    ]
    for number, (rule, flags) in enumerate(others):
        out = movielens / f"other-{number}"
        run("train", movielens / "config.toml", "--out", out, "--data.segments.first", "29", *flags)
        capfd.readouterr()
        assert trainer([*words, str(out), *flags]) == 2
        (error,) = capfd.readouterr().err.splitlines()
        assert f"and publish.{rule} is " in error
        assert current(movielens) == "step-420"
    notes = lines_of(movielens / "exports", "refused.jsonl")
    assert [(note["rule"], note["segment"], note["step"]) for note in notes] == [(rule, "29", 14) for rule, _ in others]
    assert sorted(path.name for path in (movielens / "exports").iterdir()) == sorted([*there, "refused.jsonl"])
    run(*words, out, *flags, "--anyway", "True")
    assert current(movielens) == "step-14"
    parity = movielens / "exports/step-14/parity.json"
    content = json.loads(parity.read_text())
    content["columns"]["renamed"] = content["columns"].pop("age")
    parity.write_text(json.dumps(content))
    step = lines_of(movielens / "run")[-4]["step"]
    assert trainer([*words, str(movielens / "run"), "--checkpoint", str(step), "--publish.size_by", "9"]) == 2
    assert "compares with step-14, which takes other columns: column 'renamed' is unknown" in capfd.readouterr().err
    parity.unlink()
    assert trainer([*words, str(movielens / "run"), "--checkpoint", str(step)]) == 2
    assert "exports/step-14, which is not whole; --anyway True publishes all the same" in capfd.readouterr().err
    assert not (movielens / f"exports/step-{step}").exists()


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_copies_have_the_same_contents_whatever_their_names(tmp_path, kind):
    def write(folder, *files):
        (tmp_path / folder).mkdir()
        for name, number in files:
            columns = {"id": random.permutation(50_000) if number < 0 else np.arange(number, number + 50_000)}
            file = tmp_path / folder / f"{name}.{kind}"
            if kind == "parquet":
                pq.write_table(pa.table(columns), file)
            else:
                text = "id\n" + "\n".join(map(str, columns["id"]))
                file.write_bytes(text.encode() if kind == "csv" else gzip.compress(text.encode(), mtime=0))
        return contents_of(sorted(map(str, (tmp_path / folder).iterdir())))

    contents = write("a", ("first", 0), ("second", 100_000))
    assert write("b", ("z", 0), ("a", 100_000)) == contents
    assert write("c", ("first", 0), ("second", 100_001)) != contents
    assert write("d", ("first", 0)) != contents
    assert write("e", ("first", 0), ("second", -1)) != contents


def write_day(folder, day, change=lambda table: table):
    """Writes a day's rows, whose labels follow from two of their features."""
    random = np.random.default_rng(day)
    dense = {f"d{i}": random.standard_normal(ROWS).astype(np.float32) for i in range(2)}
    sparse = {f"s{i}": random.integers(0, 100 + i, ROWS).astype(np.int32) for i in range(6)}
    chance = 1 / (1 + np.exp(-2 * dense["d0"] + dense["d1"] - 0.02 * (sparse["s0"] - 50)))
    table = {**dense, **sparse, "label": (random.random(ROWS) < chance).astype(np.float32)}
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(change(table)), folder / f"{day:02d}.parquet", row_group_size=500)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A few clean days and a run over them."""
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


@pytest.fixture
def mine(clean, tmp_path):
    """A copy of the days and of the run."""
    shutil.copytree(clean / "run", tmp_path / "run")
    shutil.copytree(clean / "days", tmp_path / "days")
    write_run(tmp_path, RULES)
    config_of_run = tmp_path / "run/config.toml"
    config_of_run.write_text(config_of_run.read_text().replace(str(clean), str(tmp_path)))
    return tmp_path


def test_publish_refuse_go_on_and_roll_back(mine):
    assert export(mine).returncode == 0
    first = current(mine)
    write_day(mine / "days", SEGMENTS, lambda day: day | {"label": 1 - day["label"]})
    train(mine)
    for _ in range(2):
        refused = export(mine)
        assert refused.returncode == 2
        assert "not published: segment 05: log_loss is " in refused.stderr
        assert "--anyway True publishes all the same" in refused.stderr
        assert current(mine) == first
    (note,) = lines_of(mine / "exports", "refused.jsonl")  # once, though asked twice
    assert (note["segment"], note["rule"], note["step"]) == ("05", "metric", lines_of(mine / "run")[-1]["step"])
    assert note["figures"] in refused.stderr
    # A checkpoint is judged by the segments that it was trained on.
    assert export(mine, "--checkpoint", first.removeprefix("step-")).returncode == 0
    assert export(mine, "--anyway", "True").returncode == 0
    second = current(mine)
    assert second != first
    back = run_trainer("rollback", "--to", mine / "exports")
    assert (back.returncode, current(mine)) == (0, first)
    assert f"names {first}, before it was {second}" in back.stdout
    again = run_trainer("rollback", "--to", mine / "exports")
    assert again.returncode == 2
    assert again.stderr == f"error: --to is '{mine}/exports', which has no export before {first}\n"
    nothing = run_trainer("rollback", "--to", mine)
    assert (nothing.returncode, "where nothing is exported" in nothing.stderr) == (2, True)


def test_a_torn_line_of_a_segment_is_judged_all_the_same_and_lost_metrics_are_told(mine):
    write_day(mine / "days", SEGMENTS, lambda day: day | {"label": 1 - day["label"]})
    train(mine)
    ledger = mine / "run/segments.jsonl"
    ledger.write_text(ledger.read_text()[:-9])
    refused = export(mine)
    assert (refused.returncode, "segment 05: log_loss is " in refused.stderr) == (2, True)
    (mine / "run/evaluations.jsonl").unlink()
    refused = export(mine)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert (
        "not published: segment 05: publish.label_rate_by needs the metrics before training on it, which were in "
        "evaluations.jsonl and are lost; train on the next segment; --anyway True publishes all the same"
    ) in refused.stderr
    assert not (mine / "exports/current.json").exists()


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
        ({"window": 3, "drift_by": 0.1}, "publish.window is 3, but there is no rule that compares; set one or none"),
        ({"calibration_by": 1.0}, "publish.calibration_by is 1.0"),
        ({"least_samples": 2.0}, "publish.least_samples is 2.0"),
        ({"most_samples": 1.0}, "publish.most_samples is 1.0"),
        ({"shift_by": 0.0}, "publish.shift_by is 0.0"),
        ({"shift_of": {"d9": 0.1}}, "publish.shift_of has 'd9', which is no column of a feature; known: d0, d1, s0"),
        ({"drift_by": 0.0}, "publish.drift_by is 0.0"),
        ({"size_by": 1.0}, "publish.size_by is 1.0"),
        ({"metric": "nosuch"}, "publish.metric needs 'nosuch', which evaluate.metrics has not; it has: auc"),
        (
            {"metric": "label_rate"},
            "publish.metric is 'label_rate', which is neither better when higher nor when lower",
        ),
    ],
)
def test_wrong_rules_are_one_line(clean, tmp_path, capfd, publish, message):
    file = write_run(tmp_path, publish, clean)
    assert trainer(["export", str(file), "--out", str(clean / "run"), "--to", str(tmp_path / "exports")]) == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert message in error
    assert not (tmp_path / "exports").exists()
