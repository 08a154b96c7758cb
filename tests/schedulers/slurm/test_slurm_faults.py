"""Troubles of jobs on a real Slurm: lost nodes, full disks, absent controllers, restarts without progress."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from slurm_cluster import CGROUPS, default_proctrack
from slurm_shell import Shell, number

pytestmark = [pytest.mark.slurm, pytest.mark.more("a training on Slurm stands for all")]

ONCE = '[ -e "$TORCHX_OUTCOME_FILE.once" ] && exit 0; touch "$TORCHX_OUTCOME_FILE.once"; '


def ended(shell, handle):
    """Waits for the end of a job; returns its state, its restarts and its message."""
    status = shell.wait(handle)
    return status["state"], status["num_restarts"], status["msg"]


def wait_for_log(shell, handle, words):
    while words not in shell.torchx("log", handle):
        time.sleep(0.5)


def test_a_job_with_a_lost_node_did_not_succeed(shell):
    """srun of Slurm 22.05 ends with 0 when the node of one replica is lost and the others end well."""
    works = """
        echo here; [ -e "again-$SLURM_PROCID" ] && exit 0
        touch "again-$SLURM_PROCID"; [ "$SLURM_PROCID" = 0 ] || sleep 1000
        until [ -e cut ]; do sleep 0.2; done
    """
    handle = shell.shell_job(works, "--num_replicas", "2")
    while shell.torchx("log", handle).count("here") < 2:
        time.sleep(0.5)
    second = shell.status(handle)["roles"][0]["replicas"][1]["hostname"]
    shell.cluster.cut_power(second)
    (shell.folder / "cut").touch()
    try:
        time.sleep(5)  # the first replica ends meanwhile
    finally:
        shell.cluster.start_node(second)
    state, restarts, _ = ended(shell, handle)
    assert state == "SUCCEEDED"
    assert restarts >= 1, shell.batch_log(handle)
    assert shell.torchx("log", handle).count("here") == 4


def test_a_node_that_is_up_again_at_once_was_lost_all_the_same(shell):
    """srun misses its step there and kills the other replica, which has not failed."""
    handle = shell.shell_job(
        '[ -e "again-$SLURM_PROCID" ] && exit 0; touch "again-$SLURM_PROCID"; sleep 1000', "--num_replicas", "2"
    )
    while not (shell.folder / "again-1").exists():
        time.sleep(0.2)
    while "hostname" not in str(shell.status(handle)):
        time.sleep(0.5)
    second = shell.status(handle)["roles"][0]["replicas"][1]["hostname"]
    shell.cluster.cut_power(second)
    shell.cluster.start_node(second)
    assert ended(shell, handle)[0] == "SUCCEEDED", shell.batch_log(handle)
    assert not (shell.job_dir(handle) / f"slurm-{number(handle)}" / "failures").exists()


def test_a_job_without_the_shells_environment_is_not_restarted_for_ever(shell):
    if shell.cluster.prefix:
        pytest.skip("this Slurm is found by PATH alone, which is not passed on here; needs one that is installed")
    shell.env = shell.env | {"SBATCH_EXPORT": "NONE"}
    well, badly = shell.shell_job("true"), shell.shell_job("exit 3")
    assert ended(shell, well)[:2] == ("SUCCEEDED", 0), shell.batch_log(well)
    assert ended(shell, badly)[:2] == ("FAILED", 0), shell.batch_log(badly)


def test_failures_that_cannot_be_counted_end_the_job(shell):
    """As on a full disk: the count of failures cannot be written."""
    handle = shell.shell_job('mkdir -p "${TORCHX_OUTCOME_FILE%/*}/failures"; exit 3', "--max_retries", "9")
    state, restarts, message = ended(shell, handle)
    assert (state, restarts) == ("FAILED", 0)
    assert "not retried, as failures cannot be counted on this disk" in message


def test_the_last_attempt_counts(shell):
    """Not what another replica, perhaps on another node, did before."""
    handle = shell.shell_job('[ -e "$TORCHX_OUTCOME_FILE.once" ] && exit 5; ' + ONCE + "exit 4", "--max_retries", "1")
    state, restarts, message = ended(shell, handle)
    assert (state, restarts, "exit code 5; " in message) == ("FAILED", 1, True)
    assert "(exitcode: 5)" in shell.torchx("status", handle)


def test_an_elastic_job_gets_all_nodes_that_are_free(shell):
    job = ("dlrm.multi_node", "--config", "nowhere.toml", "-j", "1:3x1", "--cpu", "1", "--memMB", "2000")
    handle = shell.submit(*job, cfg="setup=true")  # with which the configuration is not looked at before the queue
    shell.wait(handle, "RUNNING")
    assert "NumNodes=3 " in shell.cluster.run("scontrol", "show", "job", number(handle))
    shell.torchx("cancel", handle)


def test_a_warning_before_anything_was_saved_uses_up_no_retry(shell):
    """The trainer is not up yet when Slurm's warning comes, and dies of it."""
    handle = shell.shell_job(ONCE + "echo ready; exec sleep 1000")
    wait_for_log(shell, handle, "ready")
    shell.cluster.run("scancel", "--signal=USR1", "--batch", number(handle))
    assert ended(shell, handle)[:2] == ("SUCCEEDED", 1), shell.batch_log(handle)


