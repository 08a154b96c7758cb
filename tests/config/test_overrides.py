"""Command lines become the arguments of a function, and replace values of a configuration file."""

import re
from pathlib import Path
from typing import Literal

import pytest

from trainer.config.features import SparseFeature
from trainer.config.help import FIRST, described
from trainer.config.overrides import parse
from trainer.config.root import Config
from trainer.core.errors import InputError

FILE = """
[data.sparse.s]
rows = 5
[data.sparse."user_id.hashed"]
rows = 7
[model]
name = "own:model"
[model.arguments]
depth = 3
names = ["a"]
deeper = {rate = 0.5}
[train]
steps = 1
"""


def train(config: Config, out: str = "runs/x", world_size: int = 2) -> tuple[Config, str, int]:
    """Trains a model.

    Args:
        config: The configuration.
        out: The run directory.
        world_size: Ranks.
    """
    return config, out, world_size


@pytest.fixture
def file(tmp_path):
    (tmp_path / "config.toml").write_text(FILE)
    return str(tmp_path / "config.toml")


def value_of(config, key):
    for name in key.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("--train.steps 3", "train.steps", 3),
        ("--train.steps=3", "train.steps", 3),
        ("--train.steps 3 --train.steps 4", "train.steps", 4),
        ("--data.lanes None", "data.lanes", None),
        ("--data.lanes 8", "data.lanes", 8),
        ("--data.weight None", "data.weight", None),
        ("--data.weight 8", "data.weight", "8"),
        ("--data.weight=a=b", "data.weight", "a=b"),
        ("--data.weight=", "data.weight", ""),
        ("--data.weight -1", "data.weight", "-1"),
        ("--data.shuffle False", "data.shuffle", False),
        ("--data.shuffle=True", "data.shuffle", True),
        ("--data.shuffle false", "data.shuffle", False),
        ("--optimizer.dense.eps 1e-3", "optimizer.dense.eps", 1e-3),
        ("--optimizer.dense.eps 1", "optimizer.dense.eps", 1.0),
        ("--optimizer.dense.name adamw", "optimizer.dense.name", "adamw"),
        ("--optimizer.sparse.schedule.warmup_steps 4", "optimizer.sparse.schedule.warmup_steps", 4),
        ("--optimizer.sparse.schedule.warmup-steps 4", "optimizer.sparse.schedule.warmup_steps", 4),
        ("--model.dense-layers 8 4", "model.dense_layers", [8, 4]),
        ("--model.dense_layers 8 4 --train.seed 0", "model.dense_layers", [8, 4]),
        ("--model.dense-layers=8", "model.dense_layers", [8]),
        ("--data.train", "data.train", []),
        ("--data.train 1 None", "data.train", ["1", "None"]),
        ("--data.sparse.s.dimension 4", "data.sparse.s.dimension", 4),
        ("--data.sparse.s.weights w", "data.sparse.s.weights", "w"),
        ("--data.sparse.s.weights w v", "data.sparse.s.weights", ["w", "v"]),
        ("--data.sparse.s.weights None", "data.sparse.s.weights", None),
        ("--optimizer.dense.parts.p.weights regex:.*b", "optimizer.dense.parts.p.weights", ["regex:.*b"]),
        ("--model.tables.s.init.distribution normal --model.tables.s.init.std 1", "model.tables.s.init.std", 1.0),
        ("--data.sparse.new.rows 9", "data.sparse.new.rows", 9),
        ("--data.sparse.new_name.rows=9", "data.sparse.new_name.rows", 9),
        ("--data.dense.price.transform log1p", "data.dense.price.transform", "log1p"),
        ("--planner.tables.s.sharding-types row_wise", "planner.tables.s.sharding_types", ["row_wise"]),
        ("--optimizer.tables.s.frozen True", "optimizer.tables.s.frozen", True),
        ("--optimizer.tables.s.schedule.decay constant", "optimizer.tables.s.schedule.decay", "constant"),
        ("--model.arguments.depth 4", "model.arguments.depth", 4),
        ("--model.arguments.names b c", "model.arguments.names", ["b", "c"]),
        ("--model.arguments.deeper.rate 2", "model.arguments.deeper.rate", 2.0),
    ],
)
def test_a_flag_replaces_a_value(file, flags, key, value):
    found = value_of(parse(train, [file, *flags.split()], "program")()[0], key)
    assert (found, type(found)) == (value, type(value))


