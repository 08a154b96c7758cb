"""The split of a step: where its time goes, from a trace of torch.profiler, and its table over all ranks.

A step is split by the clock, so that its parts add up. On a CPU an instant belongs to the innermost range of the
training thread that has a part. On a GPU an instant belongs to the kernel that runs: an exchange counts only while
nothing else computes, and an instant without a kernel counts as input while the training thread waits for data. What is
left is "other".

Why not HTA (Holistic Trace Analysis): it breaks GPU time down, but knows neither CPUs nor these parts.
"""

import bisect
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from tabulate import tabulate

from torchx_recsys.planner.step_time import BACKWARD, EXCHANGE, FORWARD, INPUT, OTHER, PARTS, UPDATE
from trainer.core.console import plural

Event = dict[str, Any]
"""An event of a Chrome trace: `name`, `cat`, start `ts` and length `dur` in microseconds, thread `tid`, `args`."""
Span = tuple[float, float]
"""Start and end, in microseconds."""
Named = tuple[float, float, str]
"""Start, end and what happens meanwhile."""

TABLES, DENSE, REPORTS = f"{UPDATE}: tables", f"{UPDATE}: dense part", f"{OTHER}: reports"
DETAILS = (TABLES, DENSE, REPORTS)
# Of the names of TorchRec's ranges and ours, of autograd's nodes and of kernels; the first pattern that fits counts.
PATTERNS = {
    INPUT: r"## (copy_batch_to_gpu|wait_for_batch|input)",
    FORWARD: r"## forward",
    EXCHANGE: (
        r"## (start|wait)_sparse_data_dist|wait\(\) ##|\[output_dist|## all2all_data|c10d::|^gloo:|^nccl|"
        r"## (requests|exchange(: gradients)?) ##|(All2All|ReduceScatter|AllGather)\w*(Req|Wait)"
    ),
    BACKWARD: r"## backward",
    TABLES: r"## update: tables ##|SplitLookupFunction_|split_embedding\w*_backward",
    DENSE: r"## (update|zero_grad|update: rates) ##",
    REPORTS: r"## (report|save|evaluation) ##",
}
HOST_EVENTS = ("cpu_op", "user_annotation")
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
STEP = "ProfilerStep#"
COSTLIEST = 10
COMPUTING = (FORWARD, BACKWARD, UPDATE)


@dataclass(frozen=True, kw_only=True)
class StepSplit:
    """The split of a rank's steps, all times in milliseconds per step.

    Attributes:
        steps: Number of steps.
        step_ms: Time of a step.
        parts: Time of each part; together `step_ms`.
        details: Time of what is a part of these parts, by `PART: DETAIL`.
        costliest: The operations, or kernels on a GPU, that take most time of their own, and that time.
    """

    steps: int
    step_ms: float
    parts: dict[str, float]
    details: dict[str, float]
    costliest: dict[str, float]


def split_steps(events: Iterable[Event], first: int, last: int) -> StepSplit:
    """Returns the split of the steps from `first` to `last` in a trace.

    Args:
        events: The events of the trace, with the steps as ranges `ProfilerStep#NUMBER` of the training thread.
        first: The first step.
        last: The last step.
    """
    events = [event for event in events if event.get("ph") == "X"]
    names = {f"{STEP}{step}" for step in range(first, last + 1)}
    steps = [event for event in events if event["cat"] == "user_annotation" and event["name"] in names]
    window = min(event["ts"] for event in steps), max(_end(event) for event in steps)
    thread = [event for event in events if event["tid"] == steps[0]["tid"] and event["cat"] in HOST_EVENTS]
    kernels = [event for event in events if event["cat"] in KERNELS]
    host = _parts_on_host(thread)
    found = _parts_on_gpu(kernels, events, host, window) if kernels else _sums(_clip(host, window))
    operations = [(*_span(event), event["name"]) for event in kernels] or innermost(
        (*_span(event), _short(event["name"])) for event in thread if not event["name"].startswith(STEP)
    )
    times = sorted(_sums(_clip(operations, window)).items(), key=lambda one: -one[1])[:COSTLIEST]
    length, scale = window[1] - window[0], 1e-3 / len(steps)
    found[OTHER] = length - sum(found.values())
    parts = {part: sum(time for name, time in found.items() if name.partition(":")[0] == part) for part in PARTS}
    return StepSplit(
        steps=len(steps),
        step_ms=length * scale,
        parts={part: time * scale for part, time in parts.items()},
        details={name: found.get(name, 0.0) * scale for name in DETAILS},
        costliest={name: time * scale for name, time in times},
    )


def describe(first_step: int, splits: list[StepSplit]) -> dict[str, Any]:
    """Returns the content of `traces/step-N.json`.

    Args:
        first_step: The first step of the profile.
        splits: The split of each rank, in their order.
    """
    return {"first_step": first_step, "steps": splits[0].steps, "ranks": [asdict(split) for split in splits]}


