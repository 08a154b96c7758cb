"""Commands that `torchx` accepts or refuses for a JobSet, and their arguments in it."""

import json
import os
import subprocess

import pytest
import schemas
import yaml

from schedulers.jobset.options import JobSetOpts

SHELL = ("utils.sh", "--image", "trainer:1")


@pytest.fixture
def no_client(tmp_path_factory):
    """A PYTHONPATH on which the Kubernetes client is not installed."""
    package = tmp_path_factory.mktemp("without") / "kubernetes"
    package.mkdir()
    (package / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'kubernetes'\")")
    return str(package.parent)


@pytest.fixture
def refused(quick, capsys):
    """Runs a command that is refused and returns the line with the reason."""

    def refused(*words):
        with pytest.raises(SystemExit) as stop:
            quick(*words)
        assert stop.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return refused


def test_a_dry_run_needs_no_cluster_no_docker_and_no_client(tmp_path, no_client):
    nothing = {
        "HOME": str(tmp_path),
        "KUBECONFIG": "/nowhere",
        "DOCKER_HOST": "unix:///nowhere",
        "PYTHONPATH": no_client,
    }
    command = ["torchx", "run", "-s", "jobset", "--dryrun", "dlrm.multi_node", "--config", "c.toml", "-j", "2x1"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | nothing, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    resource = yaml.safe_load(done.stdout.partition("=== SCHEDULER REQUEST ===")[2])
    assert (resource["kind"], resource["spec"]["replicatedJobs"][0]["name"]) == ("JobSet", "trainer")
    assert [*tmp_path.iterdir()] == []


def test_without_the_client_it_says_what_to_install(torchx, no_client):
    done = torchx("run", "-s", "jobset", *SHELL, "true", code=2, PYTHONPATH=no_client)
    assert done.stderr.splitlines()[-1] == (
        "torchx run: error: Kubernetes needs its client: pip install 'torchx-recsys[kubernetes]'"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("termination_grace_seconds=60", "termination_grace_seconds=60: must be 120 or more"),
        ("queue_priority=high", "queue_priority=high: must come with a queue"),
        ("max_free_restarts=-1", "max_free_restarts=-1: must be 0 or more"),
        ("rank0_wait_seconds=0", "rank0_wait_seconds=0: must be 1 or more"),
        ("env_secret_keys=TOKEN:hub", "env_secret_keys=TOKEN:hub: must be VARIABLE:SECRET/KEY"),
        ("devices=rdma/hca:one", "devices=rdma/hca:one: must be RESOURCE:COUNT with a whole number"),
        ("tolerations=gpu:a:b:NoSchedule", "tolerations=gpu:a:b:NoSchedule: must be KEY[:VALUE][:EFFECT]"),
    ],
)
def test_options_that_cannot_work_are_refused(refused, options, sentence):
    assert f"-cfg {sentence}" in refused("run", "-s", "jobset", "-cfg", options, *SHELL, "true")


def test_a_pod_overlay_that_is_not_there_is_named(refused):
    said = refused("run", "-s", "jobset", "tools.bench", "--metadata", "kubernetes=file:///nowhere.yaml")
    assert "--metadata kubernetes=file:///nowhere.yaml: must be a file with a pod: " in said


def test_the_cluster_s_own_words_say_why_it_refused(cluster, refused):
    def validate(resource):
        raise ValueError("admission webhook denied the request:\nqueue is closed")

    cluster.validate = validate
    said = refused("run", "-s", "jobset", *SHELL, "true")
    assert said == "torchx run: error: Kubernetes: admission webhook denied the request: queue is closed"


def test_a_jobset_too_old_to_tell_failures_apart_is_named(cluster, refused):
    field = "spec.failurePolicy.rules[0].onJobFailureMessagePatterns"
    words = (
        f'JobSet in version "v1alpha2" cannot be handled as a JobSet: strict decoding error: unknown field "{field}"'
    )

    def validate(resource):
        raise ValueError(words)

    cluster.validate = validate
    said = refused("run", "-s", "jobset", *SHELL, "true")
    assert "the cluster's JobSet is older than 0.10.1 and lacks onJobFailureMessagePatterns" in said


def test_a_cluster_without_jobset_is_told_from_a_job_that_is_gone(cluster, refused, quick, caplog):
    with pytest.raises(SystemExit):
        quick("status", "jobset://torchx/default:gone")
    assert "does not exist" in caplog.text
    del cluster.kinds["jobset.x-k8s.io", "v1alpha2", "jobsets"]
    assert "the cluster has no jobset.x-k8s.io/v1alpha2" in refused("run", "-s", "jobset", *SHELL, "true")
    assert "the cluster has no jobset.x-k8s.io/v1alpha2" in refused("list", "-s", "jobset")