SAVES = "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.1; done"


@pytest.mark.parametrize("proctrack", ["proctrack/cgroup", "proctrack/linuxproc"])
def test_a_signal_reaches_a_replica_once(proctrack, clusters, tmp_path):
    """Slurm signals the first process of a replica with cgroups, and all of them with linuxproc."""
    if proctrack == "proctrack/cgroup" != default_proctrack():
        pytest.skip(CGROUPS)
    default = proctrack == default_proctrack()
    shell = Shell(clusters(True) if default else clusters(False, proctrack), tmp_path)
    handle = shell.shell_job("trap 'echo got USR1' USR1;" + SAVES)
    wait_for_log(shell, handle, "ready")
    shell.cluster.run("scancel", "--signal=USR1", number(handle) + ".0")
    wait_for_log(shell, handle, "got USR1")
    shell.torchx("cancel", handle)
    assert ended(shell, handle)[:2] == ("CANCELLED", 0), shell.batch_log(handle)
    log = shell.torchx("log", handle)
    assert (log.count("got USR1"), log.count("saved")) == (1, 1), log


def test_a_warning_during_setup_uses_up_no_retry(shell):
    handle = shell.shell_job("true", cfg="setup=echo preparing;sleep 3")
    while "preparing" not in shell.batch_log(handle):
        pass
    shell.cluster.run("scancel", "--signal=USR1", "--batch", number(handle))
    assert ended(shell, handle)[:2] == ("SUCCEEDED", 1), shell.batch_log(handle)
    assert "requeued: stop requested before anything started" in shell.batch_log(handle)


def test_restarts_that_gain_no_step_are_bounded(shell):
    idle = 'echo "stopped at step 3, saved /out/checkpoints/step-000000003" > "$TORCHX_OUTCOME_FILE"; exit 1'
    gains = """
        count=$(($(cat count 2> /dev/null) + 1)); echo $count > count
        [ $count = 4 ] && exit 0
        echo "stopped at step $count, saved /out/checkpoints/step-00000000$count" > "$TORCHX_OUTCOME_FILE"; exit 1
    """
    stuck, moving = (shell.shell_job(command, cfg="max_free_restarts=1") for command in (idle, gains))
    state, restarts, message = ended(shell, stuck)
    assert (state, restarts) == ("FAILED", 2)  # the first attempt has gained a step
    assert (
        "failed: restarts in a row that gained no step: 1 (-cfg max_free_restarts=1); at last stopped at step 3"
        in message
    )
    assert ended(shell, moving)[:2] == ("SUCCEEDED", 3)


def test_a_node_on_which_two_attempts_failed_is_left_out(shell):
    shell.cluster.run("scontrol", "update", "NodeName=n[2-3]", "Weight=9")  # n1 is taken as long as it may be
    while shell.cluster.run("squeue", "-h", "-w", "n1"):  # sinfo may call a node mixed for minutes after its last job
        time.sleep(0.5)
    handle = shell.shell_job('[ "$SLURMD_NODENAME" = n1 ] && exit 5; exit 0', "--max_retries", "3", cfg="exclude=n3")
    assert ended(shell, handle)[:2] == ("SUCCEEDED", 2), shell.batch_log(handle)
    assert "two attempts failed on some: excluding n1,n3" in shell.batch_log(handle)


