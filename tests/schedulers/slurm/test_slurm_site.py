"""Jobs of an ordinary account on a cluster as administrators set it up, with a second one on the same slurmdbd."""

import contextlib
import re
import shutil
import socket
import time

import curve
import job_array
import pytest
import tomli_w
from forked import start_forked, torchx
from pipelines_of_shell import done, held, submissions, submitted, table, verbs, write_pipeline
from shells import wait_for
from slurm_cluster import FEW, USER
from slurm_shell import app_id, number

pytestmark = [pytest.mark.slurm, pytest.mark.more("a training on Slurm stands for all")]

NO_MPI = "srun_args=--mpi none"  # in place of the site's default, which is broken

LATER = "begin=now+1hour"
ARRAY = ("arrays.py:bash", "--line", "true", "--seeds", "5,6,7")


@pytest.fixture
def shell(ordinary):
    """A shell of the account, which does without the site's default of MPI, as it is broken."""
    (ordinary.folder / ".torchxconfig").write_text("[slurm]\nsrun_args = --mpi none\n")
    return ordinary


def test_a_job_runs_to_its_end_as_the_user(ordinary):
    handle = ordinary.shell_job("id -un; echo done", "--num_replicas", "2", cfg=NO_MPI)
    assert ordinary.wait(handle)["state"] == "SUCCEEDED", ordinary.batch_log(handle)
    lines = ordinary.torchx("log", handle).splitlines()
    assert sorted(lines) == [f"sh/{replica} {line}" for replica in range(2) for line in ("done", ordinary.cluster.user)]
    assert ordinary.job_dir(handle).owner() == ordinary.cluster.user
    assert ordinary.listed() == {handle: "SUCCEEDED"}


def test_a_second_cluster_is_reached_from_the_first(ordinary, second):
    assert "idle" in ordinary.run("sinfo", "-M", second.name)
    number, _, cluster = ordinary.run("sbatch", "--parsable", "-M", second.name, "--hold", "--wrap", "true").partition(
        ";"
    )
    assert cluster.strip() == second.name
    ordinary.run("scancel", "-M", second.name, number)


@contextlib.contextmanager
def held_port(port):
    """A process that takes connections and does not answer, at a port of this machine, where all nodes are."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        yield


def test_nodes_meet_though_another_process_holds_their_port(ordinary):
    """They end as they have no data; before they meet, they would not have looked."""
    (ordinary.folder / "job.toml").write_text('base = "movielens"\n[data]\ntrain = ["nonesuch.parquet"]\n')
    job = ("dlrm.multi_node", "--config", "job.toml", "-j", "2x1", "--cpu", "1", "--memMB", "1000")
    handle = ordinary.submit(*job, cfg=f"{NO_MPI},sbatch_args=--hold")
    first = 20000 + int(number(handle)) % 10000
    with held_port(first):
        ordinary.run("scontrol", "release", number(handle))
        status = ordinary.wait(handle)
    assert status["msg"].startswith("failed: wrong input"), ordinary.batch_log(handle)
    (taken,) = re.findall(
        r"1 ports of n\d are held by other processes: replicas meet at (\d+)", ordinary.batch_log(handle)
    )
    assert int(taken) != first


def test_srun_that_fails_itself_is_no_lost_node(ordinary):
    """And each replica that fails is the cause, whatever the site's defaults do to other steps of the job."""
    causes = {
        "": r"srun: mpi/pmix\S* init: .*can not load PMIx library",
        "srun_args=--mpi none --nosuch": "srun: unrecognized option '--nosuch'",
        f"{NO_MPI},container_image=x": "srun: unrecognized option '--container-image=x'",
        f"{NO_MPI} --mem 200G": r"srun: Unable to create step for job \d+: Memory required by task is not available",
        NO_MPI: r"replica \d on n\d: Exited with exit code 255;",
    }
    handles = {cfg: ordinary.shell_job("exit 255", "--num_replicas", "2", cfg=cfg) for cfg in causes}
    for cfg, handle in handles.items():
        status = ordinary.wait(handle)
        assert (status["state"], status["num_restarts"]) == ("FAILED", 0), ordinary.batch_log(handle)
        assert re.match(f"failed: {causes[cfg]}", status["msg"]), cfg


def test_a_line_of_setup_that_fails_ends_the_job(ordinary):
    good = "f() { false;true; };f;(false;true);false || true;[ -e nonesuch ] && false;if true;then echo well;fi"
    bad = {"cd nonesuch": 1, "exit 0": 0}
    well, *others = (ordinary.shell_job("true", cfg=f"{NO_MPI},setup={setup};true") for setup in (good, *bad))
    assert ordinary.wait(well)["state"] == "SUCCEEDED", ordinary.batch_log(well)
    for handle, (line, code) in zip(others, bad.items(), strict=True):
        status = ordinary.wait(handle)
        named = line if code else "a line that exits"
        assert status["state"] == "FAILED"
        assert status["msg"].startswith(f"failed: setup: {named} ended with exit code {code}")


