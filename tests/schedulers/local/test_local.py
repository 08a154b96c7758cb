"""The scheduler `local_cwd`: every shell sees and ends the jobs of every other."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest
from shells import RUN, SH, handle_of, runs, wait_for, waiting
from torchx.runner import get_runner

from schedulers.local.record import ENDED, Record


def test_run_shows_both_streams_and_ends_as_the_job(torchx):
    done = torchx(*RUN, *SH, "echo out; echo err >&2")
    assert done.returncode == 0, done.stderr
    assert {"sh/0 out", "sh/0 err"} <= set(done.stderr.splitlines())
    handle = done.stdout.strip()
    assert torchx.status(handle)["state"] == "SUCCEEDED"
    assert sorted(torchx("log", handle).stdout.splitlines()) == ["sh/0 err", "sh/0 out"]
    refused = torchx("log", "--regex", "(", handle)
    assert "Traceback" not in refused.stderr
    assert "--regex (: must be a regular expression: missing ), unterminated subpattern" in refused.stderr


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "sh/0 ended with exit code 3"),
        ("kill -9 $$$$", "sh/0 was killed by SIGKILL"),
        ("exec no-such-program", "sh/0 could not be started or ended with exit code 127: its program was not found"),
    ],
)
def test_a_failure_ends_run_with_1_and_status_says_how(torchx, script, message):
    done = torchx(*RUN, *SH, script)
    assert done.returncode == 1
    handle = done.stdout.strip()
    status = torchx.status(handle)
    assert (status["state"], status["msg"]) == ("FAILED", message)
    assert f"Msg: {message}" in torchx("status", handle).stdout


def test_a_program_that_is_not_there_is_named_in_the_log(torchx):
    done = torchx(*RUN, "utils.sh", "--entrypoint", "no-such-program", "--", "x")
    assert done.returncode == 1
    assert "cannot start sh/0: [Errno 2] No such file or directory" in done.stderr


def test_a_detached_job_outlives_its_shell(torchx, tmp_path):
    go = tmp_path / "go"
    shell = torchx.open(*RUN, "-cfg", "detach=True", *SH, waiting(go, end="echo done"))
    handle = handle_of(shell)
    assert shell.wait(60) == 0
    with pytest.raises(ProcessLookupError):  # nothing of the shell's session is left
        os.killpg(shell.pid, signal.SIGHUP)
    assert torchx.status(handle)["state"] == "RUNNING"
    follower = torchx.open("log", "-f", handle)
    assert follower.stdout.readline() == "sh/0 waiting\n"
    go.touch()
    assert follower.communicate(timeout=600)[0] == "sh/0 done\n"
    assert follower.returncode == 0
    assert torchx.status(handle)["state"] == "SUCCEEDED"


def test_run_detached_says_what_can_be_done_in_json_too(torchx, tmp_path):
    done = torchx(*RUN, "--json", "-cfg", "detach=True", *SH, waiting(tmp_path / "go"))
    assert json.loads(done.stdout)["state"] == "RUNNING"


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_attached_job_ends_with_its_shell(torchx, tmp_path, sent):
    go = tmp_path / "go"
    shell = torchx.open(*RUN, *SH, waiting(go))
    handle = handle_of(shell)
    wait_for(lambda: (tmp_path / "go.pid").exists())
    os.killpg(shell.pid, sent)
    said = shell.communicate(timeout=600)[1]
    assert "Traceback" not in said
    assert torchx.wait_for_end(handle)["state"] == "CANCELLED"
    assert not runs(int((tmp_path / "go.pid").read_text()))


def test_a_job_that_has_just_ended_is_not_said_to_be_cancelled(monkeypatch, tmp_path, capsys):
    """Its supervisor still lives for a moment."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with get_runner() as runner:
        runner.run_component("utils.sh", ["true"], "local_cwd")
        (record,) = Record.all()
        while record.progress().state not in ENDED:
            pass
    assert "cancelling" not in capsys.readouterr().err


