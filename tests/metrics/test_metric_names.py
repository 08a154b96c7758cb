"""Metrics are looked up by name before training, and the best checkpoint by those that evaluations compute."""

import re

import pytest
from evaluated import LOSSES

from trainer.checkpoint.retention import expired
from trainer.config.root import Config
from trainer.config.train import Retention
from trainer.core.errors import InputError
from trainer.core.registry import find_by_name
from trainer.metrics.checks import check_metrics, check_watched_metrics
from trainer.metrics.registry import DEFAULTS, METRICS, built_in, higher_is_better, metrics_of

OWN = "own_metric:MyLoss"


@pytest.fixture(autouse=True)
def own_metric(tmp_path, monkeypatch):
    own = "class MyLoss:\n    higher_is_better = False\n\nclass OfValues(MyLoss):\n    takes = 'value'\n"
    (tmp_path / "own_metric.py").write_text(own)
    monkeypatch.syspath_prepend(tmp_path)


def evaluated(names, best, labels):
    keep = {"best": best} if best else {}
    tree = {"data": {"labels": labels}, "evaluate": {"metrics": names}, "checkpoint": {"keep": keep}}
    return Config.model_validate(tree)


def check(config):
    check_metrics(config)
    check_watched_metrics(config)


@pytest.mark.parametrize(
    ("names", "best", "labels", "message"),
    [
        (["auk"], None, ["click"], "evaluate.metrics is 'auk'; did you mean 'auc'?"),
        (["ndgc@10"], None, ["click"], "evaluate.metrics is 'ndgc@10'; did you mean 'ndcg@k'?"),
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
        check(evaluated(names, best, labels))


@pytest.mark.parametrize(
    ("names", "best", "labels"),
    [
        (["auc"], None, ["click"]),
        (["auc"], "auc", ["click"]),
        (["auc"], "auc/buy", ["click", "buy"]),
        (["auc", OWN], OWN, ["click"]),
        (["precision@0.25"], "precision@0.25", ["click"]),
    ],
)
def test_what_evaluations_compute_is_allowed(names, best, labels):
    check(evaluated(names, best, labels))


def of_task(metrics, evaluate=None, **task):
    data = {"labels": ["click", "seconds"], "numeric_labels": ["seconds"], "groups": ["user"]}
    task = {"label": "click", "metrics": metrics, **task}
    task = {"loss": LOSSES.get(task.get("output"), "binary"), **task}
    tree = {"data": data, "model": {"name": "own:model"}, "tasks": {"ranking": task}, "evaluate": evaluate or {}}
    return Config.model_validate(tree)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (
            "recall@0",
            "write recall@threshold with a number between 0 and 1, such as recall@0.5 or recall@k with a whole",
        ),
        ("recall@1.5", "or recall@k with a whole number above 0, such as recall@10"),
        ("recall", "write recall@threshold with"),
        ("precision@2", "write precision@threshold with a number between 0 and 1, such as precision@0.5"),
        ("precision@0.0", "a number between 0 and 1"),
        ("precision@threshold", "such as precision@0.5"),
        ("ndcg@x", "write ndcg@k with a whole number above 0, such as ndcg@10"),
        ("ndcg@k", "such as ndcg@10"),
        ("ndcg", "such as ndcg@10"),
        ("hit_rate@-3", "such as hit_rate@10"),
        ("auc@10", "write auc"),
        (
            "accuracy@1.5",
            "write accuracy@threshold with a number between 0 and 1, such as accuracy@0.5 or accuracy or accuracy@k",
        ),
    ],
)
def test_wrong_numbers_in_names(metric, words):
    with pytest.raises(InputError, match=re.escape(f"tasks.ranking.metrics has '{metric}'; ")) as error:
        check(of_task([metric], group="user"))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"metrics": ["gauc"]},
            "tasks.ranking.metrics has 'gauc', which ranks the samples of a group, but tasks.ranking.group is not set",
        ),
        (
            {"metrics": ["auc"], "output": "value", "label": "seconds"},
            "tasks.ranking.metrics has 'auc', which takes a logit or a log-probability, but tasks.ranking gives a "
            "value; set tasks.ranking.metrics to some of: mae, mse, rmse, r2, xauc, gauc, gauc_by_samples, grouped",
        ),
        ({"metrics": ["rmse"]}, "which takes a value or the logarithm of a value, but tasks.ranking gives a logit"),
        ({"metrics": None, "evaluate": {"metrics": ["rmse"]}}, "evaluate.metrics has 'rmse', which takes a value"),
        (
            {"metrics": ["log_loss"], "output": "log_value", "label": "seconds"},
            "gives the logarithm of a value; set tasks.ranking.metrics to some of: calibration, mae, mse, rmse, r2, "
            "poisson_deviance, xauc, gauc",
        ),
        (
            {"metrics": ["ece"], "loss": "softmax"},
            "gives scores of classes; set tasks.ranking.metrics to some of: auc, ",
        ),
        ({"metrics": ["accuracy@5"]}, "which takes scores of classes, but tasks.ranking gives a logit"),
        (
            {"metrics": ["auc"], "output": "vectors", "group": "user"},
            "gives vectors; set tasks.ranking.metrics to some of: ndcg@k, mrr, recall@k, hit_rate@k",
        ),
        (
            {"metrics": ["mrr"], "output": "vectors", "group": "user"},
            "has 'mrr', which ranks all items, but data.catalogue.items is empty",
        ),
        ({"metrics": ["own_metric:OfValues"]}, "has 'own_metric:OfValues', which takes a value, but tasks.ranking"),
        (
            {"metrics": ["gauc"], "output": "value", "label": "seconds", "group": "user"},
            "has 'gauc', which takes labels in [0, 1], but data.numeric_labels has 'seconds', the label of",
        ),
        (
            {"metrics": ["auc"], "evaluate": {"group_sample": 0.5}},
            "evaluate.group_sample is 0.5, but no task has a metric within groups",
        ),
    ],
)
def test_metrics_that_do_not_suit_a_task(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        check(of_task(**settings))


@pytest.mark.parametrize("fraction", [0.0, 1.5])
def test_a_fraction_of_the_groups_that_is_none(fraction):
    with pytest.raises(ValueError, match="group_sample"):
        of_task(["gauc"], {"group_sample": fraction}, group="user")


def test_what_suits_a_task_is_allowed():
    check(of_task(["gauc", "recall@50", "hit_rate@1", "recall@0.5", "auc"], {"group_sample": 0.5}, group="user"))
    check(of_task(["ndcg@10", "mae", "own_metric:OfValues", OWN], output="value", label="seconds", group="user"))
    check(of_task([], output="vectors"))


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ({}, DEFAULTS["probability"]),
        ({"output": "log_probability"}, DEFAULTS["probability"]),
        ({"output": "value", "label": "seconds"}, ["mae", "rmse"]),
        ({"output": "log_value", "label": "seconds"}, DEFAULTS["count"]),
        ({"loss": "softmax", "label": "seconds"}, ["accuracy", "cross_entropy"]),
        ({"output": "vectors"}, []),
    ],
)
def test_defaults_suit_the_task(task, names):
    config = of_task(None, **task)
    check(config)
    assert metrics_of("ranking", config) == ("evaluate.metrics", names)
    one = of_task(None, {"metrics": [OWN]}, **task)
    assert metrics_of("ranking", one) == ("evaluate.metrics", [OWN])


@pytest.mark.parametrize("name", METRICS)
def test_names_of_the_registry_lead_to_code(name):
    number = name.replace("@threshold", "@0.5").replace("@k", "@10")
    entry, _ = built_in(number)
    assert entry is METRICS[name]
    assert callable(find_by_name("", entry.function, {}))
    assert callable(find_by_name("", entry.accumulator, {}))
    assert higher_is_better(f"{number}/click") is entry.higher_is_better


@pytest.mark.parametrize(
    ("best", "column", "kept"),
    [
        (OWN, "my_loss", 2),
        (f"{OWN}/Buy", "my_loss/Buy", 2),
        ("log_loss", "log_loss", 2),
        ("recall@50/buy", "recall@50/buy", 1),
        ("ece", "ece", 2),
    ],
)
def test_the_best_by_any_metric_stays(best, column, kept):
    evaluations = [{"split": "validation", "step": step, column: loss} for step, loss in ((1, 0.3), (2, 0.1), (3, 0.2))]
    gone = [step for step in (1, 2) if step != kept]
    assert expired(Retention(newest=1, best=best), [1, 2, 3], evaluations, {}, {}) == gone
