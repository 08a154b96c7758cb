"""A stand-in for a Kubernetes cluster, for tests: the API server over HTTP, and processes of this machine as pods.

It keeps objects, and honours dry runs, label selectors, resource versions, merge patches, status and log calls. It
plays the controllers of JobSet, Kueue and Volcano just enough (kube_controllers.py) and runs the containers of a pod as
local processes with the container's command, environment and termination message (kube_nodes.py). It is no proof of
what a live cluster does.
"""

import functools
import itertools
import json
import re
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import kube_controllers
import yaml
from kube_nodes import Nodes

PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status|log))?"
)
SERVED = {
    ("", "v1", "pods"): "Pod",
    ("", "v1", "events"): "Event",
    ("jobset.x-k8s.io", "v1alpha2", "jobsets"): "JobSet",
    ("batch.volcano.sh", "v1alpha1", "jobs"): "Job",
    ("scheduling.volcano.sh", "v1beta1", "podgroups"): "PodGroup",
    ("kueue.x-k8s.io", "v1beta1", "workloads"): "Workload",
}


class Refused(Exception):
    """A request that the API server answers with a status other than success."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.answer = {"kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": code}


class Cluster:
    """The stand-in.

    Attributes:
        requests: The method and path of every request.
        kinds: The kinds that are installed, by group, version and plural; tests take some away.
        queues: How many pods each Kueue queue admits.
        why_unschedulable: What the scheduler says about new pods; empty if they fit.
        missing_images: Images that cannot be pulled.
        cut_log_after: How many lines the next log call sends before its connection is closed.
        validate: Called with every object that is posted; raises ValueError.
        admit: Called with every pod of a Job; returns why it is not made, which an event then says.
        forbidden: Requests that this user may not send, by method and plural, or plural and part (`jobs/status`).
        conflicts: How many of the next replacements meet an object that has changed meanwhile.
        why_no_gang: What Volcano's scheduler says about new jobs, which then get no pods; empty if they fit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image = folder / "image"  # the working directory of every container
        self.image.mkdir()
        self.requests: list[tuple[str, str]] = []
        self.kinds = dict(SERVED)
        self.queues: dict[str, int] = {}
        self.why_unschedulable = ""
        self.missing_images: set[str] = set()
        self.cut_log_after: int | None = None
        self.validate: Callable[[dict], None] = lambda resource: None
        self.admit: Callable[[dict], str] = lambda pod: ""
        self.forbidden: set[tuple[str, str]] = set()
        self.conflicts = 0
        self.why_no_gang = ""
        self.objects: dict[tuple[str, str, str], dict] = {}  # by kind, namespace, name
        self.changed = threading.Condition(threading.RLock())
        self.nodes = Nodes(self)
        self._version = 0
        self._stopping = False
        self._error: Exception | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"cluster": self}))
        self._server.daemon_threads = True
        serve = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._threads = [serve, threading.Thread(target=self._control)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends every process and thread."""
        self._stopping = True
        self.nodes.stop()
        self.touch()
        self._server.shutdown()
        for thread in self._threads:
            thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self, context: str = "lab") -> Path:
        """Writes a kubeconfig file with one context, the current one."""
        tree = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [{"name": "lab", "cluster": {"server": self.url}}],
            "users": [{"name": "lab", "user": {"token": "secret"}}],
            "contexts": [{"name": context, "context": {"cluster": "lab", "user": "lab"}}],
        }
        file = self.folder / "kubeconfig"
        file.write_text(yaml.safe_dump(tree))
        return file

    def touch(self) -> None:
        """Wakes the controllers and those who wait for a change."""
        with self.changed:
            self.changed.notify_all()

    def all(self, kind: str) -> list[dict]:
        """The objects of a kind."""
        with self.changed:
            return [each for (found, _, _), each in self.objects.items() if found == kind]

    def pods(self, role: str = "") -> list[dict]:
        """The pods, of one role if it is named."""
        label = "torchx.pytorch.org/role-name"
        return [pod for pod in self.all("Pod") if not role or pod["metadata"]["labels"].get(label) == role]

    def wait_for(self, condition: Callable[[], object], seconds: float = 600) -> object:
        """Waits until a condition holds and returns its value."""
        with self.changed:
            assert self.changed.wait_for(lambda: self._error or condition(), seconds), "the cluster did not get there"
            if self._error:
                raise self._error
            return condition()

    def _control(self) -> None:
        while not self._stopping and not self._error:
            with self.changed:
                try:
                    kube_controllers.reconcile(self)
                except Exception as error:  # the test is to end with it
                    self._error = error
                    self.changed.notify_all()
                self.changed.wait(timeout=0.2)

    def post(self, kind: str, namespace: str, resource: dict, dry_run: bool = False) -> dict:
        """Creates an object as the API server does."""
        name = resource["metadata"]["name"]
        with self.changed:
            if (kind, namespace, name) in self.objects:
                raise Refused(409, f'"{name}" already exists', "AlreadyExists")
            try:
                self.validate(resource)
            except ValueError as error:
                raise Refused(400, str(error), "BadRequest") from error
            if dry_run:
                return resource
            now = kube_controllers.timestamp()
            resource["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now}
            self.objects[kind, namespace, name] = resource
            return self.store(resource)

    def store(self, resource: dict) -> dict:
        """Marks an object as changed."""
        self._version += 1
        resource["metadata"]["resourceVersion"] = str(self._version)
        self.touch()
        return resource

    def get(self, kind: str, namespace: str, name: str) -> dict:
        """Reads an object."""
        try:
            return self.objects[kind, namespace, name]
        except KeyError:
            raise Refused(404, f'{kind} "{name}" not found', "NotFound") from None

    def remove(self, kind: str, namespace: str, name: str) -> dict:
        """Deletes an object and the pods and workloads that it owns."""
        with self.changed:
            resource = self.get(kind, namespace, name)
            if kind == "Pod":
                self.nodes.delete(resource)
                return resource
            del self.objects[kind, namespace, name]
            for owned in [*self.all("Workload"), *self.all("PodGroup"), *self.all("Pod")]:
                if owned["metadata"].get("ownerUid") == resource["metadata"]["uid"]:
                    self.remove(owned["kind"], namespace, owned["metadata"]["name"])
            self.touch()
            return resource


def merge(base: dict, change: dict) -> None:
    """Applies a JSON merge patch (RFC 7396)."""
    for key, value in change.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict):
            merge(base.setdefault(key, {}), value)
        else:
            base[key] = value


def selected(resource: dict, selector: str) -> bool:
    """Whether an object has the labels of an equality selector."""
    labels = resource["metadata"].get("labels", {})
    wanted = [each.split("=", 1) for each in selector.split(",") if each]
    return all(labels.get(key) == value for key, value in wanted)


def has_fields(resource: dict, selector: str) -> bool:
    """Whether an object has the values of a field selector."""
    wanted = [each.split("=", 1) for each in selector.split(",") if each]
    return all(
        functools.reduce(lambda at, key: at.get(key, {}), path.split("."), resource) == value for path, value in wanted
    )


class Handler(BaseHTTPRequestHandler):
    cluster: Cluster
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _handle(self) -> None:
        url = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.cluster.requests.append((self.command, url.path))
        length = int(self.headers.get("Content-Length") or 0)
        self.body = json.loads(self.rfile.read(length)) if length else None
        try:
            place = PATH.fullmatch(url.path)
            if place and place["sub"] == "log":
                return self._log(place)
            answer = self._answer(place) if place else self._discover(url.path)
            self._send(201 if self.command == "POST" else 200, answer)
        except Refused as refused:
            self._send(refused.answer["code"], refused.answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

    def _answer(self, place: re.Match) -> dict:
        key = (place["group"] or "", place["version"] or place["core"], place["plural"])
        if key not in self.cluster.kinds:
            raise Refused(404, "the server could not find the requested resource", "NotFound")
        resource = "/".join(filter(None, [place["plural"], place["sub"]]))
        if {(self.command, place["plural"]), (self.command, resource)} & self.cluster.forbidden:
            raise Refused(403, f"{resource} is forbidden", "Forbidden")
        kind, namespace, name = self.cluster.kinds[key], place["namespace"], place["name"]
        match self.command, name:
            case "GET", None:
                labels, fields = self.query.get("labelSelector", ""), self.query.get("fieldSelector", "")
                found = [each for each in self.cluster.all(kind) if each["metadata"]["namespace"] == namespace]
                found = [each for each in found if selected(each, labels) and has_fields(each, fields)]
                return {"kind": f"{kind}List", "items": found}
            case "POST", None:
                return self.cluster.post(kind, namespace, self.body, self.query.get("dryRun") == "All")
            case "GET", _:
                return self.cluster.get(kind, namespace, name)
            case "DELETE", _:
                return self.cluster.remove(kind, namespace, name)
            case _:
                return self._change(kind, namespace, name)

    def _change(self, kind: str, namespace: str, name: str) -> dict:
        with self.cluster.changed:
            stored = self.cluster.get(kind, namespace, name)
            if self.command == "PATCH":
                assert self.headers["Content-Type"] == "application/merge-patch+json"
                merge(stored, self.body)
            else:
                if self.cluster.conflicts:
                    self.cluster.conflicts -= 1
                    self.cluster.store(stored)
                if self.body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
                    raise Refused(409, f'"{name}" has been modified', "Conflict")
                stored["status"] = self.body["status"]
            return self.cluster.store(stored)

    def _discover(self, path: str) -> dict:
        if path == "/version":
            return {"gitVersion": "v1.37.0", "major": "1", "minor": "37"}
        groups = {group: version for group, version, _ in self.cluster.kinds if group}
        if path == "/apis":
            listed = [
                {"name": name, "preferredVersion": {"groupVersion": f"{name}/{version}", "version": version}}
                for name, version in groups.items()
            ]
            return {"kind": "APIGroupList", "groups": listed}
        raise Refused(404, "the server could not find the requested resource", "NotFound")

    def _send(self, code: int, answer: dict) -> None:
        with self.cluster.changed:
            content = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _log(self, place: re.Match) -> None:
        pod = self.cluster.get("Pod", place["namespace"], place["name"])
        if not self.query.get("sinceSeconds", "1").isdigit():
            raise Refused(400, "sinceSeconds must be an integer", "BadRequest")
        lines = self.cluster.nodes.log(pod, self.query)
        if lines is None:
            container = self.query.get("container", "")
            raise Refused(400, f'container "{container}" in pod is waiting to start: ContainerCreating', "BadRequest")
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        cut_after, self.cluster.cut_log_after = self.cluster.cut_log_after, None
        for line in itertools.islice(lines, cut_after):
            self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")
