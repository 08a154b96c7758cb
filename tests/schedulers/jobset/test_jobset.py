"""The scheduler `jobset` through the command `torchx`, on the stand-in for a cluster."""

import re
import subprocess
from datetime import datetime

import pytest
from jobset_jobs import finish, line_of, message, replicas, running
from kube_controllers import restricted
from torchx.runner import get_runner
from torchx.schedulers.api import Stream

from schedulers.errors import SchedulerError
from schedulers.jobset import log
from trainer.core.progress import saved_line


def test_a_job_runs_to_its_end(cluster, torchx, submit):
    handle = finish(cluster, submit("echo out; echo err >&2"))
    assert handle.startswith("jobset://torchx/default:sh-")
    assert "State: SUCCEEDED" in torchx("status", handle).stdout
    assert torchx("log", handle).stdout == "sh/0 out\nsh/0 err\n"
    assert [line.split() for line in torchx("list", "-s", "jobset").stdout.splitlines()[2:]] == [
        [handle, "sh", "SUCCEEDED"]
    ]


def test_status_takes_as_many_calls_for_many_replicas_as_for_one(cluster, quick, submit):
    cluster.why_unschedulable = "0/3 nodes are available: 3 Insufficient cpu."
    calls = {}
    for count in (1, 30):
        handle = submit("true", replicas=count)
        cluster.wait_for(lambda: len(cluster.pods()) in (1, 31))
        cluster.requests.clear()
        quick("status", handle)
        calls[count] = len(cluster.requests)
    assert calls == {1: 2, 30: 2}


def test_status_and_list_show_how_far_a_training_is_by_its_log(cluster, quick, submit, status):
    """Rank 0 may be in any replica; where no directory is shared, the log has the last report."""
    (cluster.image / "reports").write_text(
        f"[rank 0] {line_of(300, 0.6)}\n"
        f"[rank 0] {saved_line(300)} /runs/a/checkpoints/step-000000300 in 0.1 s\n"
        f"[rank 0] {line_of(400, 0.5)}\n"
    )
    script = '[ "$TORCHX_REPLICA_ID" = 0 ] || cat reports; until [ -e go ]; do sleep 0.05; done'
    handle = submit(script, replicas=2)
    cluster.wait_for(lambda: running(cluster, 2))
    cluster.wait_for(lambda: any(b"400/2,000" in line for pod in cluster.pods() for line in cluster.nodes.log(pod, {})))
    answer = status(handle)
    assert re.fullmatch(
        r"step 400/2,000, 1,234 samples/s, loss 0\.50000, ETA [\d:]+, saved step 300 \(\d+ \w+ ago\)", answer["msg"]
    )
    assert (answer["progress"]["step"], answer["progress"]["stalled"]) == (400, False)
    assert re.search(
        rf"^{handle} +sh +RUNNING +step 400/2,000, ETA [\d:]+$", quick("list", "-s", "jobset"), re.MULTILINE
    )
    cluster.nodes.age_logs(200)
    stands = r"step 400/2,000, no progress since (?:\S+ )?\d\d:\d\d \(\d+ min\)"
    assert re.fullmatch(rf"{stands}, loss 0\.50000, saved step 300 \(\d+ min ago\)", status(handle)["msg"])
    assert re.search(rf"RUNNING +{stands}$", quick("list", "-s", "jobset"), re.MULTILINE)
    (cluster.image / "go").touch()
    assert "progress" not in status(finish(cluster, handle))


def test_pending_says_why(cluster, submit, status):
    cluster.why_unschedulable = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    answer = status(submit("true", replicas=2))
    assert answer["state"] == "PENDING"
    assert "pods started: 0 of 2; Unschedulable: 0/3 nodes are available" in answer["msg"]
    assert [replica["state"] for replica in replicas(answer)] == ["PENDING", "PENDING"]
    cluster.why_unschedulable = ""


def test_pods_that_are_refused_are_told_with_the_cluster_s_own_words(cluster, submit, status, quick, caplog):
    cluster.admit = restricted
    handle = submit("true")
    cluster.wait_for(lambda: cluster.all("Event"))
    forbidden = (
        'is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false, unrestricted'
    )
    started, _, reason = status(handle)["msg"].partition("; ")
    assert started == "pods started: 0 of 1"
    assert reason.startswith('Error creating: pods "sh-')
    assert forbidden in reason
    assert forbidden in quick("list", "-s", "jobset")
    quick("log", f"{handle}/sh/0")
    assert forbidden in caplog.text
    cluster.forbidden = {("GET", "events")}
    assert status(handle)["msg"] == "pods started: 0 of 1"


