"""Metrics are looked up by name before training, and the best checkpoint by those that evaluations compute."""

import re

import pytest

from trainer.checkpoint.retention import expired
from trainer.config.checkpoint import Retention
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.metrics.registry import check_metrics

OWN = "own_metric:MyLoss"


@pytest.fixture(autouse=True)
def own_metric(tmp_path, monkeypatch):
    (tmp_path / "own_metric.py").write_text("class MyLoss:\n    higher_is_better = False\n")
    monkeypatch.syspath_prepend(tmp_path)


def evaluated(names, best, labels):
    keep = {"best": best} if best else {}
    tree = {"data": {"labels": labels}, "evaluate": {"metrics": names}, "checkpoint": {"keep": keep}}
    return Config.model_validate(tree)


@pytest.mark.parametrize(
    ("names", "best", "labels", "message"),
    [
        (["auk"], None, ["click"], "evaluate.metrics is 'auk'; did you mean 'auc'?"),
        (["own_metric:Missing"], None, ["click"], "evaluate.metrics is 'own_metric:Missing', which cannot be imported"),
        (["auc", "log_loss"], "auk", ["click"], "checkpoint.keep.best is 'auk'; allowed: auc, log_loss"),
        (["auc", "calibration"], "calibration", ["click"], "checkpoint.keep.best is 'calibration'; allowed: auc"),
        (["auc"], "log_loss", ["click"], "checkpoint.keep.best is 'log_loss'; allowed: auc"),
        (["auc"], "auc", ["click", "buy"], "checkpoint.keep.best is 'auc'; allowed: auc/click, auc/buy"),
        (["auc"], "auc/click", ["click"], "checkpoint.keep.best is 'auc/click'; allowed: auc"),
        ([OWN], "my_loss", ["click"], f"checkpoint.keep.best is 'my_loss'; allowed: {OWN}"),
        (["calibration"], "auc", ["click"], "allowed: none of evaluate.metrics"),
    ],
)
def test_what_no_evaluation_computes_is_refused(names, best, labels, message):
    with pytest.raises(InputError, match=re.escape(message)):
        check_metrics(evaluated(names, best, labels))


@pytest.mark.parametrize(
    ("names", "best", "labels"),
    [
        (["auc"], None, ["click"]),
        (["auc"], "auc", ["click"]),
        (["auc"], "auc/buy", ["click", "buy"]),
        (["auc", OWN], OWN, ["click"]),
    ],
)
def test_what_evaluations_compute_is_allowed(names, best, labels):
    check_metrics(evaluated(names, best, labels))


@pytest.mark.parametrize(
    ("best", "column"), [(OWN, "my_loss"), (f"{OWN}/Buy", "my_loss/Buy"), ("log_loss", "log_loss")]
)
def test_the_best_by_any_metric_stays(best, column):
    evaluations = [{"split": "validation", "step": step, column: loss} for step, loss in ((1, 0.3), (2, 0.1), (3, 0.2))]
    assert expired(Retention(newest=1, best=best), [1, 2, 3], evaluations) == [1]
