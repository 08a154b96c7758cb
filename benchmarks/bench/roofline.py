"""The roofline of a step: the least time that each part can take on this machine, beside the measured time.

A part cannot be faster than its matrix products at the rate of one large product, than its bytes at the rate of one
large copy, or than what it sends at the rate of one large exchange (Williams et al., "Roofline", CACM 2009). The dense
operations are counted while they run, each with the bytes that it reads and writes itself: compiled code, which leaves
results in registers, may be faster. The planner counts the bytes of lookups, updates and exchanges of tables.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import torch
import torch.distributed as dist
from tabulate import tabulate

from benchmarks.bench.setting import WARM_STEPS
from torchx_recsys.apps.calibrate.steps import batches_in_memory
from torchx_recsys.planner.step_time import BACKWARD, EXCHANGE, FORWARD
from torchx_recsys.planner.topology import Speeds
from trainer.core.distributed import DistributedContext, gather_to_all
from trainer.plan.dense_part import AUTOCAST, WorkCounter
from trainer.plan.make_plan import cluster_of_job, problem_of
from trainer.plan.sharding_plan import time_of_plan
from trainer.run.step_clock import STEP, StepClock
from trainer.training.session import Session
from trainer.training.sharded_model import build_unsharded_model

COPIED_BYTES, SENT_BYTES, PRODUCT = 256 * 2**20, 8 * 2**20, 2048  # beyond all caches; rows and columns of a product
ID_BYTES = 4
OF_MEMORY = {"forward": FORWARD, "backward": BACKWARD}
OF_EXCHANGES = {"input": EXCHANGE, "forward_comms": FORWARD, "backward_comms": BACKWARD}
"""The planner's phases of a step, with the parts that the clock counts them in: backward updates fused tables."""


@dataclass(frozen=True)
class Rates:
    """The highest rates of a rank, while the other ranks of its host do the same.

    Attributes:
        memory: Bytes per second that a large copy reads and writes.
        flops: Operations per second of a large matrix product, in the precision of training.
        exchange: Bytes per second that leave the rank in a large exchange; None on one rank.
    """

    memory: float
    flops: float
    exchange: float | None


@dataclass(frozen=True)
class Bound:
    """A part of a step beside the least time that it can take.

    Attributes:
        part: Its name.
        milliseconds: The median time that it takes.
        products: Least milliseconds of its matrix products.
        memory: Least milliseconds of the bytes that it reads and writes.
        exchange: Least milliseconds of the bytes that it sends.
    """

    part: str
    milliseconds: float
    products: float
    memory: float
    exchange: float

    @property
    def least(self) -> float:
        """The least time: computation and exchange may overlap, and so may products and memory."""
        return max(self.products, self.memory, self.exchange)


class _CountingClock(StepClock):
    """Counts the dense work of each part."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.counted: dict[str, WorkCounter] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the block's operations as the part's."""
        with self.counted.setdefault(name, WorkCounter()):
            yield


def measure_roofline(session: Session, steps: int, repeats: int) -> tuple[Rates, list[Bound]]:
    """Measures the parts of a step on batches in memory, and the rates of this machine.

    Returns:
        The rates, and the parts on the slowest rank, the whole step last.
    """
    step, batches = session.training_step(), itertools.cycle(batches_in_memory(session))
    numbers = itertools.count(1)

    def take(count: int, clock: StepClock) -> None:
        step.clock = clock
        for number in itertools.islice(numbers, count):
            step.take(number, batches)
        clock.end_step()

    device = session.context.device
    warm, counting, measuring = StepClock(device), _CountingClock(device), StepClock(device)
    for count, clock in ((WARM_STEPS, warm), (1, counting), (steps * repeats, measuring)):
        take(count, clock)
    measured = measuring.measured(session.context)
    step.detach()
    rates = measure_rates(session.context, session.config.train.precision, repeats)
    bounds = _bounds(measured["parts"], counting.counted, _bytes_of_tables(session), rates)
    sums = {kind: sum(getattr(one, kind) for one in bounds) for kind in ("products", "memory", "exchange")}
    return rates, [*bounds, Bound(STEP, measured["step_ms"], **sums)]


