"""Which ends of a replica start a job of the scheduler `jobset` again, and how often."""

import pytest
from jobset_jobs import finish, message, replicas, running


def test_a_failure_is_retried_up_to_max_retries(cluster, submit, status):
    once = "test -e tried && echo again || { touch tried; exit 3; }"
    answer = status(finish(cluster, submit(once, "--max_retries", "1")))
    assert (answer["state"], answer["num_restarts"]) == ("SUCCEEDED", 1)
    assert "restarts: 1; retries used: 1 of 1" in answer["msg"]
    answer = status(finish(cluster, submit("exit 3", "--max_retries", "2")))
    assert (answer["state"], answer["num_restarts"]) == ("FAILED", 2)


def test_a_replica_that_finished_has_succeeded_whatever_torchrun_answers(cluster, submit, status):
    answer = status(finish(cluster, submit("echo finished at step 9 > $TORCHX_OUTCOME_FILE; exit 1")))
    assert (answer["state"], answer["num_restarts"], answer["msg"]) == ("SUCCEEDED", 0, "finished at step 9")


def test_wrong_input_is_never_tried_again_and_its_line_is_in_the_status(cluster, quick, submit, status):
    script = "test $TORCHX_REPLICA_ID = 0 && echo 'wrong input: data.glob: no such file' > $TORCHX_OUTCOME_FILE; exit 1"
    handle = finish(cluster, submit(script, "--max_retries", "3", replicas=2))
    answer = status(handle)
    assert (answer["state"], answer["num_restarts"]) == ("FAILED", 0)
    assert answer["msg"] == "wrong input: data.glob: no such file"
    assert "wrong input: data.glob: no such file" in quick("status", handle)


@pytest.mark.more("waits")
def test_a_job_runs_until_the_other_replica_of_a_failed_one_has_left(cluster, submit, status):
    """As on a node that is gone, whose pod leaves only when the cluster gives the node up."""
    script = "test $TORCHX_REPLICA_ID = 1 && exit 3; trap 'until test -e left; do sleep 0.05; done; exit 0' TERM; "
    handle = submit(f"{script} while :; do sleep 0.05; done", replicas=2)
    cluster.wait_for(lambda: any(pod["status"]["phase"] == "Failed" for pod in cluster.pods()))
    answer = status(handle)
    assert answer["state"] == "RUNNING"
    assert [replica["state"] for replica in replicas(answer)] == ["RUNNING", "FAILED"]
    assert "exit code 3" in message(replicas(answer)[1])
    (cluster.image / "left").touch()
    assert status(finish(cluster, handle))["state"] == "FAILED"


def test_an_exit_code_of_its_own_decides_nothing_without_an_outcome(cluster, submit, status):
    answer = status(finish(cluster, submit("exit 2", "--max_retries", "1")))
    assert (answer["state"], answer["num_restarts"]) == ("FAILED", 1)


@pytest.mark.more("waits")
def test_stops_that_gain_nothing_are_bounded(cluster, submit, status):
    script = "echo stopped at step 5, nothing saved > $TORCHX_OUTCOME_FILE; exit 1"
    answer = status(finish(cluster, submit(script, cfg="max_free_restarts=1")))
    assert (answer["state"], answer["num_restarts"]) == ("FAILED", 1)
    assert answer["msg"].startswith("gave up after restart 1: this attempt saved nothing, and max_free_restarts=1 ")
    assert "last: stopped at step 5, nothing saved; restarts: 1" in answer["msg"]


def evict_twice(cluster):
    """Evicts the pods of the first two attempts, each once it has printed `ready`."""
    for attempt in ("0", "1"):
        pod = cluster.wait_for(lambda attempt=attempt: ready(cluster, attempt))
        cluster.nodes.evict(pod)


def ready(cluster, attempt):
    """The pod of an attempt, if it has printed `ready`."""
    for pod in cluster.pods():
        lines = cluster.nodes.log(pod, {}) or ()
        if pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == attempt and b"ready\n" in lines:
            return pod
    return None


@pytest.mark.more("waits")
def test_evictions_that_gain_nothing_are_bounded(cluster, submit, status):
    handle = submit("trap 'exit 1' TERM; echo ready; while :; do sleep 0.1; done", cfg="max_free_restarts=1")
    evict_twice(cluster)
    answer = status(finish(cluster, handle))
    assert (answer["state"], answer["num_restarts"]) == ("FAILED", 1)
    assert "last: its pod was taken away" in answer["msg"]


@pytest.mark.more("a detail")
def test_a_checkpoint_saved_on_the_way_is_a_gain(cluster, submit, status):
    """The first attempts are evicted after they have saved; the third ends well."""
    script = """
    echo x >> attempts; test $(wc -l < attempts) = 3 && exit 0
    trap 'exit 1' TERM; echo saved s3://run/checkpoints/step-000000007 > $TORCHX_OUTCOME_FILE
    echo ready; while :; do sleep 0.1; done
    """
    handle = submit(script, cfg="max_free_restarts=0")
    evict_twice(cluster)
    answer = status(finish(cluster, handle))
    assert (answer["state"], answer["num_restarts"]) == ("SUCCEEDED", 2)


STOPS = """
test -e stop && exit 0
trap 'touch stop' TERM
until test -e stop; do sleep 0.1; done
test $TORCHX_REPLICA_ID = %d && echo stopped at step 5, saved there > $TORCHX_OUTCOME_FILE
exit 1
"""


@pytest.mark.few(1, "one kind stands for all")
@pytest.mark.parametrize(("evicted", "telling"), [(0, 1), (1, 0), (1, 1)])
def test_stops_and_evictions_do_not_use_up_retries(cluster, submit, status, evicted, telling):
    """All replicas leave with 1, as torchrun does after a signal, and only that of rank 0 has the outcome."""
    handle = submit(STOPS % telling, replicas=2)
    cluster.wait_for(lambda: running(cluster, 2))
    cluster.nodes.evict(next(pod for pod in cluster.pods() if f"-0-{evicted}-" in pod["metadata"]["name"]))
    answer = status(finish(cluster, handle))
    assert (answer["state"], answer["num_restarts"]) == ("SUCCEEDED", 1)
    assert "retries used: 0 of 0" in answer["msg"]