def test_a_cluster_out_of_reach_is_named_in_one_line(cluster, refused):
    cluster.stop()
    assert "Kubernetes cannot be reached: " in refused("status", "jobset://torchx/default:job")
    assert "no Kubernetes cluster: " in refused("list", "-s", "jobset", "-cfg", "context=nowhere")


NOT_BASE64 = """
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters: [{name: x, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: "a"}}]
users: [{name: x, user: {token: t}}]
"""


@pytest.mark.parametrize("content", [b"contexts: [x", b"- x", b"x", b"\x80", NOT_BASE64.encode(), None])
@pytest.mark.parametrize("scheduler", ["jobset", "kubernetes"])
def test_a_bad_kubeconfig_is_one_line(refused, tmp_path, monkeypatch, scheduler, content):
    file = tmp_path / "config"
    file.write_bytes(content) if content else file.mkdir()
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    said = refused("status", f"{scheduler}://torchx/default:job")
    assert said.startswith(f"torchx status: error: KUBECONFIG {file}: must be a kubeconfig file that kubectl can use: ")


@pytest.mark.parametrize("command", ["status", "log", "cancel", "delete", "describe"])
@pytest.mark.parametrize("app_id", ["job", ":job", "a:b:c:d"])
def test_a_handle_without_a_namespace_is_one_line(refused, command, app_id):
    said = refused(command, f"jobset://torchx/{app_id}")
    assert f"jobset://torchx/{app_id}: must be jobset://torchx/NAMESPACE:NAME" in said


def test_a_handle_names_the_context_that_the_job_was_submitted_to(cluster, quick):
    arn = "arn:aws:eks:eu-1:123:cluster/lab"
    cluster.kubeconfig(arn)
    where = ("-cfg", f"context={arn},namespace=ads")
    handle = quick("run", "-s", "jobset", *where, *SHELL, "true").strip()
    assert handle.startswith("jobset://torchx/arn%3Aaws%3Aeks%3Aeu-1%3A123%3Acluster%2Flab:ads:sh-")
    assert handle in quick("list", "-s", "jobset", *where)
    assert json.loads(quick("status", "--json", handle))["app_id"] in handle


def test_arguments_and_variables_arrive_as_given(cluster, quick):
    """The kubelet replaces $(NAME) and $$ in commands and values."""
    awkward = 'a $(HOME) $(GREETING) $$(HOME) `id` "quoted" it\'s *'
    script = (
        "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['GREETING'], os.environ['TORCHX_JOB_ID']]))"
    )
    greeting = ("--env", "GREETING=$(HOME) and more")
    # TorchX itself takes $$ for a $.
    words = ("python", "-c", script.replace("$", "$$"), awkward.replace("$", "$$"))
    handle = quick("run", "-s", "jobset", *SHELL, *greeting, *words).strip()
    cluster.wait_for(lambda: cluster.all("JobSet")[0]["status"].get("terminalState"))
    printed = quick("log", f"{handle}/sh/0").removeprefix("sh/0 ")
    assert json.loads(printed) == [[awkward], "$(HOME) and more", handle]


def test_a_cluster_that_validates_strictly_takes_the_job(cluster, quick):
    cluster.validate = lambda resource: schemas.validate(resource) if resource["kind"] == "JobSet" else None
    quick("run", "-s", "jobset", "-cfg", "queue=team-a,ttl_seconds=60", *SHELL, "true")


def test_runopts_explains_every_option(quick):
    from schedulers.jobset.options import JobSetOpts

    text = quick("runopts", "jobset")
    for name, option in JobSetOpts.as_runopts():
        assert option.help != name
        assert name in text


MAPS = [name for name, option in JobSetOpts.as_runopts() if option.opt_type == dict[str, str]]


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("value", ["pool", "a:b;", "a:b;pool"])
def test_a_map_without_a_colon_is_one_line(refused, name, value):
    said = refused("run", "-s", "jobset", "-cfg", f"{name}={value}", *SHELL, "true")
    assert said.startswith(f"torchx run: error: -cfg {name}={value}: must be KEY=VALUE,... as `torchx runopts jobset`")
    assert "a map is KEY:VALUE;KEY:VALUE" in said


@pytest.mark.parametrize(
    ("options", "words", "line"),
    [
        ("ipc_lock=True", (), "-cfg ipc_lock=True: must not come with restricted=True"),
        ("run_as_user=0", (), "-cfg run_as_user=0: must be another user with restricted=True"),
        (
            "fs_group=1",
            ("--mounts", "type=bind,src=/a,dst=/b"),
            "--mounts /b: must be of type volume with -cfg restricted",
        ),
    ],
)
def test_what_a_restricted_pod_must_not_have_is_refused(refused, options, words, line):
    job = ("dlrm.single_node", "--config", "c.toml", *words)
    assert line in refused("run", "-s", "jobset", "--dryrun", "-cfg", f"restricted=True,{options}", *job)
