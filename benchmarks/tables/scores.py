"""The metrics of published tables, as their projects define them."""

import numpy as np

Scores = dict[str, float]


def ranking(lists: dict[int, list[int]], wanted: dict[int, list[int]], k: int = 10) -> Scores:
    """Returns the metrics of lists of items, as the recommenders project has them.

    MAP divides by all items that a user wants, not by the `k` that can be found, and nDCG counts each of them alike.

    Args:
        lists: The items that each user is given, the best first.
        wanted: The items of each user in test.
        k: Items of a list that count.
    """
    found = []
    for user, items in wanted.items():
        hits = np.array([item in items for item in lists.get(user, [])[:k]], bool)
        places = 1 + np.flatnonzero(hits)
        best = 1 / np.log2(1 + np.arange(1, min(k, len(items)) + 1))
        found.append(
            (
                (np.arange(1, len(places) + 1) / places).sum() / len(items),
                (1 / np.log2(1 + places)).sum() / best.sum(),
                len(places) / k,
                len(places) / len(items),
            )
        )
    return dict(zip(("MAP", f"nDCG@{k}", f"precision@{k}", f"recall@{k}"), np.mean(found, 0).tolist(), strict=True))


def rating(truth: np.ndarray, predicted: np.ndarray) -> Scores:
    """Returns the errors of ratings, which are clipped to 1 to 5, as Surprise does."""
    errors = predicted.clip(1, 5) - truth
    return {"RMSE": float(np.sqrt(np.square(errors).mean())), "MAE": float(np.abs(errors).mean())}