def test_an_image_that_cannot_be_pulled_is_named(cluster, submit, status, torchx):
    cluster.missing_images = {"trainer:1"}
    handle = submit("true")
    cluster.wait_for(lambda: "containerStatuses" in cluster.pods()[0]["status"])
    answer = status(handle)
    assert answer["state"] == "PENDING"
    assert 'ImagePullBackOff: Back-off pulling image "trainer:1"' in message(replicas(answer)[0])
    log = torchx("log", f"{handle}/sh/0")
    assert log.stdout == ""
    assert "sh/0 has no log yet: ImagePullBackOff" in log.stderr


def test_log_of_a_job_that_has_not_started_ends_with_the_reason(cluster, torchx, submit):
    cluster.missing_images = {"trainer:1"}
    handle = submit("true")
    cluster.wait_for(lambda: "containerStatuses" in cluster.pods()[0]["status"])
    log = torchx("log", handle)
    assert log.stdout == ""
    assert f"{handle} is PENDING: pods started: 0 of 1; ImagePullBackOff" in log.stderr


@pytest.mark.more("waits")
def test_follow_says_why_a_job_waits_before_it_starts_and_after_a_restart(cluster, environment, submit):
    cluster.why_unschedulable = "no node has a GPU"
    script = "echo attempt; while ! test -e go; do sleep 0.05; done; test -e tried || { touch tried; exit 3; }"
    handle = submit(script, "--max_retries", "1")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(["torchx", "log", "-f", handle], env=environment, **pipes) as follow:
        assert next(line for line in follow.stderr if "no node has a GPU" in line).startswith("torchx log: jobset://")
        cluster.why_unschedulable = ""
        assert follow.stdout.readline() == "sh/0 attempt\n"
        cluster.why_unschedulable = "no node is left"
        (cluster.image / "go").touch()
        reason = next(line for line in follow.stderr if "no node is left" in line)
        assert "sh/0 has no log yet: Unschedulable" in reason
        cluster.why_unschedulable = ""
        assert "sh/0 attempt\n" in follow.communicate(timeout=600)[0]


@pytest.mark.more("waits; test_jobset_restarts.py has failures")
def test_a_failing_replica_is_named_with_its_exit_code_and_last_words(cluster, quick, submit, status):
    script = "test $TORCHX_REPLICA_ID = 0 && echo fine && sleep 60; echo bad; exit 7"
    handle = finish(cluster, submit(script, replicas=2))
    cluster.wait_for(lambda: len(cluster.pods()) == 1)
    answer = status(handle)
    assert answer["state"] == "FAILED"
    first, second = replicas(answer)
    assert (first["state"], second["state"]) == ("CANCELLED", "FAILED")
    assert message(second).startswith("exit code 7: bad (pod sh-")
    assert second["hostname"].endswith("-sh-0-1." + handle.rpartition(":")[2])
    assert "(exitcode: 7)" in quick("status", handle)


def test_killed_processes_are_named_by_their_signal(cluster, submit, status):
    answer = status(finish(cluster, submit("exec python -c 'import os; os.kill(os.getpid(), 9)'")))
    assert message(replicas(answer)[0]).startswith("exit code 137 (SIGKILL)")


SIDECAR = "V1Pod: {spec: {containers: [{name: a-proxy, image: proxy, command: [sh, -c, 'echo proxy']}]}}"


def test_another_container_hides_neither_the_end_nor_the_log_of_the_replica(cluster, quick, tmp_path, status):
    """The kubelet reports containers by name, and this one comes first."""
    (tmp_path / "pod.yaml").write_text(SIDECAR)
    overlay = ("--metadata", f"kubernetes=file://{tmp_path}/pod.yaml")
    job = ("tools.plan", *overlay, "--config", "nowhere.toml", "--image", "trainer:1")
    handle = finish(cluster, quick("run", "-s", "jobset", *job).strip())
    answer = status(handle)
    assert (answer["state"], answer["num_restarts"]) == ("FAILED", 0)
    assert "nowhere.toml" in answer["msg"]
    assert "(exitcode: 2)" in quick("status", handle)
    log = quick("log", handle)
    assert "nowhere.toml" in log
    assert "proxy" not in log


def test_cancel_lets_the_job_save_and_keeps_it_to_be_asked_for(cluster, quick, submit, status):
    handle = submit("trap 'echo saved > saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done", replicas=2)
    cluster.wait_for(lambda: running(cluster, 2))
    quick("cancel", handle)
    cluster.wait_for(lambda: not cluster.pods())
    answer = status(handle)
    assert answer["state"] == "CANCELLED"
    assert {replica["state"] for replica in replicas(answer)} == {"CANCELLED"}
    assert (cluster.image / "saved").exists()
    assert "CANCELLED" in quick("list", "-s", "jobset")
    quick("cancel", handle)
    quick("delete", handle)
    with pytest.raises(SystemExit):
        quick("status", handle)
    assert handle not in quick("list", "-s", "jobset")


