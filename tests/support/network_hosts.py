"""Hosts with names and networks of their own on this machine: Linux namespaces, two of which a cable joins."""

import ctypes
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forked import QUIET, ForkedProcess, start_forked

NAMESPACES = ("net", "uts", "mnt")
ADDRESSES = ("10.9.0.1", "10.9.0.2")
LOCALHOST = "127.0.0.1 localhost\n"


class NetworkHost:
    """A host; it ends with its process.

    Attributes:
        name: Its own name.
    """

    def __init__(self, name: str, names: str, folder: Path) -> None:
        """Brings a host up that knows the names of a hosts file, and has no name service.

        Raises:
            OSError: This user may not do so here.
        """
        self.name = name
        self._started: list[ForkedProcess] = []
        hosts, switch = folder / f"{name}.hosts", folder / f"{name}.nsswitch"
        hosts.write_text(LOCALHOST + names)
        switch.write_text("hosts: files\n")
        script = (
            f"hostname {name} && ip link set lo up && mount --bind {hosts} /etc/hosts"
            f" && mount --bind {switch} /etc/nsswitch.conf && echo up && exec sleep infinity"
        )
        words = ["unshare", "--net", "--uts", "--mount", "sh", "-c", script]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        if self.process.stdout.readline() != "up\n":
            self.process.kill()
            raise OSError(self.process.communicate()[1].strip())

    def run(self, *words: str) -> None:
        """Runs a command in the host's network."""
        done = subprocess.run(["nsenter", "-t", str(self.process.pid), "--net", *words], capture_output=True, text=True)
        if done.returncode:
            raise OSError(done.stderr.strip())

    def start(self, function: Callable[..., None], *words: str, log: Path, **environment: str) -> ForkedProcess:
        """Starts a forked process there, which ends with the host."""
        log.touch()
        variables = os.environ | QUIET | environment
        started = start_forked(
            on_host, self.process.pid, function, *words, environment=variables, output=log, errors=log
        )
        self._started.append(started)
        return started

    def end(self) -> None:
        """Ends the host and what was started there."""
        for process in (*self._started, self.process):
            process.kill()
        self.process.communicate()


@contextmanager
def network_hosts(folder: Path, *names: str) -> Iterator[list[NetworkHost]]:
    """Brings hosts up, n1 and n2, each with the names that it knows; two are joined, as 10.9.0.1 and 10.9.0.2.

    Raises:
        OSError: This user may not do so here, or a program is missing.
    """
    hosts: list[NetworkHost] = []
    try:
        for number, known in enumerate(names, 1):
            hosts.append(NetworkHost(f"n{number}", known, folder))
        if len(hosts) == 2:
            peer = str(hosts[1].process.pid)
            hosts[0].run(*["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns"], peer)
            for host, address in zip(hosts, ADDRESSES, strict=True):
                host.run(*f"ip addr add {address}/24 dev eth0".split())
                host.run(*["ip", "link", "set", "eth0", "up"])
        yield hosts
    finally:
        for host in hosts:
            host.end()


def on_host(pid: int, function: Callable[..., None], *words: str) -> None:
    """Calls a function on the host of a process."""
    folder, libc = Path.cwd(), ctypes.CDLL(None, use_errno=True)
    for kind in NAMESPACES:
        with open(f"/proc/{pid}/ns/{kind}") as namespace:
            if libc.setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), f"setns {kind}")
    os.chdir(folder)
    function(*words)


def hold_port(port: str) -> None:
    """Takes connections at a port and does not answer."""
    with socket.create_server(("", int(port))) as server:
        print("holds the port", flush=True)
        kept = []
        while True:
            kept.append(server.accept())
