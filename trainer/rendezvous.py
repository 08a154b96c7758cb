"""The rendezvous of a job's nodes: where they meet, and the address that each gives to the others.

torchrun uses a node's own name as its address, although others, or the node itself, may not resolve it. It also takes
any program that holds the port for the store of its job, and waits forever for an answer.
"""

import argparse
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address

import psutil
from torch.distributed import DistNetworkError, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.run import parse_min_max_nnodes

from trainer.core.errors import LostRankError
from trainer.core.timeouts import ANSWER_SECONDS, QUIET_SECONDS, addresses_of, wait_until_reachable

LOOPBACK, LOCALHOST = "127.0.0.1", "localhost"
ELSEWHERE = "192.0.2.1"  # an address of no host, which the default route leads to
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"


@dataclass
class Meeting:
    """The place where the nodes of a job meet: a store at a port of the host of replica 0.

    Attributes:
        host: Name or address of the host.
        port: The port.
        job: The job's id, which all nodes have.
        nodes: The number of nodes that come, or `MIN:MAX`.
    """

    host: str
    port: int
    job: str
    nodes: str

    def __post_init__(self) -> None:
        self._address, *_ = (address for address, *_ in addresses_of(self.host, self.port))
        self._store: TCPStore | None = None

    @property
    def is_here(self) -> bool:
        """Whether this host is the one where all meet."""
        return self._address in _own_addresses() or ip_address(self._address.partition("%")[0]).is_loopback

    def begin(self) -> bool:
        """Opens the store of the job, or waits for it; returns whether it is in this process.

        Raises:
            LostRankError: The host does not answer, or another program holds the port.
        """
        if self.is_here:
            # Of several nodes on one host the first has it. torchrun's own store in this process shares the port.
            with suppress(DistNetworkError):
                self._store = TCPStore(self.host, self.port, is_master=True, multi_tenant=True, wait_for_workers=False)
                return True
        wait_until_reachable(self.host, self.port)
        self._require_store()
        return False

    def _require_store(self) -> None:
        answered = threading.Event()
        limit = timedelta(seconds=2 * ANSWER_SECONDS)

        def ask() -> None:
            with suppress(RuntimeError):
                store = TCPStore(self.host, self.port, is_master=False, timeout=limit)
                store.wait([f"torch.rendezvous.{self.job}"], limit)  # torchrun's key
                answered.set()

        # In a thread, as torch waits for ever for a program that takes a connection and does not answer.
        threading.Thread(target=ask, daemon=True).start()
        if not answered.wait(4 * ANSWER_SECONDS):
            raise LostRankError(
                f"{self.host}:{self.port}, where the nodes of the job meet, is held by another program: "
                "end that one, or submit the job again, which then takes another port"
            )

    @property
    def own_address(self) -> str:
        """The name or the address of this host that the other nodes can use."""
        if not self.is_here:
            return _source_address(self._address) or LOOPBACK
        return (_named_address() or LOOPBACK) if _is_loopback(self.host) else self.host

    @property
    def interface(self) -> str | None:
        """The network interface to the other nodes, where Gloo would not find it; None where it does.

        Gloo takes the interface with the address of the host's own name: the loopback, if that does not resolve or,
        as Debian has it, is 127.0.1.1.
        """
        if _named_address() or _is_loopback(self.host):
            return None
        here = _is_loopback(self._address)
        own = _source_address(ELSEWHERE if here else self._address) or _only_address()
        return _own_addresses().get(own) if own else None


def prepare(arguments: argparse.Namespace) -> Meeting | None:
    """Completes the arguments of torchrun; returns where its nodes meet, None for a job on one host.

    Raises:
        LostRankError: They cannot meet.
    """
    _, most = parse_min_max_nnodes(arguments.nnodes)
    if most == 1:
        arguments.local_addr = arguments.local_addr or LOOPBACK
        os.environ.setdefault(GLOO_INTERFACE, _own_addresses()[LOOPBACK])
        return None
    if arguments.rdzv_backend != "c10d" or not arguments.rdzv_endpoint:
        return None
    host, port = parse_rendezvous_endpoint(arguments.rdzv_endpoint, default_port=0)
    meeting = Meeting(host, port, arguments.rdzv_id, arguments.nnodes)
    has_store = meeting.begin()
    if "is_host" not in arguments.rdzv_conf:
        arguments.rdzv_conf = ",".join(filter(None, [arguments.rdzv_conf, f"is_host={int(has_store)}"]))
    if not arguments.local_addr:
        _tell_address(meeting.own_address)
    if interface := meeting.interface:
        os.environ.setdefault(GLOO_INTERFACE, interface)
    _say_when_it_takes_long(meeting)
    return meeting


@contextmanager
def errors_in_one_line(meeting: Meeting | None) -> Iterator[None]:
    """Turns torchrun's errors of nodes that have not come, or are lost, into a line.

    Raises:
        LostRankError: Instead of these errors.
    """
    try:
        yield
    except (RendezvousTimeoutError, RendezvousConnectionError, RendezvousClosedError) as error:
        if meeting is None:
            raise
        came = isinstance(error, RendezvousTimeoutError)
        reason = f"fewer nodes came than {meeting.nodes}" if came else "the node there has left; see its log"
        raise LostRankError(f"{meeting.host}:{meeting.port}, where the nodes of the job meet: {reason}") from error


def _tell_address(address: str) -> None:
    """Announces this address to other nodes, if rank 0 is here; `--local-addr` would also change the order of nodes."""
    build = RendezvousStoreInfo.build

    def with_address(
        rank: int, store: Store, local_addr: str | None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        return build(rank, store, address, server_port)

    RendezvousStoreInfo.build = with_address


def _say_when_it_takes_long(meeting: Meeting) -> None:
    """Prints a line when a node has waited long for the others."""
    join = DynamicRendezvousHandler.next_rendezvous

    def joined(self: DynamicRendezvousHandler) -> RendezvousInfo:
        seconds = self.settings.timeout.join.total_seconds()
        line = f"waits at {meeting.host}:{meeting.port} for {meeting.nodes} nodes, {seconds:g} s at most"
        timer = threading.Timer(QUIET_SECONDS, print, [line], {"flush": True})
        timer.daemon = True
        timer.start()
        try:
            return join(self)
        finally:
            timer.cancel()

    DynamicRendezvousHandler.next_rendezvous = joined


def _own_addresses() -> dict[str, str]:
    """Returns the interfaces of this host by their addresses."""
    interfaces = psutil.net_if_addrs().items()
    return {each.address.partition("%")[0]: name for name, found in interfaces for each in found}


def _named_address() -> str | None:
    """Returns the address of this host by its own name, None if the name is of no use to others."""
    own = _own_addresses()
    with suppress(OSError):
        found = [address for *_, (address, *_) in socket.getaddrinfo(socket.gethostname(), None)]
        return next((each for each in found if each in own and not _is_loopback(each)), None)
    return None


def _source_address(address: str) -> str | None:
    """Returns this host's address on its way to another, to which nothing is sent; None if there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return probe.getsockname()[0].partition("%")[0]
    return None


def _only_address() -> str | None:
    """Returns the address of this host if it has only one beside the loopback."""
    interfaces = psutil.net_if_addrs().values()
    found = [each.address for one in interfaces for each in one if each.family == socket.AF_INET]
    found = [address for address in found if not _is_loopback(address)]
    return found[0] if len(found) == 1 else None


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host.partition("%")[0]).is_loopback
    return host == LOCALHOST
