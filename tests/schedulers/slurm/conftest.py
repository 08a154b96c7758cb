"""A Slurm to test against, and a user's shell.

`SLURM_PREFIX` names a folder into which another Slurm than the system's was unpacked (`make test-slurm24`).
"""

import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import USER, Cluster, default_proctrack, missing
from slurm_shell import Shell
from ssh_host import Laptop, SshHost
from ssh_host import missing as missing_ssh


@pytest.fixture(scope="session")
def clusters():
    """Brings up a cluster when it is first needed: one with slurmdbd (True), one without (False); or a strict one."""
    prefix = os.environ.get("SLURM_PREFIX")
    with contextlib.ExitStack() as stack:

        @functools.cache
        def cluster(dbd: bool, proctrack: str = default_proctrack(), **kind: Any) -> Cluster:
            if lacking := missing(dbd):
                pytest.skip(lacking)
            folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # short, for the sake of sockets
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            return stack.enter_context(Cluster(folder, dbd, Path(prefix) if prefix else None, proctrack, **kind))

        yield cluster


def pytest_generate_tests(metafunc):
    """Runs tests on a cluster with accounting; `--all` also on one without, which soon forgets a job that has ended."""
    if "accounting" in metafunc.fixturenames:
        both = metafunc.config.getoption("all")
        cases = {"accounting": True} | ({"no accounting": False} if both else {})
        metafunc.parametrize("accounting", cases.values(), ids=cases.keys(), scope="session")


@pytest.fixture
def shell(accounting, clusters, tmp_path):
    return Shell(clusters(accounting), tmp_path)


@pytest.fixture(scope="session")
def strict(clusters):
    """A cluster as administrators set it up."""
    return clusters(True, strict=True)


@pytest.fixture(scope="session")
def second(clusters, strict):
    """Another cluster on the same slurmdbd."""
    return clusters(True, strict=True, beside=strict)


@pytest.fixture
def ordinary(strict):
    """A shell of an ordinary account on the strict cluster."""
    folder = Path(tempfile.mkdtemp(prefix="home-", dir=strict.folder))  # pytest's own are for root alone
    shutil.chown(folder, USER)
    return Shell(strict, folder)


@pytest.fixture(scope="module")
def ssh_host(clusters):
    """A login node of the cluster with accounting, over SSH."""
    if lacking := missing_ssh():
        pytest.skip(lacking)
    cluster = clusters(True)
    folder = Path(tempfile.mkdtemp(prefix="ssh-"))
    host = SshHost(folder, cluster.env["SLURM_CONF"])
    host.start()
    yield host
    host.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def laptop(clusters, ssh_host):
    """A shell on a laptop that reaches it."""
    return Laptop(ssh_host, clusters(True))