def test_preemption_by_cancellation_is_followed_by_a_requeue(clusters, tmp_path):
    """Without a time of grace, a replica has KillWait to save."""
    shell = Shell(clusters(True), tmp_path)
    saves = """trap 'sleep 8; echo "stopped at step 3, saved x" > "$TORCHX_OUTCOME_FILE"; exit 1' TERM
        echo ready; while :; do sleep 0.1; done"""
    partition = ("PartitionName=cheap", "Nodes=ALL", "PriorityTier=1", "PreemptMode=CANCEL", "GraceTime=0")
    shell.cluster.run("scontrol", "create", *partition)
    handle = shell.shell_job(ONCE + saves, cfg="partition=cheap,exclusive=True")
    wait_for_log(shell, handle, "ready")
    urgent = shell.shell_job("true", "--num_replicas", "3", cfg="partition=high,exclusive=True")
    assert ended(shell, urgent)[0] == "SUCCEEDED"
    assert ended(shell, handle)[:2] == ("SUCCEEDED", 1), shell.batch_log(handle)
    assert "requeued: stopped at step 3, saved x" in shell.batch_log(handle)


def test_a_replica_that_ends_well_ends_no_other(shell):
    """And one that fails ends the others, once they have had time to save."""
    longer = 'echo start; [ "$SLURM_PROCID" = 0 ] && exit {}; sleep {}; echo done'
    handles = [
        shell.shell_job(longer.format(*how), "--num_replicas", "2", cfg="begin=now+1hour")
        for how in ((0, 6), (3, 1000))
    ]
    handles = [resubmitted(shell, handle, "wait_seconds=120", "wait_seconds=1") for handle in handles]
    well, badly = (ended(shell, handle) for handle in handles)
    assert well[:2] == ("SUCCEEDED", 0), shell.batch_log(handles[0])
    assert shell.torchx("log", handles[0]).count("done") == 1
    assert badly[:2] == ("FAILED", 0)
    assert re.match(r"failed: replica 0 on n\d: Exited with exit code 3; ", badly[2])
    assert "ending the replicas that are left 1 s after the first failure" in shell.batch_log(handles[1])


def resubmitted(shell, handle, words, replaced):
    """Submits the script of a job that waits again, with other words in it, in its place."""
    script = shell.job_dir(handle) / "torchx-job.sh"
    assert words in script.read_text()
    script.write_text(script.read_text().replace(words, replaced).replace("#SBATCH --begin=now+1hour\n", ""))
    shell.torchx("cancel", handle)
    submit = subprocess.run(
        ["sbatch", "--parsable", script], env=shell.env, check=True, stdout=subprocess.PIPE, text=True
    )
    return f"slurm://torchx/{submit.stdout.strip()}"


def test_a_step_that_was_saved_is_passed_on_to_later_attempts(shell):
    """The second attempt saves nothing."""
    saves = """
        echo "attempt $TORCHX_SAVED_STEP"; count=$(($(cat count 2> /dev/null) + 1)); echo $count > count
        [ $count = 1 ] && echo "saved /out/checkpoints/step-000000007" > "$TORCHX_OUTCOME_FILE"
        [ $count = 3 ]
    """
    handle = shell.shell_job(saves, "--max_retries", "2")
    assert ended(shell, handle)[:2] == ("SUCCEEDED", 2), shell.batch_log(handle)
    assert shell.torchx("log", handle).splitlines() == ["sh/0 attempt ", "sh/0 attempt 7", "sh/0 attempt 7"]


def batch_script(handle):
    """The process of a job's batch script, on this machine."""
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, variables = (process.info[name] or [] for name in ("cmdline", "environ"))
        if "slurm_script" in " ".join(words) and dict(variables).get("SLURM_JOB_ID") == number(handle):
            with contextlib.suppress(psutil.NoSuchProcess):  # a part of the script, which has ended
                if psutil.Process(process.ppid()).name().startswith("slurmstepd"):
                    return process
    raise AssertionError(f"no batch script of {handle} runs")


