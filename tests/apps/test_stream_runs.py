"""What the tools do with a run over segments of a topic, whose copies in an archive are all that there is to read."""

import json
import re
import shutil
import time
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from hand_cut import HandCut
from jobs import config, losses, write_rows

from trainer.core.progress import TrainingProgress, of_log

ROWS = (200, 130, 192, 320)
AGES = (9000.0, 8000.0, 7000.0, 6000.0)  # of the newest event of each segment, in seconds
CUT = 40.0  # seconds from the newest event until it was cut


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run over four segments, with its exports; the label of the last is another feature's."""
    folder = tmp_path_factory.mktemp("stream")
    cut, now = HandCut(folder), time.time()
    for number, (rows, age) in enumerate(zip(ROWS, AGES, strict=True)):
        table = pq.read_table(write_rows(folder / "rows" / str(number), [rows], seed=number))
        if number == 3:
            place = table.schema.get_field_index("d0")
            table = table.set_column(place, "d0", pa.array(np.zeros(rows, np.float32)))
        of_late = {"late": 7, "tombstones": 1200} if number == 1 else {}
        cut.add(table, behind=1000 * number, last_event=now - age, cut_at=now - age + CUT, **of_late)
    tree = config(folder, checkpoint={"keep": {"segments": 9}}, publish={"shift_by": 1.0})
    tree["data"] |= cut.data
    del tree["data"]["train"], tree["train"]["steps"]
    write_config(folder / "config.toml", tree)
    first = do(folder, "train", "--data.segments.until", cut.names[2])
    export(folder, "exports")
    (folder / "printed").write_text(first + do(folder, "train"))
    return folder


def do(folder, command, *flags, out="run", code=0):
    where = ("--out", folder / out) if out else ()
    done = run_trainer(command, folder / "config.toml", *where, *flags)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def export(folder, to, *flags, out="run", code=0):
    return do(folder, "export", "--to", folder / to, *flags, out=out, code=code)


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_each_segment_is_reported_with_what_is_behind_it(folder):
    found = [line for line in (folder / "printed").read_text().splitlines() if re.match(r"segment \d+: ", line)]
    behind = [sum(ROWS[number + 1 :]) + 3000 for number in range(len(ROWS))]
    # The first job knows the segments up to `until` only.
    behind[:3] = [sum(ROWS[number + 1 : 3]) + 2000 for number in range(3)]
    assert len(found) == len(ROWS)
    for number, (line, records) in enumerate(zip(found, behind, strict=True)):
        ahead = max(0, 2 - number)
        assert f"; {ahead} segment{'' if ahead == 1 else 's'} and {records:,} records behind" in line
        assert ("newest event" in line) == (number > 0)
    progress = of_log([(time.time(), line) for line in found])
    assert isinstance(progress, TrainingProgress)
    assert progress.backlog == "segment 000000000003, 0 segments and 3,000 records behind"
    assert progress.newest_event == pytest.approx(time.time() - AGES[2], abs=600)


def test_the_table_has_counts_and_seconds(folder):
    printed = do(folder, "segments", "--to", folder / "exports")
    header, rule, *rows = printed.partition("\n\n")[0].splitlines()
    spans = [match.span() for match in re.finditer(r"-+", rule)]
    cells = [[row[first : last + 2].strip() for first, last in spans] for row in rows]
    titles = [header[first : last + 2].strip() for first, last in spans]
    table = {title: [row[place] for row in cells] for place, title in enumerate(titles)}
    assert table["late"] == ["", "7", "", ""]
    assert table["tombstones"] == ["", "1,200", "", ""]
    assert "left out" not in table
    assert table["records behind"] == ["", "1,000", "2,000", "3,000"]
    assert table["cut, seconds after"] == ["40"] * 4
    lines, metrics = lines_of(folder / "run/segments.jsonl"), lines_of(folder / "run/metrics.jsonl")
    ends = [json.loads(file.read_text())["last_event"] for file in sorted((folder / "segments").iterdir())]
    done = [next(one["time"] for one in metrics if one["step"] == line["step"]) for line in lines]
    expected = [f"{at - end:,.0f}" for at, end in zip(done, ends, strict=True)]
    assert table["trained, seconds after"] == expected
    assert [bool(cell) for cell in table["published, seconds after"]] == [True, True, True, False]
    page = (folder / "run/segments.html").read_text()
    assert "0 segments with 0 records cut and not trained on; 3,000 records after 000000000003" in page
    assert "Seconds behind" in page
    assert not {"time", "cut_at"} & {*lines[0]}
    gone, kept = folder / "segments/000000000000.json", folder / "gone.json"
    gone.rename(kept)
    assert "without a manifest" not in do(folder, "segments"), "what was read once is not read again"
    kept.rename(gone)


def test_a_shifted_segment_is_refused_and_a_rewind_goes_on_without_it(folder, tmp_path):
    """The rule compares the rows of two segments, which it reads from the archive."""
    line = export(folder, "exports", code=2)
    assert re.match(r"error: not published: segment 0{11}3: d0 shifted by 8\.\d+ from segment 0{11}2, and ", line)
    assert line.count("\n") == 1
    do(folder, "segments", "--to", folder / "exports")
    shifts = lines_of(folder / "run/segments-shift.jsonl")
    assert [one["segment"] for one in shifts] == [f"{number:012}" for number in range(4)]
    assert next(iter(shifts[3]["indices"])) == "d0"

    done = run_trainer("rewind", "--out", folder / "run", "--segment", "000000000001", "--to", tmp_path / "mended")
    assert done.returncode == 0, done.stderr
    assert "--data.segments.skip 000000000002" in done.stdout
    shutil.copy(folder / "config.toml", tmp_path)
    printed = do(tmp_path, "train", "--data.segments.skip", "000000000003", out="mended")
    assert "data.segments.skip leaves out segment 000000000003" in printed
    mended, run = tmp_path / "mended", folder / "run"
    assert lines_of(mended / "segments.jsonl") == lines_of(run / "segments.jsonl")[:3]
    assert losses(mended) == losses(run)[: len(losses(mended))]
    export(tmp_path, "exports", out="mended")


def test_other_commands_read_a_manifest_as_they_read_a_file(folder):
    """None of them needs the topic."""
    manifest = folder / "segments/000000000002.json"
    do(folder, "evaluate", "--data.segments.path", "None", "--data.test", manifest)
    assert json.loads((folder / "run/evaluation-test.json").read_text())["samples"] == ROWS[2]
    do(folder, "predict", "--source", manifest, "--to", folder / "predicted", "--keep-columns", "_partition", "_offset")
    found = pa.concat_tables([pq.read_table(file) for file in sorted((folder / "predicted").glob("*.parquet"))])
    assert found.num_rows == ROWS[2]
    assert {*found.column_names} >= {"_partition", "_offset"}
    done = run_trainer("plan", folder / "config.toml")
    assert done.returncode == 0, done.stderr
    do(folder, "check-data", "--data.segments.path", "None", "--data.train", manifest, out=None)
    written = folder / "guessed.toml"
    source = ("--source", manifest, "--reader", "kafka", "--label", "label", "--write-config", written)
    done = run_trainer("check-data", *source)
    assert done.returncode == 0, done.stderr
    assert re.search(r"_offset: +where the log of a topic has the record", done.stdout)
    guessed = tomllib.loads(written.read_text())["data"]
    assert not [name for name in (*guessed["dense"], *guessed["sparse"]) if name.startswith("_")]
    done = run_trainer("importance", folder / "config.toml", "--out", folder / "run", "--split", "validation")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
