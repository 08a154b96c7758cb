"""Commands that programs print for their user work as they are printed, whatever directories are called."""

import ast
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_torchx, run_trainer, write_config
from jobs import config, write_rows
from ports import free_port
from shell import hints, typed
from torchx.cli.main import get_sub_cmds

from trainer.commands import COMMANDS

ROOT = Path(__file__).parents[1]
PLACE = """the "runs" of $USER's"""  # what a shell would read otherwise, or not at all

# Each file that prints commands, and the commands that make it do so; RUN is of a run that the first one makes,
# and DAYS of one over segments.
PRINTED_BY = {
    "trainer/training/setup.py": ["train config.toml --out RUN"],
    "trainer/extensions/baselines/watcher.py": ["train config.toml --out RUN"],
    "trainer/training/driver.py": ["train config.toml --out RUN"],
    "torchx_recsys/apps/datasets/writer.py": [
        "synthetic --rows 2000 --validation-rows 100 --test-rows 100 --out PLACE/data"
    ],
    "torchx_recsys/apps/check_data/check_data.py": [
        "check-data --source PLACE/clicks.parquet --write-config PLACE/clicks.toml"
    ],
    "torchx_recsys/apps/embed_text/embed_text.py": [
        "embed-text --source PLACE/clicks.parquet --column word --out PLACE/embedded"
    ],
    "torchx_recsys/apps/split/split.py": ["split --source PLACE/clicks.parquet --label label --out PLACE/cut"],
    "torchx_recsys/apps/plan/answer.py": [
        "plan config.toml --out PLACE/plan.json",
        "plan config.toml --find aws_p5.48xlarge gcp_a3-highgpu-8g --train.steps 5",
    ],
    "torchx_recsys/apps/predict/resume.py": [
        "predict RUN/config.toml --out RUN --source rows --to PLACE/predictions",
        "embed RUN/config.toml --out RUN --table s1 --to PLACE/vectors",
    ],
    "torchx_recsys/apps/recommend/recommend.py": [
        "recommend RUN --out RUN --source rows --user-column row_id --items items.parquet --item-column s1 --users 3"
    ],
    "torchx_recsys/apps/runs/checkpoints.py": [
        "checkpoints --out RUN",
        "checkpoints --out RUN --convert PLACE/run.pt",
        "checkpoints --out RUN --convert PLACE/run.safetensors",
    ],
    "torchx_recsys/apps/cut_stream/cut_stream.py": [],  # test_cut_stream.py types it, where there is a broker
    "torchx_recsys/apps/row_store/publish.py": [],  # test_publish_rows.py types it, where there is a Redis
    "torchx_recsys/apps/runs/rewind.py": ["rewind --out DAYS --segment a --to PLACE/mended"],
    "components/cli/run.py": ["torchx run utils.echo --msg PLACE"],
    "torchx_recsys/pipelines/actions.py": ["torchx pipeline run PLACE/p.toml"],
    "torchx_recsys/sweeps/actions.py": [
        "torchx sweep tune config.toml --out PLACE/tuned --trials 1 --set evaluate.every_steps=2"
    ],
}

PROGRAMS = {"torchx": {*get_sub_cmds()}, "python": {f"-m trainer {name}" for name in COMMANDS}}
COMMANDS_THAT_PRINT = list(dict.fromkeys(command for commands in PRINTED_BY.values() for command in commands))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with rows and a configuration, and one below it of a name that a shell has to have quoted."""
    folder = tmp_path_factory.mktemp("hints")
    write_rows(folder / "rows", [400])
    splits = {"data__train": ["rows"], "data__validation": ["rows"], "data__test": ["rows"]}
    write_config(folder / "config.toml", config(folder, **splits, report__tensorboard=True))
    for seed, day in enumerate("abc"):
        write_rows(folder / "days" / day, [64], seed)
    days = config(folder, data__segments={"path": str(folder / "days/{segment}")}, checkpoint__keep={"segments": 3})
    del days["data"]["train"], days["train"]["steps"]
    write_config(folder / "days.toml", days)
    (folder / ".torchxconfig").write_text(f"[component:tools.tensorboard]\nport = {free_port()}\n")
    (folder / PLACE).mkdir()
    steps = {"a": {"component": "utils.echo"}, "b": {"component": "utils.echo", "after": ["a"]}}
    write_config(folder / PLACE / "p.toml", {"out": str(folder / "pipeline"), "steps": steps})
    pq.write_table(pa.table({"s1": range(9)}), folder / "items.parquet")
    clicks = {"label": [row % 2 for row in range(400)], "item": [row * row % 37 for row in range(400)]}
    clicks["word"] = [f"word {row % 7}" for row in range(400)]
    pq.write_table(pa.table(clicks), folder / PLACE / "clicks.parquet")
    return folder


def printed_by(command: str, folder: Path) -> str:
    """Returns what a command prints, which is run in the folder, with the names of directories in place of words."""
    names = {"RUN": f"{PLACE}/run", "DAYS": f"{PLACE}/days", "PLACE": PLACE}
    words = [re.sub("RUN|DAYS|PLACE", lambda found: names[found[0]], word) for word in command.split()]
    done = run_torchx(*words[1:], cwd=folder) if words[0] == "torchx" else run_trainer(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def messages(file: Path) -> list[str]:
    """Returns the strings of a program that are no docstrings; of an f-string, its parts."""
    tree = ast.parse(file.read_text())
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [node.value for node in strings if id(node) not in statements]


def sources() -> dict[str, Path]:
    places = ("components", "schedulers", "torchx_recsys", "trainer")
    files = [file for name in places for file in (ROOT / name).rglob("*.py")]
    return {str(file.relative_to(ROOT)): file for file in files}


def test_every_file_that_prints_commands_is_here():
    label = re.compile(r"\b(?:next|watch): *$|\b(?:next|watch): .*\b(?:torchx|python|make) ", re.IGNORECASE)
    found = {
        name
        for name, file in sources().items()
        if "next_commands(" in file.read_text() or any(label.search(message) for message in messages(file))
    }
    assert found - {"trainer/core/console.py"} == PRINTED_BY.keys()


def test_commands_that_messages_mention_exist():
    mentioned = re.compile(r"`((?:torchx|trainer|python -m trainer)\b[^`]*)`")
    found = [
        words.split() for file in sources().values() for text in messages(file) for words in mentioned.findall(text)
    ]
    assert len(found) > 4
    for program, *words in found:
        wanted = " ".join(words[:3]) if program == "python" else words[0]
        assert wanted in PROGRAMS.get(program, ()), words


@pytest.mark.few(1, "one stands for all")
@pytest.mark.sample(4)
@pytest.mark.parametrize("command", COMMANDS_THAT_PRINT)
def test_commands_that_a_program_prints_work(command, folder, path, monkeypatch):
    monkeypatch.chdir(folder)
    if "RUN" in command and "train " not in command:
        printed_by(COMMANDS_THAT_PRINT[0], folder)
    if "DAYS" in command:
        printed_by("train days.toml --out DAYS", folder)
    todo = hints(printed_by(command, folder))
    assert todo
    for hint in todo:
        typed(hint, folder, PATH=path)
