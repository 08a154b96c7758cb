"""Ports for the servers of tests, no two of them the same."""

import contextlib
import random
import socket

_claims: list[socket.socket] = []


def free_port() -> int:
    """Returns a port at which nobody listens, and which no other test takes before this process ends.

    It is below those that the system hands out, which any connection may take. The claim is a UDP socket of the same
    number, as all servers here use TCP, and some open their ports late. Without it, one that asked for three ports
    got one of them twice, once in some thousand times.
    """
    while True:
        port, claim = random.SystemRandom().randrange(10000, 30000), socket.socket(type=socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):  # somebody has it
            claim.bind(("", port))
            with socket.socket() as opened:
                opened.bind(("", port))
            _claims.append(claim)
            return port
        claim.close()
