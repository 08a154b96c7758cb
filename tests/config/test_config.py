"""What a configuration file or a flag gets wrong is said in one line that names it and what is allowed."""

import re
from dataclasses import dataclass
from typing import Annotated

import pytest
import tyro

from trainer.config.overrides import parse
from trainer.config.root import READY_MADE, Config, load_config
from trainer.core.errors import InputError

FEATURES = "[data.sparse.s]\nrows = 5\n[data.dense.d]\n"


@dataclass(frozen=True)
class Asked:
    settings: Annotated[Config, tyro.conf.arg(name="")]
    out: str


def load(tmp_path, text):
    file = tmp_path / "config.toml"
    file.write_text(FEATURES + text)
    return load_config(str(file))


def from_flags(*flags):
    default = Asked(Config.model_validate({"data": {"sparse": {"s": {"rows": 5}}}, "train": {"steps": 1}}), "runs/x")
    return parse(Asked, list(flags), "program", default).settings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train = [", "is not TOML: "),
        ("[trian]", "unknown key 'trian'; did you mean 'train'?"),
        ("[train]\nsteps = 1.5", "train.steps is 1.5: input should be a valid integer"),
        ("[data.sparse.t]", "'data.sparse.t.rows' is missing"),
        ("[data.sparse.t]\nrows = '5'", "data.sparse.t.rows is '5': input should be a valid integer"),
        ("[data.sparse.table]\nrows = 5\npoolin = 'sum'", "'data.sparse.table.poolin'; did you mean 'pooling'?"),
        ("[data.dense.e]\nstd = nan", "data.dense.e.std is nan: input should be a finite number"),
        ("[model]\ndense_layers = [8, 0]", "model.dense_layers.1 is 0: input should be greater than 0"),
        (
            "[optimizer]\nsparse = 'adam'",
            "optimizer.sparse is 'adam': it must be a section of keys, [optimizer.sparse]",
        ),
    ],
)
def test_a_wrong_file_is_explained(tmp_path, text, says):
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        load(tmp_path, text)
    assert str(tmp_path / "config.toml") in str(raised.value)


def test_a_missing_file_leads_to_the_ready_made_ones():
    with pytest.raises(InputError) as raised:
        load_config("nowhere")
    assert all(file.stem in str(raised.value) for file in READY_MADE.glob("*.toml"))


@pytest.mark.parametrize("file", sorted(READY_MADE.glob("*.toml")), ids=lambda file: file.stem)
def test_ready_made_configurations_are_known_by_name(file):
    assert load_config(file.stem) == load_config(str(file))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--train.step 3", "unknown flag --train.step; did you mean --train.steps?"),
        ("--data.sparse.s.hotnes 2", "did you mean --data.sparse.s.hotness?"),
        ("--zzz 3", "unknown flag --zzz; --help lists all flags"),
        ("--ouy x", "unknown flag --ouy; did you mean --out?"),
        ("stray", "unexpected 'stray'"),
        ("--train.steps", "missing value for argument '--train.steps'"),
        ("--train.steps abc", "--train.steps is 'abc'; it takes {None}|INT"),
        ("--train.seed 1.5", "--train.seed is '1.5'; it takes INT"),
        ("--train.seed -1", "train.seed is -1: input should be greater than or equal to 0"),
        ("--model.dense-layers 8 x", "--model.dense-layers is '8', 'x'; it takes [INT [INT ...]]"),
        ("--model.dense-layers 8 0", "model.dense_layers.1 is 0: input should be greater than 0"),
        ("--data.shuffle yes", "invalid choice 'yes' for argument '--data.shuffle'. Expected one of ('True', 'False')"),
        ("--data.sparse.s.rows 0", "data.sparse.s.rows is 0: input should be greater than 0"),
        ("--train.epochs 2", "train.steps is 1 and train.epochs is 2; set one of them"),
        ("--optimizer.sparse.beta1 1.5", "optimizer.sparse.beta1 is 1.5: input should be less than 1"),
        ("--optimizer.sparse.beta2 1.0", "optimizer.sparse.beta2 is 1.0: input should be less than 1"),
        ("--optimizer.dense.beta1 -0.1", "optimizer.dense.beta1 is -0.1: input should be greater than or equal to 0"),
        ("--optimizer.dense.weight-decay -1", "optimizer.dense.weight_decay is -1.0: input should be greater than or"),
        ("--optimizer.dense.momentum -1", "optimizer.dense.momentum is -1.0: input should be greater than or equal"),
        (
            "--optimizer.dense.momentum 0.9",
            "optimizer.dense.momentum is 0.9, which optimizer.dense.name 'adagrad' does",
        ),
        ("--planner.host-memory-gib 1e300", "planner.host_memory_gib is 1e+300: input should be less than or equal to"),
        ("--optimizer.dense.schedule.end-multiplier -1", "schedule.end_multiplier is -1.0: input should be greater"),
        ("--optimizer.sparse.learning-rate inf", "optimizer.sparse.learning_rate is inf: input should be a finite"),
    ],
)
def test_a_wrong_flag_is_explained(flags, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        from_flags(*flags.split())


def test_flags_change_single_values():
    config = from_flags("--train.steps", "None", "--train.epochs=2", "--model.dense_layers", "8", "4")
    assert (config.train.steps, config.train.epochs, config.model.dense_layers) == (None, 2, [8, 4])


def test_a_function_gets_its_flags():
    def add(left: int, right: int = 2) -> int:
        return left + right

    assert parse(add, ["--left", "1"], "add")() == 3
    with pytest.raises(ValueError, match="--left is missing; it takes INT"):
        parse(add, [], "add")


def test_help_documents_every_key(capsys):
    with pytest.raises(SystemExit) as left:
        from_flags("--help")
    assert left.value.code == 0
    helptext = capsys.readouterr().out
    for key in flat(Config.model_validate({"data": {"sparse": {"s": {"rows": 5}}}}).model_dump()):
        assert f"--{key.replace('_', '-')} " in helptext


def flat(tree, prefix=""):
    for key, value in tree.items():
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
