"""What one would try beside a model in ten minutes: linear models, boosted trees, means, popularity."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error, roc_auc_score
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks.quality.sets import DataSet

PRIOR = 10  # labels of the mean that users and items are given
Scores = dict[str, float]


def baselines(one: DataSet, splits: dict[str, pa.Table], found: int = 10) -> dict[str, Scores]:
    """Returns the metrics of every baseline on the test split."""
    train, test = splits["train"], splits["test"]
    if one.task == "items":
        return {"popularity": {"recall@10": popularity(train["item_id"], test["item_id"], found)}}
    truth, known = (rows[one.label].to_numpy() for rows in (test, train))
    if one.task == "classes":
        names = np.unique(known)
        known, truth = np.searchsorted(names, known), np.searchsorted(names, truth)
    linear, trees = features(one, splits)
    scores = {}
    for name, values, model in _models(one, linear, trees):
        fit = {"categorical_feature": values["categories"]} if name == "trees" else {}
        model.fit(values["train"], known, **fit)
        predict = model.predict if one.task == "values" else model.predict_proba
        scores[name] = judge(one.task, truth, predict(values["test"]))
    users = [name for name in ("user_id", "item_id") if name in train.column_names]
    if users and one.task == "values":
        scores["means"] = judge(one.task, truth, means(train, test, users, known))
    return scores


def _models(one: DataSet, linear: dict[str, Any], trees: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    is_value = one.task == "values"
    yield "linear", linear, Ridge(10.0) if is_value else LogisticRegression(max_iter=300)
    yield "trees", trees, (LGBMRegressor if is_value else LGBMClassifier)(random_state=0, n_jobs=1, verbose=-1)


def judge(task: str, truth: np.ndarray, predicted: np.ndarray) -> Scores:
    """Returns the metrics of predictions: values, or probabilities `[N, C]`."""
    if task == "values":
        return {"rmse": float(np.sqrt(mean_squared_error(truth, predicted)))}
    if task == "classes":
        return {
            "cross_entropy": float(log_loss(truth, predicted)),
            "accuracy": float(accuracy_score(truth, predicted.argmax(1))),
        }
    chance = predicted[:, 1]
    return {
        "auc": float(roc_auc_score(truth, chance)),
        "log_loss": float(log_loss(truth, chance)),
        "calibration": float(chance.mean() / truth.mean()),
    }


def features(one: DataSet, splits: dict[str, pa.Table]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the features of rows for linear models and for trees, by split."""
    kept = [name for name in splits["train"].column_names if name != one.label]
    lists = [name for name in kept if pa.types.is_list(splits["train"].schema.field(name).type)]
    texts = [name for name in kept if pa.types.is_string(splits["train"].schema.field(name).type)]
    named = [name for name in kept if name in (*one.ids, *texts)]
    numbers = [name for name in kept if name not in (*named, *lists)]
    ids = {split: _columns(rows, named, _as_text) for split, rows in splits.items()}
    values = {split: _columns(rows, numbers, _as_numbers) for split, rows in splits.items()}
    middle = np.nanmedian(values["train"], 0)
    hot = OneHotEncoder(handle_unknown="ignore").fit(ids["train"]) if named else None
    scaler = StandardScaler().fit(np.where(np.isnan(values["train"]), middle, values["train"])) if numbers else None
    linear: dict[str, Any] = {}
    trees: dict[str, Any] = {}
    for split in ("train", "test"):
        parts, dense = [], []
        if hot:
            parts.append(hot.transform(ids[split]))
            dense.append(_codes(ids["train"], ids[split]))
        if scaler:
            filled = np.where(np.isnan(values[split]), middle, values[split])
            parts.append(scipy.sparse.csr_matrix(scaler.transform(filled)))
            dense.append(values[split])
        for name in lists:
            words = _words(splits["train"][name], splits[split][name])
            parts.append(scipy.sparse.csr_matrix(words))
            dense.append(words)
        linear[split], trees[split] = scipy.sparse.hstack(parts).tocsr(), np.concatenate(dense, 1)
    trees["categories"] = [*range(len(named))]
    return linear, trees


def _columns(rows: pa.Table, names: list[str], read: Callable[[pa.ChunkedArray], np.ndarray]) -> np.ndarray:
    """Returns columns beside one another, `[N, C]`."""
    return np.stack([read(rows[name]) for name in names], 1) if names else np.empty((rows.num_rows, 0))


def _as_text(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(pa.string()).fill_null("").to_numpy(zero_copy_only=False).astype(str)


def _as_numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _codes(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the place of each id among those of training, NaN for others."""
    codes = np.empty(values.shape)
    for place in range(values.shape[1]):
        names = np.unique(known[:, place])
        at = np.searchsorted(names, values[:, place]).clip(0, len(names) - 1)
        codes[:, place] = np.where(names[at] == values[:, place], at, np.nan)
    return codes


def _words(known: pa.ChunkedArray, lists: pa.ChunkedArray) -> np.ndarray:
    names = sorted({word for one in known.to_pylist() for word in one})
    return np.array([[name in one for name in names] for one in lists.to_pylist()], float)


def means(train: pa.Table, test: pa.Table, columns: list[str], known: np.ndarray) -> np.ndarray:
    """Returns the mean label, plus what each column's id is above it, after a prior, one column after the other."""
    predicted, residual = np.full(test.num_rows, known.mean()), known - known.mean()
    for name in columns:
        codes = _codes(_as_text(train[name])[:, None], _as_text(train[name])[:, None])[:, 0].astype(int)
        mean = np.bincount(codes, residual) / (np.bincount(codes) + PRIOR)
        residual = residual - mean[codes]
        others = _codes(_as_text(train[name])[:, None], _as_text(test[name])[:, None])[:, 0]
        predicted += np.where(np.isnan(others), 0, mean[np.nan_to_num(others).astype(int)])
    return predicted


def popularity(train: pa.ChunkedArray, test: pa.ChunkedArray, found: int) -> float:
    """Returns how often an item is among those that occur most often in training."""
    names, counts = np.unique(_as_text(train), return_counts=True)
    return float(np.isin(_as_text(test), names[np.argsort(-counts, kind="stable")[:found]]).mean())