def test_names_may_hold_dots_and_underscores(file):
    for name in ("user_id.hashed", "user-id.hashed", "new.name"):
        config, *_ = parse(train, [file, f"--data.sparse.{name}.rows", "9"], "program")()
        assert config.data.sparse[name.replace("user-id", "user_id")].rows == 9
        assert len(config.data.sparse) == 2 + (name == "new.name")


@pytest.mark.parametrize(("flag", "length"), [("--train.epochs", (None, 2)), ("--train.steps", (2, None))])
@pytest.mark.parametrize("in_the_file", ["steps", "epochs"])
def test_one_length_by_flag_unsets_the_other_of_the_file(tmp_path, in_the_file, flag, length):
    file = tmp_path / "config.toml"
    file.write_text(f"[train]\n{in_the_file} = 1")
    config, *_ = parse(train, [str(file), flag, "2"], "program")()
    assert (config.train.steps, config.train.epochs) == length


@pytest.mark.parametrize("unset", ["steps", "epochs"])
@pytest.mark.parametrize("in_the_file", ["steps", "epochs"])
def test_none_unsets_its_own_key_alone(tmp_path, in_the_file, unset):
    file = tmp_path / "config.toml"
    file.write_text(f"[train]\n{in_the_file} = 12")
    config, *_ = parse(train, [str(file), f"--train.{unset}", "None"], "program")()
    assert getattr(config.train, in_the_file) == (None if unset == in_the_file else 12)