def test_a_batch_script_that_was_killed_is_named_in_the_status(clusters, tmp_path):
    """Slurm does not requeue such a job, and nothing of the job is left that could."""
    shell = Shell(clusters(True), tmp_path)  # without accounting, it may be forgotten, and has noted nothing
    handle = shell.shell_job("echo ready; sleep 1000", "--max_retries", "3")
    wait_for_log(shell, handle, "ready")
    batch_script(handle).kill()
    state, restarts, message = ended(shell, handle)
    assert (state, restarts) == ("FAILED", 0)
    again = f"submit it again to go on: sbatch {shell.job_dir(handle)}/torchx-job.sh"
    assert f"FAILED, signal 9: the batch script itself was killed, and nobody was left to retry; {again}" in message


def test_a_job_that_was_submitted_without_an_answer_is_found(shell):
    """The controller hangs while sbatch waits, and takes the job when sbatch has given up."""
    conf = shell.folder / "slurm.conf"
    conf.write_text(Path(shell.env["SLURM_CONF"]).read_text().replace("MessageTimeout=60", "MessageTimeout=2"))
    wrapper = shell.folder / "bin/sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f"""#!/bin/bash
        controller=$(cat {shell.cluster.folder}/slurmctld.pid)
        kill -STOP $controller
        {shutil.which("sbatch", path=shell.env["PATH"])} "$@"; code=$?
        (sleep 3; kill -CONT $controller) > /dev/null 2>&1 &
        exit $code
        """
    )
    wrapper.chmod(0o755)
    job = ("run", "-s", "slurm", "utils.sh", "--memMB", "100", "echo", "hello")
    ordinary, shell.env = (
        shell.env,
        shell.env
        | {
            "PATH": f"{wrapper.parent}:{shell.env['PATH']}",
            "SLURM_CONF": str(conf),
        },
    )
    done = shell.try_torchx(*job)
    assert "Socket timed out on send/recv operation; looking whether the job was submitted all the same" in done.stderr
    assert done.returncode == 0, done.stderr
    shell.env = ordinary
    assert ended(shell, done.stdout.strip())[:2] == ("SUCCEEDED", 0)


def test_a_job_that_may_have_been_submitted_keeps_its_directory(shell):
    wrapper = shell.folder / "bin/sbatch"
    wrapper.parent.mkdir()
    error = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    wrapper.write_text(f"#!/bin/bash\necho '{error}' >&2; exit 1\n")
    wrapper.chmod(0o755)
    shell.env = shell.env | {"PATH": f"{wrapper.parent}:{shell.env['PATH']}"}
    done = shell.try_torchx("run", "-s", "slurm", "utils.sh", "--memMB", "100", "true")
    (script,) = shell.folder.glob("slurm-jobs/*/torchx-job.sh")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(f"if it stays away, submit it again: sbatch {script}")


def test_a_log_that_is_deleted_while_it_is_followed_is_named(shell):
    handle = shell.shell_job("echo ready; exec sleep 1000")
    follow = subprocess.Popen(
        ["torchx", "log", "-f", handle], cwd=shell.folder, env=shell.env, stdout=-1, stderr=-1, text=True
    )
    assert follow.stdout.readline() == "sh/0 ready\n"
    log = shell.job_dir(handle) / f"slurm-{number(handle)}/sh-0.out"
    log.unlink()
    _, errors = follow.communicate(timeout=600)
    assert (follow.returncode, errors.splitlines()[-1]) == (
        *(2, f"torchx log: error: {log} was deleted while it was followed: what the job writes from now on is lost"),
    )
    shell.torchx("cancel", handle)


def test_commands_that_wait_outlast_an_absence_of_the_controller(shell):
    """`log -f` of one job, and `run --wait` of another."""
    conf = shell.folder / "slurm.conf"  # of a client that gives up as soon as one does by default
    conf.write_text(Path(shell.env["SLURM_CONF"]).read_text().replace("MessageTimeout=60", "MessageTimeout=3"))
    env = shell.env | {"SLURM_CONF": str(conf)}

    def torchx(*args):
        return subprocess.Popen(["torchx", *args], cwd=shell.folder, env=env, stdout=subprocess.PIPE, text=True)

    speaks = "for i in 1 2 3 4 5 6; do echo line $i; sleep 4; done"
    handle = shell.shell_job(speaks)
    shell.wait(handle, "RUNNING")
    follow = torchx("log", "-f", handle)
    waits = torchx("run", "--wait", "-s", "slurm", "utils.sh", "--memMB", "100", "--", "exec", "bash", "-c", speaks)
    waited = waits.stdout.readline().strip()
    shell.wait(waited, "RUNNING")
    with shell.cluster.controller_away():
        time.sleep(12)
    lines, _ = follow.communicate(timeout=600)
    assert (follow.returncode, lines.splitlines()) == (0, [f"sh/0 line {i}" for i in range(1, 7)])
    assert waits.wait(timeout=600) == 0
    assert ended(shell, waited)[0] == "SUCCEEDED"


def test_a_job_directory_of_another_user(clusters, tmp_path):
    """Root without the capability to read everything stands in for a user."""
    shell = Shell(clusters(True), tmp_path)
    handle = shell.shell_job("exit 3")
    shell.wait(handle)
    os.chown(shell.job_dir(handle), 65534, 65534)
    shell.job_dir(handle).chmod(0o700)
    as_user = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "torchx")

    def torchx(*args):
        return subprocess.run([*as_user, *args], cwd=shell.folder, env=shell.env, capture_output=True, text=True)

    status, log, listed = torchx("status", "--json", handle), torchx("log", handle), torchx("list", "-s", "slurm")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["state"] == "FAILED"
    assert log.returncode == 2
    assert "has left nothing that can be read here: it was not submitted by torchx, belongs to another" in log.stderr
    assert len(log.stderr.splitlines()) == 1
    assert listed.returncode == 0, listed.stderr


@contextlib.contextmanager
def unshared(folder):
    """A directory that no node sees."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_directory_that_nodes_lack_is_named(shell):
    """Even if Slurm has forgotten the job, which without accounting it soon has."""
    with unshared(shell.folder / "local") as folder:
        job = ("run", "-s", "slurm", "-cfg", "job_dir=job", "utils.sh", "--memMB", "100", "true")
        handle = shell.torchx(*job, cwd=folder).strip()
        state, _, message = ended(shell, handle)
        assert state == "FAILED"
        assert "the job directory must be on storage that all nodes share" in message
        assert "see " not in message
        assert "killed" not in message
        done = shell.try_torchx("log", handle)
        assert done.returncode == 2
        assert "left no log: " in done.stderr


