"""What a plan predicts of a run: the time of a step, and the memory of every rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from trainer.plan.cluster import cluster_of_job
from trainer.plan.fitting import problem_of
from trainer.plan.memory_model import RankMemory
from trainer.plan.statistics import with_statistics
from trainer.plan.step_time import StepTime, time_of_plan
from trainer.run.step_clock import BACKWARD, FORWARD, IDS, OTHER
from trainer.training.session import Session
from trainer.training.sharded_model import build_unsharded_model

Facts = dict[str, Any]
FORWARD_OF_DENSE = 1 / 3  # of its products: backward takes twice as many
PHASES = {"input": IDS, "forward": FORWARD, "forward_comms": FORWARD, "backward_comms": BACKWARD, "backward": BACKWARD}


def predict(session: Session) -> Facts:
    """Returns what the plan predicts, `predicted` of run.json; nothing where it cannot tell.

    That is the time of a step by measured speeds or, on GPUs, by data sheets; a CPU's speeds are only good to compare
    plans by. And memory, on GPUs: a process on a CPU has its libraries and the loader's windows beside what is counted.
    """
    context = session.context
    if context.device.type == "cpu" and not session.config.planner.calibration:
        return {}
    gpus = [context.device] if context.device.type == "cuda" else []
    # Building a model sets the state of random numbers, which training goes on with.
    with not_needed(session, "this run is not predicted"), torch.random.fork_rng(gpus):
        config = with_statistics(session.config)
        model = build_unsharded_model(config, torch.device("meta"), session.order.lanes)
        problem = problem_of(model, config, cluster_of_job(config.planner.hardware, context))
        if problem.ranks.system:  # whatever planner.system plans for
            problem = replace(problem, ranks=problem.ranks_for("torchrec"))
        step = time_of_plan(session.model.plan, problem)
        memory = _bytes(problem.peak(session.model.plan)) if problem.ranks.on_gpu else {}
        return {"predicted": {**_times(step), **memory, "figures": step.source}}
    return {}


def _times(step: StepTime) -> Facts:
    parts = dict.fromkeys((IDS, FORWARD, BACKWARD), 0.0)
    for phase, milliseconds in zip(step.phases, step.slowest, strict=True):
        parts[PHASES[phase]] += float(milliseconds)
    parts[FORWARD] += FORWARD_OF_DENSE * step.dense
    parts[BACKWARD] += (1 - FORWARD_OF_DENSE) * step.dense
    return {"step_ms": step.total, "parts": parts | {OTHER: step.latency + step.constant}}


def _bytes(memory: RankMemory) -> Facts:
    """Returns the GPU memory of every rank as `measure` measures it, and that of the fullest rank by kind."""
    kinds = memory.by_kind()
    of_ranks = (memory.total - kinds["context"] - kinds["communication"])[:, 0]  # those are not the allocator's
    fullest = int(of_ranks.argmax())
    return {
        "memory_bytes": [round(size) for size in of_ranks],
        "memory_of_fullest_rank": {kind: round(size[fullest, 0]) for kind, size in kinds.items()},
    }


@contextmanager
def not_needed(session: Session, otherwise: str) -> Iterator[None]:
    """Turns an error in the block into a line: a model of one's own may raise anything, and the run can do without."""
    try:
        yield
    except Exception as error:
        session.reporter.log(f"{otherwise}: {type(error).__name__}: {' '.join(str(error).split())}")
