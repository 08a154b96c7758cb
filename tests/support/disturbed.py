"""The trainer on several ranks, one of which is disturbed as soon as all have joined the process group."""

import os
import signal
import threading
import time

import torch.distributed as dist
from forked import torchrun
from torch.distributed import distributed_c10d

JOIN, SEND = dist.init_process_group, dist.send
FROZEN = "frozen process: "


def freeze() -> None:
    """The process stands still, like all those of a host that is dead or out of reach."""
    print(f"{FROZEN}{os.getpid()}", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def slow_down() -> None:
    """All that the rank sends is late."""

    def send(*arguments: object) -> None:
        time.sleep(0.2)
        SEND(*arguments)

    dist.send = send


def cut_off() -> None:
    """Nothing that the rank sends arrives, but its process lives."""
    dist.send = lambda *_: threading.Event().wait()


def fail() -> None:
    """The rank cannot send."""

    def send(*_: object) -> None:
        raise RuntimeError("no route")

    dist.send = send


def train(ranks: int, disturbed: int, disturbance: str, *arguments: str) -> None:
    """Runs `python -m trainer ARGUMENTS` under torchrun."""

    def join(*positional: object, **named: object) -> None:
        JOIN(*positional, **named)
        store = distributed_c10d._get_default_store()
        store.set(f"joined/{dist.get_rank()}", "")
        if dist.get_rank() == disturbed:
            store.wait([f"joined/{rank}" for rank in range(dist.get_world_size())])  # who need rank 0's store
            globals()[disturbance]()

    dist.init_process_group = join  # of the ranks, which are forked from this process
    torchrun("--nproc-per-node", str(ranks), "-m", "trainer", *arguments)
