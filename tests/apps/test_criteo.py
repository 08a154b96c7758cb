import gzip
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer
from object_store import object_store

from torchx_recsys.apps.datasets.criteo import criteo, find_sources
from torchx_recsys.apps.datasets.writer import SPLITS
from trainer.core.errors import InputError

RUN = "import sys; from trainer.commands import read_command; read_command(['criteo', *sys.argv[1:]])()"
# Not ru_maxrss: a process inherits that from the one that started it.
PEAK = f"{RUN}\nprint('peak', next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"


def make_lines(rows, seed=0):
    """Lines of text; int_0 counts them, so that their order can be checked."""
    random = np.random.default_rng(seed)
    ints = random.integers(-2, 5000, (rows, 13))
    ints[:, 0] = np.arange(rows)
    ids = random.integers(0, 2**32, (rows, 26))
    missing = random.random((rows, 39)) < 0.2
    missing[:, 0] = False
    lines = []
    for row in range(rows):
        dense = ["" if missing[row, i] else str(ints[row, i]) for i in range(13)]
        sparse = ["" if missing[row, 13 + i] else f"{ids[row, i]:08x}" for i in range(26)]
        lines.append("\t".join([str(row % 4 // 3), *dense, *sparse]))
    return lines


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def expected(lines, transform=lambda x: math.log(max(x, -2) + 3)):
    """The rows of the lines, one at a time and without the code under test."""
    rows = []
    for line in lines:
        fields = line.split("\t")
        dense = [transform(int(field)) if field else None for field in fields[1:14]]
        rows.append([float(fields[0]), *dense, *(int(field, 16) if field else None for field in fields[14:])])
    return rows


def read(out, *splits):
    files = [file for split in splits for file in sorted(Path(out, split).glob("*"))]
    return pa.concat_tables([pq.read_table(file) for file in files])


def assert_rows(table, rows):
    assert table.num_rows == len(rows)
    for column, values in zip(table.itercolumns(), zip(*rows, strict=True), strict=True):
        found = column.to_pylist()
        assert [value is None for value in found] == [value is None for value in values]
        assert [value or 0 for value in found] == pytest.approx([value or 0 for value in values], rel=1e-6, abs=1e-6)


def digests(out):
    return {path.relative_to(out): path.read_bytes() for path in Path(out).rglob("*") if path.is_file()}


def test_every_value_arrives_and_kaggle_splits_by_time(tmp_path):
    lines = make_lines(1400)
    summary = criteo((write(tmp_path / "train.txt", lines),), str(tmp_path / "out"), source_bytes_per_file=50_000)
    table = read(tmp_path / "out", "train", "validation", "test")
    assert_rows(table, expected(lines))
    assert table.schema.field("label").type == pa.float32()
    assert {table.schema.field(f"int_{i}").type for i in range(13)} == {pa.float32()}
    assert {table.schema.field(f"cat_{i}").type for i in range(26)} == {pa.int64()}
    rows = {split: values["rows"] for split, values in summary["splits"].items()}
    assert rows == {
        "train": pytest.approx(1200, abs=15),
        "validation": pytest.approx(100, abs=10),
        "test": pytest.approx(100, abs=10),
    }
    assert json.loads((tmp_path / "out/summary.json").read_text()) == summary
    assert summary["splits"]["train"]["label_rate"] == pytest.approx(0.25, abs=0.01)


def test_files_say_how_they_were_made(tmp_path):
    criteo((write(tmp_path / "train.txt", make_lines(100)),), str(tmp_path / "out"), dense_transform="none")
    metadata = pq.read_schema(next((tmp_path / "out/train").iterdir())).metadata
    assert metadata[b"dense_transform"] == b"x, missing stays null"
    assert b"take it modulo the table's rows" in metadata[b"id_rule"]
    assert pq.ParquetFile(next((tmp_path / "out/train").iterdir())).metadata.metadata[b"counts"]


def test_dense_values_can_stay_as_they_are(tmp_path):
    lines = make_lines(100)
    criteo((write(tmp_path / "train.txt", lines),), str(tmp_path / "out"), dense_transform="none")
    assert_rows(read(tmp_path / "out", "train", "validation", "test"), expected(lines, transform=float))


def test_short_ids_capitals_carriage_returns_and_a_last_line_without_an_end(tmp_path):
    line = "\t".join(["1", *["7"] * 13, "a", "FFFFFFFF", "0", *["12ab"] * 23])
    (tmp_path / "train.txt").write_text("\r\n".join([line] * 30), newline="")
    criteo((str(tmp_path / "train.txt"),), str(tmp_path / "out"))
    assert_rows(read(tmp_path / "out", "train", "validation", "test"), expected([line] * 30))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_byte_order_mark_and_empty_lines_are_no_data(tmp_path, suffix):
    lines = make_lines(700)
    lines[5] = lines[5].replace("\t5\t", f"\t{2**63 - 1}\t", 1)
    text = ["\ufeff", *(f"{line}\n" + "\r\n\n" * (n % 100 == 0) for n, line in enumerate(lines)), "\n\n"]
    (tmp_path / "plain").write_text("".join(text), newline="")
    source = write(tmp_path / f"train.txt{suffix}", (tmp_path / "plain").read_bytes().decode().split("\n"))
    summary = criteo((source,), str(tmp_path / "out"), source_bytes_per_file=20_000)
    assert summary["malformed_lines"] == 0
    assert_rows(read(tmp_path / "out", "train", "validation", "test"), expected(lines))


def test_row_groups_have_65536_rows(tmp_path):
    lines = make_lines(1000)
    criteo((write(tmp_path / "day_0", lines * 150),), str(tmp_path / "out"), "terabyte", evaluation_source="")
    metadata = pq.ParquetFile(tmp_path / "out/train/part-00000-00000.parquet").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [65536, 65536, 18928]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_terabyte_validates_and_tests_on_the_last_day(tmp_path, suffix):
    days = {day: make_lines(200, seed=day) for day in (2, 10, 23)}
    for day, lines in days.items():
        write(tmp_path / f"day_{day}{suffix}", lines)
    pattern = f"{tmp_path}/day_*"
    summary = criteo((pattern,), str(tmp_path / "out"), "terabyte", source_bytes_per_file=20_000, workers=2)
    assert_rows(read(tmp_path / "out", "train"), expected(days[2] + days[10]))
    assert_rows(read(tmp_path / "out", "validation", "test"), expected(days[23]))
    assert summary["splits"]["validation"]["rows"] == pytest.approx(100, abs=5)
    assert summary["splits"]["train"]["files"] > 2


def test_sources_behind_a_link_count_and_hidden_ones_do_not(tmp_path, capsys):
    for name in ("disk/day_0", "disk/._day_0", "raw/b/day_1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "raw" / "a").symlink_to(tmp_path / "disk")
    found = find_sources((f"{tmp_path}/raw/*/*day_?",))
    assert found == [f"{tmp_path}/raw/a/day_0", f"{tmp_path}/raw/b/day_1"]
    assert "--source: left out 1 path, hidden or temporary: " in capsys.readouterr().out


@pytest.mark.sample(1)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_object_storage(suffix):
    lines = make_lines(300)
    text = "".join(f"{line}\n" for line in lines).encode()
    with object_store() as store:
        store.fs.mkdir("bucket")
        store.fs.pipe_file(f"bucket/in/train.txt{suffix}", gzip.compress(text) if suffix else text)
        done = run_trainer("criteo", "--source", "s3://bucket/in/*", "--out", "s3://bucket/out", **store.environment)
        assert done.returncode == 0, done.stderr
        names = [name for split in SPLITS for name in store.fs.ls(f"bucket/out/{split}", detail=False)]
        assert_rows(pa.concat_tables([pq.read_table(name, filesystem=store.fs) for name in names]), expected(lines))


GOOD = "\t".join(["0", *["1"] * 13, *["0000000a"] * 26])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("0\t1\t2", "3 tab-separated fields instead of 40"),
        (GOOD[2:], "39 tab-separated fields instead of 40; without a label"),
        ("0", "1 tab-separated field instead of 40"),
        ("2" + GOOD[1:], "label is '2'"),
        (GOOD[1:], "label is ''"),
        (GOOD.replace("0\t1\t1", "0\t1\t1.5"), "int_1 is '1.5', not an integer"),
        (GOOD.replace("0\t1\t1", "0\t1\t0x1"), "int_1 is '0x1', not an integer"),
        (GOOD.replace("0\t1\t1", "0\t1\t-"), "int_1 is '-', not an integer"),
        (GOOD.replace("0\t1\t1", f"0\t1\t{2**63}"), "int_1 is '9223372036854775808', too large for a 64-bit integer"),
        (GOOD.replace("0\t1\t1", "0\t1\t" + "9" * 5000), f"int_1 is '{'9' * 40}', too large for a 64-bit integer"),
        (GOOD[:-8] + "0000000g", "cat_25 is '0000000g', not up to 8 hexadecimal digits"),
        (GOOD[:-8] + "-0000001", "cat_25 is '-0000001'"),
        (GOOD[:-8] + "123456789", "cat_25 is '123456789'"),
        (GOOD[:-8] + "\x00\xff", "cat_25 is"),
    ],
)
def test_a_malformed_line_is_named_or_left_out(tmp_path, bad, message, capsys):
    lines = make_lines(700)
    source = write(tmp_path / "train.txt", [*lines[:432], bad, *lines[432:]])
    with pytest.raises(ValueError, match="malformed") as error:
        criteo((source,), str(tmp_path / "out"), source_bytes_per_file=20_000)
    assert f"{source}:433: {message}" in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out/summary.json").exists()
    summary = criteo((source,), str(tmp_path / "out"), source_bytes_per_file=20_000, max_malformed=1)
    assert summary["malformed_lines"] == 1
    assert f"left out: {source}:433: {message}" in capsys.readouterr().err
    assert_rows(read(tmp_path / "out", "train", "validation", "test"), expected(lines))


def test_one_malformed_line_too_many(tmp_path):
    source = write(tmp_path / "train.txt", ["x"] * 5 + make_lines(100))
    with pytest.raises(ValueError, match=r"5 malformed lines, and --max-malformed is 4: .*train.txt:1: "):
        criteo((source,), str(tmp_path / "out"), max_malformed=4)


@pytest.mark.more("rare")
def test_a_killed_conversion_goes_on(tmp_path):
    source = write(tmp_path / "train.txt", make_lines(2000) * 100)
    arguments = ["--source", source, "--source-bytes-per-file", "2000000", "--workers", "2"]
    subprocess.run(
        [sys.executable, "-c", RUN, *arguments, "--out", tmp_path / "whole"], check=True, capture_output=True
    )
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments, "--out", tmp_path / "killed"], stderr=subprocess.PIPE
    )
    train = tmp_path / "killed/train"
    while not (train.exists() and len(list(train.glob("*.parquet"))) >= 3):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = {path: path.stat().st_mtime_ns for path in train.glob("*.parquet")}
    assert not (tmp_path / "killed/summary.json").exists()
    subprocess.run(
        [sys.executable, "-c", RUN, *arguments, "--out", tmp_path / "killed"], check=True, capture_output=True
    )
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")


def test_other_settings_do_not_mix(tmp_path):
    source = write(tmp_path / "train.txt", make_lines(100))
    criteo((source,), str(tmp_path / "out"))
    with pytest.raises(ValueError, match=r"holds a data set made with dense_transform = .*name another one as --out"):
        criteo((source,), str(tmp_path / "out"), dense_transform="none")


def test_a_directory_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "out/train").mkdir(parents=True)
    (tmp_path / "out/train/mine.parquet").write_text("mine")
    with pytest.raises(ValueError, match=r"holds files but no settings\.json; name an empty directory as --out"):
        criteo((write(tmp_path / "train.txt", make_lines(10)),), str(tmp_path / "out"))


