"""Which checkpoints stay."""

import math
from typing import Any, Self

import pydantic

from trainer.section import Section

HIGHER_IS_BETTER = {"auc": True, "normalized_entropy": False, "log_loss": False}


class Retention(Section):
    """Which checkpoints stay when a newer one is committed."""

    newest: pydantic.PositiveInt = 3
    """The newest so many stay; with 1 there is nothing to fall back to if its files are damaged."""
    best: str | None = None
    """The best by this metric of data.validation stays too: auc, normalized_entropy or log_loss, /LABEL if several."""
    every_steps: pydantic.NonNegativeInt = 0
    """Those of every so many steps stay for good. 0: none for that reason."""

    @pydantic.model_validator(mode="after")
    def _known(self) -> Self:
        if self.best is not None and self.best.partition("/")[0] not in HIGHER_IS_BETTER:
            raise ValueError(f"checkpoint.keep.best is '{self.best}'; allowed: {', '.join(HIGHER_IS_BETTER)}")
        return self

    def superfluous(self, steps: list[int], evaluations: list[dict[str, Any]]) -> list[int]:
        """Returns the steps whose checkpoints can go.

        Args:
            steps: Those of all committed checkpoints, in order.
            evaluations: The lines of evaluations.jsonl.
        """
        return [step for step, reasons in self.reasons(steps, evaluations).items() if not reasons]

    def reasons(self, steps: list[int], evaluations: list[dict[str, Any]]) -> dict[int, list[str]]:
        """Returns by step why its checkpoint stays; one without a reason can go.

        Args:
            steps: Those of all committed checkpoints, in order.
            evaluations: The lines of evaluations.jsonl.
        """
        best = best_step(self.best, scores(self.best, steps, evaluations)) if self.best else None
        return {
            step: [f"newest {self.newest}"] * (step in steps[-self.newest :])
            + [f"best {self.best}"] * (step == best)
            + [f"every {self.every_steps} steps"] * (self.every_steps > 0 and step % self.every_steps == 0)
            for step in steps
        }


def scores(metric: str, steps: list[int], evaluations: list[dict[str, Any]]) -> dict[int, float]:
    """Returns by step what a metric of data.validation was, where it is defined."""
    found = {line["step"]: line[metric] for line in evaluations if line["split"] == "validation" and metric in line}
    return {step: found[step] for step in steps if step in found and not math.isnan(found[step])}


def best_step(metric: str, scores: dict[int, float]) -> int | None:
    """Returns the step with the best score; None if there is none."""
    pick = max if HIGHER_IS_BETTER[metric.partition("/")[0]] else min
    return pick(scores, key=lambda step: scores[step], default=None)
