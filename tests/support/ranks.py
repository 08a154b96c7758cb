"""Ranks that are forked from one process, which has imported torch and TorchRec once for all of them."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.synchronize import Barrier

from torch.distributed import TCPStore
from torch.multiprocessing import start_processes


def run_on_ranks(ranks: int, function: Callable[..., None], *arguments: object) -> None:
    """Calls a function on `ranks` ranks, as torchrun calls a script; torchrun itself can only start new interpreters.

    Importing takes 4 of the 5 processor seconds that a rank of a small test needs, and 11 of 14 on four ranks.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    os.environ |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }
    all_forked = multiprocessing.get_context("fork").Barrier(ranks)
    start_processes(_rank, (all_forked, function, arguments), ranks, start_method="fork")


def _rank(rank: int, all_forked: Barrier, function: Callable[..., None], arguments: tuple) -> None:
    all_forked.wait()  # or else a rank may inherit a lock, as `_rank` of forked.py says
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    function(*arguments)
