"""Jobs of an ordinary account on a cluster as administrators set it up, with a second one on the same slurmdbd."""

import pytest

pytestmark = pytest.mark.slurm

NO_MPI = "srun_args=--mpi none"  # in place of the site's default, which is broken


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
