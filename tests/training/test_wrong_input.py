"""Wrong input leads to one clear line and exit code 2, and leaves nothing behind that is taken for good."""

from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from jobs import config
from trainer_process import Training

from trainer.__main__ import main as trainer

GOOD_TSV = "\t".join(["1", *["2"] * 13, *["68fd1e64"] * 26]) + "\n"
BAD_TSV = GOOD_TSV + GOOD_TSV.replace("68fd1e64", "not-hex!", 1) + GOOD_TSV


@dataclass(frozen=True)
class Case:
    """One wrong input: what is changed in a good configuration, the flags, and what the line must contain."""

    name: str
    expected: list[str]
    changes: dict = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    data: str = "good"
    out: str = "{folder}/out"

    def __str__(self):
        return self.name


CASES = [
    Case(
        "unknown key",
        ["'train.flavour'", "known: collective_timeout_seconds, compile, epochs, loss_scale, micro_batches, nonfinite"],
        {"train__flavour": 1},
    ),
    Case("unknown flag", ["unknown flag --train.flavour"], flags=["--train.flavour", "1"]),
    Case(
        "misspelt key", ["'optimizer.sparse.lerning_rate'", "'learning_rate'"], {"optimizer__sparse__lerning_rate": 1}
    ),
    Case(
        "misspelt key of a feature", ["'data.sparse.s0.dimensoin'", "'dimension'"], {"data__sparse__s0__dimensoin": 8}
    ),
    Case("misspelt flag", ["--train.stpes", "--train.steps"], flags=["--train.stpes", "3"]),
    Case("wrong type", ["train.steps", "'ten'", "integer"], {"train__steps": "ten"}),
    Case("wrong type of a flag", ["--train.steps", "'ten'", "integer"], flags=["--train.steps", "ten"]),
    Case("out of range", ["train.steps is 0", "greater than 0"], flags=["--train.steps", "0"]),
    Case("steps and epochs", ["train.steps is 20", "train.epochs is 1", "one of them"], {"train__epochs": 1}),
    Case(
        "steps and epochs by flag",
        ["train.steps is 20", "train.epochs is 1"],
        flags=["--train.steps", "20", "--train.epochs", "1"],
    ),
    Case("missing file", ["data.train", "missing.parquet", "check the path"], data="missing.parquet"),
    Case("missing column", ["part-00.parquet", "'nothing'", "d0, d1, s0"], {"data__dense__nothing": {}}),
    Case("wrong dtype", ["column 'd0'", "string", "a number"], data="text.parquet"),
    Case(
        "id out of range", ["column 's0'", "[0, 50)", "data.sparse.s0.rows", "modulo"], {"data__sparse__s0__rows": 50}
    ),
    Case("null label", ["null.parquet", "row 57", "column 'label'", "fill it"], data="null.parquet"),
    Case("empty data set", ["data.train", "no rows", "empty.parquet"], data="empty.parquet"),
    Case("truncated Parquet", ["truncated.parquet", "is it whole?"], data="truncated.parquet"),
    Case("damaged Parquet", ["damaged.parquet", "row group", "is it whole?"], data="damaged.parquet"),
    Case("batch not divisible", ["data.global_batch_size is 63", "multiple of 8"], {"data__global_batch_size": 63}),
    Case("unknown optimizer", ["optimizer.sparse.name", "'sdg'", "'sgd'"], {"optimizer__sparse__name": "sdg"}),
    Case(
        "unknown optimizer by flag",
        ["--optimizer.dense.name", "'sdg'", "'sgd'"],
        flags=["--optimizer.dense.name", "sdg"],
    ),
    Case(
        "unknown decay",
        ["optimizer.sparse.schedule.decay is 'cosinus'", "'cosine'"],
        {"optimizer__sparse__schedule": {"decay": "cosinus"}},
    ),
    Case(
        "key of another decay",
        ["optimizer.dense.schedule.power is 2.0", "'cosine' does not use", "polynomial"],
        {"optimizer__dense__schedule": {"decay": "cosine", "decay_steps": 9, "power": 2.0}},
    ),
    Case(
        "key of another decay, of a part",
        ["optimizer.dense.parts.top.schedule.warmup_steps is 3", "'inherit' does not use"],
        {"optimizer__dense__parts": {"top": {"weights": ["*"], "schedule": {"warmup_steps": 3}}}},
    ),
    Case(
        "too few multipliers",
        ["optimizer.dense.schedule.multipliers is [1.0]", "2 of them"],
        {"optimizer__dense__schedule": {"decay": "piecewise", "boundaries": [5], "multipliers": [1.0]}},
    ),
    Case(
        "option of another optimizer",
        ["optimizer.dense.rho is 0.5", "'sgd' does not have", "adadelta"],
        {"optimizer__dense__rho": 0.5},
    ),
    Case(
        "Nesterov without momentum",
        ["optimizer.dense.nesterov", "set a momentum"],
        {"optimizer__dense__nesterov": True},
    ),
    Case(
        "arguments without an own optimizer",
        ["optimizer.dense.arguments is {'a': 1}", "'sgd'", "package.module:Class"],
        {"optimizer__dense__arguments": {"a": 1}},
    ),
    Case(
        "own optimizer that cannot be imported",
        ["optimizer.dense.name is 'custom:Nowhere', which cannot be imported"],
        {"optimizer__dense__name": "custom:Nowhere"},
    ),
    Case(
        "own optimizer of other arguments",
        ["optimizer.dense.name is 'torch.optim:AdamW'", "unexpected keyword argument 'depth'"],
        {"optimizer__dense": {"name": "torch.optim:AdamW", "arguments": {"depth": 3}}},
    ),
    Case(
        "own optimizer whose state does not begin at zero",
        ["optimizer.dense.name is 'torch.optim:NAdam'", "begin at zero", "use another"],
        {"optimizer__dense__name": "torch.optim:NAdam"},
    ),
    Case(
        "own optimizer without weight decay",
        ["optimizer.dense.name is 'custom:NamelessRate'", "weight_decay"],
        {"optimizer__dense": {"name": "custom:NamelessRate", "weight_decay": 0.1}},
    ),
    Case(
        "part that matches nothing",
        ["optimizer.dense.parts.top.weights has 'ovr_arch.*'", "nearest is 'over_arch.model"],
        {"optimizer__dense__parts": {"top": {"weights": ["*.bias", "ovr_arch.*"]}}},
    ),
    Case(
        "part that an earlier one takes all of",
        ["optimizer.dense.parts.low.weights is ['*.bias']", "earlier parts"],
        {"optimizer__dense__parts": {"all": {"weights": ["*"]}, "low": {"weights": ["*.bias"]}}},
    ),
    Case(
        "part of an unknown optimizer",
        ["optimizer.dense.parts.top.name is 'adem'", "'adam'"],
        {"optimizer__dense__parts": {"top": {"weights": ["*"], "name": "adem"}}},
    ),
    Case(
        "part with an option of another optimizer",
        ["optimizer.dense.parts.top.rho is 0.5", "'adam' does not have", "adadelta"],
        {"optimizer__dense__parts": {"top": {"weights": ["*"], "name": "adam", "rho": 0.5}}},
    ),
    Case(
        "part with arguments and no optimizer of one's own",
        ["optimizer.dense.parts.top.arguments is {'d': 2.0}", "'sgd'", "package.module:Class"],
        {"optimizer__dense__parts": {"top": {"weights": ["*"], "arguments": {"d": 2.0}}}},
    ),
    Case(
        "part with Nesterov and no momentum",
        ["optimizer.dense.parts.top.nesterov is true", "set a momentum"],
        {"optimizer__dense__parts": {"top": {"weights": ["*"], "nesterov": True}}},
    ),
    Case(
        "part of an optimizer that cannot be resumed",
        ["optimizer.dense.parts.top.name is 'torch.optim:NAdam'", "begin at zero", "use another"],
        {"optimizer__dense__parts": {"top": {"weights": ["*.bias"], "name": "torch.optim:NAdam"}}},
    ),
    Case(
        "part with a broken regular expression",
        ["optimizer.dense.parts.top.weights.0 is 'regex:(over'", "no regular expression", "unterminated"],
        {"optimizer__dense__parts": {"top": {"weights": ["regex:(over"]}}},
    ),
    Case(
        "part whose regular expression matches nothing",
        ["optimizer.dense.parts.top.weights has 'regex:over_arch'", "nearest is 'over_arch.model"],
        {"optimizer__dense__parts": {"top": {"weights": ["regex:over_arch"]}}},
    ),
    Case(
        "frozen weight that is none",
        ["optimizer.dense.frozen has 's0'", "no dense weight", "nearest"],
        {"optimizer__dense__frozen": ["s0"]},
    ),
    Case(
        "part of frozen weights",
        ["optimizer.dense.parts.low.weights has '*.bias'", "no dense weight that trains"],
        {"optimizer__dense__frozen": ["*.bias"], "optimizer__dense__parts": {"low": {"weights": ["*.bias"]}}},
    ),
    Case("unknown metric", ["evaluate.metrics is 'auk'", "'auc'"], {"evaluate__metrics": ["auk"]}),
    Case(
        "evaluations by two counts",
        ["evaluate.every_steps is 2 and evaluate.every_epochs is 1", "set one of them"],
        {"evaluate": {"every_steps": 2, "every_epochs": 1}},
    ),
    Case(
        "evaluations at saves and by a count",
        ["evaluate.every_epochs is 1 and evaluate.at_saves is true", "set one of them"],
        {"evaluate": {"at_saves": True, "every_epochs": 1}, "checkpoint__every_epochs": 1},
    ),
    Case("a part of an epoch", ["evaluate.every_epochs is 0.5", "integer"], {"evaluate__every_epochs": 0.5}),
    Case(
        "saves by two counts",
        ["checkpoint.every_steps is 2 and checkpoint.every_epochs is 1", "set one of them"],
        {"checkpoint": {"every_steps": 2, "every_epochs": 1}},
    ),
    Case(
        "evaluations at saves by the clock",
        ["evaluate.at_saves is true, but checkpoint.every_minutes is 5", "save by every_steps or every_epochs"],
        {"evaluate__at_saves": True, "checkpoint": {"every_minutes": 5, "every_epochs": 1}},
    ),
    Case(
        "evaluations at no saves",
        ["evaluate.at_saves is true, but checkpoint.every_steps and checkpoint.every_epochs are 0", "leave it out"],
        {"evaluate__at_saves": True},
    ),
    Case(
        "best without evaluations",
        ["checkpoint.keep.best is 'auc'", "data.validation is empty"],
        {"checkpoint__keep__best": "auc"},
    ),
    Case(
        "best final evaluation without a metric",
        ["evaluate.final is 'best'", "checkpoint.keep.best is not set"],
        {"evaluate__final": "best"},
    ),
    Case(
        "best final evaluation of nothing",
        ["evaluate.final is 'best'", "data.test is not set"],
        {"evaluate__final": "best", "checkpoint__keep__best": "auc", "data__validation": ["."]},
    ),
    Case(
        "patience without a metric",
        ["train.stop_early.patience is set", "train.stop_early.metric is not"],
        {"train__stop_early__patience": 2},
    ),
    Case(
        "early stop without evaluations",
        ["train.stop_early.metric is 'auc'", "evaluate.every_steps is 0"],
        {"train__stop_early__metric": "auc"},
    ),
    Case(
        "early stop without validation data",
        ["train.stop_early.metric is 'auc'", "data.validation is empty"],
        {"train__stop_early__metric": "auc", "evaluate__every_steps": 2},
    ),
    Case(
        "early stop by a metric without direction",
        ["train.stop_early.metric is 'calibration'", "allowed: auc, normalized_entropy, log_loss"],
        {"train__stop_early__metric": "calibration", "evaluate__every_steps": 2, "data__validation": ["."]},
    ),
    Case(
        "averages that never move", ["--optimizer.ema.decay is 1.0", "less than 1"], flags=["--optimizer.ema.decay=1"]
    ),
    Case(
        "averages of tables without a decay",
        ["optimizer.ema.tables is set", "optimizer.ema.decay is not"],
        {"optimizer__ema__tables": True},
    ),
    Case(
        "unknown choice of a checkpoint",
        ["finetune.take is 'oldest'", "newest, best, or the number of a step"],
        {"finetune": {"checkpoint": "runs/other", "take": "oldest"}},
    ),
    Case(
        "choice of no checkpoint",
        ["finetune.take is set", "finetune.checkpoint is not"],
        {"finetune__take": "best"},
    ),
    Case(
        "stack after the end",
        ["train.stuck_seconds is 700", "train.collective_timeout_seconds is 600", "must be below it"],
        {"train__stuck_seconds": 700.0},
    ),
    Case(
        "preflight after the end",
        ["train.preflight_seconds is 60", "train.collective_timeout_seconds is 50", "raise the timeout"],
        flags=[
            "--train.stuck-seconds",
            "9",
            "--train.preflight-seconds",
            "60",
            "--train.collective-timeout-seconds",
            "50",
        ],
    ),
    Case(
        "histograms nowhere",
        ["report.histograms_every_steps is 5", "report.tensorboard is false"],
        {"report__histograms_every_steps": 5},
    ),
    Case(
        "profile without warm-up",
        ["report.profile.first_step is 1", "greater than or equal to 2"],
        {"report__profile": {"first_step": 1}},
    ),
    Case(
        "profile of a rank that is not there",
        ["report.profile.ranks has 1", "the ranks of this job are 0 to 0"],
        {"report__profile": {"first_step": 5, "ranks": [0, 1]}},
    ),
    Case(
        "memory of a GPU without one",
        ["report.profile.memory is true", "runs on cpu"],
        {"report__profile": {"memory": True}},
    ),
    Case(
        "unwritable run directory",
        ["--out is", "good/part-00.parquet/out", "Not a directory", "name a path without a file"],
        out="{folder}/good/part-00.parquet/out",
    ),
    Case(
        "unwritable file system",
        ["--out is '/proc/out'", "name a path that exists, or one that can be made"],
        out="/proc/out",
    ),
    Case(
        "unknown sharding type",
        ["planner.sharding_types", "'row_wide'", "'row_wise'"],
        {"planner__sharding_types": ["row_wide"]},
    ),
    Case(
        "plan that does not fit",
        ["planner.host_memory_gib is 1e-06", "use more ranks"],
        {"planner__host_memory_gib": 1e-6},
    ),
    Case(
        "batch that does not fit",
        ["data.global_batch_size is 80000000", "its activations", "planner.host_memory_gib is 1.0", "smaller batch"],
        {"data__global_batch_size": 80_000_000, "planner__host_memory_gib": 1.0},
    ),
    Case(  # six tables of 64 TiB each, more than a process can address
        "plan that fits only by its own figures",
        ["'s0' of 65,536.0 GiB", "planner.host_memory_gib", "planner.reserve", "use more ranks"],
        {
            "data__sparse": {f"s{i}": {"rows": 2**31 - 1} for i in range(6)},
            "model__embedding_dim": 8192,
            "planner__sharding_types": ["table_wise"],
            "planner__host_memory_gib": 1e9,
        },
    ),
    Case(
        "int8 on row_wise",
        ["comms.forward is 'int8'", "row_wise", "bf16"],
        {"comms__forward": "int8", "planner__sharding_types": ["row_wise"]},
    ),
]