def test_a_job_that_waits_until_somebody_does_something_says_so(ordinary):
    ordinary.cluster.run("scontrol", "create", "PartitionName=brief", "Nodes=ALL", "MaxTime=5")
    waits = {
        "sbatch_args=--hold": "held: JobHeldUser, until somebody releases it: scontrol release",
        "partition=brief,time=9": "waits for ever: PartitionTimeLimit: cancel it, and submit it with what the cluster",
    }
    for cfg, said in waits.items():
        handle = ordinary.shell_job("true", cfg=cfg)
        while ordinary.run("squeue", "-h", "-j", number(handle), "-o", "%r").strip() not in said:
            time.sleep(0.5)
        status = ordinary.status(handle)
        assert (status["state"], status["msg"][: len(said)]) == ("PENDING", said)
        ordinary.torchx("cancel", handle)


def test_a_time_limit_of_the_users_environment_counts(ordinary):
    ordinary.env |= {"SBATCH_TIMELIMIT": "1"}
    done = ordinary.try_torchx("run", "-s", "slurm", "utils.sh", "--memMB", "100", "true")
    assert done.returncode == 2
    assert "-cfg signal_lead=120: must be less than the time limit (1)" in done.stderr


def test_a_wrong_configuration_or_key_is_known_before_the_queue(ordinary):
    cases = {
        "nonesuch.toml": "configuration 'nonesuch.toml' (",
        "movielens -- --train.stepz 3": "unknown flag --train.stepz; did you mean --train.steps?",
    }
    for words, said in cases.items():
        done = ordinary.try_torchx("run", "-s", "slurm", "dlrm.multi_node", "--config", *words.split())
        assert done.returncode == 2
        assert said in done.stderr.splitlines()[-1]
    assert not (ordinary.folder / "slurm-jobs").exists()


def with_equal_numbers(shell, second, command):
    """Submits a job here, for later, and one to the other cluster, which gets the same number there."""

    def last(*where):
        return int(shell.run("sbatch", "--parsable", *where, "--hold", "--wrap", "true").partition(";")[0])

    here, there = last(), last("-M", second.name)
    for _ in range(here, there):
        last()
    for _ in range(there, here):
        last("-M", second.name)
    shell.run("scancel", "--me")
    shell.run("scancel", "--me", "-M", second.name)
    return shell.shell_job("true", cfg=LATER), shell.shell_job(command, cfg=f"clusters={second.name}")


def test_a_job_on_another_cluster_is_not_mistaken_for_one_here(shell, second):
    waits, runs = with_equal_numbers(shell, second, "echo I am $TORCHX_JOB_ID; exec sleep 600")
    assert app_id(runs) == f"{app_id(waits)}@{second.name}"
    shell.wait(runs, "RUNNING")
    assert shell.listed() == {waits: "PENDING", runs: "RUNNING"}
    assert shell.status(waits)["state"] == "PENDING"
    while not (log := shell.torchx("log", runs)):
        pass
    assert log == f"sh/0 I am {runs}\n"
    shell.torchx("cancel", runs)
    assert shell.wait(runs)["state"] == "CANCELLED"
    assert shell.status(waits)["state"] == "PENDING"
    shell.torchx("delete", waits)
    assert shell.listed() == {runs: "CANCELLED"}


def test_the_users_variable_for_clusters_counts_for_new_jobs_and_confuses_no_others(shell, second):
    here = shell.shell_job("true", cfg=LATER)
    shell.env["SLURM_CLUSTERS"] = second.name
    there = shell.shell_job("true", cfg=LATER)
    assert there.endswith(f"@{second.name}")
    assert shell.listed() == {here: "PENDING", there: "PENDING"}
    for handle in (here, there):
        shell.torchx("cancel", handle)
        assert shell.status(handle)["state"] == "CANCELLED"


def test_a_job_waits_for_one_on_its_own_cluster(shell, second):
    first = shell.shell_job("true", cfg=f"clusters={second.name},{LATER}")
    done = shell.try_torchx("run", "-s", "slurm", "-cfg", f"after={first}", "utils.echo")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"-cfg after={first}: is on the cluster {second.name}, and a job waits only for jobs on its own cluster; "
        in done.stderr
    )
    # Of several clusters, the one with that job is taken.
    then = shell.shell_job("true", cfg=f"clusters={shell.cluster.name},{second.name},after={first}")
    assert then.endswith(f"@{second.name}")
    assert f"waits for {first} (PENDING)" in shell.status(then)["msg"]
    shell.torchx("cancel", then)
    shell.torchx("cancel", first)


def test_a_pipeline_submits_each_step_once_to_another_cluster(shell, second):
    file = write_pipeline(shell.folder / "p.toml", a=(held(),), b=("true", "a"))
    run = ("pipeline", "run", "-s", "slurm", "-cfg", f"clusters={second.name}", "p.toml")
    first = submitted(shell.torchx(*run))
    shell.wait(first["a"][1], "RUNNING")
    assert verbs(shell.torchx(*run)) == {"a": "kept", "b": "kept"}
    assert "waits for a (RUNNING" in table(shell.torchx("pipeline", "status", "p.toml"))["b"][2]
    (shell.folder / "go").touch()
    shell.torchx(*run, "--wait")
    assert done(file) == ["a", "b"]


