"""The Roles in the documentation have the rights that the commands use, and no others."""

import re
from pathlib import Path

import pytest
import yaml
from kube_api import PATH
from kube_controllers import restricted

PAGE = Path(__file__).parents[3] / "docs/schedulers/kubernetes.md"
VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
SLEEP = ("utils.sh", "--image", "trainer:1", "sh", "-c", "echo ready; exec sleep 100")
WHERE = {"jobset": ("-cfg", "queue=team-a"), "kubernetes": ("-cfg", "queue=default", "--workspace", "")}


def granted(name):
    """The rights of a Role on the page: API group, resource and verb."""
    roles = [
        role
        for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        for role in yaml.safe_load_all(block)
        if role.get("kind") == "Role" and role["metadata"]["name"] == name
    ]
    (role,) = roles
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(requests):
    """The rights that requests need."""
    rights = set()
    for method, path in requests:
        place = PATH.fullmatch(path)
        verb = VERBS.get(method) or ("get" if place["name"] else "list")
        resource = f"{place['plural']}/{place['sub']}" if place["sub"] else place["plural"]
        rights.add((place["group"] or "", resource, verb))
    return rights


@pytest.mark.parametrize("scheduler", WHERE)
def test_a_role_on_the_page_suffices_and_grants_nothing_else(cluster, quick, scheduler):
    cluster.queues = {"team-a": 1}
    handle = quick("run", "-s", scheduler, *WHERE[scheduler], *SLEEP).strip()
    cluster.wait_for(lambda: [pod["status"]["phase"] for pod in cluster.pods()] == ["Running"])
    quick("run", "-s", scheduler, *WHERE[scheduler], *SLEEP)
    for words in (("status", handle), ("describe", handle), ("log", handle), ("cancel", handle)):
        quick(*words)
    if scheduler == "jobset":  # a job whose pods are refused
        cluster.admit = restricted
        refused = quick("run", "-s", scheduler, *SLEEP).strip()
        cluster.wait_for(lambda: cluster.all("Event"))
        quick("status", refused)
    else:  # a job without its gang
        cluster.why_no_gang = "queue resource quota insufficient"
        waiting = quick("run", "-s", scheduler, *WHERE[scheduler], *SLEEP).strip()
        cluster.wait_for(lambda: cluster.all("PodGroup"))
        quick("status", waiting)
    quick("list", "-s", scheduler, "-cfg", "namespace=default")
    quick("delete", handle)
    assert used(cluster.requests) == granted(f"torchx-{scheduler}")
