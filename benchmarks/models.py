"""Trains every built-in model on MovieLens, and compares the predictions.

Writes docs/explanation/results.md.
Takes a few minutes of a quiet machine.

The numbers come from one machine, so unlike the output of `docs.generate` they do not follow changes of the code.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.baselines import LogisticRegression, auc, popularity, read_samples, recall_of_counts
from docs.generate import ROOT, table, write_measured
from trainer.commands import read_command
from trainer.config.root import load_config

PAGE = ROOT / "docs" / "explanation" / "results.md"
SEEDS = (0, 1, 2)
MODELS = {
    "dlrm": ["movielens"],
    "dlrm_dcn": ["movielens", "--model.name", "dlrm_dcn", "--model.cross-rank", "16"],
    "wide_deep": ["movielens_wide_deep"],
    "deepfm": ["movielens_deepfm"],
    "xdeepfm": ["movielens_xdeepfm"],
    "autoint": ["movielens_autoint"],
    "masknet": ["movielens_masknet"],
    "finalmlp": ["movielens_finalmlp"],
    "wukong": ["movielens_wukong"],
    "mmoe": ["movielens_mmoe"],
    "ple": ["movielens_ple"],
    "esmm": ["movielens_esmm"],
    "dbmtl": ["movielens_dbmtl"],
    "pepnet": ["movielens_pepnet"],
    "din": ["movielens_din"],
    "sasrec": ["movielens_sasrec"],
    "bst": ["movielens_bst"],
    "hstu": ["movielens_hstu"],
    "dlrm_hstu": ["movielens_dlrm_hstu"],
    "without history": ["movielens_without_history"],
}
RETRIEVAL = {"two_tower": ["movielens_two_tower"]}
NEXT = {name: [f"movielens_next_{name}"] for name in ("sasrec", "hstu", "recency", "mind")}
FOUND_OF = (10, 50)  # recall@k
NEXT_METRICS = {name: name for name in ("hit_rate@10", "ndcg@10")}
LABELS = {"label": "liked", "loved": "loved"}


Result = dict[str, list[float]]
"""Metrics of a model on the test split with each seed, by label or name; empty for a label that it does not predict."""


def main() -> None:
    """Measures all models and rewrites the tables."""
    with tempfile.TemporaryDirectory() as folder:
        write_measured(PAGE, "models", models(Path(folder)))
        write_measured(PAGE, "retrieval", retrieval(Path(folder)))
        write_measured(PAGE, "next", next_items(Path(folder)))


def models(folder: Path) -> str:
    """Returns the table of models that predict labels. Run directories go into `folder`."""
    results = baselines()
    for name, words in MODELS.items():
        tasks = load_config(words[0]).named_tasks()
        metrics = {str(task.label): f"auc/{name}" if len(tasks) > 1 else "auc" for name, task in tasks.items()}
        results[f"`{name}`"] = train(words, folder / name, metrics)
    return render(results, {label: f"Test AUC of {words}" for label, words in LABELS.items()})


def retrieval(folder: Path) -> str:
    """Returns the table of models that retrieve items. Run directories go into `folder`."""
    results, metrics = popularity_of_all(RETRIEVAL["two_tower"]), {f"recall@{k}": f"recall@{k}" for k in FOUND_OF}
    for name, words in RETRIEVAL.items():
        results[f"`{name}`"] = train(words, folder / name, metrics)
    return render(results, {name: f"Test {name}" for name in metrics})


def next_items(folder: Path) -> str:
    """Returns the table of models that find the next item. Run directories go into `folder`."""
    popular = popularity_of_all(NEXT["sasrec"])
    results, metrics = {name: {"hit_rate@10": result["recall@10"]} for name, result in popular.items()}, NEXT_METRICS
    for name, words in NEXT.items():
        results[f"`{name}`"] = train(words, folder / f"next-{name}", metrics)
    return render(results, {name: f"Test {name}" for name in metrics})


def train(words: list[str], out: Path, metrics: dict[str, str]) -> Result:
    """Trains a model with every seed and returns its results.

    Args:
        words: The configuration, and flags.
        out: The folder of the run directories.
        metrics: Names of the metrics in evaluations, by their names in the result.
    """
    result: Result = {}
    for seed in SEEDS:
        read_command(["train", *words, "--out", f"{out}-{seed}", "--train.seed", str(seed)])()
        test = json.loads(Path(f"{out}-{seed}", "evaluations.jsonl").read_text().splitlines()[-1])
        for name, metric in metrics.items():
            result.setdefault(name, []).append(test[metric])
    return result


def baselines() -> dict[str, Result]:
    """Returns the results of the baselines, which have no seed."""
    data, by_popularity, by_regression = load_config("movielens").data, Result(), Result()
    training, test = (pq.read_table(folder) for folder in (data.train[0], data.test[0]))
    samples, test_samples = read_samples(training, data), read_samples(test, data)
    for label in LABELS:
        known, true = (_column(one, label) for one in (training, test))
        scores = popularity(_column(training, "item_id"), known, _column(test, "item_id"))
        by_popularity[label] = [auc(scores, true)]
        model = LogisticRegression(len(data.dense), sum(feature.rows for feature in data.sparse.values()))
        scores = model.fit(samples, torch.from_numpy(known).double())(test_samples).detach().numpy()
        by_regression[label] = [auc(scores, true)]
    return {"popularity": by_popularity, "logistic regression": by_regression}


def popularity_of_all(words: list[str]) -> dict[str, Result]:
    """Returns the result of recommending to everybody the films with most labels in a configuration's train split."""
    config = load_config(words[0])
    training, test = (pq.read_table(folder) for folder in (config.data.train[0], config.data.test[0]))
    items = np.sort(_column(pq.read_table(config.data.catalogue.items[0]), "item_id"))
    likes = np.bincount(_column(training, "item_id"), _column(training, "label"), minlength=items[-1] + 1)
    wanted = np.searchsorted(items, _column(test, "item_id")[_column(test, "label") > 0])
    return {"popularity": {f"recall@{k}": [recall_of_counts(likes[items], wanted, k)] for k in FOUND_OF}}


def _column(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy()


def render(results: dict[str, Result], headers: dict[str, str], compared: str = "Model") -> str:
    """Returns the table of results, and the machine.

    Args:
        results: The results by model, or by another compared thing.
        headers: The headers of the value columns, by their names in results.
        compared: The header of the first column.
    """
    rows = [[name, *(_spread(result.get(key, [])) for key in headers)] for name, result in results.items()]
    shown = table([compared, *headers.values()], rows)
    return f"{shown}\n\nThe mean over {len(SEEDS)} seeds, lowest and highest beside it, on one rank."


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return "".join(f"{value:.4f}" for value in values)
    return f"{np.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


if __name__ == "__main__":
    main()
