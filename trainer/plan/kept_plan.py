"""The plan of a run, which is kept when the run resumes and nothing that decides it has changed."""

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from torchx_recsys.planner.plan import Problem
from trainer.config.root import Config
from trainer.core.digest import digest
from trainer.core.errors import DamagedError
from trainer.core.run_directory import RunDirectory, pass_over

PLANNED_FOR = "planned_for"
"""The fact of run.json that names what its plan was made for."""

DECIDES_NOTHING: dict[str, Any] = {"train": {"steps", "epochs"}, "checkpoint": True, "report": True}
"""Keys of the configuration."""


def what_decides(problem: Problem, config: Config) -> str:
    """Returns a short name for all that decides a plan: equal problems, settings and versions have equal names."""
    # The dense part is measured on demand, which takes seconds, and follows from the configuration.
    return digest(
        {
            "cluster": asdict(problem.cluster),
            "tables": [asdict(table) for table in problem.tables],
            "topology": asdict(problem.topology),
            "config": config.model_dump(mode="json", exclude=DECIDES_NOTHING),
            "versions": [version(name) for name in ("torchx-recsys", "torch", "torchrec")],
        }
    )


def find_kept_plan(run: RunDirectory, planned_for: str) -> str:
    """Returns the content of a run's plan.json if it was made for the same and not changed by hand; empty if not."""
    facts = run.facts()
    if facts.get(PLANNED_FOR) != planned_for:
        return ""
    try:
        is_same = facts.get("plan") == digest(run.read_json("plan.json"))
        return (run.read("plan.json") or "") if is_same else ""
    except DamagedError as error:
        pass_over(error)
        return ""
