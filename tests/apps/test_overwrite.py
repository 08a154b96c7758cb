"""No command replaces what it did not make in the same run, unless `--overwrite` asks for it."""

import inspect
import json
from importlib import import_module

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from jobs import config

from trainer.__main__ import main as trainer
from trainer.commands import COMMANDS

PRECIOUS = "of somebody else"

# Each flag that names a file to write: the words of its command, where CONFIG, DATA, FILE and so on stand for paths.
FILES = {
    ("plan", "out"): "plan CONFIG --out FILE",
    ("plan", "page"): "plan CONFIG --page FILE",
    ("plan", "png"): "plan CONFIG --png FILE.png",
    ("schedule", "out"): "schedule CONFIG --out FILE.svg",
    ("check-data", "json"): "check-data CONFIG --json FILE",
    ("check-data", "page"): "check-data CONFIG --page FILE",
    ("check-data", "statistics"): "check-data CONFIG --statistics FILE",
    ("check-data", "write_config"): "check-data --source CLICKS --write-config FILE",
    ("vocabulary", "out"): "vocabulary --source DATA --columns s1 --out FOLDER",
    ("calibrate", "out"): "calibrate --out FILE --batch-size 64 --table-mib 1 --exchange-mib 1 --repeats 1",
    ("compare", "page"): "compare --runs RUN --page FILE",
    ("checkpoints", "convert"): "checkpoints --out RUN --convert FILE",
}

# Directories in which a job goes on, each with the files that such a job has there.
DIRECTORIES = {
    ("train", "out"): ("train CONFIG --out FOLDER", "config.toml"),
    ("predict", "to"): ("predict CONFIG --out RUN --source DATA --to FOLDER", "manifest.json"),
    ("embed", "to"): ("embed CONFIG --out RUN --table s1 --to FOLDER", "job.json"),
    ("rewind", "to"): ("rewind --out RUN --segment a --to FOLDER", "config.toml"),
    ("export", "to"): ("export CONFIG --out RUN --to FOLDER", "current.json"),
    ("movielens", "out"): ("movielens --out FOLDER", "items.parquet"),
    ("synthetic", "out"): ("synthetic --out FOLDER --rows 10 --validation-rows 1 --test-rows 1", "summary.json"),
    ("yambda", "out"): ("yambda --out FOLDER --users 40 --events 40", "summary.json"),
    ("sort-log", "out"): ("sort-log --source CLICKS --user item --time label --out FOLDER", "log.json"),
    ("split", "out"): ("split --source CLICKS --label label --out FOLDER", "summary.json"),
    ("recommend", "to"): (
        "recommend CONFIG --out RUN --source DATA --user-column row_id --items ITEMS --item-column s1 --to FOLDER",
        "job.json",
    ),
    ("criteo", "out"): ("criteo --source LINES --out FOLDER", "summary.json"),
    ("verify-resume", "keep"): ("verify-resume CONFIG --keep FOLDER", "anything"),
}

# Runs that are read, or written to by right: by a job that asks another one, and by one in a folder of its own there.
OTHERS = {(name, "out") for name in ("evaluate", "predict", "embed", "export", "checkpoints", "profile", "bench")}
OTHERS |= {("rewind", "out"), ("recommend", "out"), ("importance", "out"), ("track", "out")}
OTHERS |= {("split", "keep")}  # conditions
OTHERS |= {("embed-text", "out"), ("taobao", "out")}  # test_embed_text.py, test_taobao.py
OTHERS |= {("baselines", "to")}  # which refuses what it did not write, with or without --overwrite: test_baselines.py
OTHERS |= {("publish", "to")}  # versions, of which each has a new number: test_publish_files.py
OTHERS |= {("publish", "keep")}  # a number
OTHERS |= {("rollback", "to")}  # whose current.json it is there to change
OTHERS |= {("segments", "out"), ("segments", "to")}  # a page and what it measured, in the run; exports are only read


@pytest.fixture(scope="module")
def run(rows, tmp_path_factory):
    """A finished run, and a configuration of it."""
    folder = tmp_path_factory.mktemp("run")
    file = write_config(folder / "config.toml", config(rows, data__validation=[str(rows)]))
    done = run_trainer("train", file, "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    (folder / "lines.txt").write_text("\t".join(["1", *["2"] * 13, *["a0"] * 26]) + "\n")
    clicks = {"label": [row % 2 for row in range(400)], "item": [row * row % 37 for row in range(400)]}
    pq.write_table(pa.table(clicks), folder / "clicks.parquet")
    pq.write_table(pa.table({"s1": range(9)}), folder / "items.parquet")
    return folder


def typed(words, run, rows, tmp_path):
    """The words with paths in place of names."""
    places = {"CONFIG": run / "config.toml", "RUN": run / "run", "DATA": rows, "LINES": run / "lines.txt"}
    places |= {"CLICKS": run / "clicks.parquet", "ITEMS": run / "items.parquet"}
    places |= {"FOLDER": tmp_path / "folder", "FILE": tmp_path / "file", "FILE.png": tmp_path / "file.png"}
    places |= {"FILE.svg": tmp_path / "file.svg"}
    return [str(places.get(word, word)) for word in words.split()]


def test_every_flag_that_names_what_to_write_is_here():
    flags = set()
    for name, (place, _, _) in COMMANDS.items():
        module, _, function = place.partition(":")
        for parameter in inspect.signature(getattr(import_module(module), function)).parameters:
            if parameter in ("out", "to", "page", "png", "json", "statistics", "write_config", "convert", "keep"):
                flags.add((name, parameter))
    assert flags == FILES.keys() | DIRECTORIES.keys() | OTHERS


@pytest.mark.sample(4)
@pytest.mark.parametrize("words", FILES.values(), ids=[" --".join(flag) for flag in FILES])
def test_a_file_is_replaced_only_on_request(words, run, rows, tmp_path):
    arguments = typed(words, run, rows, tmp_path)
    (tmp_path / "folder").mkdir()
    for file in ("file", "file.png", "file.svg", "folder/s1.parquet"):
        (tmp_path / file).write_text(PRECIOUS)
    done = run_trainer(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "would replace" in done.stderr
    assert "--overwrite True" in done.stderr
    there = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {file.read_text() for file in there} == {PRECIOUS}
    assert len(there) == 4

    done = run_trainer(*arguments, "--overwrite", "True")
    assert done.returncode == 0, done.stderr
    assert [file.read_bytes() for file in there].count(PRECIOUS.encode()) == 3


@pytest.mark.few(2, "two stand for all")
@pytest.mark.parametrize(("words", "name"), DIRECTORIES.values(), ids=[" --".join(flag) for flag in DIRECTORIES])
def test_a_directory_of_something_else_is_refused(words, name, run, rows, tmp_path, capfd):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_text(json.dumps(PRECIOUS))
    assert trainer(typed(words, run, rows, tmp_path)) == 2
    assert capfd.readouterr().err.count("\n") == 1
    left = {file: file.read_text() for file in (tmp_path / "folder").rglob("*") if file.is_file()}
    assert left == {tmp_path / "folder" / name: json.dumps(PRECIOUS)}
