"""The scheduler `kubernetes` (Volcano) through the command `torchx`, on the stand-in for a cluster."""

import json
import subprocess
from datetime import datetime

import pytest
from jobset_jobs import line_of, message, replicas, running
from kube_controllers import restricted
from torchx.runner import get_runner

VOLCANO = ("-s", "kubernetes", "-cfg", "queue=default", "--workspace", "")
SHELL = ("utils.sh", "--image", "trainer:1")
SLEEP = (*SHELL, "exec", "sleep", "100")


def phase(cluster):
    return cluster.all("Job")[0].get("status", {}).get("state", {}).get("phase")


@pytest.fixture
def submit(quick):
    """Submits a shell script and returns the app handle."""

    def submit(script, *options, replicas=1):
        return quick(
            "run", *VOLCANO, *SHELL, "--num_replicas", str(replicas), *options, "exec", "sh", "-c", script
        ).strip()

    return submit


@pytest.fixture
def status(quick):
    """The status of a job, as JSON."""
    return lambda handle: json.loads(quick("status", "--json", handle))


@pytest.fixture
def refused(quick, capsys):
    """Runs a command that is refused and returns the line with the reason."""

    def refused(*words):
        with pytest.raises(SystemExit) as stop:
            quick(*words)
        assert stop.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return refused


def test_a_data_job_runs_to_its_end(cluster, quick):
    job = ("data.synthetic", "--rows", "1000", "--files", "1", "--validation_rows", "0", "--test_rows", "0")
    handle = quick("run", *VOLCANO, *job, "--image", "trainer:1").strip()
    cluster.wait_for(lambda: phase(cluster) == "Completed")
    assert "State: SUCCEEDED" in quick("status", handle)
    assert list((cluster.image / "data/synthetic/train").glob("*.parquet"))
    (line,) = quick("list", "-s", "kubernetes").splitlines()[2:]
    assert line.split() == [handle, "synthetic", "SUCCEEDED"]


def test_a_wrong_configuration_fails_the_job_and_stays_in_its_log(cluster, quick):
    handle = quick("run", *VOLCANO, "tools.plan", "--config", "nowhere.toml", "--image", "trainer:1").strip()
    cluster.wait_for(lambda: phase(cluster) == "Failed")
    shown = quick("status", handle)
    assert "State: FAILED" in shown
    assert "plan/0: exit code 2: " in shown
    assert "nowhere.toml" in shown
    assert "nowhere.toml" in quick("log", f"{handle}/plan/0")


COMPONENT = '''
from torchx.specs import AppDef, Role, macros


def two() -> AppDef:
    """Two replicas of a role with a hyphen, as TorchX names a role after a script."""
    script = f'echo "replica 0 is at $${{{macros.rank0_env}:?is not set}}"'
    role = Role("my-train", "trainer:1", entrypoint="bash", args=["-c", script], num_replicas=2)
    return AppDef("two", [role])
'''


def test_replicas_of_a_role_with_a_hyphen_find_replica_0(cluster, quick, tmp_path):
    (tmp_path / "mine.py").write_text(COMPONENT)
    handle = quick("run", *VOLCANO, "mine.py:two").strip()
    cluster.wait_for(lambda: phase(cluster) in ("Completed", "Failed"))
    assert sorted(quick("log", handle).splitlines()) == [
        f"my-train/{number} replica 0 is at localhost" for number in (0, 1)
    ]


