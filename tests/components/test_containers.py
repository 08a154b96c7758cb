"""What schedulers of containers need, Docker and a cluster, where neither is there."""

import json
import logging
from datetime import datetime

import pytest
from torchx.runner import get_runner
from torchx.specs import AppDef, Resource, Role

from schedulers.contract import warn_of_ignored
from schedulers.errors import SchedulerError
from schedulers.local import scheduler as local
from schedulers.slurm import scheduler as slurm

JOB = ("dlrm.multi_node", "-j", "2x2", "--config", "c.toml", "--image", "trainer:1")
NOWHERE = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "KUBECONFIG": "/nowhere/kubeconfig"}
NO_DAEMON = "Docker: Error while fetching server API version"
NO_CLUSTER = "no cluster validates the request: no Kubernetes cluster: "
CHECKED = "torchx run: the pods of the request are valid for the schema of Kubernetes "


def last_lines(done, number):
    assert "Traceback" not in done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("torchx ") and " INFO " not in line][-number:]


def test_a_dry_run_needs_neither_docker_nor_a_cluster(torchx):
    done = torchx("run", "-s", "kubernetes", "-cfg", "queue=q", "--dryrun", *JOB, **NOWHERE)
    assert done.returncode == 0, done.stderr
    workspace, cluster, pods = last_lines(done, 3)
    assert "is not built into the image, which is taken as it is: neither -cfg image_repo nor -cfg code" in workspace
    assert NO_CLUSTER in cluster
    assert pods.startswith(CHECKED)


@pytest.mark.parametrize("scheduler", [("kubernetes", "-cfg", "queue=q,image_repo=here/trainer"), ("local_docker",)])
def test_a_workspace_that_docker_cannot_build_is_left_out_with_a_line(torchx, scheduler, tmp_path):
    (tmp_path / "Dockerfile.torchx").write_text("FROM trainer:1\n")  # no layer replaces it
    done = torchx("run", "-s", *scheduler, "--dryrun", *JOB, **NOWHERE)
    assert done.returncode == 0, done.stderr
    assert f"is not built into the image, which is taken as it is: {NO_DAEMON}" in done.stderr
    assert "'trainer:1'" in done.stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("run", "-s", "local_docker", *JOB), f"torchx run: error: {NO_DAEMON}"),
        (
            ("run", "-s", "local_docker", "--workspace", "/usr", *JOB),
            "torchx run: error: --workspace /usr: must be a dir",
        ),
        (("list", "-s", "local_docker"), f"torchx list: error: {NO_DAEMON}"),
        (("tracker", "list", "metadata", "x"), "torchx tracker: error: no such run: x; `torchx tracker list jobs`"),
    ],
)
def test_what_is_missing_is_one_line(torchx, words, line):
    done = torchx(*words, **NOWHERE)
    assert done.returncode == 2, done.stderr
    assert last_lines(done, 1)[0].startswith(line)


def test_a_dry_run_refuses_pods_that_kubernetes_would_not_know(torchx, tmp_path):
    overlay = tmp_path / "pod.yaml"
    overlay.write_text("spec:\n  dnsPolicies: None\n")
    done = torchx("run", "-s", "jobset", "--dryrun", *JOB, "--metadata", f"kubernetes=file://{overlay}", **NOWHERE)
    assert done.returncode == 2, done.stderr
    assert "error: the request has a wrong pod: " in last_lines(done, 1)[0]
    assert "dnsPolicies" in last_lines(done, 1)[0]


@pytest.mark.parametrize("scheduler", ["local_cwd", "slurm", "jobset"])
def test_what_a_scheduler_cannot_give_is_a_warning(scheduler, caplog, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    resource = Resource(1, 0, 64, devices={"vpc.amazonaws.com/efa": 1}, capabilities={"disk": "nvme"})
    app = AppDef("app", [Role("sh", "image", entrypoint="sh", resource=resource, port_map={"http": 80})])
    with caplog.at_level(logging.WARNING), get_runner() as runner:
        runner.dryrun(app, scheduler)
    said = [line for line in caplog.messages if "ignores" in line]
    devices = [] if scheduler == "jobset" else [f"{scheduler} ignores the devices of role sh: vpc.amazonaws.com/efa=1"]
    assert said == [*devices, f"{scheduler} ignores the capabilities of role sh: disk=nvme"]


def test_ports_that_docker_does_not_publish_are_a_warning(torchx):
    done = torchx("run", "-s", "local_docker", "--dryrun", "tools.tensorboard", "--logdir", "runs", **NOWHERE)
    assert "local_docker ignores the ports of role tensorboard: http=" in done.stderr, done.stderr


def test_an_app_of_many_roles_gets_one_warning(caplog):
    role = Role("seed-1", "image", entrypoint="sh", resource=Resource(1, 0, 64, devices={"hca": 1}))
    warn_of_ignored(AppDef("app", [role, role], metadata={"torchx-recsys/array": "true"}), "slurm", "devices")
    assert len(caplog.messages) == 1


@pytest.fixture
def detached(torchx):
    handle = torchx("run", "-s", "local_cwd", "-cfg", "detach=True", "utils.sh", "sleep", "600").stdout.strip()
    yield handle
    torchx("cancel", handle)


def test_a_job_that_is_cancelled_is_so_at_once_and_says_so(torchx, detached):
    done = torchx("cancel", detached)
    assert done.stderr.startswith(f"torchx cancel: {detached} is CANCELLED: ")
    assert json.loads(torchx("status", "--json", detached).stdout)["state"] == "CANCELLED"


@pytest.mark.parametrize("scheduler", [local.create_scheduler, slurm.create_scheduler])
def test_times_of_lines_that_nobody_knows_are_a_warning_everywhere(scheduler):
    said = pytest.warns(UserWarning, match=" does not know when a line was written: since and until are ignored")
    with said, pytest.raises(SchedulerError):  # there is no such job
        scheduler("session").log_iter("1", "sh", since=datetime.now())
