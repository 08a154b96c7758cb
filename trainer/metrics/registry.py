"""Metrics by name, and the direction in which each is better.

Free of torch, as checkpoints are listed without it: classes are imported when they are used.
"""

from trainer.core.registry import find_by_name

METRICS = {
    "auc": "trainer.metrics.binary:Auc",
    "normalized_entropy": "trainer.metrics.binary:NormalizedEntropy",
    "log_loss": "trainer.metrics.binary:LogLoss",
    "calibration": "trainer.metrics.binary:Calibration",
    "label_rate": "trainer.metrics.binary:LabelRate",
}
# The same as the classes' own attribute, which cannot be read without torch.
HIGHER_IS_BETTER: dict[str, bool | None] = {
    "auc": True,
    "normalized_entropy": False,
    "log_loss": False,
    "calibration": None,  # the best is 1
    "label_rate": None,
}


def higher_is_better(metric: str) -> bool | None:
    """Returns whether a higher value of a metric is better, False if a lower one is, None if neither.

    Args:
        metric: A name, followed by `/LABEL` where there are several labels.

    Raises:
        InputError: There is no such metric.
    """
    name = metric.partition("/")[0]
    if name in HIGHER_IS_BETTER:
        return HIGHER_IS_BETTER[name]
    return find_by_name("checkpoint.keep.best", name, METRICS).higher_is_better