def test_a_flag_replaces_the_alternative_to_its_key(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("[optimizer.dense]\nmax_norm = 1.0\n[data.sparse]\nx = { rows = 9, column = 'a', ids = 'hash' }")
    words = ["--optimizer.dense.max-value", "2", "--data.sparse.x.columns", "a", "b"]
    config, *_ = parse(train, [str(file), *words], "program")()
    assert (config.optimizer.dense.max_norm, config.optimizer.dense.max_value) == (None, 2)
    assert (config.data.sparse["x"].column, [*config.data.sparse["x"].columns]) == (None, ["a", "b"])


def test_a_run_directory_stands_for_its_configuration(tmp_path):
    (tmp_path / "config.toml").write_text("[train]\nsteps = 7")

    def evaluate(config: Config, out: str) -> tuple:
        return config.train.steps, out

    assert parse(evaluate, [str(tmp_path)], "program")() == (7, str(tmp_path))
    assert parse(evaluate, [str(tmp_path), "--out", "other"], "program")() == (7, "other")


def test_a_list_may_be_written_with_commas_and_a_switch_without_a_value(tmp_path):
    def compare(runs: tuple[str, ...], overwrite: bool = False) -> tuple:
        return runs, overwrite

    (tmp_path / "c,d").touch()
    words = ["--overwrite", "--runs", "a,b", f"{tmp_path}/c,d"]
    assert parse(compare, words, "program")() == (("a", "b", f"{tmp_path}/c,d"), True)


def test_features_are_left_out(file):
    config, *_ = parse(train, [file, "--without", "s", "--train.steps", "3"], "program")()
    assert config.data.sparse.keys() == {"user_id.hashed"}
    with pytest.raises(InputError, match=re.escape("--without has 'user', which is no feature")):
        parse(train, [file, "--without", "user"], "program")


def test_a_flag_completes_a_file(tmp_path):
    (tmp_path / "config.toml").write_text("[data.sparse.s]\ndimension = 4")
    with pytest.raises(InputError, match=r"config.toml': 'data.sparse.s.rows' is missing"):
        parse(train, [str(tmp_path / "config.toml")], "program")
    config, *_ = parse(train, [str(tmp_path / "config.toml"), "--data.sparse.s.rows", "5"], "program")()
    assert config.data.sparse["s"].rows == 5


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--train.step 3", "unknown flag --train.step; did you mean --train.steps?"),
        ("--train 3", "unknown flag --train; did you mean --"),
        ("--data.sparse.s.hotnes 2", "did you mean --data.sparse.s.hotness?"),
        ("--data.sparse.s 2", "unknown flag --data.sparse.s; did you mean --data.sparse.s."),
        (
            "--model.arguments.dept 2",
            "unknown flag --model.arguments.dept; did you mean --model.arguments.depth? "
            "(in [model.arguments] a flag changes only what the file has)",
        ),
        ("--train.stop-erly.metric auc", "did you mean --train.stop_early.metric?"),
        ("--zzz 3", "unknown flag --zzz; --help lists all flags"),
        ("--steps.x 3", "unknown flag --steps.x; --help lists all flags"),
        (
            "--momentum 1",
            "unknown flag --momentum; did you mean --optimizer.sparse.momentum or --optimizer.dense.momentum?",
        ),
        ("--foo x", "unknown flag --foo; --help lists all flags"),
        ("--ouy x", "unknown flag --ouy; did you mean --out?"),
        ("-o x", "unknown flag -o; --help lists all flags"),
        ("stray", "unexpected 'stray'"),
        ("--train.seed 1 2", "unexpected '2'"),
        ("--train.steps", "missing value for --train.steps"),
        ("--train.steps --out x", "missing value for --train.steps"),
        ("--train.steps abc", "--train.steps is 'abc': input should be a valid integer"),
        ("--train.steps 0", "--train.steps is 0: input should be greater than 0"),
        ("--train.steps=", "--train.steps is '': input should be a valid integer"),
        ("--train.seed 1.5", "--train.seed is '1.5': input should be a valid integer"),
        ("--train.seed None", "--train.seed is 'None': input should be a valid integer"),
        ("--train.seed -1", "--train.seed is -1: input should be greater than or equal to 0"),
        ("--model.dense-layers 8 x", "--model.dense_layers.1 is 'x': input should be a valid integer"),
        ("--model.dense-layers 8 0", "--model.dense_layers.1 is 0: input should be greater than 0"),
        ("--data.shuffle yes", "--data.shuffle is 'yes': it must be true or false"),
        ("--data.last-batch pad", "--data.last_batch is 'pad': input should be 'keep' or 'drop'"),
        ("--data.sparse.s.rows 0", "--data.sparse.s.rows is 0: input should be greater than 0"),
        ("--data.sparse.new.hotness 2", "'data.sparse.new.rows' is missing"),
        ("--train.steps 1 --train.epochs 2", "train.steps is 1 and train.epochs is 2; set one of them"),
        ("--optimizer.sparse.beta1 1.5", "optimizer.sparse.beta1 is 1.5: input should be less than 1"),
        ("--optimizer.sparse.beta2 1.0", "optimizer.sparse.beta2 is 1.0: input should be less than 1"),
        ("--optimizer.dense.beta1 -0.1", "optimizer.dense.beta1 is -0.1: input should be greater than or equal to 0"),
        ("--optimizer.dense.weight-decay -1", "optimizer.dense.weight_decay is -1.0: input should be greater than or"),
        ("--optimizer.dense.momentum -1", "optimizer.dense.momentum is -1.0: input should be greater than or equal"),
        (
            "--optimizer.dense.momentum 0.9",
            "optimizer.dense.momentum is 0.9, which the dense optimizer 'adagrad' does",
        ),
        ("--planner.host-memory-gib 1e300", "planner.host_memory_gib is 1e+300: input should be less than or equal to"),
        ("--optimizer.dense.schedule.end-multiplier -1", "schedule.end_multiplier is -1.0: input should be greater"),
        ("--optimizer.sparse.learning-rate inf", "optimizer.sparse.learning_rate is inf: input should be a finite"),
        ("--world-size two", "--world-size is 'two': input should be a valid integer"),
    ],
)
def test_a_wrong_flag_is_explained(file, flags, says):
    with pytest.raises(InputError, match=re.escape(says)) as raised:
        parse(train, [file, *flags.split()], "program")
    assert "configuration" not in str(raised.value) or "is missing" in says


