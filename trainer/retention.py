"""Which checkpoints stay."""

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
        stay = {*steps[-self.newest :], self._best(steps, evaluations)}
        return [step for step in steps if step not in stay and not (self.every_steps and step % self.every_steps == 0)]

    def _best(self, steps: list[int], evaluations: list[dict[str, Any]]) -> int | None:
        scores = {
            line["step"]: line[self.best]
            for line in evaluations
            if line["step"] in steps and line["split"] == "validation" and self.best in line
        }
        known = {step: score for step, score in scores.items() if score == score}  # not a NaN
        if not known or self.best is None:
            return None
        pick = max if HIGHER_IS_BETTER[self.best.partition("/")[0]] else min
        return pick(known, key=lambda step: known[step])