def test_a_component_of_torchx_gets_the_pod_that_is_merged_and_the_handle_of_its_job(cluster, quick, tmp_path):
    (tmp_path / "pod.yaml").write_text("V1Pod: {spec: {nodeSelector: {pool: h200}}}")
    overlay = ("--metadata", f"kubernetes=file://{tmp_path}/pod.yaml")
    job = ("dist.torchrun", "--script", "a.py", "-j", "1x1", "--image", "x", *overlay)
    handle = quick("run", *VOLCANO, *job).strip()
    (task,) = cluster.all("Job")[0]["spec"]["tasks"]
    spec = task["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "h200"}
    assert {"name": "TORCHX_JOB_ID", "value": handle} in spec["containers"][0]["env"]


def test_status_takes_as_many_calls_for_many_replicas_as_for_one(cluster, quick, submit):
    cluster.why_unschedulable = "0/3 nodes are available: 3 Insufficient cpu."
    calls = {}
    for count in (1, 10):
        handle = submit("true", replicas=count)
        cluster.wait_for(lambda: len(cluster.pods()) in (1, 11))
        cluster.wait_for(lambda: all(pod["status"].get("conditions") for pod in cluster.pods()))
        cluster.requests.clear()
        quick("status", handle)
        calls[count] = len(cluster.requests)
    assert calls == {1: 2, 10: 2}


def test_status_shows_how_far_a_training_is_by_its_log(cluster, submit, status):
    (cluster.image / "reports").write_text(f"[rank 0] {line_of(400, 0.5)}\n")
    handle = submit("[ ${replica_id} = 0 ] || cat reports; until [ -e go ]; do sleep 0.05; done", replicas=2)
    cluster.wait_for(lambda: running(cluster, 2))
    cluster.wait_for(lambda: any(list(cluster.nodes.log(pod, {})) for pod in cluster.pods()))
    cluster.wait_for(lambda: phase(cluster) == "Running")
    answer = status(handle)
    assert answer["msg"].startswith("step 400/2,000, ")
    assert answer["progress"]["step"] == 400
    (cluster.image / "go").touch()


def test_pending_says_which_pod_does_not_fit(cluster, submit, status):
    cluster.why_unschedulable = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    handle = submit("true", replicas=2)
    cluster.wait_for(lambda: len(cluster.pods()) == 2)
    answer = status(handle)
    assert answer["state"] == "PENDING"
    assert answer["msg"].startswith("pods started: 0 of 2; Unschedulable: 0/3 nodes are available")
    assert [replica["state"] for replica in replicas(answer)] == ["PENDING", "PENDING"]
    cluster.why_unschedulable = ""


def test_pending_says_what_the_queue_and_the_gang_wait_for(cluster, submit, status, quick, caplog):
    cluster.why_no_gang = "2/2 tasks in gang unschedulable: queue resource quota insufficient"
    handle = submit("true", replicas=2)
    cluster.wait_for(lambda: cluster.all("PodGroup"))
    expected = f"pods started: 0 of 2; NotEnoughResources: {cluster.why_no_gang}"
    assert status(handle)["msg"] == expected
    assert expected in quick("list", "-s", "kubernetes")
    cluster.forbidden = {("GET", "podgroups"), ("GET", "events")}
    assert status(handle)["msg"] == "pods started: 0 of 2"


def test_pods_that_are_refused_are_told_with_the_cluster_s_own_words(cluster, submit, status, quick, caplog):
    cluster.admit = restricted
    handle = submit("true")
    cluster.wait_for(lambda: cluster.all("Event"))
    assert 'is forbidden: violates PodSecurity "restricted:latest"' in status(handle)["msg"]
    quick("log", f"{handle}/sh/0")
    assert "sh/0 has no log yet: Error creating: pods" in caplog.text


def test_an_image_that_cannot_be_pulled_is_named(cluster, submit, status, quick, capsys):
    cluster.missing_images = {"trainer:1"}
    handle = submit("true")
    cluster.wait_for(lambda: cluster.pods() and "containerStatuses" in cluster.pods()[0]["status"])
    assert 'ImagePullBackOff: Back-off pulling image "trainer:1"' in message(replicas(status(handle))[0])
    assert quick("log", handle) == ""
    assert f"{handle} is PENDING: pods started: 0 of 1; ImagePullBackOff" in capsys.readouterr().err


def test_a_failing_replica_is_named_with_its_exit_code_and_last_words(cluster, quick, submit, status):
    handle = submit("test ${replica_id} = 0 && exit 0; echo bad; exit 7", replicas=2)
    cluster.wait_for(lambda: phase(cluster) == "Failed")
    answer = status(handle)
    assert (answer["state"], answer["msg"]) == ("FAILED", "sh/1: exit code 7: bad")
    assert message(replicas(answer)[1]).startswith("exit code 7: bad (pod sh-")
    assert "(exitcode: 7)" in quick("status", handle)


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_log_has_the_lines_as_they_were_written(cluster, quick, submit, follow):
    handle = submit("echo first; echo 'zwölf'")
    cluster.wait_for(lambda: phase(cluster) == "Completed")
    assert quick("log", *follow, f"{handle}/sh/0") == "sh/0 first\nsh/0 zwölf\n"
    assert quick("log", *follow, "--regex", "^f", f"{handle}/sh/0") == "sh/0 first\n"


def test_log_between_two_times(cluster, submit):
    handle = submit("echo early; while ! test -e go; do sleep 0.05; done; echo late")
    pod = cluster.wait_for(lambda: running(cluster) and cluster.pods()[0])
    cluster.wait_for(lambda: list(cluster.nodes.log(pod, {})))
    between = datetime.now()
    (cluster.image / "go").touch()
    cluster.wait_for(lambda: phase(cluster) == "Completed")
    with get_runner() as runner:
        assert list(runner.log_lines(handle, "sh", 0, since=between)) == ["late\n"]
        assert list(runner.log_lines(handle, "sh", 0, until=between)) == ["early\n"]


def test_follow_goes_on_through_a_restart_until_the_job_ends(cluster, environment, submit, status):
    script = "echo attempt; while ! test -e go; do sleep 0.05; done; test -e tried || { touch tried; exit 3; }"
    handle = submit(script, "--max_retries", "2")
    follow = subprocess.Popen(["torchx", "log", "-f", handle], env=environment, stdout=subprocess.PIPE, text=True)
    assert follow.stdout.readline() == "sh/0 attempt\n"
    (cluster.image / "go").touch()
    assert follow.communicate(timeout=600)[0] == "sh/0 attempt\n"
    answer = status(handle)
    assert (answer["state"], answer["num_restarts"], answer["msg"]) == ("SUCCEEDED", 1, "restarts: 1")


def test_cancel_lets_the_job_save_and_keeps_it_to_be_asked_for(cluster, quick, submit, status, caplog, capsys):
    handle = submit("trap 'while ! test -e go; do sleep 0.05; done; exit 0' TERM; echo r; while :; do sleep 0.1; done")
    pod = cluster.wait_for(lambda: running(cluster) and cluster.pods()[0])
    cluster.wait_for(lambda: list(cluster.nodes.log(pod, {})))
    cluster.conflicts = 2
    quick("cancel", handle)
    leaving = "cancelled; pods that still save and leave: 1"
    assert f"torchx cancel: {handle} is CANCELLED: {leaving}" in capsys.readouterr().err
    assert (status(handle)["state"], status(handle)["msg"]) == ("CANCELLED", leaving)
    (cluster.image / "go").touch()
    cluster.wait_for(lambda: not cluster.pods())
    assert status(handle)["msg"] == "cancelled"
    assert "CANCELLED" in quick("list", "-s", "kubernetes")
    quick("log", f"{handle}/sh/0")
    assert "sh/0 has no log yet: its pod is gone" in caplog.text
    quick("cancel", handle)
    quick("delete", handle)
    with pytest.raises(SystemExit):
        quick("status", handle)
    assert "does not exist" in caplog.text


def test_an_ended_job_stays_as_it_ended_when_it_is_cancelled(cluster, quick, submit, status):
    handle = submit("true")
    cluster.wait_for(lambda: phase(cluster) == "Completed")
    quick("cancel", handle)
    assert status(handle)["state"] == "SUCCEEDED"


def test_a_cancel_that_cannot_be_done_is_one_line(cluster, quick, refused, monkeypatch):
    handle = quick("run", *VOLCANO, *SLEEP).strip()
    cluster.wait_for(lambda: running(cluster))
    cluster.forbidden = {("PUT", "jobs/status")}
    assert refused("cancel", handle) == "torchx cancel: error: Kubernetes: jobs/status is forbidden"
    cluster.forbidden, cluster.conflicts = set(), 100
    monkeypatch.setattr("schedulers.kubernetes.scheduler.PAUSE_SECONDS", 0)
    assert "not cancelled, Volcano changed it 10 times meanwhile: cancel it again" in refused("cancel", handle)
    assert phase(cluster) == "Running"


@pytest.mark.parametrize("command", ["status", "log", "cancel", "delete", "describe"])
@pytest.mark.parametrize("app_id", ["job", ":job", "a:b:c"])
def test_a_handle_without_a_namespace_is_one_line(refused, command, app_id):
    said = refused(command, f"kubernetes://torchx/{app_id}")
    assert f"kubernetes://torchx/{app_id}: must be kubernetes://torchx/NAMESPACE:NAME" in said


def test_a_cluster_out_of_reach_is_one_line(cluster, refused):
    cluster.stop()
    for words in (("status", "kubernetes://torchx/default:job"), ("list", "-s", "kubernetes", "-cfg", "namespace=x")):
        assert f"torchx {words[0]}: error: Kubernetes cannot be reached: " in refused(*words)
    assert "torchx run: error: Kubernetes cannot be reached: " in refused("run", *VOLCANO, *SLEEP)


def test_a_cluster_without_volcano_is_told_from_one_that_refuses(cluster, refused):
    def validate(resource):
        raise ValueError("admission webhook denied the request:\nqueue `ads` is closed")

    cluster.validate = validate
    said = refused("run", *VOLCANO, *SLEEP)
    assert said == "torchx run: error: Kubernetes: admission webhook denied the request: queue `ads` is closed"
    del cluster.kinds["batch.volcano.sh", "v1alpha1", "jobs"]
    for words in (("run", *VOLCANO, *SLEEP), ("list", "-s", "kubernetes")):
        assert "the cluster has no batch.volcano.sh/v1alpha1: install Volcano there, or use -s jobset" in refused(
            *words
        )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("dlrm.single_node", "--name", "a" * 60, "--config", "c.toml"), "characters shorter for Kubernetes"),
        (("dist.torchrun", "--script", "1st.py", "--image", "x"), "--name 1st: must begin with a letter"),
        (("tools.bench", "--metadata", "kubernetes=file:///nowhere.yaml"), "must be a file with a pod: "),
    ],
)
def test_requests_that_cannot_work_are_refused(refused, words, sentence):
    assert sentence in refused("run", *VOLCANO, *words)


def test_a_submission_without_the_queue_is_one_line(refused):
    said = refused("run", "-s", "kubernetes", *SLEEP)
    assert said.startswith("torchx run: error: -s kubernetes: its option queue is missing: give -cfg queue=..., or ")


@pytest.mark.more("test_jobset_command.py has it, too")
def test_the_client_is_needed_for_requests_and_missing_in_a_line(torchx, tmp_path):
    package = tmp_path / "without/kubernetes"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'kubernetes'\")")
    done = torchx("run", *VOLCANO, "--dryrun", *SLEEP, code=2, PYTHONPATH=str(package.parent))
    assert done.stderr.splitlines()[-1].endswith("Kubernetes needs its client: pip install 'torchx-recsys[kubernetes]'")
