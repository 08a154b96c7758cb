"""Ratings from who and what alone: means of users and items, and a matrix factorization of what they leave."""

from dataclasses import dataclass

import numpy as np

from torchx_recsys.apps.baselines.problem import Fitted, LeftOut, Predict, Problem
from torchx_recsys.apps.baselines.rates import Groups, overall
from torchx_recsys.apps.baselines.rows import Table

BIAS_PENALTIES = (1.0, 3.0, 10.0, 30.0)  # ratings of the mean that each user's and item's are joined with
SWEEPS = 10
DIMENSIONS = 16
FACTOR_PENALTIES = (24.0, 12.0, 6.0)  # L2 of the factors of a user or an item
START = 0.1  # standard deviation of the first factors
AT_ONCE = 1 << 15  # ratings whose products are in memory at the same time


@dataclass(frozen=True)
class Ratings:
    """The rows to train on, by user and item.

    Attributes:
        users: Their users.
        items: Their items.
        mean: The mean label.
        labels: `[R]` float64.
        weights: `[R]` float64.
    """

    users: Groups
    items: Groups
    mean: float
    labels: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, problem: Problem) -> "Ratings":
        """Reads the users and items of a task.

        Raises:
            LeftOut: There is no column of users or of items.
        """
        if problem.user is None or problem.item is None:
            raise LeftOut("no two features of single ids name users and items; name them by --user and --item")
        users, items = (Groups(problem.train.key(name)) for name in (problem.user, problem.item))
        return cls(users, items, overall(problem), *problem.trained)

    def biases(self, penalty: float, explained: np.ndarray | float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Returns what each user and each item adds to the mean, `[U + 1]` and `[I + 1]`; 0 for an unknown one.

        Args:
            penalty: Ratings of the mean that each is joined with.
            explained: What something else adds to each rating, `[R]`.
        """
        of_users, of_items = np.zeros(len(self.users) + 1), np.zeros(len(self.items) + 1)
        user, item = self.users.of_samples, self.items.of_samples
        left = self.labels - self.mean - explained
        for _ in range(SWEEPS):
            of_items[:-1] = self._means(self.items, left - of_users[user], penalty)
            of_users[:-1] = self._means(self.users, left - of_items[item], penalty)
        return of_users, of_items

    def _means(self, groups: Groups, values: np.ndarray, penalty: float) -> np.ndarray:
        return groups.sums(self.weights * values) / (groups.sums(self.weights) + penalty)


def user_and_item_means(problem: Problem) -> Fitted:
    """The mean label, plus what the user and the item add to it: alternating, regularized means."""
    ratings = Ratings.of(problem)
    penalty, predict = problem.choose(
        BIAS_PENALTIES, lambda penalty: _sum_of(ratings, problem, *ratings.biases(penalty))
    )
    return Fitted(predict, f"{penalty:g} ratings of the mean; {problem.user}, {problem.item}")


def matrix_factorization(problem: Problem) -> Fitted:
    """User and item means, plus the inner product of their factors, by alternating least squares."""
    ratings = Ratings.of(problem)
    of_means = problem.choose(BIAS_PENALTIES, lambda one: _sum_of(ratings, problem, *ratings.biases(one)))[0]

    def fit(penalty: float) -> Predict:
        of_users, of_items, p, q = factorize(ratings, of_means, penalty, problem.seed)
        base = _sum_of(ratings, problem, of_users, of_items)

        def predict(table: Table) -> np.ndarray:
            user, item = _places(ratings, problem, table)
            return base(table) + np.einsum("rd,rd->r", p[user], q[item])

        return predict

    penalty, predict = problem.choose(FACTOR_PENALTIES, fit)
    return Fitted(predict, f"{DIMENSIONS} factors, penalty {penalty:g}; {problem.user}, {problem.item}")


def factorize(
    ratings: Ratings, of_means: float, penalty: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Factorizes what means leave of ratings, by alternating least squares, and the means anew after each sweep.

    Args:
        ratings: The ratings.
        of_means: Penalty of the means.
        penalty: L2 penalty of the factors.
        seed: Seed of the first factors.

    Returns:
        What users and items add to the mean, `[U + 1]` and `[I + 1]`, and their factors, `[U + 1, D]` and `[I + 1, D]`;
        0 for an unknown one.
    """
    user, item = ratings.users.of_samples, ratings.items.of_samples
    users, items = len(ratings.users) + 1, len(ratings.items) + 1
    p, q = np.zeros((users, DIMENSIONS)), np.random.default_rng(seed).normal(0, START, (items, DIMENSIONS))
    of_users, of_items = ratings.biases(of_means)
    for _ in range(SWEEPS):
        left = ratings.labels - ratings.mean - of_users[user] - of_items[item]
        p = _solved(user, users, q[item], left, ratings.weights, penalty)
        q = _solved(item, items, p[user], left, ratings.weights, penalty)
        of_users, of_items = ratings.biases(of_means, np.einsum("rd,rd->r", p[user], q[item]))
    return of_users, of_items, p, q


def _solved(
    key: np.ndarray, keys: int, others: np.ndarray, labels: np.ndarray, weights: np.ndarray, penalty: float
) -> np.ndarray:
    """Returns the least-squares factors of each key, `[K, D]`, given the factors of the other side, `[R, D]`."""
    size = others.shape[1]
    left, right = np.zeros((keys, size, size)), np.zeros((keys, size))
    order = np.argsort(key, kind="stable")
    for start in range(0, len(order), AT_ONCE):
        here = order[start : start + AT_ONCE]
        firsts = np.flatnonzero(np.diff(key[here], prepend=-1))
        weighted = others[here] * weights[here, None]
        left[key[here][firsts]] += np.add.reduceat(weighted[:, :, None] * others[here][:, None, :], firsts)
        right[key[here][firsts]] += np.add.reduceat(weighted * labels[here, None], firsts)
    left += penalty * np.eye(size)
    return np.linalg.solve(left, right[:, :, None])[:, :, 0]


def _sum_of(ratings: Ratings, problem: Problem, of_users: np.ndarray, of_items: np.ndarray) -> Predict:
    def predict(table: Table) -> np.ndarray:
        user, item = _places(ratings, problem, table)
        return ratings.mean + of_users[user] + of_items[item]

    return predict


def _places(ratings: Ratings, problem: Problem, table: Table) -> tuple[np.ndarray, np.ndarray]:
    assert problem.user is not None
    assert problem.item is not None
    return ratings.users.places(table.key(problem.user)), ratings.items.places(table.key(problem.item))
