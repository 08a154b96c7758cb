"""Jobs on hosts whose names do not resolve, and whose ports are held."""

import shlex
from contextlib import ExitStack

import pytest
from command import write_config
from forked import torchrun, trainer
from jobs import config
from network_hosts import hold_port, network_hosts
from test_elastic import wait_until
from torchx.specs import macros

from components import dlrm

pytestmark = pytest.mark.more("hosts without names")


@pytest.fixture
def hosts(tmp_path):
    """Brings up one host or two for each hosts file; they end with the test."""
    with ExitStack() as stack:

        def hosts(*names):
            try:
                return stack.enter_context(network_hosts(tmp_path, *names))
            except OSError as error:
                pytest.skip(f"needs network namespaces, as root: {error}")

        yield hosts


@pytest.fixture
def train(rows, tmp_path):
    """Starts a node of a job on a host; returns the process and its log."""
    file = write_config(tmp_path / "config.toml", config(rows, train__steps=3))

    def train(host, place="", job="job"):
        shape = "2x1" if place else "1x2"
        app = dlrm.multi_node(config=str(file), out=str(tmp_path / job), j=shape, cpu=1)
        role = macros.Values(img_root="", app_id=job, replica_id="0", rank0_env="RANK0_HOST").apply(app.roles[0])
        flags = shlex.split(role.args[1])[5:]
        if place:
            flags[flags.index("--rdzv-endpoint") + 1] = place
        log = tmp_path / f"{job}.{host.name}.log"
        return host.start(torchrun, *flags, log=log, **role.env), log

    return train


def test_one_host_needs_no_name_of_its_own(hosts, train):
    (host,) = hosts("")
    node, log = train(host)
    assert node.wait(600) == 0, log.read_text()


def test_nodes_meet_whose_own_names_are_of_no_use_to_others(hosts, train, tmp_path):
    # As Debian writes the file: the own name is an address of the loopback. And as in many containers: it has none.
    first, second = hosts("127.0.1.1 n1\n", "10.9.0.1 n1\n")
    nodes = [train(host, "n1:20001") for host in (first, second)]
    for node, log in nodes:
        assert node.wait(600) == 0, log.read_text()
    assert (tmp_path / "job/run.json").exists()


def test_nodes_meet_at_an_address_without_any_name(hosts, train):
    for node, log in [train(host, "10.9.0.1:20001") for host in hosts("", "")]:
        assert node.wait(600) == 0, log.read_text()


def test_a_place_where_nodes_cannot_meet_is_named_in_one_line(hosts, train, tmp_path):
    first, second = hosts("127.0.1.1 n1\n", "10.9.0.1 n1\n")
    first.start(hold_port, "20001", log=tmp_path / "holding.log")
    wait_until(lambda: "holds" in (tmp_path / "holding.log").read_text())
    held = [train(host, "n1:20001", "held") for host in (first, second)]
    unknown = train(second, "nowhere:20002", "unknown")
    silent = train(second, "n1:20003", "silent")
    # As plain torchrun starts a rank, whose agent knows a name for rank 0 that others do not.
    file = write_config(tmp_path / "config.toml", config(tmp_path))
    place = {"MASTER_ADDR": "nowhere", "MASTER_PORT": "20004", "RANK": "1", "WORLD_SIZE": "2"}
    log = tmp_path / "rank.log"
    rank = second.start(trainer, "train", str(file), "--out", str(tmp_path / "rank"), log=log, **place), log
    lines = [last_line(*one) for one in (*held, unknown, silent, rank)]
    assert lines[0] == lines[1]
    assert lines[0].startswith("error: n1:20001, where the nodes of the job meet, is held by another program: end that")
    assert lines[2].startswith(
        "error: nowhere:20002 cannot be reached from n2, where the name nowhere does not resolve"
    )
    assert lines[3].startswith("error: n1:20003 does not answer n2 (Connection refused): see the log of that host")
    assert "where the name nowhere does not resolve" in lines[4]


def last_line(node, log):
    assert node.wait(600) == 1, log.read_text()
    lines = log.read_text().splitlines()
    assert not [line for line in lines if "Traceback" in line], log.read_text()
    return lines[-1]
