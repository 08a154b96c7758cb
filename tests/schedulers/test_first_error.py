"""The first error in what torchrun and its ranks leave."""

import json

import pytest

from schedulers.first_error import error_message, first_error, structured, tail

REPORT = """\
[rank 0] rank 0 lost the connection to another rank, whose error counts
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
trainer FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-22_06:21:56
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 9576)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 9576
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_06:21:55
  host      : localhost
  rank      : 9 (local_rank: 1)
  exitcode  : {code} (pid: 9577)
  error_file: <N/A>
  traceback : {traceback}
============================================================
srun: error: n02: task 1: Exited with exit code 1
"""
SEE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
TRACEBACK = """\
Traceback (most recent call last):
    File "boom.py", line 10, in main
      raise RuntimeError("boom")
  RuntimeError: boom
  """


@pytest.mark.parametrize(
    ("code", "traceback", "error"),
    [
        (-9, "Signal 9 (SIGKILL) received by PID 9577", "rank 9: Signal 9 (SIGKILL) received by PID 9577"),
        (1, TRACEBACK, "rank 9: RuntimeError: boom"),
        (3, SEE, "rank 9: ended with exit code 3"),
    ],
)
def test_the_rank_that_torchrun_blames(code, traceback, error):
    assert first_error(REPORT.format(code=code, traceback=traceback)) == error


def test_the_message_of_the_error_file_is_whole(tmp_path):
    file = tmp_path / "error.json"
    message = "RuntimeError: shapes:\n    [1, 2]\n    [2, 1]"
    file.write_text(json.dumps({"message": {"message": message, "extraInfo": {"timestamp": "1"}, "errorCode": 1}}))
    assert first_error(REPORT.format(code=1, traceback=TRACEBACK), file) == f"rank 9: {message}"
    assert first_error("", file) == message


def test_the_last_line_of_a_program_without_torchrun():
    assert first_error("reading\nerror: the disk is full\n\n") == "its last line: error: the disk is full"
    assert first_error("") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (structured("boom", 1, 2.5), "boom"),
        ("plain text", "plain text"),
        ("[1]", "[1]"),
        (json.dumps({"message": {"message": "s3://me:hunter2@host"}}), "s3://***@host"),
    ],
)
def test_the_message_of_a_structured_error(text, message):
    assert error_message(text) == message


def test_a_structured_error_has_no_secrets():
    assert "hunter2" not in structured("no access to s3://me:hunter2@host", 1, 2.5)


def test_the_tail_of_a_log(tmp_path):
    (tmp_path / "log").write_bytes(b"x" * 100_000 + b"\nlast\n")
    assert tail(tmp_path / "log").endswith("x\nlast\n")
    assert len(tail(tmp_path / "log")) == 65536
    assert tail(tmp_path / "none") == ""