def test_a_warning_that_would_come_at_once_is_refused(shell):
    shell.cluster.run("scontrol", "create", "PartitionName=short", "Nodes=ALL", "MaxTime=1")
    done = shell.try_torchx("run", "-s", "slurm", "-cfg", "partition=short", "utils.sh", "true")
    assert done.returncode == 2
    assert "-cfg signal_lead=120: must be less than the time limit (1:00)" in done.stderr


def test_a_record_that_cannot_be_written_is_said_before_the_job_is_submitted(shell):
    shell.env = shell.env | {"XDG_STATE_HOME": "/proc/nowhere"}
    done = shell.try_torchx("run", "-s", "slurm", "utils.sh", "--memMB", "100", "true")
    assert done.returncode == 2
    assert re.search("cannot keep a record of the job in /proc/nowhere/.*; set XDG_STATE_HOME", done.stderr)
    assert str(shell.folder) not in shell.cluster.run("squeue", "-h", "-o", "%Z")


def test_a_banner_of_sbatch_is_no_part_of_the_handle(shell):
    wrapper = shell.folder / "bin/sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/bash\necho "Welcome; 3 news"\nexec {shutil.which("sbatch", path=shell.env["PATH"])} "$@"\n'
    )
    wrapper.chmod(0o755)
    shell.env = shell.env | {"PATH": f"{wrapper.parent}:{shell.env['PATH']}"}
    assert re.fullmatch(r"slurm://torchx/\d+", shell.shell_job("true"))
