"""Code in real containers: what a job's pods are made of, run by Docker, with a real registry and a server of S3."""

import re
import sysconfig

import pytest
from container_registry import container_registry
from docker_daemon import PLACES, docker, docker_daemon
from object_store import object_store

pytestmark = pytest.mark.more("test_layer.py and test_archive.py run the same on the stand-in for a cluster")

MOUNTS = [word for here, there in PLACES.items() for word in ("-v", f"{here}:{there}:ro")]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with docker_daemon(tmp_path_factory.mktemp("docker")) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def images(daemon, tmp_path_factory):
    """A registry with the images `base:1` and `empty:1`, pushed by Docker; its host and port."""
    with container_registry(tmp_path_factory.mktemp("images")) as registry:
        for name in ("base:1", "empty:1"):
            docker(daemon, "tag", name, f"{registry.host}/{name}")
            docker(daemon, "push", f"{registry.host}/{name}")
        yield registry


@pytest.fixture
def pod(cluster, quick):
    """Submits a job and returns its pod, which no node of the stand-in starts."""
    cluster.why_unschedulable = "Docker runs it"

    def pod(option, image, env=""):
        job = ("--image", image, *(("--env", env) if env else ()), "sh", "job.sh")
        name = quick("run", "-s", "jobset", "-cfg", option, "utils.sh", *job).strip().rpartition(":")[2]
        job = cluster.get("JobSet", "default", name)["spec"]["replicatedJobs"][0]["template"]
        return job["spec"]["template"]["spec"]

    return pod


def run(daemon, container, *words, command=None):
    """Runs a container of a pod as the user 1000, with Python from this machine."""
    own = {one["name"]: one["value"] for one in container["env"] if "value" in one and one["name"] != "PATH"}
    env = [word for name, value in own.items() for word in ("-e", f"{name}={value}")]
    place = ["-w", container["workingDir"]] if "workingDir" in container else []
    command = command or container["command"]
    first = ["run", "--rm", "--network", "host", "--user", "1000", *MOUNTS, *env, *place, *words]
    return docker(daemon, *first, container["image"], *command, check=False)


def test_a_layer(daemon, images, workspace, pod):
    (workspace / "job.sh").write_text("python3 -c 'import mine; print(mine.WORD)'; touch left-behind && pwd\n")
    for word in ("first", "second"):
        (workspace / "mine.py").write_text(f"WORD = '{word}'\n")
        (container,) = pod(f"image_repo={images.host}/team/code", f"{images.host}/base:1")["containers"]
        assert container["image"].startswith(f"{images.host}/team/code@sha256:")
        done = run(daemon, container, command=["sh", "job.sh"])  # Docker pulls the image
        assert done.stdout.decode().split() == [word, "/torchx-code"], done.stderr
    # Both images share the layer of the base, which Docker has from before.
    pulled = docker(daemon, "inspect", "-f", "{{json .RootFS.Layers}}", container["image"]).stdout.decode()
    base = docker(daemon, "inspect", "-f", "{{json .RootFS.Layers}}", "base:1").stdout.decode()
    assert re.findall(r"sha256:\w+", pulled)[:-1] == re.findall(r"sha256:\w+", base)


def test_an_image_without_a_shell_is_one_line(daemon, images, workspace, pod):
    (container,) = pod(f"image_repo={images.host}/team/code", f"{images.host}/empty:1")["containers"]
    done = docker(daemon, "run", "--rm", "--network", "none", container["image"], "sh", check=False)
    (line,) = [line for line in done.stderr.decode().splitlines() if "exec" in line]
    assert 'exec: "sh": executable file not found' in line  # as the kubelet has it in the pod's status


def test_an_archive(daemon, images, workspace, pod, monkeypatch):
    (workspace / "job.sh").write_text("python3 -c 'import mine; print(mine.WORD)'; touch left-behind && pwd\n")
    python = f"{PLACES['/usr']}/bin/python3"
    with object_store() as server:
        server.fs.mkdir("bucket")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        env = ",".join(f"{name}={value}" for name, value in server.environment.items())
        found = pod("code=s3://bucket/code", f"{images.host}/base:1", env)
        (unpacker,), (container,) = found["initContainers"], found["containers"]
        docker(daemon, "volume", "create", "code")
        shared = ("--mount", "type=volume,src=code,dst=/torchx-code")
        docker(daemon, "run", "--rm", "--network", "none", *shared, *MOUNTS, "base:1", "chmod", "777", "/torchx-code")
        packages = ("-e", f"PYTHONPATH={sysconfig.get_path('purelib')}")
        done = run(daemon, unpacker, *shared, *packages, command=[python, *unpacker["command"][1:]])
        assert done.returncode == 0, done.stderr
        assert b"[torchx] code " in done.stdout
        done = run(daemon, container, *shared, command=["sh", "job.sh"])
        assert done.stdout.decode().split() == ["first", "/torchx-code"], done.stderr
        empty = run(daemon, unpacker | {"image": f"{images.host}/empty:1"}, *shared)
        assert b'exec: "python": executable file not found' in empty.stderr