def test_a_mistake_of_the_file_is_not_blamed_on_a_flag(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("[train]\nsteps = 'ten'\n[model]\nname = 5\n")
    with pytest.raises(InputError, match=f"configuration '{file}': model.name is 5: input should be a valid string"):
        parse(train, [str(file), "--train.steps", "3"], "program")
    file.write_text("train = 5")
    with pytest.raises(InputError, match=r"train is 5: it must be a section of keys, \[train\]"):
        parse(train, [str(file), "--train.steps", "3"], "program")


@pytest.mark.parametrize("key", ["data.dense", "data.sparse", "planner.tables", "model.arguments", "data.sparse.s"])
@pytest.mark.parametrize("value", ["5", "[1]", "'text'"])
def test_a_value_in_place_of_a_table_is_explained(tmp_path, key, value):
    file = tmp_path / "config.toml"
    file.write_text(f"{key} = {value}")
    with pytest.raises(InputError, match=rf"config.toml': {key} is .*: it must be a section of keys, \[{key}\]"):
        parse(train, [str(file)], "program")


def test_the_configuration_comes_first():
    for words in ([], ["--train.steps", "3"]):
        with pytest.raises(InputError, match="CONFIG is missing"):
            parse(train, words, "program train")


def test_arguments_stand_beside_the_configuration(file):
    assert parse(train, [file], "program")()[1:] == ("runs/x", 2)
    assert parse(train, [file, "--out", "a b", "--world_size=3"], "program")()[1:] == ("a b", 3)


def measure(
    what: Literal["training", "checkpoint"] = "training",
    /,
    *,
    source: tuple[str, ...],
    rows: tuple[int, ...] = (100,),
    rate: float = 0.5,
    verify: bool = False,
    step: int | None = None,
) -> dict:
    """Measures something."""
    return locals()


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("--source", {"source": ()}),
        ("--source a b", {"source": ("a", "b")}),
        ("checkpoint --source a --rows 1 2", {"what": "checkpoint", "source": ("a",), "rows": (1, 2)}),
        ("--rate 1 --source=a checkpoint", {"source": ("a", "checkpoint"), "rate": 1.0}),
        ("--source a --rate 1 checkpoint", {"what": "checkpoint", "source": ("a",), "rate": 1.0}),
        ("--source a --verify True --step 3", {"source": ("a",), "verify": True, "step": 3}),
        ("--source a --step None", {"source": ("a",), "step": None}),
    ],
)
def test_a_function_gets_its_arguments(words, changes):
    defaults = {"what": "training", "rows": (100,), "rate": 0.5, "verify": False, "step": None}
    assert parse(measure, words.split(), "program")() == defaults | changes


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "--source is missing; --help describes it"),
        ("--source a --step 1.5", "--step is '1.5': input should be a valid integer"),
        ("--source a --verify 1", "--verify is '1': it must be true or false"),
        ("speed --source a", "--what is 'speed': input should be 'training' or 'checkpoint'"),
        ("training checkpoint --source a", "unexpected 'checkpoint'"),
        ("--sauce a", "unknown flag --sauce; did you mean --source?"),
    ],
)
def test_a_wrong_argument_is_explained(words, says):
    with pytest.raises(InputError, match=re.escape(says)):
        parse(measure, words.split(), "program")


def test_an_argument_is_bound_and_the_function_not_yet_called():
    def fail(left: int, right: int = 2) -> int:
        raise RuntimeError(left + right)

    call = parse(fail, ["--left", "1"], "program")
    with pytest.raises(RuntimeError, match="3"):
        call()


def printed(capsys, *words):
    with pytest.raises(SystemExit) as left:
        parse(train, [*words], "python -m program", "movielens --out there")
    assert left.value.code == 0
    return capsys.readouterr().out


