"""The nodes of the stand-in: each container is a process of this machine.

Names in the cluster's DNS do not resolve here, so in the environment of every process the host of replica 0 becomes
localhost and that of the API server the stand-in's; /dev/termination-log becomes a file of the container's own, the
folder of the ServiceAccount one with a token, and a volume for code one of the pod's own. Of an image whose name has a
digest, the last layer is pulled from its registry and is the directory of the container. Nothing else is changed,
isolated or limited; other volumes are not mounted.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import last_layer

TERMINATION_LOG = "/dev/termination-log"
API_SERVER, ACCOUNT = "https://kubernetes.default.svc", "/var/run/secrets/kubernetes.io/serviceaccount"
HOSTS = re.compile(r"TORCHX_RANK0_HOST|VC_\w+_HOSTS")


@dataclass
class Container:
    """A process, what it has printed, and the file for its termination message."""

    process: subprocess.Popen
    last_words: Path
    lines: list[tuple[datetime, bytes]] = field(default_factory=list)
    finished: bool = False


class Nodes:
    """Starts, stops and watches the processes of pods; `cluster` is a kube_api.Cluster."""

    def __init__(self, cluster) -> None:
        self._cluster = cluster
        self._containers: dict[str, dict[str, Container]] = {}  # by the pod's uid, then by name

    def run(self, pod: dict) -> None:
        """Starts a new pod, or records why it cannot start."""
        status = pod.setdefault("status", {"phase": "Pending"})
        if status["phase"] != "Pending" or pod["metadata"]["uid"] in self._containers:
            return
        before = repr(status)
        missing = [each for each in pod["spec"]["containers"] if each["image"] in self._cluster.missing_images]
        if why := self._cluster.why_unschedulable:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
            status["conditions"] = [condition]
        elif missing:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{missing[0]["image"]}"'}
            status["conditions"] = []
            status["containerStatuses"] = [_container_status(missing[0], {"waiting": waiting})]
        else:
            self._start(pod)
        if repr(status) != before:
            self._cluster.store(pod)

    def _start(self, pod: dict) -> None:
        pod["spec"]["nodeName"] = "node-1"
        running = {"running": {"startedAt": _now()}}
        pod["status"] |= {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [_container_status(each, running) for each in _by_name(pod)],
        }
        if not self._prepare(pod):
            return
        started = {each["name"]: self._process(pod, each) for each in pod["spec"]["containers"]}
        self._containers[pod["metadata"]["uid"]] = started
        for name, container in started.items():
            threading.Thread(target=self._watch, args=(pod, name, container)).start()

    def _prepare(self, pod: dict) -> bool:
        """Runs the init containers, while the cluster waits; returns whether all succeeded."""
        for each in pod["spec"].get("initContainers", ()):
            container = self._process(pod, each)
            output, _ = container.process.communicate()
            code = container.process.returncode
            terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": _now()}
            if code:
                terminated["message"] = container.last_words.read_text() or output.decode()[-2048:]
            status = _container_status(each, {"terminated": terminated})
            pod["status"].setdefault("initContainerStatuses", []).append(status)
            if code:
                self._containers[pod["metadata"]["uid"]] = {}
                waiting = {"waiting": {"reason": "PodInitializing"}}
                pod["status"]["containerStatuses"] = [_container_status(one, waiting) for one in _by_name(pod)]
                pod["status"] |= {"phase": "Failed", "conditions": []}
                return False
        return True

    def _process(self, pod: dict, container: dict) -> Container:
        words = [*container.get("command", ()), *container.get("args", ())]
        folder = self._cluster.folder / pod["metadata"]["uid"] / container["name"]
        folder.mkdir(parents=True)
        last_words = folder / "termination-log"
        last_words.touch()
        variables = _environment(pod, container)
        places, directory = self._code(pod, container, variables)
        process = subprocess.Popen(
            [_moved(_expand(word, variables), places) for word in words],
            cwd=directory,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "CUDA_VISIBLE_DEVICES": "",
                **{name: self._local(name, _moved(value, places), last_words) for name, value in variables.items()},
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return Container(process, last_words)

    def _code(self, pod: dict, container: dict, variables: dict[str, str]) -> tuple[dict[str, str], Path]:
        """Where the code of a container is on this machine, by its place in the container; and its directory."""
        mine = self._cluster.folder / pod["metadata"]["uid"]
        if "@sha256:" in container["image"]:
            config = last_layer.pull(container["image"], mine)
            variables |= {name: value for name, value in config["Env"].items() if name == "PYTHONPATH"} | variables
            return {config["WorkingDir"]: str(mine / config["WorkingDir"][1:])}, mine / config["WorkingDir"][1:]
        mounts = [one["mountPath"] for one in container.get("volumeMounts", ()) if one["name"] == "torchx-code"]
        for place in mounts:
            (mine / place[1:]).mkdir(exist_ok=True)
        directory = container.get("workingDir")
        return {place: str(mine / place[1:]) for place in mounts}, mine / directory[
            1:
        ] if directory else self._cluster.image

    def _local(self, name: str, value: str, last_words: Path) -> str:
        if HOSTS.fullmatch(name):
            return "localhost"
        places = {TERMINATION_LOG: str(last_words), API_SERVER: self._cluster.url, ACCOUNT: str(last_words.parent)}
        (last_words.parent / "token").write_text("secret")
        for there, here in places.items():
            value = value.replace(there, here)
        return value

    def _read(self, container: Container) -> None:
        assert container.process.stdout
        for line in container.process.stdout:
            with self._cluster.changed:
                container.lines.append((datetime.now(UTC), line))
                self._cluster.changed.notify_all()

    def _watch(self, pod: dict, name: str, container: Container) -> None:
        reader = threading.Thread(target=self._read, args=(container,))
        reader.start()
        code = container.process.wait()
        _kill(container, signal.SIGKILL)  # as a container ends with its first process
        reader.join()
        with self._cluster.changed:
            container.finished = True
            self._report(pod, name, container, code if code >= 0 else 128 - code)
            if all(each.finished for each in self._containers[pod["metadata"]["uid"]].values()):
                self._finish(pod)
            self._cluster.store(pod)

    def _report(self, pod: dict, name: str, container: Container, code: int) -> None:
        spec = next(each for each in pod["spec"]["containers"] if each["name"] == name)
        said = container.last_words.read_text()
        if not said and code and spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            said = b"".join(line for _, line in container.lines[-80:]).decode()[-2048:]
        terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": _now()}
        if said:
            terminated["message"] = said
        status = next(each for each in pod["status"]["containerStatuses"] if each["name"] == name)
        status |= {"state": {"terminated": terminated}, "ready": False}

    def _finish(self, pod: dict) -> None:
        states = [each["state"]["terminated"] for each in pod["status"]["containerStatuses"]]
        pod["status"]["phase"] = "Failed" if any(state["exitCode"] for state in states) else "Succeeded"
        if pod["metadata"].get("deletionTimestamp") and not _disrupted(pod):
            self._forget(pod)

    def _forget(self, pod: dict) -> None:
        self._cluster.objects.pop(("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"]), None)
        self._cluster.touch()

    def delete(self, pod: dict) -> None:
        """Sends SIGTERM to a pod; it is gone when its processes have ended."""
        if pod["status"]["phase"] == "Running":
            self._terminate(pod)
        else:
            self._forget(pod)

    def evict(self, pod: dict, reason: str = "EvictionByEvictionAPI") -> None:
        """Takes a pod away as a drain or a preemption does: it fails when it has left."""
        with self._cluster.changed:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
            pod["status"]["conditions"] = [condition, *pod["status"]["conditions"]]
            self._terminate(pod)

    def _terminate(self, pod: dict) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            return
        pod["metadata"]["deletionTimestamp"] = _now()
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
        for container in self._containers[pod["metadata"]["uid"]].values():
            with contextlib.suppress(ProcessLookupError):
                container.process.send_signal(signal.SIGTERM)
            timer = threading.Timer(grace, _kill, (container, signal.SIGKILL))
            timer.daemon = True
            timer.start()
        self._cluster.store(pod)

    def log(self, pod: dict, query: dict[str, str]) -> Iterator[bytes] | None:
        """The lines of a container that ran; None if it did not."""
        containers = self._containers.get(pod["metadata"]["uid"])
        if not containers:
            return None
        container = containers[query.get("container", next(iter(containers)))]
        return self._lines(container, query)

    def _lines(self, container: Container, query: dict[str, str]) -> Iterator[bytes]:
        seconds = query.get("sinceSeconds")
        oldest = datetime.now(UTC) - timedelta(seconds=int(seconds)) if seconds else datetime.min.replace(tzinfo=UTC)
        follow, stamps = _is_set(query, "follow"), _is_set(query, "timestamps")
        sent = max(0, len(container.lines) - int(query.get("tailLines", len(container.lines))))
        while True:
            with self._cluster.changed:
                while follow and len(container.lines) == sent and not container.finished:
                    self._cluster.changed.wait()
                new = container.lines[sent:]
            for time, line in new:
                if time >= oldest:
                    stamp = time.isoformat(timespec="microseconds").replace("+00:00", "000Z")
                    yield f"{stamp} ".encode() + line if stamps else line
            sent += len(new)
            if not follow or (container.finished and sent == len(container.lines)):
                return

    def age_logs(self, seconds: float) -> None:
        """Makes everything older that was printed so far."""
        for containers in self._containers.values():
            for container in containers.values():
                container.lines = [(time - timedelta(seconds=seconds), line) for time, line in container.lines]

    def stop(self) -> None:
        """Kills every process."""
        for containers in self._containers.values():
            for container in containers.values():
                _kill(container, signal.SIGKILL)


def _moved(text: str, places: dict[str, str]) -> str:
    for there, here in places.items():
        text = text.replace(there, here)
    return text


def _is_set(query: dict[str, str], flag: str) -> bool:
    """Reads a flag as the real server does: anything but 0 and false sets it, and Python's clients send `True`."""
    return query.get(flag, "0").lower() not in ("0", "false")


def _environment(pod: dict, container: dict) -> dict[str, str]:
    """The variables of a container; a value may name those before it."""
    variables: dict[str, str] = {}
    for each in container.get("env", ()):
        if "valueFrom" in each:
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            kind, key = re.fullmatch(r"metadata\.(annotations|labels)\['(.+)'\]", path).groups()
            variables[each["name"]] = pod["metadata"][kind][key]
        else:
            variables[each["name"]] = _expand(each["value"], variables)
    return variables


def _expand(text: str, variables: dict[str, str]) -> str:
    """Replaces $(NAME) as the kubelet does: `$$` is a `$`, and an unknown name stays."""

    def value(found: re.Match) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def _container_status(container: dict, state: dict) -> dict:
    image = {"image": container["image"], "imageID": container["image"]}
    return {"name": container["name"], "state": state, "ready": "running" in state, "restartCount": 0, **image}


def _by_name(pod: dict) -> list[dict]:
    """The containers in the order in which the kubelet reports them."""
    return sorted(pod["spec"]["containers"], key=lambda container: container["name"])


def _disrupted(pod: dict) -> bool:
    return any(each["type"] == "DisruptionTarget" for each in pod["status"]["conditions"])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _kill(container: Container, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(container.process.pid, number)
