"""Learned from all features: logistic, linear and Poisson regression, boosted trees of scikit-learn and LightGBM."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from torchx_recsys.apps.baselines.features import LinearFeatures, Target, TreeFeatures
from torchx_recsys.apps.baselines.problem import LEAST, Fitted, LeftOut, Predict, Problem
from torchx_recsys.apps.baselines.rows import Table

STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # of logistic regression's loss beside its L2; each fit starts at the one before
PENALTIES = (100.0, 10.0, 1.0, 0.1)  # of linear regression
MEAN_PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4)  # of Poisson regression, whose loss is a mean
ITERATIONS = 200
TREES, PATIENCE = 500, 20
TARGETS: dict[str, Target] = {
    "probability": "binary",
    "value": "continuous",
    "count": "continuous",
    "classes": "multiclass",
}


def logistic_regression(problem: Problem) -> Fitted:
    """Logistic regression with an L2 penalty, over one-hot ids and standardised numbers."""
    features, places, labels, weights = LinearFeatures(problem.train), *hard_labels(problem)
    matrix = features(problem.train)[places]
    # C multiplies the sum of the losses, and weights may have any scale.
    model = LogisticRegression(max_iter=ITERATIONS, warm_start=True)
    strengths = STRENGTHS if problem.validation is not None else (1.0,)

    def fit(strength: float) -> Predict:
        model.set_params(C=strength)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the last bits of a baseline are of no use
            model.fit(matrix, labels, weights)
        coefficients, intercept = model.coef_.copy(), model.intercept_.copy()
        return lambda table: _by_class(
            np.asarray(features(table) @ coefficients.T + intercept), model.classes_, problem
        )

    strength, predict = problem.choose(strengths, fit)
    return Fitted(predict, f"C = {strength:g}")


def linear_regression(problem: Problem) -> Fitted:
    """Linear regression with an L2 penalty, over one-hot ids and standardised numbers."""
    features, (labels, weights) = LinearFeatures(problem.train), problem.trained
    matrix = features(problem.train)
    penalties = PENALTIES if problem.validation is not None else (10.0,)

    def fit(penalty: float) -> Predict:
        model = Ridge(penalty, random_state=problem.seed).fit(matrix, labels, weights)
        return lambda table: model.predict(features(table))

    penalty, predict = problem.choose(penalties, fit)
    return Fitted(predict, f"penalty {penalty:g}")


def poisson_regression(problem: Problem) -> Fitted:
    """Poisson regression with a log link and an L2 penalty, over one-hot ids and standardised numbers."""
    features, (labels, weights) = LinearFeatures(problem.train), problem.trained
    matrix = features(problem.train)
    penalties = MEAN_PENALTIES if problem.validation is not None else (1e-2,)

    def fit(penalty: float) -> Predict:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = PoissonRegressor(alpha=penalty, max_iter=ITERATIONS).fit(matrix, labels, weights)
        return lambda table: model.predict(features(table))

    penalty, predict = problem.choose(penalties, fit)
    return Fitted(predict, f"penalty {penalty:g}")


def boosted_trees(problem: Problem) -> Fitted:
    """Gradient boosting of scikit-learn, stopped by data.validation."""
    features, places, labels, weights = _of_trees(problem)
    kind: Any = HistGradientBoostingRegressor if problem.is_numeric else HistGradientBoostingClassifier
    options: dict[str, Any] = {"max_iter": TREES, "n_iter_no_change": PATIENCE, "random_state": problem.seed}
    options |= {"loss": "poisson"} if problem.kind == "count" else {}
    model = kind(**options, categorical_features=features.categories, early_stopping=True)
    model.fit(features.matrix[places], labels, weights, **_watched(problem, features, "_val"))

    def predict(table: Table) -> np.ndarray:
        if problem.is_numeric:
            return model.predict(features(table))
        return _by_class(model.decision_function(features(table)), model.classes_, problem)

    return Fitted(predict, f"{model.n_iter_} trees")


def lightgbm_trees(problem: Problem) -> Fitted:
    """Gradient boosting of LightGBM, stopped by data.validation."""
    try:
        import lightgbm
    except ImportError as error:
        raise LeftOut(f"{error.name or 'lightgbm'} is not installed; pip install lightgbm") from error
    except OSError as error:  # it needs the system's libgomp
        raise LeftOut(f"LightGBM cannot be loaded: {error}") from error
    features, places, labels, weights = _of_trees(problem)
    kind = lightgbm.LGBMRegressor if problem.is_numeric else lightgbm.LGBMClassifier
    trees = TREES if problem.validation is not None else TREES // 5
    options: dict[str, Any] = {"deterministic": True, "force_col_wise": True}  # only both: the same trees anywhere
    options |= {"objective": "poisson"} if problem.kind == "count" else {}
    model = kind(n_estimators=trees, random_state=problem.seed, verbose=-1, **options)
    watched: dict[str, Any] = {}
    if problem.validation is not None:
        found = _watched(problem, features, "")
        watched = {
            "eval_set": [(found["X"], found["y"])],
            "eval_sample_weight": [found["sample_weight"]],
            "callbacks": [lightgbm.early_stopping(PATIENCE, verbose=False)],
        }
    categories = [place for place, is_one in enumerate(features.categories) if is_one]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(features.matrix[places], labels, weights, categorical_feature=categories, **watched)

    def predict(table: Table) -> np.ndarray:
        scores = np.asarray(model.predict(features(table), raw_score=not problem.is_numeric))
        return scores if problem.is_numeric else _by_class(scores, model.classes_, problem)

    return Fitted(predict, f"{model.best_iteration_ or trees} trees")


def hard_labels(problem: Problem, of: Table | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows, classes and weights; a row with a label between 0 and 1 is there as a negative and a positive.

    Args:
        problem: The task.
        of: The rows. Unset: those to train on.

    Raises:
        LeftOut: There is only one class.
    """
    table = problem.train if of is None else of
    labels, weights = problem.labels(table), problem.weights(table)
    places = np.arange(len(table))
    if problem.kind == "probability" and ((labels > 0) & (labels < 1)).any():
        places, weights = np.tile(places, 2), np.concatenate([weights * (1 - labels), weights * labels])
        labels = np.repeat([0.0, 1.0], len(table))
    counts = weights > 0
    places, labels, weights = places[counts], labels[counts], weights[counts]
    if of is None and len(found := np.unique(labels)) < 2:
        raise LeftOut(f"every label is {found[0]:g}" if len(found) else "every sample to train on has weight 0")
    return places, labels, weights


