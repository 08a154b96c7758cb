"""The objects that jobs become on Kubernetes: valid for every component, readable in a golden file for each shape."""

import copy
import json
import os
import re
from pathlib import Path

import pytest
import schemas
from catalog import COMPONENTS, SHAPES
from kubernetes.client import ApiClient
from torchx.runner import get_runner

from schedulers.jobset.spec import JobSetRequest

PAGE = Path(__file__).parents[3] / "docs/schedulers/kubernetes.md"
GOLDENS = Path(__file__).parents[1]
OPTIONS = {
    "jobset": {"queue": "team-a", "priority_class": "high", "tolerations": ["nvidia.com/gpu:NoSchedule"]},
    "kubernetes": {"queue": "default", "validate_spec": False},
}
CHANGING = ("TORCHX_INTERNAL_SESSION_ID", "TORCHX_JOB_ID")
CASES = [(scheduler, component) for scheduler in OPTIONS for component in COMPONENTS]


def manifest(scheduler, component, **options):
    """The object for a component with the arguments of the catalog's tests."""
    args = ["--image", "trainer:1", *COMPONENTS[component]]
    with get_runner() as runner:
        cfg = OPTIONS[scheduler] | options
        request = runner.dryrun_component(component, args, scheduler, cfg=cfg).request
    return ApiClient().sanitize_for_serialization(request.resource)


def templates(resource):
    spec = resource["spec"]
    if resource["kind"] == "JobSet":
        return [job["template"]["spec"]["template"] for job in spec["replicatedJobs"]]
    return [task["template"] for task in spec["tasks"]]


def readable(resource):
    """The YAML without what differs from run to run."""
    name = resource["metadata"]["name"]
    resource = json.loads(json.dumps(resource).replace(name, f"{name.partition('-')[0]}-x"))
    for template in templates(resource):
        template["metadata"]["labels"].pop("torchx.pytorch.org/version", None)
        for container in template["spec"]["containers"]:
            container["env"] = [each for each in container["env"] if each["name"] not in CHANGING]
    return str(JobSetRequest(None, resource))


@pytest.fixture(scope="module")
def manifests():
    return {case: manifest(*case) for case in CASES}


@pytest.mark.parametrize("scheduler", OPTIONS)
@pytest.mark.parametrize("component", SHAPES)
def test_objects_are_as_in_the_golden_files(manifests, scheduler, component):
    text = readable(manifests[scheduler, component])
    golden = GOLDENS / scheduler / "golden" / f"{component}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "UPDATE_GOLDEN=1 pytest tests/schedulers accepts the change"


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_objects_are_valid_for_the_real_definitions(manifests, case):
    schemas.validate(manifests[case])


def test_the_definitions_refuse_what_is_wrong(manifests):
    wrong = copy.deepcopy(manifests["jobset", "dlrm.multi_node"])
    wrong["spec"]["replicatedJobs"][0]["template"]["spec"]["backofflimit"] = 0
    with pytest.raises(ValueError, match="backofflimit"):
        schemas.validate(wrong)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_pods_are_valid_for_kubernetes(manifests, case):
    for template in templates(manifests[case]):
        schemas.validate_pod(template)


def test_names_fit_jobset_however_long_the_app_is_called():
    """JobSet's webhook refuses pod names of more than 63 characters; they end in five of their own."""
    app = ["--name", "a" * 60, "-j", "200x1", "--config", "c.toml"]
    with get_runner() as runner:
        resource = runner.dryrun_component("dlrm.multi_node", app, "jobset").request.resource
    assert len(f"{resource['metadata']['name']}-trainer-0-199-abcde") == 63


