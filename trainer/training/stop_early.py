"""Early stopping. It depends on the evaluations alone, so the same command stops at the same step again."""

import math

from trainer.checkpoint.retention import Evaluations
from trainer.config.train import StopEarlyConfig
from trainer.metrics.registry import higher_is_better, result_name


def reason_to_stop(config: StopEarlyConfig, evaluations: Evaluations, step: int) -> str | None:
    """Returns the reason to end training after the evaluation of a step; None if it continues or nothing was evaluated.

    Args:
        config: The metric, and how long to wait for a better value.
        evaluations: The evaluations so far.
        step: Steps done.
    """
    if config.metric is None:
        return None
    name, sign = result_name(config.metric), 1 if higher_is_better(config.metric) else -1
    lines = [line for line in evaluations if line["split"] == "validation" and name in line]
    if not lines or lines[-1]["step"] != step:
        return None
    best, best_step, since = -math.inf, 0, 0
    for line in lines:
        since += 1
        # NaN, such as the AUC of a single class, never counts as better.
        if sign * line[name] - best > config.min_change:
            best, best_step, since = sign * line[name], line["step"], 0
    watched = f"{name} of data.validation"
    if config.target is not None and best >= sign * config.target:
        return f"{watched} is {sign * best:.5f}, at least as good as train.stop_early.target, {config.target:g}"
    if since >= config.patience:
        ago = f"since it was {sign * best:.5f} after step {best_step}" if best_step else "as it is not defined"
        return f"{watched} has not become better in {since} evaluations, {ago}"
    return None