def test_what_slurm_does_not_know_cannot_be_cancelled(shell):
    handle = shell.shell_job("true", cfg=LATER)
    shell.torchx("cancel", handle)
    shell.torchx("cancel", handle)  # once more does no harm
    entry = shell.folder / "state/torchx-recsys/slurm" / shell.cluster.name / number(handle)
    shutil.copy(entry, entry.with_name("1"))  # as if it was a job of a cluster that was set up again
    done = shell.try_torchx("cancel", "slurm://torchx/1")
    assert done.returncode == 2
    assert "slurm://torchx/1: Slurm knows no such job; if it was one of another cluster, look there" in done.stderr
    done = shell.try_torchx("status", f"slurm://torchx/{number(handle)}@nowhere")
    assert done.returncode == 2
    assert "No cluster 'nowhere' known by database" in done.stderr


class Waiting:
    """`torchx WORDS`, which waits for room on the cluster."""

    def __init__(self, shell, *words):
        self.output, self.errors = shell.folder / "output", shell.folder / "errors"
        as_user = {"environment": shell.env, "folder": shell.folder, "user": USER}
        self.process = start_forked(torchx, *words, output=self.output, errors=self.errors, **as_user)

    def said(self):
        return "".join(file.read_text() for file in (self.output, self.errors) if file.exists())

    def until(self, line):
        wait_for(lambda: line in self.said() or self.process.poll() is not None)
        assert self.process.poll() is None, self.said()

    def end(self):
        assert self.process.wait(600) == 0, self.said()
        return self.said()


def test_a_job_waits_until_there_is_room_and_says_so_once(shell):
    others = [shell.shell_job("true", cfg=f"qos={FEW},{LATER}") for _ in range(2)]
    third = Waiting(shell, "run", "-s", "slurm", "-cfg", f"qos={FEW},{LATER}", "utils.echo")
    third.until("torchx run: sbatch: QOSMaxSubmitJobPerUserLimit; ")
    shell.torchx("cancel", others[0])
    assert third.end().count("waiting until a job has ended; Ctrl-C gives up") == 1
    assert sorted(shell.listed().values()) == ["CANCELLED", "PENDING", "PENDING"]
    shell.run("scancel", "--me")


def test_what_there_will_never_be_room_for_is_refused(shell):
    shutil.copy(job_array.__file__, shell.folder / "arrays.py")
    wait_for(lambda: not shell.run("squeue", "--me", "--noheader"))
    done = shell.try_torchx("run", "-s", "slurm", "-cfg", f"qos={FEW}", *ARRAY)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("; and you have no job whose end could make room for this one")
    assert not (shell.folder / "slurm-jobs").exists()


def test_the_steps_of_a_pipeline_for_which_there_is_no_room_wait(shell):
    file = write_pipeline(shell.folder / "p.toml", a=(held(),), b=("true", "a"), c=("true", "b"))
    run = Waiting(shell, "pipeline", "run", "-s", "slurm", "-cfg", f"qos={FEW}", "p.toml", "--wait")
    run.until("c  sbatch: QOSMaxSubmitJobPerUserLimit; ")
    (shell.folder / "go").touch()
    assert set(verbs(run.end()).values()) == {"submitted"}
    assert done(file) == ["a", "b", "c"]
    assert [note["number"] for note in submissions(file, "c")] == [1]


def test_a_trial_that_was_never_submitted_has_not_failed(shell, second):
    shutil.copy(curve.__file__, shell.folder)
    space = {"optimizer": {"dense": {"learning_rate": {"range": [0.0001, 1.0]}}}}
    tree = {
        **{"out": "out", "component": "curve.py:train", "trials": 3, "at_once": 3, "pruner": "none", "space": space},
        "arguments": {"config": "movielens", "until": str(shell.folder / "go")},
    }
    (shell.folder / "s.toml").write_text(tomli_w.dumps(tree))
    refused = shell.try_torchx("sweep", "run", "s.toml", "-s", "slurm", "-cfg", "partition=nope")
    assert (refused.returncode, refused.stdout.count("not submitted yet: sbatch: invalid partition")) == (2, 6)
    assert "trial 0 cannot be submitted: sbatch: invalid partition specified: nope; " in refused.stderr
    sweep = Waiting(shell, "sweep", "run", "s.toml", "-s", "slurm", "-cfg", f"qos={FEW},clusters={second.name}")
    waits = "trial   2  waits until there is room for its job: sbatch: QOSMaxSubmitJobPerUserLimit; "
    sweep.until(waits)
    (shell.folder / "go").touch()
    said = sweep.end()
    assert said.count(waits) == 1
    assert (said.count("  done at step 90"), said.count("  failed: ")) == (3, 0)
    assert [*shell.listed().values()] == ["SUCCEEDED"] * 3