def _of_trees(problem: Problem) -> tuple[TreeFeatures, np.ndarray, np.ndarray, np.ndarray]:
    if problem.is_numeric:
        labels, weights = problem.trained
        places = np.arange(len(labels))
    else:
        places, labels, weights = hard_labels(problem)
    of_rows = problem.trained[0] if problem.kind != "probability" else problem.trained[0] >= 0.5
    return TreeFeatures(problem.train, of_rows, TARGETS[problem.kind], problem.seed), places, labels, weights


def _watched(problem: Problem, features: TreeFeatures, suffix: str) -> dict[str, np.ndarray]:
    """Returns the rows of data.validation as arguments of `fit`."""
    table = problem.validation
    if table is None:
        return {}
    if problem.is_numeric:
        places, labels, weights = np.arange(len(table)), problem.labels(table), problem.weights(table)
    else:
        places, labels, weights = hard_labels(problem, table)
    if problem.kind == "classes":  # trees refuse a class that they were not trained on
        known = np.isin(labels, np.unique(problem.trained[0]))
        places, labels, weights = places[known], labels[known], weights[known]
    if not len(places):
        return {}
    matrix = features(table)[places]
    return {f"X{suffix}": matrix, f"y{suffix}": labels, f"sample_weight{suffix}": weights}


def _by_class(scores: np.ndarray, classes: np.ndarray, problem: Problem) -> np.ndarray:
    """Returns logits, `[R]`, or log-probabilities by the number of the class, `[R, C]`."""
    if problem.kind == "probability":
        return scores.reshape(len(scores))
    if scores.ndim == 1 or scores.shape[1] == 1:  # of two classes
        scores = np.column_stack([np.zeros(len(scores)), scores.reshape(-1)])
    numbers = classes.astype(np.int64)
    found = np.full((len(scores), numbers.max() + 1), np.log(LEAST))
    found[:, numbers] = scores - np.logaddexp.reduce(scores, axis=1)[:, None]
    return found


Fit = Callable[[Problem], Fitted]
