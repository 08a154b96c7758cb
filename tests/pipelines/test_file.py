"""Pipeline files: what a step becomes, and one line for whatever is wrong with a file."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from command import run_torchx
from torchx.cli.main import main

from torchx_recsys.pipelines.file import READY_MADE, read_pipeline
from trainer.core.errors import InputError

FILE = """
out = "runs/all"

[values]
nproc = 2
data = "s3://bucket/data"

[arguments]
image = "trainer:1"

[options.slurm]
partition = "cpu"

[steps.train]
component = "dlrm.single_node"
after = ["check"]
options.slurm = { partition = "gpu", time = "1:00:00" }

[steps.train.arguments]
config = "movielens"
nproc = "{nproc}"
out = "{out}/train"
env = { A = 1, B = "{{x}}" }
trainer_args = ["--data.train", "{data}/train"]

[steps.check]
component = "data.check"
arguments = { config = "{vocabulary.out}.toml", strict = true }

[steps.vocabulary]
component = "data.vocabulary"
arguments = { source = ["{data}/a", "{data}/b"], columns = ["item"] }
"""


@pytest.fixture
def read(tmp_path):
    """Reads a pipeline file of a text, in which parts are replaced."""

    def read(*changes, text=FILE, **values):
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        file = tmp_path / "p.toml"
        file.write_text(text)
        return read_pipeline(str(file), {name: str(value) for name, value in values.items()}, {})

    return read


def test_steps_are_filled_in_and_ordered(read):
    pipeline = read(nproc=4)
    assert [*pipeline.steps] == ["vocabulary", "check", "train"]
    vocabulary, check, train = pipeline.steps.values()
    assert vocabulary.words == [
        "--source=s3://bucket/data/a,s3://bucket/data/b",
        "--columns=item",
        "--image=trainer:1",
    ]
    assert (check.after, check.words) == (
        ["vocabulary"],
        ["--config=data/vocabulary.toml", "--strict=True", "--image=trainer:1"],
    )
    assert train.after == ["check"]
    assert train.words == [
        *("--config=movielens", "--out=runs/all/train", "--nproc=4", "--image=trainer:1", "--env=A=1,B={x}"),
        *("--", "--data.train", "s3://bucket/data/train"),
    ]
    assert train.options["slurm"] == {"partition": "gpu", "time": "1:00:00"}
    assert pipeline.with_followers("check") == {"check", "train"}


def test_only_a_configuration_that_no_step_makes_is_an_input(read):
    steps = read().steps
    assert (steps["train"].config, steps["check"].config, steps["vocabulary"].config) == ("movielens", None, None)


def test_a_drawing_shows_no_detours(read):
    pipeline = read(('after = ["check"]', 'after = ["check", "vocabulary"]'))
    assert pipeline.drawing() == ["╙── vocabulary", "    └─╼ check", "        └─╼ train"]


def test_every_ready_made_pipeline_can_be_read(monkeypatch):
    for file in READY_MADE.glob("*.toml"):
        assert len(read_pipeline(file.stem, {}, {}).steps) > 1


def test_defaults_of_the_users_are_values_too(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(FILE)
    steps = read_pipeline(str(file), {}, {"data.vocabulary": {"out": "elsewhere"}}).steps
    assert steps["check"].words[0] == "--config=elsewhere.toml"


WRONG = [
    ("[values]", "[value]", "unknown key 'value'; did you mean 'values'?"),
    ('out = "runs/all"', "", "'out' is missing"),
    ("[values]", "[values", "cannot be read: "),
    ("nproc = 2", "out = 'a'", "values.out: the file's own key `out` is this value"),
    ("data = ", "my-data = ", "values.my-data: a name is made of letters, digits and '_'"),
    ("image = ", "imgae = ", "arguments.imgae: no step has such an argument; did you mean 'image'?"),
    ("[options.slurm]", "[options.slrum]", "options.slrum: unknown scheduler 'slrum'; did you mean 'slurm'?"),
    ('partition = "cpu"', "after = 'x'", "options.slurm.after: name the steps that must succeed first in the step's"),
    (
        "dlrm.single_node",
        "dlrm.single",
        "steps.train.component: unknown component 'dlrm.single'; did you mean 'dlrm.sin",
    ),
    ('component = "data.check"', "", "'steps.check.component' is missing"),
    ('after = ["check"]', 'after = ["chek"]', "steps.train.after: unknown step 'chek'; did you mean 'check'?"),
    ('after = ["check"]', 'after = "check"', "steps.train.after is 'check': input should be a valid list"),
    ("vocabulary.out", "train.out", "steps wait for each other in a circle: "),
    ("vocabulary.out", "vocabulary.into", "{vocabulary.into}: unknown argument 'into'"),
    ("vocabulary.out", "vocabulray.out", "{vocabulray.out}: unknown step 'vocabulray'; did you mean 'vocabulary'?"),
    (
        "vocabulary.out",
        "vocabulary.max_rows",
        "{vocabulary.max_rows}: not set; set steps.vocabulary.arguments.max_rows",
    ),
    ("{nproc}", "{nprocs}", "steps.train.arguments.nproc: {nprocs}: unknown value 'nprocs'; did you mean 'nproc'?"),
    ('"{nproc}"', '"two"', "steps.train.arguments.nproc is 'two': must be a whole number"),
    ('"{nproc}"', "0", "steps.train: --nproc 0: must be a number of processes from 1 up"),
    ('nproc = "{', 'nprocs = "{', "unknown argument 'nprocs'; did you mean 'nproc'?"),
    ('config = "movielens"', "", "steps.train.arguments.config is missing; the component has no default for it"),
    ("strict = true", 'strict = "yes"', "steps.check.arguments.strict is 'yes': must be true or false"),
    ("{{x}}", "{x", "steps.train.arguments.env.B is '{x': expected '}' before end of string; write {{ for a brace"),
    ('columns = ["item"]', 'columns = "item"', "steps.vocabulary.arguments.columns is 'item': must be a list"),
    ('"{data}/a"', '"a,b"', "steps.vocabulary.arguments.source: 'a,b' has a comma, by which TorchX separates values"),
    ('env = { A = 1, B = "{{x}}" }', "env = 1", "steps.train.arguments.env is 1: must be a table, { A = 1, B = 2 }"),
]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Types `torchx pipeline run p.toml WORDS` in this process; returns the exit code and what it said."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(text, *words):
        Path("p.toml").write_text(text)
        with pytest.raises(SystemExit) as end, contextlib.redirect_stdout(io.StringIO()) as printed:
            main(["pipeline", "run", "p.toml", *words])
        assert printed.getvalue() == ""
        return end.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(("old", "new", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_wrong_file_is_one_line_and_nothing_is_submitted(run, old, new, message):
    assert old in FILE
    code, said = run(FILE.replace(old, new, 1))
    assert code == 2
    (line,) = said.splitlines()
    assert line.startswith("torchx pipeline: error: ")
    assert message in line
    assert "p.toml" in line
    assert [*Path().iterdir()] == [Path("p.toml")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "nprocs=4"], "--set nprocs=4: unknown value 'nprocs'; did you mean 'nproc'?"),
        (["--set", "nproc=four"], "--set nproc=four: must be a whole number"),
        (["--set", "nproc"], "--set nproc: must be KEY=VALUE"),
        (["--from", "trian"], "--from trian: unknown step 'trian'; did you mean 'train'?"),
        (["--from", "train", "--only", "train"], "--from and --only exclude each other; leave one out"),
        (["--only", "train"], "--only train: step check, which it needs, has not succeeded; leave --only out"),
        (["-s", "kubernetes"], "-s kubernetes: its jobs cannot wait for each other; use local_cwd, slurm or jobset"),
        (["-cfg", "grace=1"], "-cfg grace=1: must be KEY=VALUE,... as `torchx runopts local_cwd` lists them"),
        (["-cfg", "max_free_restarts=-1"], "steps.vocabulary: -cfg max_free_restarts=-1: must be 0 or more"),
        (["--set", "out=nosuch://a"], "out is 'nosuch://a', which cannot be used: "),
    ],
)
def test_wrong_flags_are_one_line_and_nothing_is_submitted(run, words, message):
    code, said = run(FILE, *words)
    assert code == 2
    (line,) = said.splitlines()
    assert line.startswith("torchx pipeline: error: ")
    assert message in line
    assert [*Path().iterdir()] == [Path("p.toml")]


def test_a_wrong_option_of_the_file_names_its_step(run):
    text = FILE.replace("[options.slurm]\npartition", "[options.local_cwd]\ngrace")
    code, said = run(text)
    assert (code, len(said.splitlines())) == (2, 1)
    assert "steps.vocabulary: options.local_cwd: Unknown run option `grace`" in said


def test_a_file_that_is_not_there_names_the_ready_made_ones():
    with pytest.raises(InputError, match=r"/nosuch\): no such file; ready-made ones: .*movielens"):
        read_pipeline("nosuch", {}, {})


def test_a_dry_run_shows_each_request_with_the_users_defaults_and_no_secret(tmp_path):
    (tmp_path / "p.toml").write_text(FILE.replace("A = 1", "PASSWORD = 'hush'"))
    (tmp_path / ".torchxconfig").write_text("[slurm]\naccount = ads\npartition = everything\n")
    words = ("pipeline", "run", "p.toml", "-s", "slurm", "--dryrun")
    shown = run_torchx(*words, cwd=tmp_path, HOME=str(tmp_path)).stdout
    assert [line for line in shown.splitlines() if line.startswith("===")] == [
        "=== vocabulary: data.vocabulary ===",
        "=== check: data.check, after vocabulary ===",
        "=== train: dlrm.single_node, after check ===",
    ]
    assert re.findall(r"^#SBATCH --(partition=\w+|account=\w+)", shown, re.MULTILINE) == [
        *("account=ads", "partition=cpu"),
        *("account=ads", "partition=cpu"),
        *("account=ads", "partition=gpu"),
    ]
    assert "hush" not in shown
    assert {file.name for file in tmp_path.iterdir()} == {"p.toml", ".torchxconfig"}
