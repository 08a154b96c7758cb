"""A new run starts from another run's checkpoint: what fits is taken, the rest is as the configuration allows."""

import json
import shutil

import pytest
import torch
from command import run_trainer, write_config
from jobs import config, launch, saved_tensors, write_rows

from trainer.__main__ import main as trainer

RANKS = (1, 2)
STEPS = 3
TABLES = "model.model.sparse_arch.embedding_bag_collection.embedding_bags"
OVER = "model.model.over_arch.model.1.weight"
OVER_STATE = "dense.model.over_arch.model.1."


def settings(data, **changes):
    """By default one step that changes no weight, so that its checkpoint shows what the run began with."""
    base = {
        "optimizer__sparse": {"name": "rowwise_adagrad", "learning_rate": 0.0},
        "optimizer__dense": {"name": "adamw", "learning_rate": 0.0, "weight_decay": 0.1},
        "planner__sharding_types": ["row_wise"],
        "train__steps": 1,
    }
    return config(data, **base | changes)


def changed(data, **finetune):
    """Table s1 is called item and has 50 rows more, s4 is new under the name of fresh, s5 is gone."""
    tree = settings(data, planner__sharding_types=["column_wise"])
    sparse = tree["data"]["sparse"]
    sparse["s1"] = {"rows": 151, "table": "item"}
    sparse["s4"] = {"rows": 105, "table": "fresh"}
    sparse["s5"] = {"rows": 105, "table": "fresh"}
    return tree | ({"finetune": finetune} if finetune else {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that was trained on 2 ranks, in FOLDER/source, and a file of names."""
    folder = tmp_path_factory.mktemp("finetune")
    data = write_rows(folder / "data", [200])
    trained = settings(
        data,
        optimizer__sparse__learning_rate=0.1,
        optimizer__dense__learning_rate=0.01,
        train__steps=STEPS,
        checkpoint__every_steps=1,
        planner__sharding_types=["column_wise"],
    )
    launch([{"config": trained, "out": str(folder / "source")}], 2, folder)
    (folder / "names.txt").write_text(f"item {TABLES}.s1.weight\n\n")
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    """Fine-tuned runs and, for comparison, runs from scratch, on each number of ranks."""
    data, source = folder / "data", str(folder / "source")
    allowed = {
        "checkpoint": source,
        "names": str(folder / "names.txt"),
        "allow_missing": ["fr*"],
        "exclude": ["over_arch.model.1.*"],
        "ignore_unexpected": ["s4", "s5"],
    }
    tasks = {
        "all": settings(data, finetune={"checkpoint": source}),
        "weights": settings(data, finetune={"checkpoint": source, "optimizer_state": False}),
        "step 2": settings(data, finetune={"checkpoint": f"{source}/checkpoints/step-00000000{2}/"}),
        "changed": changed(data, **allowed),
        "changed weights": changed(data, **allowed, optimizer_state=False),
        "changed scratch": changed(data),
        "frozen": settings(data, finetune={"checkpoint": source}, optimizer__dense__frozen=["over_arch.model.1.*"]),
        "all frozen": settings(data, finetune={"checkpoint": source}, optimizer__dense__frozen=["*"]),
        "thawed": settings(data, finetune={"checkpoint": str(folder / "frozen 1")}),
    }
    for ranks in RANKS:
        jobs = [{"config": tree, "out": str(folder / f"{name} {ranks}")} for name, tree in tasks.items()]
        (folder / f"output-{ranks}.txt").write_text(launch(jobs, ranks, folder))
    return folder


def per_row(state, rows):
    return state.view(-1, rows).double().mean(0).float()


def after_a_step(slot, before, alone):
    """What one more step makes of a slot, given what it makes of an empty one."""
    return {"step": 1, "exp_avg": 0.9, "exp_avg_sq": 0.999, "momentum1": 1}[slot] * before + alone


@pytest.mark.parametrize("ranks", RANKS)
def test_a_run_begins_with_all_weights_and_state(runs, ranks):
    source = saved_tensors(runs / "source", STEPS)
    found, alone = saved_tensors(runs / f"all {ranks}", 1), saved_tensors(runs / f"weights {ranks}", 1)
    assert found.keys() == alone.keys() == source.keys()
    for name, value in found.items():
        if name.startswith("model."):
            assert torch.equal(value, source[name]), name
            assert torch.equal(alone[name], source[name]), name
            continue
        before = source[name] if name.startswith("dense.") else per_row(source[name], len(value))
        assert before.any(), name
        torch.testing.assert_close(value, after_a_step(name.rpartition(".")[2], before, alone[name]))


@pytest.mark.parametrize("ranks", RANKS)
def test_one_checkpoint_of_a_run_can_be_named(runs, ranks):
    found, source = saved_tensors(runs / f"step 2 {ranks}", 1), saved_tensors(runs / "source", 2)
    assert all(torch.equal(found[name], value) for name, value in source.items() if name.startswith("model."))


@pytest.mark.parametrize("ranks", RANKS)
def test_matching_weights_are_loaded_and_the_rest_starts_from_scratch(runs, ranks):
    source, scratch = saved_tensors(runs / "source", STEPS), saved_tensors(runs / f"changed scratch {ranks}", 1)
    for name in (f"changed {ranks}", f"changed weights {ranks}"):
        found = saved_tensors(runs / name, 1)
        item = f"{TABLES}.item.weight"
        assert found.keys() == scratch.keys()
        assert torch.equal(found[item][:101], source[f"{TABLES}.s1.weight"])
        assert torch.equal(found[item][101:], scratch[item][101:])
        for weight in (f"{TABLES}.fresh.weight", OVER):
            assert torch.equal(found[weight], scratch[weight])
            assert weight not in source or not torch.equal(found[weight], source[weight])
        others = {
            weight for weight in found if weight.startswith("model.") and weight in source and ".1." not in weight
        }
        assert f"{TABLES}.s0.weight" in others
        assert all(torch.equal(found[weight], source[weight]) for weight in others)


@pytest.mark.parametrize("ranks", RANKS)
def test_frozen_weights_are_loaded_without_state(runs, ranks):
    source, found = saved_tensors(runs / "source", STEPS), saved_tensors(runs / f"frozen {ranks}", 1)
    assert {name for name in source if name not in found} == {name for name in source if name.startswith(OVER_STATE)}
    assert all(torch.equal(found[name], source[name]) for name in found if name.startswith("model."))
    assert found["dense.model.over_arch.model.0._mlp.0._linear.weight.step"] == STEPS + 1
    found = saved_tensors(runs / f"all frozen {ranks}", 1)
    assert {name for name in source if name not in found} == {name for name in source if name.startswith("dense.")}


@pytest.mark.parametrize("ranks", RANKS)
def test_a_weight_that_is_no_longer_frozen_gets_state_from_scratch(runs, ranks):
    source, found = saved_tensors(runs / "frozen 1", 1), saved_tensors(runs / f"thawed {ranks}", 1)
    steps = {name: value.item() for name, value in found.items() if name.endswith(".step")}
    assert {name for name, step in steps.items() if step == 1} == {name for name in steps if OVER_STATE in name}
    assert set(steps.values()) == {1, STEPS + 2}
    assert all(torch.equal(found[name], source[name]) for name in source if name.startswith("model."))


@pytest.mark.parametrize("ranks", RANKS)
def test_state_follows_its_weight(runs, ranks):
    source = saved_tensors(runs / "source", STEPS)
    found = saved_tensors(runs / f"changed {ranks}", 1)
    alone = saved_tensors(runs / f"changed weights {ranks}", 1)
    grown = torch.cat([per_row(source["table.s1.momentum1"], 101), torch.zeros(50)])
    shards = len(found["table.item.momentum1"]) // 151
    torch.testing.assert_close(found["table.item.momentum1"], grown.repeat(shards) + alone["table.item.momentum1"])
    for name in ("table.fresh.momentum1", f"dense.{OVER.removeprefix('model.')}.exp_avg"):
        assert torch.equal(found[name], alone[name])
    layer = "dense.model.dense_arch.model._mlp.0._linear.weight.exp_avg_sq"
    torch.testing.assert_close(found[layer], after_a_step("exp_avg_sq", source[layer], alone[layer]))


@pytest.mark.parametrize("ranks", RANKS)
def test_loaded_and_missing_weights_are_reported_and_recorded(runs, ranks):
    output = " ".join((runs / f"output-{ranks}.txt").read_text().split())
    about = json.loads((runs / f"changed {ranks}" / "run.json").read_text())["finetune"]
    assert about.pop("checkpoint") == str(runs / f"source/checkpoints/step-{STEPS:09d}")
    loaded = about.pop("loaded")
    assert {"s0", "s2", "s3", "dense_arch.model._mlp.0._linear.bias"} < set(loaded)
    assert about == {
        "step": STEPS,
        "optimizer_state": True,
        "renamed": ["item (was s1)"],
        "resized": ["item (101 to 151 rows)"],
        "new": ["fresh"],
        "excluded": ["over_arch.model.1.bias", "over_arch.model.1.weight"],
        "missing": [],
        "unexpected": ["s4", "s5"],
    }
    for words in ("renamed 1 item (was s1)", "unexpected 2 s4, s5", "optimizer state: from scratch"):
        assert words in output


def test_a_fine_tuned_run_resumes_from_its_own_checkpoint(folder, tmp_path):
    shutil.copytree(folder / "source", tmp_path / "source")
    tree = settings(folder / "data", finetune={"checkpoint": str(tmp_path / "source")}, checkpoint__every_steps=1)
    file, out = write_config(tmp_path / "config.toml", tree), tmp_path / "out"
    first = run_trainer("train", file, "--out", out, ranks=2)
    assert "fine-tuning from step 3" in first.stdout, first.stderr
    about = json.loads((out / "run.json").read_text())["finetune"]
    shutil.rmtree(tmp_path / "source")
    second = run_trainer("train", file, "--out", out, "--train.steps", 2)
    assert "resumed after step 1" in second.stdout, second.stderr
    assert "fine-tuning" not in second.stdout
    assert json.loads((out / "run.json").read_text())["finetune"] == about


def test_another_optimizer_cannot_load_the_state(folder, tmp_path, capsys):
    tree = settings(folder / "data", finetune={"checkpoint": str(folder / "source")}, optimizer__sparse__name="adagrad")
    file = write_config(tmp_path / "config.toml", tree)
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "another optimizer trained 's0'" in capsys.readouterr().err
    flags = ["--finetune.optimizer-state", "False"]
    assert trainer(["train", str(file), "--out", str(tmp_path / "out"), *flags]) == 0


def test_a_part_with_another_optimizer_cannot_load_the_state(folder, tmp_path, capsys):
    parts = {"top": {"weights": ["over_arch.model.1.*"], "name": "sgd"}}

    def tuned(source, out, *flags, **changes):
        file = write_config(
            tmp_path / "config.toml", settings(folder / "data", finetune={"checkpoint": str(source)}, **changes)
        )
        return trainer(["train", str(file), "--out", str(tmp_path / out), *flags]), capsys.readouterr().err

    assert tuned(folder / "source", "out", optimizer__dense__parts=parts)[0] == 0  # SGD has no state to fill
    assert tuned(tmp_path / "out", "same", optimizer__dense__parts=parts)[0] == 0
    code, error = tuned(tmp_path / "out", "again")
    assert (code, "another optimizer trained 'over_arch.model.1.bias'" in error) == (2, True)
    assert tuned(tmp_path / "out", "again", "--finetune.optimizer-state", "False")[0] == 0


def test_a_checkpoint_on_any_storage_can_be_fine_tuned(folder, tmp_path):
    """One process, so that storage in memory can stand for storage that is not a disk."""
    data = folder / "data"
    jobs = [
        {"config": settings(data, train__seed=1), "out": "memory://base"},
        {"config": settings(data, finetune={"checkpoint": "memory://base"}), "out": str(tmp_path / "from run")},
        {"config": settings(data, train__seed=1), "out": str(tmp_path / "scratch")},
    ]
    launch(jobs, 1, tmp_path)
    found, expected = saved_tensors(tmp_path / "from run", 1), saved_tensors(tmp_path / "scratch", 1)
    assert all(torch.equal(found[name], value) for name, value in expected.items() if name.startswith("model."))


def wrong(folder, changes, tables, names):
    (folder / "wrong.txt").write_text(names)
    finetune = {"checkpoint": "{source}", **changes}
    finetune = {
        key: value.format(folder=folder, source=folder / "source") if isinstance(value, str) else value
        for key, value in finetune.items()
    }
    tree = settings(folder / "data", finetune=finetune)
    tree["data"]["sparse"] |= tables
    return tree


FILE = {"names": "{folder}/wrong.txt"}
CASES = [
    ("no checkpoint", {"checkpoint": "{folder}/data"}, {}, "", "holds no committed checkpoint"),
    ("no such step", {"checkpoint": "{source}/checkpoints/step-000000009"}, {}, "", "checkpoints of steps: 1, 2, 3"),
    ("no such storage", {"checkpoint": "nowhere://base"}, {}, "", "finetune.checkpoint is 'nowhere://base'"),
    ("no file of names", {"names": "{folder}/no.txt"}, {}, "", "finetune.names is '{folder}/no.txt'"),
    ("one word", FILE, {}, "s0 s0\ns1\n", "{folder}/wrong.txt:2 has 1 word; two are needed"),
    ("unknown here", FILE, {}, "s9 s0\n", "{folder}/wrong.txt:1: this model has no 's9'"),
    ("unknown there", FILE, {}, "s0 s9\n", "{folder}/wrong.txt:1: the checkpoint has no 's9'"),
    ("named twice", FILE, {}, "s0 s1\ns0 s2\n", "{folder}/wrong.txt:2 names 's0' again"),
    (
        "pattern of nothing",
        {"allow_missing": ["x*"]},
        {},
        "",
        "finetune.allow_missing has 'x*', which matches nothing that",
    ),
    ("nothing to leave out", {"exclude": ["x*"]}, {}, "", "finetune.exclude has 'x*'"),
    ("nothing unused", {"ignore_unexpected": ["s0"]}, {}, "", "finetune.ignore_unexpected has 's0'"),
    (
        "missing",
        {},
        {"s1": {"rows": 101, "table": "item"}},
        "",
        "lacks 'item' of this model; list it in finetune.allow_missing",
    ),
    (
        "unused",
        {"allow_missing": ["item"]},
        {"s1": {"rows": 101, "table": "item"}},
        "",
        "holds 's1', which this model lacks; list it in finetune.ignore_unexpected",
    ),
    ("fewer rows", {}, {"s1": {"rows": 50, "ids": "modulo"}}, "", "table 's1' has 101 rows, more than the 50 here"),
    ("ids move", {}, {"s1": {"rows": 151, "ids": "hash"}}, "", "ids = 'hash' puts every id in another row"),
]


@pytest.mark.parametrize(
    ("changes", "tables", "names", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_a_mismatch_is_reported_in_one_line(folder, tmp_path, capsys, changes, tables, names, expected):
    file = write_config(tmp_path / "config.toml", wrong(folder, changes, tables, names))
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert expected.format(folder=folder) in error
    assert error.count("\n") == 1
    assert not list(tmp_path.rglob("manifest.json"))


def test_a_weight_of_another_shape_is_named(folder, tmp_path, capsys):
    tree = settings(folder / "data", finetune={"checkpoint": str(folder / "source")}, model__over_layers=[8])
    file = write_config(tmp_path / "config.toml", tree)
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 2
    output = capsys.readouterr()
    assert "'over_arch.model.0._mlp.0._linear.bias' has the shape [16], and [8] here" in output.err


def test_rank_0_reports_the_error_of_all_ranks(folder, tmp_path):
    tree = wrong(folder, {}, {"s1": {"rows": 101, "table": "item"}}, "")
    file = write_config(tmp_path / "config.toml", tree)
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=2)
    assert done.returncode != 0
    assert done.stderr.count("error: finetune.checkpoint") == 1


def test_a_damaged_checkpoint_is_refused(folder, tmp_path, capsys):
    shutil.copytree(folder / "source", tmp_path / "source")
    step = tmp_path / f"source/checkpoints/step-{STEPS:09d}"
    (step / "__1_0.distcp").write_bytes(b"")
    file = write_config(tmp_path / "config.toml", settings(folder / "data", finetune={"checkpoint": str(step)}))
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert "which is damaged: __1_0.distcp" in message
    assert "; that run also has checkpoints of steps: " in message


def test_keys_without_a_checkpoint_are_refused(folder, tmp_path, capsys):
    file = write_config(tmp_path / "config.toml", settings(folder / "data", finetune={"allow_missing": ["item"]}))
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "finetune.allow_missing is set, but finetune.checkpoint is not" in capsys.readouterr().err


def test_names_can_be_short_or_whole(folder, tmp_path, capsys):
    whole = [f"{TABLES.removeprefix('model.')}.s2.weight", f"{TABLES.removeprefix('model.model.')}.s3.weight"]
    (tmp_path / "names.txt").write_text(f"s0 {TABLES}.s0.weight\n{whole[0]}\ts2\n{whole[1]}   s2\n")
    finetune = {"checkpoint": str(folder / "source"), "names": str(tmp_path / "names.txt")}
    tree = settings(folder / "data", finetune=finetune | {"ignore_unexpected": ["s3"]})
    tree["data"]["sparse"]["s3"]["rows"] = 103
    file = write_config(tmp_path / "config.toml", tree)
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "renamed 1 s3 (was s2)" in output
    assert "resized 1 s3 (102 to 103 rows)" in output