def _bounds(
    milliseconds: dict[str, float], counted: dict[str, WorkCounter], moved: dict[str, float], rates: Rates
) -> list[Bound]:
    found = []
    for part, took in milliseconds.items():
        work = counted.get(part, WorkCounter())
        read = work.bytes + sum(moved[phase] for phase, where in OF_MEMORY.items() if where == part)
        sent = sum(moved[phase] for phase, where in OF_EXCHANGES.items() if where == part)
        found.append(
            Bound(
                part,
                took,
                products=1e3 * (work.flops + work.batched_flops) / rates.flops,
                memory=1e3 * read / rates.memory,
                exchange=1e3 * sent / rates.exchange if rates.exchange else 0.0,
            )
        )
    return found


def _bytes_of_tables(session: Session) -> dict[str, float]:
    """Returns the most bytes that a rank moves for tables and gradients in a step, by the planner's phases."""
    config, context = session.config, session.context
    unsharded = build_unsharded_model(config, torch.device("meta"))
    problem = problem_of(unsharded, config, cluster_of_job(config.planner.hardware, context))
    topology = replace(problem.topology, speeds=_nanosecond_a_byte(context.world_size))
    planned = time_of_plan(session.model.plan, replace(problem, topology=topology))
    found = {name: 1e6 * float(most) for name, most in zip(planned.phases, planned.slowest, strict=True)}
    found["backward_comms"] += 1e6 * planned.dense  # the all-reduce of the dense part's gradients
    return found


def _nanosecond_a_byte(ranks: int) -> Speeds:
    """Returns speeds under which a byte takes a nanosecond, and nothing else takes time."""
    of_bytes = {one.name: float(one.name.endswith("_byte")) for one in fields(Speeds)}
    ids = {"id": ID_BYTES * (ranks - 1) / ranks}
    # A gradient of a replicated table is zeroed and read; weight and state are read and written.
    return Speeds(**of_bytes | ids | {"replicated_byte": 5.0, "dense_byte": 0.0})


def measure_rates(context: DistributedContext, precision: str, repeats: int) -> Rates:
    """Measures the highest rates of each rank while all ranks measure them."""
    dtype, device, others = AUTOCAST[precision] or torch.float32, context.device, context.world_size - 1
    source, target = (torch.ones(COPIED_BYTES // 4, device=device) for _ in range(2))
    factor = torch.ones(PRODUCT, PRODUCT, dtype=dtype, device=device)
    sent = torch.ones(SENT_BYTES // 4 // context.world_size * context.world_size, device=device)

    def rate(amount: float, act: Callable[[], object]) -> float:
        seconds = [_seconds(act, context) for _ in range(1 + repeats)][1:]
        return amount / max(gather_to_all(min(seconds), context))

    return Rates(
        memory=rate(2 * COPIED_BYTES, lambda: target.copy_(source)),
        flops=rate(2 * PRODUCT**3, lambda: factor @ factor),
        exchange=rate(
            sent.nbytes * others / context.world_size, lambda: dist.all_to_all_single(target[: len(sent)], sent)
        )
        if others
        else None,
    )


def _seconds(act: Callable[[], object], context: DistributedContext) -> float:
    dist.barrier()
    start = time.perf_counter()
    act()
    torch.get_device_module(context.device).synchronize()
    return time.perf_counter() - start


def render_roofline(rates: Rates, bounds: list[Bound]) -> str:
    """Returns the rates as a line, and a table of the parts."""
    exchange = f", {rates.exchange / 1e9:.3g} GB/s sent to other ranks" if rates.exchange else ""
    line = f"a rank at most: {rates.memory / 1e9:.3g} GB/s of memory, {rates.flops / 1e9:,.0f} GFLOP/s{exchange}"
    rows = [
        [
            one.part,
            f"{one.milliseconds:.3g} ms",
            *(f"{time:.3g} ms" if time else "" for time in (one.products, one.memory, one.exchange)),
            f"{one.least / one.milliseconds:.0%}" if one.least and one.milliseconds else "",
        ]
        for one in bounds
    ]
    heads = ["part", "takes", "products", "memory", "exchange", "reached"]
    return f"{line}\n\n{tabulate(rows, heads, disable_numparse=True, colalign=('left', *['right'] * 5))}"
