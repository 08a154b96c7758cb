"""The preflight of a job: an exchange of data between all ranks, which names hosts that are dead or slow."""

import os
import socket
import threading
import time
from concurrent.futures import Future

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from trainer.core.distributed import DistributedContext, rank0_host
from trainer.core.errors import LostRankError, report_error
from trainer.core.outcome import DONE, FAILED
from trainer.core.timeouts import ANSWER_SECONDS
from trainer.run.exchange import all_reduce_speed, pair_speed
from trainer.run.host_report import diagnose, report
from trainer.run.notes import RANK0, Notes

REMEDY = "check these hosts or leave them out, or raise train.preflight_seconds"


def preflight(context: DistributedContext, seconds: float) -> None:
    """Lets all ranks exchange data and reports how fast hosts are; ends the process if a rank does not answer.

    Args:
        context: This process among the ranks.
        seconds: Time for all ranks to come here and to exchange data.
    """
    if context.world_size == 1:
        return
    code = _lead(context, seconds) if context.is_rank0 else _follow_in_time(context, 2 * (seconds + ANSWER_SECONDS))
    if code != DONE:
        os._exit(code)  # an exchange that hangs cannot be ended, and leaving its group would wait for it


def _lead(context: DistributedContext, seconds: float) -> int:
    """Watches over the exchange as rank 0, decides how it ends and returns the exit code."""
    notes, exchange = _start(context)
    lost = _watch(context, notes, seconds)
    code = _report_lost(lost) if lost else DONE  # before any rank leaves: torchrun ends all when the first one does
    notes.write("asked")
    notes.write("lost", lost)
    if lost:
        notes.wait("left", notes.read("answer").keys() - RANK0, ANSWER_SECONDS)  # the store ends with this process
    else:
        exchange.join()
    return code


def _follow(context: DistributedContext) -> int:
    """Answers rank 0 when it asks, and returns the exit code once rank 0 has decided how the exchange ends."""
    notes, exchange = _start(context)
    notes.wait("asked", RANK0)
    notes.write("answer")
    notes.wait("lost", RANK0)
    if lost := notes.read("lost", RANK0)[0]:
        _record(lost)  # torchrun shows the records of ranks whose end it has seen, and rank 0 is the last to end
        notes.write("left")
        return FAILED
    exchange.join()
    return DONE


def _follow_in_time(context: DistributedContext, seconds: float) -> int:
    """Follows rank 0 for a limited time, twice that of rank 0, which may be the last to come here."""
    # In a thread, as nothing ends a call to the store, which is a part of rank 0, when that stands still.
    result: Future[int] = Future()

    def follow() -> None:
        try:
            result.set_result(_follow(context))
        except RuntimeError as error:
            result.set_exception(error)

    threading.Thread(target=follow, name="preflight", daemon=True).start()
    try:
        return result.result(seconds)
    except (TimeoutError, RuntimeError):  # it is silent, or its host is gone
        return _report_lost(f"rank 0 on {rank0_host()} did not answer within {seconds:g} s")


def _start(context: DistributedContext) -> tuple[Notes, threading.Thread]:
    notes = Notes(context, "preflight")
    notes.write("host", socket.gethostname())
    exchange = threading.Thread(target=_exchange, args=(context, notes), name="exchange", daemon=True)
    exchange.start()
    return notes, exchange


def _report_lost(reason: str) -> int:
    return report_error(_record(reason))


def _record(reason: str) -> LostRankError:
    """Returns the error of a rank that does not answer; torchrun shows it in its report of the job."""
    try:
        raise LostRankError(f"preflight: {reason}; {REMEDY}")
    except LostRankError as error:
        get_error_handler().record_exception(error)  # which shows the exception that is being handled, not the given
        return error


def _exchange(context: DistributedContext, notes: Notes) -> None:
    """Exchanges data once rank 0 has noted the hosts of all ranks.

    Notes the `partner` before each exchange, None before that of all ranks, and in the end `speeds`, or else `broken`.
    """
    notes.wait("hosts", RANK0)
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)  # each thread has a device of its own
    try:
        # A group of its own, as NCCL's communicators take memory until their group is destroyed.
        group = dist.new_group(timeout=context.collective_timeout)
        assert isinstance(group, dist.ProcessGroup)
        hosts = notes.read("hosts", RANK0)[0]
        pair = pair_speed(context, hosts, group, lambda partner: notes.write("partner", partner))
        notes.write("partner")  # none: all ranks
        notes.write("speeds", [pair, all_reduce_speed(context, group)])
        notes.wait("lost", RANK0)  # until all ranks are done with the group
        dist.destroy_process_group(group)
    except RuntimeError as error:  # of Gloo and NCCL: the other end is gone or out of reach
        notes.write("broken", str(error).partition("\n")[0])


def _watch(context: DistributedContext, notes: Notes, seconds: float) -> str | None:
    """Starts the exchange once all ranks are there, and reports its end; returns why it has not ended in time."""
    deadline = time.monotonic() + seconds
    arrived = notes.wait("host", seconds=seconds)
    if arrived:
        notes.write("hosts", [*notes.read("host").values()])
    if arrived and notes.wait("speeds", seconds=deadline - time.monotonic()):
        print(report(notes), flush=True)
        return None
    in_time = notes.read("host").keys()
    notes.write("asked")
    notes.write("answer")
    notes.wait("answer", seconds=ANSWER_SECONDS)
    return f"{diagnose(context, notes, in_time)} within {seconds:g} s"
