import contextlib
import io
import os
import threading

import pytest
from command import run_torchx
from kube_api import Cluster
from torchx.cli.main import main


@pytest.fixture
def cluster(tmp_path_factory):
    """A stand-in for a Kubernetes cluster."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture
def environment(cluster, tmp_path):
    """The environment of a shell with access to the cluster and a home of its own."""
    return os.environ | {"HOME": str(tmp_path), "KUBECONFIG": str(cluster.kubeconfig())}


@pytest.fixture
def torchx(environment, tmp_path):
    """Runs the `torchx` command against the cluster, in an empty directory."""

    def run(*words, code=0, **changes):
        done = run_torchx(*words, cwd=tmp_path, **environment | changes)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def quick(cluster, tmp_path, monkeypatch):
    """The same in this process, where everything is loaded already; returns what it printed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    # The client reads KUBECONFIG only once in the life of a process.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig()))
    monkeypatch.setattr("threading.excepthook", threading.excepthook)  # `torchx log` puts its own there
    monkeypatch.chdir(tmp_path)

    def run(*words):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main(list(words))
        return printed.getvalue()

    return run
