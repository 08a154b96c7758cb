"""Records of jobs that are not as they were written: one line with the name of the file, and no job submitted twice."""

import json

import pytest

from schedulers.errors import SchedulerError
from schedulers.local.record import Record as LocalRecord
from torchx_recsys.pipelines.record import Record, Submission
from torchx_recsys.sweeps.file import read_sweep
from torchx_recsys.sweeps.study import Study
from trainer.core.errors import InputError

FORMS = {
    "torn": lambda content: content[:-20],
    "NULs": lambda content: bytes(len(content)),
    "no text": lambda content: content[:-20] + b"\xff" + content[-19:],
    "another key": lambda content: content.replace(b'"scheduler"', b'"schedules"').replace(b'"state"', b'"statd"'),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_submission_is_not_taken_for_one_that_was_never_made(tmp_path, form):
    record = Record(str(tmp_path), "jobs", "pipeline")
    record.update(record.begin(Submission(step="train", number=1, scheduler="slurm", identity="x")), handle="slurm://x")
    file = tmp_path / "jobs/train-1.json"
    file.write_bytes(FORMS[form](file.read_bytes()))
    with pytest.raises(InputError, match=f"'{file}' is damaged: "):
        record.newest(["train"])
    file.write_text("")  # as its submitter leaves it that is killed before it writes
    assert record.newest(["train"]) == {"train": Submission(step="train", number=1)}


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_state_of_a_local_job_is_named(tmp_path, form):
    content = json.dumps({"state": "RUNNING", "restarts": 0, "processes": []}, indent=2).encode()
    (tmp_path / "lock").write_text("")
    (tmp_path / "progress.json").write_bytes(FORMS[form](content))
    (tmp_path / "job.json").write_bytes(FORMS[form](content))
    for read, name in ((LocalRecord(tmp_path).progress, "progress.json"), (LocalRecord(tmp_path).job, "job.json")):
        with pytest.raises(SchedulerError, match=f"^{tmp_path}/{name} is damaged: put a copy back"):
            read()


SWEEP = """
out = "{out}"
[arguments]
config = "movielens"
[space]
optimizer.dense.learning_rate = {{ log = [1e-4, 1e-1] }}
"""


@pytest.mark.parametrize("form", ["NULs", "another key"])
def test_a_damaged_journal_of_a_sweep_is_named(tmp_path, form):
    (tmp_path / "s.toml").write_text(SWEEP.format(out=tmp_path / "out"))
    sweep = read_sweep(str(tmp_path / "s.toml"))
    Study(sweep).ask()
    journal = tmp_path / "out/optuna.log"
    first, *others = journal.read_bytes().splitlines(keepends=True)
    damaged = bytes(len(first) - 1) + b"\n" if form == "NULs" else first.replace(b'"op_code"', b'"op_cnde"')
    journal.write_bytes(damaged + b"".join(others))
    with pytest.raises(InputError, match=r"out is '.*', whose optuna.log is damaged: "):
        Study(sweep)
