"""A plan's prediction of a run beside what the run measured: in run.json, on the console, and as plan.html."""

import json

import numpy as np
import torch

from trainer.core.secrets import without_secrets
from trainer.plan.cluster import Cluster
from trainer.plan.memory import GIB
from trainer.plan.page.figures import Figure, Lying
from trainer.plan.page.html import draw_figures, draw_page
from trainer.plan.planned import Planned, plan_on
from trainer.run.step_clock import OTHER, PARTS
from trainer.training.prediction import Facts, not_needed
from trainer.training.session import Session
from trainer.training.sharded_model import build_unsharded_model

PAGE = "plan.html"


def conclude(session: Session, measured: Facts) -> None:
    """Writes what was measured to run.json, beside what was predicted, and draws the page; on rank 0."""
    if not session.context.is_rank0 or not measured:
        return
    with not_needed(session, f"{PAGE} is not written"), session.reporter.tolerate_failed_writes():
        facts = json.loads(session.directory.read("run.json") or "{}") | measured
        session.directory.write_json("run.json", facts)
        session.directory.write(PAGE, _page(session, facts))
        session.reporter.log(_line(facts))


def _line(facts: Facts) -> str:
    measured, predicted = facts["measured"], facts.get("predicted")
    step, memory = f"{measured['step_ms']:.3g} ms", f"{max(measured['memory_bytes']) / GIB:.3g} GiB of the fullest rank"
    if predicted:
        step += f", predicted {predicted['step_ms']:.3g}"
    if predicted and "memory_bytes" in predicted:
        memory += f", predicted {max(predicted['memory_bytes']) / GIB:.3g}"
    return f"step {step}; memory {memory}; {PAGE} has the parts"


def _page(session: Session, facts: Facts) -> str:
    """Returns the page of the plan; of one that cannot be rated, only what was predicted and measured."""
    figures = compared(facts)
    try:
        return draw_page([_rated(session)], figures)
    except Exception as error:  # a plan by hand, or a model of one's own that cannot be traced
        return draw_figures(f"Run {without_secrets(session.directory.url)}", without_secrets(error), figures)


def _rated(session: Session) -> Planned:
    """Returns the plan of a run as tools.plan rates a plan.json."""
    config, context = session.config, session.context
    nodes, on_gpu = context.world_size // context.local_world_size, context.device.type == "cuda"
    cluster = Cluster(config.planner.hardware, nodes, context.local_world_size, on_gpu)
    planner = config.planner.model_copy(update={"plan": session.directory.url_of("plan.json")})
    model = build_unsharded_model(config, torch.device("meta"), session.order.lanes)
    return plan_on(model, config.model_copy(update={"planner": planner}), cluster)


def compared(facts: Facts) -> list[Figure]:
    """Returns the figures of what was predicted and measured.

    Args:
        facts: Of run.json; `predicted` may be missing, and on a CPU has no memory.
    """
    both = {name: facts[name] for name in ("predicted", "measured") if name in facts}
    names = ["step", *(*PARTS, OTHER)]
    times = {of: [one["step_ms"], *(one["parts"].get(name, 0.0) for name in names[1:])] for of, one in both.items()}
    memory = {
        of: [f(one["memory_bytes"]) / GIB for f in (max, np.mean, min)]
        for of, one in both.items()
        if "memory_bytes" in one
    }
    found: list[Figure] = [
        Lying(
            " and ".join(both).capitalize(),
            "Medians of the rank with the longest steps. Forward has the lookup and the exchange of embeddings. The "
            "wait for data is not predicted; what is predicted of anything else lies inside the measured parts.",
            "ms",
            names,
            times,
        ),
        Lying(
            f"{' and '.join(memory).capitalize()} memory",
            "The peak.",
            "GiB",
            ["fullest rank", "mean", "emptiest rank"],
            memory,
        ),
    ]
    if "memory_of_fullest_rank" in facts.get("predicted", {}):
        kinds = facts["predicted"]["memory_of_fullest_rank"]
        sizes = {"predicted": [size / GIB for size in kinds.values()]}
        found.append(Lying("Predicted memory of the fullest rank", "By kind.", "GiB", [*kinds], sizes))
    return found