@pytest.mark.more("measures processes of their own")
def test_memory_does_not_grow_with_the_file(tmp_path):
    block = ("\n".join(make_lines(4000)) + "\n").encode()
    with (tmp_path / "train.txt").open("wb") as file:
        for _ in range(480):
            file.write(block)
    size = (tmp_path / "train.txt").stat().st_size
    arguments = ["--source", tmp_path / "train.txt", "--out", tmp_path / "out", "--workers", "1"]
    done = subprocess.run([sys.executable, "-c", PEAK, *arguments], check=True, capture_output=True, text=True)
    peak = int(done.stdout.split()[-1]) * 1024
    assert size > 400 * 2**20
    assert peak < 300 * 2**20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": ()}, "--source is empty"),
        ({"source": ("missing*",)}, "matches no file"),
        ({"source": (".",)}, "is a directory; name its files"),
        ({"layout": "terabyte"}, "--evaluation-source 'day_23' must name one of the sources .train.txt."),
        ({"source_bytes_per_file": 0}, "--source-bytes-per-file is 0"),
        ({"workers": -1}, "--workers is -1"),
    ],
)
def test_wrong_arguments_get_one_clear_line(tmp_path, arguments, message):
    source = write(tmp_path / "train.txt", make_lines(10))
    with pytest.raises(InputError, match=message) as error:
        criteo(**{"source": (source,), "out": str(tmp_path / "out")} | arguments)
    assert "\n" not in str(error.value)


def test_a_file_without_lines(tmp_path):
    for name in ("train.txt", "more.txt"):
        (tmp_path / name).touch()
    one, two = str(tmp_path / "train.txt"), str(tmp_path / "more.txt")
    with pytest.raises(InputError, match=rf"^--source names no line: {one} is empty; name other files$"):
        criteo((one,), str(tmp_path / "out"))
    with pytest.raises(InputError, match=rf"^--source names no line: {one}, {two} are empty; name other files$"):
        criteo((one, two), str(tmp_path / "out"))


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "train.txt").write_bytes(bytes(2**22))
    with pytest.raises(ValueError, match="over 1 MiB long; is it Criteo's text"):
        criteo((str(tmp_path / "train.txt"),), str(tmp_path / "out"), source_bytes_per_file=2**20)


def test_a_compressed_file_that_was_cut(tmp_path):
    source = write(tmp_path / "train.txt.gz", make_lines(1000))
    Path(source).write_bytes(Path(source).read_bytes()[:-1000])
    with pytest.raises(ValueError, match="cannot be decompressed, is it whole"):
        criteo((source,), str(tmp_path / "out"))
