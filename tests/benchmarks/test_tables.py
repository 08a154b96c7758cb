"""The splits and the metrics of published tables, by hand."""

import numpy as np
import pytest

from benchmarks.tables.__main__ import PAGE, TABLES
from benchmarks.tables.published import HERE
from benchmarks.tables.scores import ranking, rating
from benchmarks.tables.splits import folds, others, random_shares, stratified
from trainer.config.root import load_config


@pytest.mark.parametrize(("name", "published"), TABLES.items())
def test_a_table_has_a_place_on_the_page_and_configurations(name, published):
    assert f"<!-- measured: {name} -->" in PAGE.read_text()
    assert all(len(scores) == len(published.metrics) for scores in published.rows.values())
    assert {load_config(str(HERE / f"{file}.toml")).model.name for file in published.ours.values()} == {*published.ours}


def test_a_stratified_split_has_the_rows_of_the_recommenders_project():
    keys = np.array([7, 7, 3, 7, 7, 3])  # its generator draws .37 .95 .73 .60 .16 .16 for them
    assert stratified(keys, 0.75).tolist() == [True, False, True, True, True, True]  # 3 of 4, and 1.5 is 2 of 2
    many = np.repeat([1, 2, 3], [4, 10, 101])
    assert np.bincount(many[stratified(many, 0.75)]).tolist() == [0, 3, 8, 76]  # 7.5 is rounded to the even 8


def test_folds_are_those_of_surprise():
    found = [fold.tolist() for fold in folds(11)]
    order = np.arange(11)
    np.random.RandomState(0).shuffle(order)
    assert [len(fold) for fold in found] == [3, 2, 2, 2, 2]
    assert [row for fold in found for row in fold] == order.tolist()


def test_shares_have_every_row_once():
    parts = random_shares(100, (0.8, 0.1, 0.1))
    assert [len(part) for part in parts] == [80, 10, 10]
    assert sorted(np.concatenate(parts)) == list(range(100))


def test_a_row_knows_the_others_of_its_user_but_not_itself():
    user, item = np.array([1, 2, 1, 1, 2]), np.array([10, 20, 11, 12, 21])
    assert others(user, {"films": item})["films"].to_pylist() == [[11, 12], [21], [10, 12], [10, 11], [20]]
    assert others(user, {"films": item}, np.array([2, 1]))["films"].to_pylist() == [[20, 21], [10, 11, 12]]


def test_scores_of_lists():
    lists, wanted = {1: [5, 6, 7, 8], 2: [5, 9]}, {1: [6, 8, 9], 2: [1]}
    scores = ranking(lists, wanted, k=4)
    gain = 1 / np.log2(3) + 1 / np.log2(5)
    assert scores["precision@4"] == pytest.approx((2 / 4 + 0) / 2)
    assert scores["recall@4"] == pytest.approx((2 / 3 + 0) / 2)
    assert scores["MAP"] == pytest.approx(((1 / 2 + 2 / 4) / 3 + 0) / 2)
    assert scores["nDCG@4"] == pytest.approx(gain / (1 + 1 / np.log2(3) + 1 / 2) / 2)
    assert ranking({1: [6]}, {1: [6]})["nDCG@10"] == 1


def test_ratings_are_clipped():
    scores = rating(np.array([5.0, 1.0, 3.0]), np.array([7.0, 0.5, 4.0]))
    assert scores == {"RMSE": pytest.approx(np.sqrt(1 / 3)), "MAE": pytest.approx(1 / 3)}