def write_wrong_data(folder: Path, good: Path) -> None:
    (folder / "good").symlink_to(good)
    table = pq.read_table(good / "part-00.parquet")
    label = pa.array([None if row == 57 else 1.0 for row in range(len(table))], pa.float32())
    text = pa.array(["x"] * len(table))
    whole = (good / "part-00.parquet").read_bytes()
    pq.write_table(replaced(table, "d0", text), folder / "text.parquet")
    pq.write_table(replaced(table, "label", label), folder / "null.parquet")
    pq.write_table(table.slice(0, 0), folder / "empty.parquet")
    (folder / "truncated.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "damaged.parquet").write_bytes(whole[:4] + b"\xff" * (len(whole) // 2) + whole[4 + len(whole) // 2 :])


def replaced(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


class Runs:
    """The cases' directories, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def out(self, case: Case) -> Path:
        own = self.folder / case.name if case.out == Case.out else self.folder
        return Path(case.out.format(folder=own))

    def arguments(self, case: Case) -> list[str]:
        file = write_config(self.folder / f"{case.name}.toml", config(self.folder / case.data, **case.changes))
        return ["train", str(file), "--out", str(self.out(case)), *case.flags]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("wrong")
    write_wrong_data(folder, rows)
    return Runs(folder)


@pytest.fixture
def train(capfd):
    """Trains in this process, where torch is imported already; everything that reaches the terminal is captured."""

    def train(arguments: list[str]) -> CompletedProcess[str]:
        capfd.readouterr()
        code = trainer(arguments)
        return CompletedProcess(arguments, code, *capfd.readouterr())

    return train


@pytest.fixture
def done(runs, train):
    """A finished run in FOLDER/done."""
    case = Case("done", [], flags=["--train.steps", "2"], out="{folder}/done")
    assert train(runs.arguments(case)).returncode == 0
    return contents(runs.out(case))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_one_line(done, expected: list[str]) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stdout + done.stderr
    for words in expected:
        assert words in done.stderr


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_line_is_printed_and_nothing_committed(runs, train, case):
    assert_one_line(train(runs.arguments(case)), case.expected)
    assert not list(runs.out(case).rglob("manifest.json"))


def test_a_run_of_another_configuration_is_left_alone(runs, train, done):
    case = Case(
        "other",
        ["--out is", "model.embedding_dim is 16 there", "and 8 here", "choose another"],
        {"model__embedding_dim": 8},
        out="{folder}/done",
    )
    assert_one_line(train(runs.arguments(case)), case.expected)
    assert contents(runs.out(case)) == done


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["missing file", "id out of range", "null label", "damaged Parquet"])
def test_the_same_directory_trains_once_the_input_is_right(runs, name):
    """In processes of their own, as a user starts them."""
    case = next(case for case in CASES if case.name == name)
    assert_one_line(run_trainer(*runs.arguments(case)), case.expected)
    good = write_config(runs.folder / f"{name}.toml", config(runs.folder / "good", train__steps=4))
    done = run_trainer("train", good, "--out", runs.out(case))
    assert done.returncode == 0, done.stderr
    assert (runs.out(case) / "checkpoints/step-000000004/manifest.json").exists()


def test_a_wrong_value_on_one_rank_ends_the_job(runs, tmp_path):
    case = next(case for case in CASES if case.name == "null label")
    file = write_config(tmp_path / "config.toml", config(runs.folder / case.data, **case.changes))
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=2, seconds=300)
    assert done.returncode != 0
    line = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert all(words in line for words in case.expected)
    assert not list(tmp_path.rglob("manifest.json"))


def test_malformed_lines_of_criteo_are_named(tmp_path):
    (tmp_path / "bad.tsv").write_text(BAD_TSV)
    arguments = ["criteo", "--source", tmp_path / "bad.tsv", "--out", tmp_path / "out"]
    assert_one_line(run_trainer(*arguments), ["bad.tsv:2:", "cat_0", "not-hex!", "--max-malformed is 0", "repair"])
    assert not list(tmp_path.rglob("train/*.parquet"))
    assert not list(tmp_path.rglob("summary.json"))
    (tmp_path / "bad.tsv").write_text(GOOD_TSV * 3)
    assert run_trainer(*arguments).returncode == 0
    assert list(tmp_path.rglob("summary.json"))


CUSTOM_MODEL = """
import logging, warnings

def build(inputs):
    logging.getLogger(__name__).warning("logged")
    warnings.warn("warned")
    raise ValueError("failed")
"""


def test_an_elastic_job_does_not_repeat_it(tmp_path):
    """torchrun starts failed ranks again, up to 100 times in an elastic job."""
    job = Training(tmp_path / "nowhere.toml", tmp_path / "out", restarts=100)
    output = job.end(seconds=300)
    assert job.code != 0
    assert output.count("error: configuration") == 1
    assert job.outcome().startswith("wrong input: configuration ")


def test_a_bug_is_no_wrong_input(tmp_path, rows):
    """What fails outside of this package keeps its traceback and exits with 1; what it logs is shown."""
    (tmp_path / "custom_model.py").write_text(CUSTOM_MODEL)
    file = write_config(tmp_path / "config.toml", config(rows, model__name="custom_model:build"))
    done = run_trainer("train", file, "--out", tmp_path / "out", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert all(words in done.stderr for words in ("Traceback", "ValueError: failed", "logged", "warned"))


def test_a_run_directory_that_was_moved_away_is_not_begun_anew(refusal, tmp_path, monkeypatch):
    """As the next attempt of a job finds it, whose scheduler passes on the step that an earlier one has saved."""
    monkeypatch.setenv("TORCHX_SAVED_STEP", "1234")
    expected = "which holds no checkpoint, but an earlier attempt of this job has saved step 1,234 there; put the"
    assert f"error: --out is '{tmp_path}/out', {expected}" in refusal({})
    assert not (tmp_path / "out").exists()