def test_log_of_one_replica_one_stream_and_a_pattern(torchx):
    script = "echo out $1; echo err $1 >&2; echo more"
    done = torchx(*RUN, "utils.sh", "--num_replicas", "2", "--", "exec", "sh", "-c", script, "sh", "${replica_id}")
    assert done.returncode == 0, done.stderr
    handle = done.stdout.strip()
    assert torchx("log", f"{handle}/sh/1").stdout.count("sh/1 ") == 3
    assert torchx("log", "--streams", "stderr", f"{handle}/sh/1").stdout == "sh/1 err 1\n"
    assert torchx("log", "--streams", "stdout", f"{handle}/sh/0").stdout == "sh/0 out 0\nsh/0 more\n"
    assert sorted(torchx("log", "--regex", "^out", handle).stdout.splitlines()) == ["sh/0 out 0", "sh/1 out 1"]


def test_a_replica_that_is_not_there_is_one_line(torchx):
    handle = torchx(*RUN, *SH, ":").stdout.strip()
    done = torchx("log", f"{handle}/sh/7")
    assert done.returncode == 2
    app = handle.rpartition("/")[2]
    assert done.stderr == f"torchx log: error: job {app} has no replica sh/7; it has sh/0\n"


@pytest.mark.parametrize("part", ["", "/sh", "/sh/0"])
def test_a_job_that_is_not_there_is_one_line(torchx, part):
    done = torchx("log", f"local_cwd://torchx/sh-nowhere{part}")
    assert done.returncode == torchx("status", "local_cwd://torchx/sh-nowhere").returncode == 1
    assert done.stderr == "torchx log: error: no such job: local_cwd://torchx/sh-nowhere\n"


def test_cancel_lets_the_job_say_goodbye(torchx, tmp_path):
    script = f"trap 'echo saving; sleep 0.3; echo saved; exit 0' TERM; {waiting(tmp_path / 'go')}"
    handle = torchx.detached(*SH, script)
    wait_for(lambda: (tmp_path / "go.pid").exists())
    assert torchx("cancel", handle).returncode == 0
    assert torchx("cancel", handle).returncode == 0
    assert torchx.wait_for_end(handle)["state"] == "CANCELLED"
    assert torchx("log", "--streams", "stdout", f"{handle}/sh/0").stdout.endswith("sh/0 saving\nsh/0 saved\n")


@pytest.mark.more("a rare fault")
def test_cancel_kills_what_does_not_leave_sessions_of_their_own_too(torchx, tmp_path):
    stubborn = f"trap '' TERM; setsid sh -c 'echo $$$$ > {tmp_path}/child; sleep 600' & {waiting(tmp_path / 'go')}"
    handle = torchx.detached(*SH, stubborn, cfg=",grace_seconds=1")
    wait_for(lambda: (tmp_path / "child").exists() and (tmp_path / "go.pid").exists())
    torchx("cancel", handle)
    status = torchx.wait_for_end(handle)
    assert (status["state"], status["msg"]) == ("CANCELLED", "sh/0 was killed by SIGKILL")
    assert not runs(int((tmp_path / "child").read_text()))


def test_a_failed_replica_ends_the_others(torchx, tmp_path):
    script = f"[ $1 = 1 ] && exit 5; {waiting(tmp_path / 'go')}"
    command = ("utils.sh", "--num_replicas", "2", "--", "exec", "sh", "-c", script, "sh", "${replica_id}")
    done = torchx(*RUN, *command)
    assert done.returncode == 1
    status = torchx.status(done.stdout.strip())
    assert status["msg"] == "sh/0 was killed by SIGTERM, sh/1 ended with exit code 5"


