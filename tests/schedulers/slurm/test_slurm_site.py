"""Jobs of an ordinary account on a cluster as administrators set it up, with a second one on the same slurmdbd."""

import shutil

import pytest
from pipelines_of_shell import done, held, submitted, table, verbs, write_pipeline
from slurm_shell import app_id, number

pytestmark = pytest.mark.slurm

LATER = "begin=now+1hour"


@pytest.fixture
def shell(ordinary):
    """A shell of the account, which does without the site's default of MPI, as it is broken."""
    (ordinary.folder / ".torchxconfig").write_text("[slurm]\nsrun_args = --mpi none\n")
    return ordinary


def test_a_job_runs_to_its_end_as_the_user(shell):
    handle = shell.shell_job("id -un; echo done", "--num_replicas", "2")
    assert shell.wait(handle)["state"] == "SUCCEEDED", shell.batch_log(handle)
    lines = shell.torchx("log", handle).splitlines()
    assert sorted(lines) == [f"sh/{replica} {line}" for replica in range(2) for line in ("done", shell.cluster.user)]
    assert shell.job_dir(handle).owner() == shell.cluster.user
    assert shell.listed() == {handle: "SUCCEEDED"}


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
