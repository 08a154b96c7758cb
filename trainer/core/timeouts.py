"""Time limits for waiting on other ranks and hosts, and the line that names a missing host.

torch itself waits for minutes or forever, without a word. Free of torch, for the checks of the configuration.
"""

import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from trainer.core.errors import LostRankError, first_line

COLLECTIVE_SECONDS = 600.0  # the default of train.collective_timeout_seconds
AT_WORK_SECONDS = 10.0  # interval of the signs that rank 0 is at work while the others wait
FIRST_ERROR_SECONDS = 5  # time that torchrun gets to find the failed rank, before ranks that lost it leave
ANSWER_SECONDS = 5.0  # time that a live rank on a busy machine gets to answer whether it lives
NAME_SECONDS = 30.0  # time limit to resolve the name of another host
REACH_SECONDS = 50.0  # time limit for another host to answer; with the start of torch, it is within a minute
QUIET_SECONDS = 20.0  # time of waiting for another host until a line reports it
RETRY_SECONDS = 0.5
FIREWALL = "every node of a job must reach every port of the others"
T = TypeVar("T")


def lost_rank(message: str) -> LostRankError:
    """Returns the error of a rank that does not answer; torchrun shows it in its report of the job."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    try:
        raise LostRankError(message)
    except LostRankError as error:
        get_error_handler().record_exception(error)  # which shows the exception that is being handled, not the given
        return error


def addresses_of(host: str, port: int) -> list[tuple]:
    """Returns the addresses of a host's port, which may only become known while a cluster starts the host.

    Raises:
        LostRankError: The name does not resolve.
    """
    limit = f"{host}:{port} cannot be reached from {socket.gethostname()}, where the name {host} does not resolve"
    found = _retried(
        lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
        lambda _: NAME_SECONDS,
        limit,
        "use names that all nodes of the job resolve",
    )
    return [address for *_, address in found]


def wait_until_reachable(host: str, port: int, starting_seconds: float = REACH_SECONDS) -> None:
    """Waits until a program listens at a port of another host.

    Args:
        host: The name or the address of the host.
        port: The port.
        starting_seconds: How long the host may answer that nobody listens there yet.

    Raises:
        LostRankError: The name does not resolve, the host does not answer, or nobody listens there.
    """
    addresses_of(host, port)
    _retried(
        lambda: socket.create_connection((host, port), REACH_SECONDS / 4).close(),
        lambda error: starting_seconds if isinstance(error, ConnectionRefusedError) else REACH_SECONDS,
        f"{host}:{port} does not answer {socket.gethostname()}",
        f"see the log of that host; {FIREWALL}",
    )


@contextmanager
def joining(rank: int, host: str, port: int, seconds: float) -> Iterator[None]:
    """Turns torch's errors of a rank that cannot join the others into one line.

    Args:
        rank: The rank.
        host: The host of rank 0.
        port: Its port.
        seconds: How long rank 0 may take to start, before the rank joins it; 0 does not wait for it.

    Raises:
        LostRankError: Instead of these errors.
    """
    try:
        if seconds:
            wait_until_reachable(host, port, seconds)
        yield
    except RuntimeError as error:
        what = f"rank {rank} cannot join the others, which meet at {host}:{port}: {first_line(error)}"
        raise lost_rank(what) from error


def _retried(attempt: Callable[[], T], seconds_for: Callable[[OSError], float], what: str, remedy: str) -> T:
    began, told = time.monotonic(), False
    while True:
        try:
            return attempt()
        except OSError as error:
            waited, most = time.monotonic() - began, seconds_for(error)
            if waited > most:
                raise LostRankError(f"{what} ({error.strerror or error}): {remedy}") from error
            if waited > QUIET_SECONDS and not told:
                print(f"{what} ({error.strerror or error}): tried for {most:g} s", file=sys.stderr, flush=True)
                told = True
        time.sleep(RETRY_SECONDS)