def test_all_options_shape_the_object():
    resource = manifest(
        *("jobset", "tools.bench"),
        namespace="ads",
        queue_priority="urgent",
        service_account="trainer",
        image_pull_secrets=["registry"],
        node_selector={"gpu": "h200"},
        tolerations=["spot", "team:ads:NoExecute"],
        secrets={"s3": "/etc/s3"},
        env_secrets=["aws"],
        env_secret_keys={"HF_TOKEN": "hub/token"},
        labels={"team": "ads", "app.kubernetes.io/managed-by": "me"},
        annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
        devices={"rdma/hca": "1"},
        ipc_lock=True,
        run_as_user=1000,
        run_as_group=0,
        fs_group=2000,
        shm_size="16Gi",
        reserved_millicpu=0,
        reserved_memmb=0,
        termination_grace_seconds=600,
        ttl_seconds=3600,
    )
    assert resource["metadata"]["namespace"] == "ads"
    assert resource["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "urgent"
    assert resource["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "torchx.pytorch.org"
    assert resource["spec"]["ttlSecondsAfterFinished"] == 3600
    (template,) = templates(resource)
    schemas.validate_pod(template)
    pod = template["spec"]
    assert pod["serviceAccountName"] == "trainer"
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["nodeSelector"] == {"gpu": "h200"}
    assert pod["tolerations"] == [
        {"key": "spot", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "ads", "effect": "NoExecute"},
    ]
    assert pod["terminationGracePeriodSeconds"] == 600
    (container,) = pod["containers"]
    for metadata in (resource["metadata"], template["metadata"]):
        assert metadata["labels"]["team"] == "ads"
        assert metadata["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert container["envFrom"] == [{"secretRef": {"name": "aws"}}]
    token = next(each for each in container["env"] if each["name"] == "HF_TOKEN")
    assert token["valueFrom"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert container["resources"]["limits"]["rdma/hca"] == "1"
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert pod["securityContext"] == {"runAsUser": 1000, "runAsGroup": 0, "fsGroup": 2000, "runAsNonRoot": True}
    assert container["resources"]["limits"] == container["resources"]["requests"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    places = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert places["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert places["/etc/s3"]["secret"] == {"secretName": "s3"}


JOINED = """
V1Pod:
  spec:
    __join__:containers:name:
    - name: movielens
      env: [{name: LOGLEVEL, value: INFO}]
      resources: {limits: {example.com/rdma: "1"}}
      volumeMounts: [{name: scratch, mountPath: /scratch}]
    - {name: proxy, image: proxy}
    volumes: [{name: scratch, emptyDir: {}}]
"""


def test_a_joined_container_keeps_what_the_overlay_does_not_name(tmp_path, monkeypatch):
    (plain,) = templates(manifest("jobset", "data.movielens"))
    (tmp_path / "pod.yaml").write_text(JOINED)
    monkeypatch.setitem(COMPONENTS, "data.movielens", ["--metadata", f"kubernetes=file://{tmp_path}/pod.yaml"])
    (template,) = templates(manifest("jobset", "data.movielens"))
    schemas.validate_pod(template)
    (before,), (joined, proxy) = plain["spec"]["containers"], template["spec"]["containers"]
    assert proxy == {"name": "proxy", "image": "proxy"}
    assert joined["env"][len(before["env"]) :] == [{"name": "LOGLEVEL", "value": "INFO"}]
    assert {one["name"] for one in before["env"]} < {one["name"] for one in joined["env"]}
    assert joined["resources"]["limits"] == before["resources"]["limits"] | {"example.com/rdma": "1"}
    assert joined["resources"]["requests"] == before["resources"]["requests"]
    assert [mount["mountPath"] for mount in joined["volumeMounts"]] == ["/dev/shm", "/scratch"]


@pytest.mark.parametrize("scheduler", OPTIONS)
def test_mounts_and_pod_overlays_reach_the_pod(scheduler, tmp_path, monkeypatch):
    (tmp_path / "pod.yaml").write_text(re.search(r"```yaml\n(V1Pod:.*?)```", PAGE.read_text(), re.DOTALL)[1])
    mounts = "type=bind,src=/host,dst=/job,readonly,type=volume,src=runs,dst=/runs,type=device,src=/dev/x,dst=/dev/y"
    extra = ["--mounts", mounts, "--metadata", f"kubernetes=file://{tmp_path}/pod.yaml"]
    monkeypatch.setitem(COMPONENTS, "data.movielens", extra)
    (template,) = templates(manifest(scheduler, "data.movielens"))
    schemas.validate_pod(template)
    pod = template["spec"]
    assert template["metadata"]["annotations"]["team"] == "ads"
    assert (pod["nodeSelector"], pod["terminationGracePeriodSeconds"]) == ({"pool": "h200"}, 300)
    assert {"name": "scratch", "emptyDir": {}} in pod["volumes"]
    sources = [volume for volume in pod["volumes"] if volume["name"].startswith("mount-")]
    assert [{*volume} - {"name"} for volume in sources] == [{"hostPath"}, {"persistentVolumeClaim"}, {"hostPath"}]
    assert pod["containers"][0]["volumeMounts"][1]["readOnly"] is True