def pass_on(*arguments: str, port: int = 1) -> tuple:
    """Passes words on.

    Args:
        arguments: After `--`, words.
        port: A port.
    """
    return arguments, port


def test_words_after_dashes_are_passed_on(capsys):
    assert parse(pass_on, ["--port", "2"], "program")() == ((), 2)
    assert parse(pass_on, ["--port", "2", "--", "--help", "--", "x"], "program")() == (("--help", "--", "x"), 2)
    with pytest.raises(InputError, match="unknown flag --prt; did you mean --port"):
        parse(pass_on, ["--prt", "2", "--", "x"], "program")
    with pytest.raises(SystemExit):
        parse(pass_on, ["--help"], "program")
    assert "\n  -- ...  After --, words.\n" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["FILE", "--help"], ["FILE", "--train.steps", "--help"]])
def test_help_is_of_a_command_s_own_flags(file, words, capsys):
    assert printed(capsys, *(word.replace("FILE", file) for word in words)) == (
        "usage: python -m program CONFIG [FLAGS] [--SECTION.KEY VALUE ...]\n\n"
        "Trains a model.\n\n"
        '  --out         The run directory. (string; default "runs/x")\n'
        "  --world-size  Ranks. (integer; default 2)\n\n"
        "Any key of the configuration can be replaced: --SECTION.KEY VALUE, such as --train.steps 100.\n"
        "--without NAME ... leaves features out, and those that are made of columns of these names.\n"
        "--help-config lists the keys to know first, and the sections; --help-config SECTION lists all keys of one.\n\n"
        "Example: python -m program movielens --out there\n"
    )


def test_help_of_a_section_describes_its_keys(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = printed(capsys, "--help-config", "optimizer")
    assert "[optimizer.sparse.schedule] Learning-rate schedule: a linear warm-up" in text
    assert "  learning_rate  Learning rate before the schedule's multiplier. (number ≥ 0; default 0.02)\n" in text
    assert "[train]" not in text
    one = printed(capsys, "movielens", "--help-config=data.sparse")
    assert one == printed(capsys, "--help-config", "data.sparse.NAME")
    assert re.findall(r"(?m)^\[(.*)\]", one) == ["data.sparse.NAME"]
    assert re.findall(r"(?m)^  (\w+)  ", one) == [*SparseFeature.model_fields]


def test_every_section_is_listed_and_has_a_help(capsys, request, monkeypatch):
    """By default the help of every fourth section is looked at."""
    monkeypatch.setenv("COLUMNS", "80")
    text = printed(capsys, "--help-config")
    assert len(text.splitlines()) < 60, "more than a screen"
    assert "--help-config SECTION" in text
    sections = [section for section in described(Config) if section.path]
    assert [path for path, *_ in sections if path not in text] == []
    for path, meaning, keys in sections if request.config.getoption("all") else sections[::4]:
        help_of_one = " ".join(printed(capsys, "--help-config", path).split())
        assert help_of_one.startswith(f"[{path}] {meaning}")
        assert [key.name for key in keys if f" {key.name} " not in help_of_one] == []


def test_the_keys_to_know_first_are_keys(capsys):
    sections = {section.path: section for section in described(Config)}
    for path, names in FIRST.items():
        assert {*names.split()} <= {key.name for key in sections[path].keys}
    assert 50 < sum(len(names.split()) for names in FIRST.values()) < 80


def test_the_list_of_keys_is_what_was_agreed_on():
    """A new key needs a line in the changelog that says who needs it, and a line in keys.txt."""
    keys = [f"{path}.{key.name}" for path, _, keys in described(Config) for key in keys]
    assert keys == (Path(__file__).parent / "keys.txt").read_text().split()


def test_an_unknown_section_is_explained(capsys):
    with pytest.raises(InputError, match=r"--help-config is 'optimiser', .*; did you mean 'optimizer'\?"):
        parse(train, ["movielens", "--help-config", "optimiser"], "program")
