"""MovieLens on two replicas of the stand-in for a cluster, with Volcano and with JobSet."""

import json

import pytest
from command import run_trainer
from jobs import losses
from kube_api import Cluster

STEPS = 80


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, path):
    """One stand-in for all tests here: its containers share a directory, with the data in it, and the PATH."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    assert run_trainer("movielens", "--out", cluster.image / "data/movielens").returncode == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def train(cluster):
    """The arguments that train for a while on two replicas, into a run directory."""

    def words(out):
        job = ("dlrm.multi_node", "--config", "movielens", "-j", "2x1", "--cpu", "1", "--image", "trainer:1")
        steps = ("--train.steps", str(STEPS), "--report.interval-steps", "1", "--report.tensorboard", "False")
        return (*job, "--out", f"runs/{out}", "--", *steps)

    return words


@pytest.fixture
def volcano(cluster, torchx, train):
    """The handle of a job that nothing interrupts, on Volcano, and its run directory."""
    options = ("-cfg", "queue=default", "--workspace", "", "--wait")
    return torchx("run", "-s", "kubernetes", *options, *train("volcano")).stdout.strip(), cluster.image / "runs/volcano"


@pytest.mark.more("test_volcano.py runs jobs, and jobset a training")
def test_volcano_runs_it_to_the_end(volcano, torchx):
    handle, run = volcano
    assert "State: SUCCEEDED" in torchx("status", handle).stdout
    assert f"step {STEPS}  saved" in torchx("log", handle).stdout
    assert len(losses(run)) == STEPS


@pytest.mark.more("test_jobset_restarts.py has restarts")
def test_jobset_goes_on_after_an_eviction_as_if_nothing_had_happened(cluster, torchx, train, volcano):
    _, without_eviction = volcano
    handle = torchx("run", "-s", "jobset", *train("jobset")).stdout.strip()
    run = cluster.image / "runs/jobset"
    metrics = run / "metrics.jsonl"
    cluster.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 10)
    second = next(pod for pod in cluster.pods("trainer") if "-0-1-" in pod["metadata"]["name"])
    cluster.nodes.evict(second, "PreemptionByScheduler")
    name = handle.rpartition(":")[2]
    status = cluster.get("JobSet", "default", name)["status"]
    cluster.wait_for(lambda: status.get("terminalState"))
    answer = json.loads(torchx("status", "--json", handle).stdout)
    assert (answer["state"], answer["num_restarts"]) == ("SUCCEEDED", 1)
    assert answer["msg"] == f"restarts: 1; retries used: 0 of 0; finished at step {STEPS}"
    assert "resumed after step" in torchx("log", handle).stdout
    assert losses(run) == losses(without_eviction)