@pytest.mark.more("waits")
def test_a_queue_admits_whole_jobs_and_a_cancelled_one_frees_its_quota(cluster, quick, submit, status):
    cluster.queues = {"team-a": 2}
    first = submit("sleep 100", cfg="queue=team-a", replicas=2)
    cluster.wait_for(lambda: running(cluster, 2))
    second = submit("sleep 100", cfg="queue=team-a")
    cluster.wait_for(lambda: len(cluster.all("Workload")) == 2)
    cluster.requests.clear()
    answer = status(second)
    assert len(cluster.requests) <= 4
    assert answer["state"] == "PENDING"
    assert "waits for its quota in queue team-a: couldn't assign flavors" in answer["msg"]
    quick("cancel", first)
    cluster.wait_for(lambda: running(cluster, 1) and len(cluster.pods()) == 1)
    assert (status(first)["state"], status(second)["state"]) == ("CANCELLED", "RUNNING")


def test_a_job_cancelled_before_its_queue_knows_it_never_starts(cluster, quick, submit, status, monkeypatch):
    monkeypatch.setattr("kube_controllers.queue", lambda cluster, jobset: None)
    handle = submit("sleep 100", cfg="queue=team-a")
    quick("cancel", handle)
    assert status(handle)["state"] == "CANCELLED"
    assert "kueue.x-k8s.io/queue-name" not in cluster.all("JobSet")[0]["metadata"]["labels"]


def test_log_of_one_replica_of_all_and_of_some_lines(cluster, quick, submit):
    handle = finish(cluster, submit('echo "loss $TORCHX_REPLICA_ID"; echo other', replicas=3))
    assert sorted(quick("log", f"{handle}/sh").splitlines()) == sorted(
        f"sh/{replica} {word}" for replica in range(3) for word in (f"loss {replica}", "other")
    )
    assert quick("log", f"{handle}/sh/1") == "sh/1 loss 1\nsh/1 other\n"
    assert quick("log", "--regex", "^loss", f"{handle}/sh/2") == "sh/2 loss 2\n"
    with get_runner() as runner, pytest.raises(SchedulerError, match="Kubernetes keeps only one: combined"):
        runner.log_lines(handle, "sh", 2, streams=Stream.STDERR)


def test_log_between_two_times(cluster, submit):
    handle = submit("echo early; while ! test -e go; do sleep 0.05; done; echo late")
    pod = cluster.wait_for(lambda: running(cluster) and cluster.pods()[0])
    cluster.wait_for(lambda: list(cluster.nodes.log(pod, {})))
    between = datetime.now()
    (cluster.image / "go").touch()
    finish(cluster, handle)
    with get_runner() as runner:
        assert list(runner.log_lines(handle, "sh", 0, since=between)) == ["late\n"]
        assert list(runner.log_lines(handle, "sh", 0, until=between)) == ["early\n"]


@pytest.mark.more("waits")
def test_follow_goes_on_through_a_restart_until_the_job_ends(cluster, environment, submit):
    script = (
        "echo attempt; while ! test -e go; do sleep 0.05; done; test -e tried || { touch tried; exit 3; }; echo end"
    )
    handle = submit(script, "--max_retries", "1")
    follow = subprocess.Popen(["torchx", "log", "-t", handle], env=environment, stdout=subprocess.PIPE, text=True)
    assert follow.stdout.readline() == "sh/0 attempt\n"
    (cluster.image / "go").touch()
    again = "sh/0 [torchx] restart 1 begins in 1 s\nsh/0 attempt\n"
    assert follow.communicate(timeout=600)[0] == f"{again}sh/0 end\n"


@pytest.mark.more("a rare fault")
def test_follow_loses_and_repeats_nothing_when_its_connection_is_closed(cluster, quick, submit):
    cluster.cut_log_after = 2
    handle = submit("for i in 1 2 3 4 5; do echo $i; sleep 0.2; done")
    assert quick("log", "-t", f"{handle}/sh/0") == "".join(f"sh/0 {i}\n" for i in range(1, 6))


@pytest.mark.more("a detail")
def test_follow_pauses_where_a_log_has_ended_and_its_pod_still_runs(monkeypatch):
    """A kubelet reports the end of a container late; until then its log, which is empty by now, ends at once."""
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": "sh", "batch.kubernetes.io/job-completion-index": "0"}
    status = {"phase": "Running", "containerStatuses": [{"name": "sh", "state": {"running": {}}}]}
    metadata = {"name": "pod", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "sh"}]}, "status": status}

    class Quiet:
        def jobset(self, name):
            ended = [{"type": "Completed", "status": "True"}] if status["phase"] == "Succeeded" else []
            return {"metadata": {"name": name}, "status": {"conditions": ended}, "spec": {}}

        def pods(self, labels):
            return [pod]

        def log(self, *_):
            yield from ()

    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            status["phase"] = "Succeeded"
        assert len(pauses) < 10

    monkeypatch.setattr(log.time, "sleep", sleep)
    assert list(log.follow(Quiet(), log.Replica("job", "sh", 0), None, None)) == []
    assert len(pauses) >= 3
