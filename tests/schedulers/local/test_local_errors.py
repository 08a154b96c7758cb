"""The first error of a job, at the end of `torchx run` and in `torchx status`."""

import json

import pytest
from shells import RUN

RANKS = """
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        {failure}
    __import__("time").sleep(600)

main()
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("raise RuntimeError('no s3://me:hunter2@host')", "sh/0, rank 1: RuntimeError: no s3://***@host"),
        ("os.kill(os.getpid(), 9)", "sh/0, rank 1: Signal 9 (SIGKILL) received by PID "),
    ],
)
def test_the_error_of_the_rank_that_failed_first_is_the_last_that_run_prints(torchx, tmp_path, failure, error):
    (tmp_path / "ranks.py").write_text(RANKS.format(failure=failure))
    done = torchx(*RUN, "utils.sh", "--", "torchrun", "--nproc-per-node", "2", tmp_path / "ranks.py")
    assert done.returncode == 1
    why, last = done.stderr.splitlines()[-2:]
    assert why.endswith("the job has ended as FAILED: sh/0 ended with exit code 1"), done.stderr
    assert last.startswith(f"  first error: {error}")
    status = torchx("status", done.stdout.strip()).stdout
    assert f"    Structured Error Msg: first error: {error}" in status
    assert "hunter2" not in status


@pytest.mark.more("one failure stands for all")
def test_of_several_replicas_it_is_that_of_the_first_that_failed_in_the_last_attempt(torchx, tmp_path):
    script = f"""
        [ $1 = 0 ] && {{ trap 'echo interrupted >&2; exit 1' TERM; touch {tmp_path}/trap; }}
        until [ -e {tmp_path}/trap ]; do sleep 0.05; done
        [ $1 = 1 ] && {{ echo x >> {tmp_path}/attempts; wc -l < {tmp_path}/attempts >&2; exit 5; }}
        sleep 600 & wait"""
    replicas = ("utils.sh", "--num_replicas", "2", "--max_retries", "1")
    done = torchx(*RUN, *replicas, "--", "exec", "sh", "-c", script, "sh", "${replica_id}")
    assert done.stderr.splitlines()[-1] == "  first error: sh/1, its last line: 2"
    status = torchx.status(done.stdout.strip())
    assert json.loads(status["structured_error_msg"])["errorCode"] == 5


@pytest.mark.more("one failure stands for all")
def test_an_earlier_attempt_is_not_blamed(torchx, tmp_path):
    script = f"[ -e {tmp_path}/x ] && exit 3; touch {tmp_path}/x; echo early >&2; exit 3"
    done = torchx(*RUN, "utils.sh", "--max_retries", "1", "--", "exec", "sh", "-c", script)
    assert done.stderr.splitlines()[-1].endswith("the job has ended as FAILED: sh/0 ended with exit code 3")


def test_wrong_input_is_in_the_log_and_in_the_status(torchx):
    done = torchx(*RUN, "dlrm.single_node", "--config", "nowhere.toml")
    assert done.returncode == 2
    said, _, last = done.stderr.splitlines()[-3:]
    assert "error: configuration 'nowhere.toml'" in said
    assert last.endswith("the job has ended as FAILED: wrong input, see above")
    assert torchx.status(done.stdout.strip())["msg"].startswith("wrong input: configuration 'nowhere.toml'")