@pytest.mark.more("test_restarts.py counts retries")
def test_failures_are_retried_as_often_as_asked(torchx, tmp_path):
    script = f"echo x >> {tmp_path}/attempts; [ $(wc -l < {tmp_path}/attempts) -ge $1 ]"
    retried = ("utils.sh", "--max_retries", "2", "--", "exec", "sh", "-c", script, "sh")
    done = torchx(*RUN, *retried, "3")
    assert done.returncode == 0, done.stderr
    handle = done.stdout.strip()
    assert torchx.status(handle)["num_restarts"] == 2
    assert (
        "sh/0 torchx: sh/0 ended with exit code 1; starting again in 4 seconds, restart 2"
        in torchx("log", handle).stdout
    )
    assert torchx(*RUN, *retried, "7").returncode == 1
    assert (tmp_path / "attempts").read_text() == 6 * "x\n"


def test_wrong_input_is_never_tried_again_and_said_in_the_status(torchx):
    train = ("dlrm.single_node", "--config", "nowhere.toml", "--max_retries", "3")
    handle = torchx.detached(*train)
    status = torchx.wait_for_end(handle)
    assert (status["state"], status["num_restarts"]) == ("FAILED", 0)
    assert status["msg"].startswith("wrong input: configuration 'nowhere.toml'")


@pytest.mark.more("test_restarts.py has outcomes")
def test_the_outcome_that_a_job_leaves_decides(torchx, tmp_path):
    """Stopped in order: started again, without using up retries. Finished: not again, whatever the exit code."""
    script = f"""
        [ -e $TORCHX_OUTCOME_FILE ] && exit 9
        echo x >> {tmp_path}/attempts
        case $(wc -l < {tmp_path}/attempts) in
            1|2) echo 'stopped at step 3, saved here' > $TORCHX_OUTCOME_FILE;;
            3) echo 'finished at step 9' > $TORCHX_OUTCOME_FILE;;
        esac
        exit 1"""
    done = torchx(*RUN, *SH, script)
    assert done.returncode == 0, done.stderr
    status = torchx.status(done.stdout.strip())
    assert (status["state"], status["msg"], status["num_restarts"]) == ("SUCCEEDED", "finished at step 9", 2)


@pytest.mark.more("a race")
def test_a_job_that_stopped_because_it_was_cancelled_stays_so(torchx, tmp_path):
    script = f"trap 'echo stopped at step 5 > $TORCHX_OUTCOME_FILE; exit 1' TERM; {waiting(tmp_path / 'go')}"
    handle = torchx.detached(*SH, script)
    wait_for(lambda: (tmp_path / "go.pid").exists())
    torchx("cancel", handle)
    status = torchx.wait_for_end(handle)
    assert (status["state"], status["msg"], status["num_restarts"]) == ("CANCELLED", "stopped at step 5", 0)


@pytest.mark.more("a rare fault")
def test_a_job_whose_supervisor_is_killed_has_failed(torchx, tmp_path):
    handle = torchx.detached(*SH, f"trap 'echo asked > {tmp_path}/asked; exit' TERM; {waiting(tmp_path / 'go')}")
    wait_for(lambda: (tmp_path / "go.pid").exists())
    wait_for(lambda: "waiting" in torchx("log", handle).stdout)
    supervisor = torchx.supervisor(handle)
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not runs(supervisor))
    status = torchx.status(handle)
    assert status["state"] == "FAILED"
    assert status["msg"].startswith(f"the supervisor of the job (process {supervisor}) was killed")
    assert "FAILED" in torchx("list", "-s", "local_cwd").stdout
    wait_for(lambda: not runs(int((tmp_path / "go.pid").read_text())))
    assert (tmp_path / "asked").exists()
    assert torchx("log", "-f", handle).stdout == "sh/0 waiting\n"