def render(first_step: int, splits: list[StepSplit]) -> str:
    """Returns the table of a profile, with the costliest operations of the rank that computes longest."""
    last = first_step + splits[0].steps - 1
    step_ms = sum(split.step_ms for split in splits) / len(splits)
    computing = [sum(split.parts[part] for part in COMPUTING) for split in splits]
    slowest = computing.index(max(computing))
    rows = []
    for part in splits[0].parts:
        rows.append(_row(part, [split.parts[part] for split in splits], step_ms))
        details = [name for name in splits[0].details if name.startswith(f"{part}:")]
        rows += [_row(name, [split.details[name] for split in splits], step_ms) for name in details]
    rows += [_row("step", [split.step_ms for split in splits], step_ms), _row("computing", computing, step_ms)]
    headers = ["ms per step", "mean", "share", "slowest rank", "there", "imbalance"]
    costliest = [
        [name[:80], f"{time:.3f}", f"{time / splits[slowest].step_ms:.1%}"]
        for name, time in splits[slowest].costliest.items()
    ]
    return (
        f"profile of steps {first_step:,} to {last:,}, {plural(len(splits), 'rank')}\n"
        f"{tabulate(rows, headers, disable_numparse=True, colalign=('left', *['right'] * 5))}\n\n"
        f"{tabulate(costliest, [f'costliest on rank {slowest}', 'ms per step', 'share'], disable_numparse=True)}"
    )


def innermost(ranges: Iterable[Named]) -> Iterator[Named]:
    """Cuts nested ranges into disjoint ones: every instant with the name of the innermost range around it."""
    opened: list[tuple[float, str]] = []
    now = -math.inf
    for start, end, name in [*sorted(ranges, key=lambda one: (one[0], -one[1])), (math.inf, math.inf, "")]:
        while opened and opened[-1][0] <= start:
            until, inner = opened.pop()
            if until > now:
                yield now, until, inner
                now = until
        if opened and start > now:
            yield now, start, opened[-1][1]
        now = max(now, start)
        opened.append((end, name))


def _parts_on_host(thread: list[Event]) -> list[Named]:
    """Returns the parts that the training thread is in; time in no part is left out."""
    ranges = []
    for event in thread:
        if part := _part(event["name"]):
            ranges.append((*_span(event), part))
        elif event["name"].startswith("autograd::"):
            ranges.append((*_span(event), BACKWARD))
    return [*innermost(ranges)]


def _parts_on_gpu(kernels: list[Event], events: list[Event], host: list[Named], window: Span) -> dict[str, float]:
    """Returns the microseconds of each part: of kernels, and of the input stall while no kernel runs."""
    launches = {event["args"]["correlation"]: event["ts"] for event in events if event["cat"] == "cuda_runtime"}
    starts = [start for start, _, _ in host]
    spans: dict[str, list[Span]] = defaultdict(list)
    for event in kernels:
        launched = launches.get(event["args"].get("correlation"), event["ts"])
        place = bisect.bisect(starts, launched) - 1
        # Backward's kernels are launched by a thread of autograd, while the training thread waits in its range.
        at_launch = host[place][2] if place >= 0 and launched < host[place][1] else OTHER
        spans[_part(event["name"]) or at_launch].append(_span(event))
    waits = [(start, end) for start, end, part in host if part == INPUT]
    computing = [part for part in spans if part != EXCHANGE]
    times: dict[str, float] = defaultdict(float)
    covered: list[Span] = []
    for part, more in [*((part, spans[part]) for part in [*computing, EXCHANGE]), (INPUT, waits)]:
        grown = _merge([*covered, *_clip_spans(more, window)])
        times[part] += _length(grown) - _length(covered)
        covered = grown
    times.pop(OTHER, None)  # it is what is left of the step
    return times


@cache
def _part(name: str) -> str | None:
    return next((part for part, pattern in PATTERNS.items() if re.search(pattern, name)), None)


@cache
def _short(name: str) -> str:
    """Returns the name of a range without the number of its batch, and of an autograd node without the engine."""
    return re.sub(r" \d+ ##$", " ##", name.removeprefix("autograd::engine::evaluate_function: "))


def _span(event: Event) -> Span:
    return event["ts"], _end(event)


def _end(event: Event) -> float:
    return event["ts"] + event["dur"]


def _clip(ranges: Iterable[Named], window: Span) -> list[Named]:
    return [
        (max(start, window[0]), min(end, window[1]), name)
        for start, end, name in ranges
        if start < window[1] and end > window[0]
    ]


def _clip_spans(spans: Iterable[Span], window: Span) -> list[Span]:
    return [(start, end) for start, end, _ in _clip(((*span, "") for span in spans), window)]


def _sums(ranges: Iterable[Named]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for start, end, name in ranges:
        sums[name] += end - start
    return sums


def _merge(spans: Iterable[Span]) -> list[Span]:
    """Returns the union of spans as disjoint ones, in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def _row(name: str, values: list[float], step_ms: float) -> list[str]:
    mean, most = sum(values) / len(values), max(values)
    imbalance = f"{most / mean:.2f}" if mean else ""
    return [name, f"{mean:.3f}", f"{mean / step_ms:.1%}", str(values.index(most)), f"{most:.3f}", imbalance]
