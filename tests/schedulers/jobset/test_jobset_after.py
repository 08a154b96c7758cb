"""`-cfg after` and `after_any` of `jobset`: jobs that wait for jobs, on the stand-in for a cluster."""

import pytest
from jobset_jobs import finish, replicas
from kube_api import Refused
from kube_controllers import restricted
from shells import wait_for

from schedulers.jobset import after, wait_for_jobs

HELD = "until test -e go; do sleep 0.05; done"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The pod that waits looks more often than on a real cluster."""
    seldom, often = "POLL_SECONDS = 5\n", "POLL_SECONDS = 0.1\n"
    assert seldom in after._PROGRAM
    monkeypatch.setattr(after, "_PROGRAM", after._PROGRAM.replace(seldom, often))


def started(cluster, role="sh"):
    return [pod for pod in cluster.pods(role) if pod["status"]["phase"] != "Pending"]


def begun(cluster, count):
    cluster.wait_for(lambda: len(started(cluster, "torchx-after")) == count)


def test_a_job_starts_after_another_has_succeeded(cluster, submit, status, quick):
    first = submit(HELD)
    second = submit("test -e go && echo then", cfg=f"namespace=default,after={first}", replicas=2)
    begun(cluster, 1)
    answer = status(second)
    assert (answer["state"], answer["msg"].split("; ")[0]) == ("PENDING", f"waits for {first} (RUNNING)")
    assert [replica["state"] for replica in replicas(answer)] == ["PENDING", "PENDING"]
    assert len(started(cluster)) == 1
    (cluster.image / "go").touch()
    answer = status(finish(cluster, second))
    assert (answer["state"], len(replicas(answer))) == ("SUCCEEDED", 2)
    assert sorted(quick("log", second).splitlines()) == ["sh/0 then", "sh/1 then"]
    assert second in quick("list", "-s", "jobset")


def test_restricted_pods_are_admitted_and_that_of_the_waiter_too(cluster, submit, status):
    cluster.admit = restricted
    options = "namespace=default,restricted=True"
    first = submit(HELD, cfg=options)
    second = submit("true", cfg=f"{options},after={first}")
    begun(cluster, 1)
    (cluster.image / "go").touch()
    assert status(finish(cluster, second))["state"] == "SUCCEEDED"


@pytest.mark.more("a detail")
def test_it_waits_for_a_job_that_starts_again_and_starts_again_itself(cluster, submit, status):
    once = "test -e {0} && exit 0; touch {0}; exit 3"
    first = submit(f"{HELD}; {once.format('first')}", "--max_retries", "1")
    second = submit(once.format("second"), "--max_retries", "1", cfg=f"namespace=default,after={first}")
    begun(cluster, 1)
    (cluster.image / "go").touch()
    assert status(finish(cluster, second))["num_restarts"] == 1
    assert status(second)["state"] == "SUCCEEDED"
    assert status(first)["num_restarts"] == 1


@pytest.mark.more("a detail")
def test_a_predecessor_that_has_been_deleted_since_does_not_matter_to_a_restart(cluster, submit, status, quick):
    first = submit("true")
    held = "test -e tried && exit 0; touch tried; until test -e go; do sleep 0.05; done; exit 3"
    second = submit(held, "--max_retries", "1", cfg=f"namespace=default,after={first}")
    cluster.wait_for(lambda: (cluster.image / "tried").exists())
    quick("delete", first)
    (cluster.image / "go").touch()
    assert status(finish(cluster, second))["state"] == "SUCCEEDED"


@pytest.mark.few(1, "one end stands for all")
@pytest.mark.parametrize("end", ["failed", "cancelled", "deleted"])
def test_it_does_not_start_after_one_that_did_not_succeed(cluster, submit, status, quick, end):
    first = submit(f"{HELD}; exit 3")
    second = submit("touch started", cfg=f"namespace=default,after={first}")
    either_way = submit("true", cfg=f"namespace=default,after_any={first}")
    begun(cluster, 2)
    if end == "failed":
        (cluster.image / "go").touch()
    else:
        quick({"cancelled": "cancel", "deleted": "delete"}[end], first)
    answer = status(finish(cluster, second))
    found = {"failed": "ended as FAILED", "cancelled": "ended as CANCELLED", "deleted": "is gone"}[end]
    assert (answer["state"], answer["msg"]) == ("CANCELLED", f"not started: {first} {found}")
    assert [second, "sh", "CANCELLED"] in [line.split() for line in quick("list", "-s", "jobset").splitlines()]
    assert status(finish(cluster, either_way))["state"] == "SUCCEEDED"
    assert not (cluster.image / "started").exists()


@pytest.mark.more("a rare fault")
def test_the_pod_that_waits_outlasts_a_server_that_does_not_answer(cluster, submit, status, monkeypatch):
    first = submit(HELD)
    get, asked = cluster.get, []

    def refuse(kind, namespace, name):
        asked.append(name)
        raise Refused(503, "the server is currently unable to handle the request")

    second = submit("true", cfg=f"namespace=default,after={first}")
    begun(cluster, 1)
    monkeypatch.setattr(cluster, "get", refuse)
    wait_for(lambda: len(asked) > 2)
    monkeypatch.setattr(cluster, "get", get)
    assert status(second)["state"] == "PENDING"
    (cluster.image / "go").touch()
    assert status(finish(cluster, second))["state"] == "SUCCEEDED"


def test_a_service_account_without_the_right_is_named(cluster, submit, status, monkeypatch):
    first = submit(HELD)
    get = cluster.get

    def refuse(kind, namespace, name):
        raise Refused(403, "jobsets is forbidden", "Forbidden")

    # Before the pod starts, so that it asks at once.
    cluster.why_unschedulable = "no room"
    second = submit("true", cfg=f"namespace=default,after={first}")
    cluster.wait_for(lambda: len(cluster.pods("torchx-after")) == 1)
    assert "Unschedulable: no room" in status(second)["msg"]
    monkeypatch.setattr(cluster, "get", refuse)
    cluster.why_unschedulable = ""
    cluster.touch()
    cluster.wait_for(
        lambda: cluster.objects["JobSet", "default", second.rpartition(":")[2]]["status"].get("conditions")
    )
    monkeypatch.setattr(cluster, "get", get)
    answer = status(second)
    assert answer["state"] == "CANCELLED"
    assert answer["msg"] == (f"not started: the pod's ServiceAccount may not read {first}; see docs/guides/after.md")


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize(
    ("cfg", "text"),
    [
        ("after=jobset://torchx/default:nowhere", "after=jobset://torchx/default:nowhere: no such job"),
        ("after={bad}", "after={bad}: this job has ended as FAILED; nothing was submitted"),
        ("after=jobset://torchx/other:job", "after=jobset://torchx/other:job: must be a job in the namespace of this"),
        ("after=jobset://torchx/lab:default:job", "must be a job in the namespace of this one (default)"),
        ("after_any=jobset://torchx/job", "-cfg after_any=jobset://torchx/job: must be a job in the namespace of this"),
        ("after_any=slurm://torchx/12", "after_any=slurm://torchx/12: must be the handle of a job of this scheduler"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(cluster, submit, torchx, cfg, text):
    bad = finish(cluster, submit("exit 3")) if "bad" in cfg else ""
    before = len(cluster.all("JobSet"))
    words = ("run", "-s", "jobset", "-cfg", f"namespace=default,{cfg.format(bad=bad)}", "utils.sh", "--image", "i", ":")
    done = torchx(*words, code=2)
    assert text.format(bad=bad) in done.stderr.splitlines()[-1]
    assert len(cluster.all("JobSet")) == before


def test_the_states_of_a_job_are_those_of_the_status(monkeypatch):
    monkeypatch.setenv("CANCELLED", "cancelled")

    def jobset(condition="", **metadata):
        conditions = [{"type": condition, "status": "True"}] if condition else []
        return {"metadata": metadata, "status": {"conditions": conditions}}

    found = [
        wait_for_jobs.state_of(each)
        for each in (
            jobset(),
            jobset("Completed"),
            jobset("Failed"),
            jobset("Failed", annotations={"cancelled": "true"}),
            jobset("Completed", annotations={"cancelled": "true"}),
            jobset(deletionTimestamp="now"),
        )
    ]
    assert found == ["RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "SUCCEEDED", "CANCELLED"]


def test_a_job_that_fails_while_it_leaves_is_said_to_be_cancelled(cluster, submit, status, quick):
    first = submit(f"trap 'exit 2' TERM; {HELD}")
    cluster.wait_for(lambda: started(cluster))
    quick("cancel", first)
    jobset = cluster.get("JobSet", "default", first.rpartition(":")[2])
    jobset["status"]["conditions"] = [{"type": "Failed", "status": "True", "message": "failed while it left"}]
    jobset["status"]["terminalState"] = "Failed"
    cluster.store(jobset)
    answer = status(first)
    assert (answer["state"], answer["msg"].split(";")[0]) == ("CANCELLED", "cancelled")