@pytest.mark.more("a rare fault")
def test_a_full_disk_is_named_in_the_status(torchx, tmp_path):
    torchx.state.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", torchx.state]).returncode:
        pytest.skip("mounting a file system needs root with CAP_SYS_ADMIN; run the tests as root")
    try:
        saves = f"trap 'touch {tmp_path}/saved; exit 1' TERM; while :; do sleep 0.1; done"
        script = f"if [ ${{replica_id}} = 0 ]; then while seq 1000; do sleep 0.01; done; exit 3; fi; {saves}"
        handle = torchx.detached("utils.sh", "--num_replicas", "2", *SH[1:], script)
        status = torchx.wait_for_end(handle)
        assert status["state"] == "FAILED"
        assert status["msg"] == f"ended, as nothing can be written to {torchx.record(handle)}: No space left on device"
        assert (tmp_path / "saved").exists()
        torchx("delete", handle)
    finally:
        subprocess.run(["umount", "--lazy", torchx.state], check=True)


@pytest.mark.more("a rare fault")
def test_delete_kills_what_a_killed_supervisor_left(torchx, tmp_path):
    handle = torchx.detached(*SH, f"trap '' TERM; {waiting(tmp_path / 'go')}")
    wait_for(lambda: (tmp_path / "go.pid").exists())
    os.kill(torchx.supervisor(handle), signal.SIGKILL)
    wait_for(lambda: torchx.status(handle)["state"] == "FAILED")
    left = int((tmp_path / "go.pid").read_text())
    found = re.search(r"; it left process ([\d, ]+), which", torchx.status(handle)["msg"])
    assert found
    assert str(left) in found[1].split(", ")  # beside the `sleep` that it may be waiting for
    torchx("delete", handle)
    wait_for(lambda: not runs(left))
    assert torchx("status", handle).returncode == 1


@pytest.mark.more("a rare fault")
def test_another_process_with_the_number_of_a_dead_one_is_not_taken_for_it(torchx, tmp_path):
    handle = torchx.detached(*SH, f"trap '' TERM; {waiting(tmp_path / 'go')}")
    wait_for(lambda: (tmp_path / "go.pid").exists())
    file = torchx.record(handle) / "progress.json"
    wait_for(lambda: json.loads(file.read_text())["processes"])  # the process starts before it is recorded
    os.kill(torchx.supervisor(handle), signal.SIGKILL)
    wait_for(lambda: torchx.status(handle)["state"] == "FAILED")
    os.kill(int((tmp_path / "go.pid").read_text()), signal.SIGKILL)
    wait_for(lambda: "it left" not in torchx.status(handle)["msg"])  # what the shell runs outlives it for a moment
    with subprocess.Popen(["sleep", "600"]) as other:
        progress = json.loads(file.read_text())
        progress["supervisor"] = progress["processes"][0]["pid"] = other.pid
        file.write_text(json.dumps(progress))
        status = torchx.status(handle)
        assert (status["state"], "it left" in status["msg"]) == ("FAILED", False)
        torchx("cancel", handle)
        torchx("delete", handle)
        assert other.poll() is None
        other.kill()


def test_delete_ends_a_running_job_and_forgets_it(torchx, tmp_path):
    handle = torchx.detached(*SH, waiting(tmp_path / "go"))
    wait_for(lambda: (tmp_path / "go.pid").exists())
    record = torchx.record(handle)
    assert torchx("delete", handle).returncode == 0
    wait_for(lambda: not record.exists())
    assert not runs(int((tmp_path / "go.pid").read_text()))


@pytest.mark.more("a rare fault")
def test_following_ends_when_the_record_is_deleted(torchx, tmp_path):
    handle = torchx.detached(*SH, waiting(tmp_path / "go"))
    follower = torchx.open("log", "-f", handle)
    assert follower.stdout.readline() == "sh/0 waiting\n"
    torchx("delete", handle)
    assert follower.wait(60) == 0


@pytest.mark.more("a detail")
def test_a_job_that_a_job_submits_is_not_a_part_of_it(torchx, tmp_path):
    inner = f"torchx run -s local_cwd -cfg detach=True utils.sh --entrypoint sleep -- 600 > {tmp_path}/inner"
    assert torchx(*RUN, *SH, inner).returncode == 0
    assert torchx.status((tmp_path / "inner").read_text().strip())["state"] == "RUNNING"


@pytest.mark.more("a race")
def test_shells_do_not_get_in_one_anothers_way(torchx):
    shells = [torchx.open(*RUN, "-cfg", f"detach={number % 2 == 0}", *SH, f"echo {number}") for number in range(6)]
    lists = [torchx.open("list", "-s", "local_cwd") for _ in range(3)]
    handles = [shell.communicate(timeout=600)[0].strip() for shell in shells]
    assert [shell.returncode for shell in shells] == [0] * 6
    assert [shell.wait(120) for shell in lists] == [0] * 3
    for number, handle in enumerate(handles):
        assert torchx.wait_for_end(handle)["state"] == "SUCCEEDED"
        assert torchx("log", handle).stdout == f"sh/0 {number}\n"
    listed = [line.split() for line in torchx("list", "-s", "local_cwd").stdout.splitlines()[2:]]
    assert sorted(listed) == sorted([handle, "sh", "SUCCEEDED"] for handle in handles)


@pytest.mark.more("a detail")
def test_old_records_are_pruned_and_running_jobs_never(torchx, tmp_path):
    running = torchx.detached(*SH, waiting(tmp_path / "go"))
    ended = torchx(*RUN, *SH, ":").stdout.strip()
    copies = [shutil.copytree(torchx.record(ended), torchx.record(ended).with_name(f"sh-{n}")) for n in range(110)]
    for number, copy in enumerate(copies):
        job = json.loads((copy / "job.json").read_text())
        (copy / "job.json").write_text(json.dumps(job | {"app_id": copy.name}))
        if number < 5:
            os.utime(copy / "job.json", (1.7e9, 1.7e9))
    os.utime(torchx.record(running) / "job.json", (1, 1))
    last = torchx(*RUN, *SH, ":").stdout.strip()
    left = {line.split()[0] for line in torchx("list", "-s", "local_cwd").stdout.splitlines()[2:]}
    assert {running, last} < left
    assert len(left) == 101
    assert not any(copy.exists() for copy in copies[:5])


def test_a_dry_run_leaves_nothing(torchx):
    done = torchx(*RUN, "--dryrun", *SH, ":")
    assert done.returncode == 0, done.stderr
    assert not torchx.state.exists()


def test_a_state_directory_that_cannot_be_made_is_one_line(torchx, tmp_path):
    (tmp_path / "file").touch()
    done = torchx(*RUN, *SH, ":", XDG_STATE_HOME=str(tmp_path / "file"))
    assert done.returncode == 2
    assert "torchx run: error: cannot keep a record of the job" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_directory_of_logs_that_cannot_be_made_is_one_line(torchx):
    done = torchx(*RUN, "-cfg", "log_dir=/proc/no/logs", *SH, ":")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("torchx run: error: the job cannot be started: FileNotFoundError")
    assert torchx("list", "-s", "local_cwd").stdout.count("local_cwd://") == 0


@pytest.mark.more("a detail")
def test_log_dir_keeps_the_logs_when_the_record_is_gone(torchx, tmp_path):
    done = torchx(*RUN, "-cfg", f"log_dir={tmp_path}/logs", *SH, "echo kept")
    handle = done.stdout.strip()
    torchx("delete", handle)
    logs = tmp_path / "logs/torchx" / handle.rpartition("/")[2] / "sh/0"
    assert (logs / "stdout.log").read_text() == (logs / "combined.log").read_text() == "kept\n"


@pytest.mark.more("a detail")
def test_programs_in_the_current_directory_come_last_or_first(torchx, tmp_path):
    for name in ("own-program", "id"):
        (tmp_path / name).write_text("#!/bin/sh\necho mine\n")
        (tmp_path / name).chmod(0o755)
    for options, name, count in (((), "own-program", 1), ((), "id", 0), (("-cfg", "prepend_cwd=True"), "id", 1)):
        shell = torchx.open(*RUN, *options, "utils.sh", "--", name)
        assert shell.communicate(timeout=600)[1].count("sh/0 mine") == count
