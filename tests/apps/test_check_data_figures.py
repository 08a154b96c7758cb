"""Figures of a check against independent computations, and statistics that plans read."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
from checked_data import clean_data
from command import write_config

from torchx_recsys.apps.check_data.distinct import ERROR, KEPT, Distinct, distinct_of
from torchx_recsys.apps.check_data.figures import (
    auc,
    auc_alone,
    auc_of_ids,
    bucket_shares,
    edges_of,
    ids_of,
    psi,
    rank_error,
    shares_of_ids,
    skewness,
    zipf_exponent,
)
from torchx_recsys.apps.check_data.hashes import bits_of, different
from torchx_recsys.apps.check_data.reading import chosen_rows
from torchx_recsys.apps.check_data.splits import computed, kind_of
from trainer.__main__ import main as trainer


def pairs_auc(scores, labels):
    pairs = itertools.product(scores[labels], scores[~labels])
    return np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])


@pytest.mark.parametrize("seed", range(3))
def test_auc_is_that_of_all_pairs(seed):
    random = np.random.default_rng(seed)
    scores, labels = random.integers(0, 12, 80).astype(float), random.random(80) < 0.3
    order = np.argsort(scores)
    expected = pairs_auc(scores, labels)
    assert auc(scores[order], ~labels[order], labels[order]) == pytest.approx(expected, abs=1e-12)
    distinct = np.arange(12)
    counts = [np.array([(labels[scores == one] == positive).sum() for one in distinct]) for positive in (False, True)]
    assert auc(distinct, *counts) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(auc(scores[order], np.ones(80, bool), np.zeros(80, bool)))


def test_missing_values_are_at_the_better_end():
    values, labels = np.array([-np.inf, 1.0, 1.0, 2.0, np.nan, np.nan]), np.array([0, 0, 1, 0, 1, 1], bool)
    ends = [pairs_auc(np.where(np.isnan(values), end, values), labels) for end in (-np.inf, np.inf)]
    assert auc_alone(values, labels) == pytest.approx(max(max(one, 1 - one) for one in ends), abs=1e-12)


@pytest.mark.parametrize("lists", [False, True])
def test_auc_of_ids_is_of_rates_that_were_counted_in_the_other_half(lists):
    random = np.random.default_rng(4)
    rows = [random.integers(0, 9, random.integers(0, 4 if lists else 2)).tolist() for _ in range(200)]
    labels = random.random(200) < [0.2 + 0.5 * (3 in row) for row in rows]
    single = pa.array([row[0] if row else None for row in rows], pa.int64())
    ids = ids_of(pa.array(rows, pa.large_list(pa.int64())) if lists else single)
    half, found = np.random.default_rng(7).random(200) < 0.5, []
    for counted in (half, ~half):
        mean, scores = labels[counted].mean(), []
        for row in rows:
            of = [[labels[n] for n in np.flatnonzero(counted) for other in rows[n] if other == one] for one in row]
            scores.append(np.mean([(sum(one) + mean) / (len(one) + 1) for one in of]) if row else mean)
        found.append(pairs_auc(np.array(scores)[~counted], labels[~counted]))
    assert auc_of_ids(ids, labels, seed=7) == pytest.approx(np.mean(found), abs=1e-9)


def test_psi_of_known_shares():
    train = np.arange(1000.0)
    edges = edges_of(train)
    moved = np.concatenate([np.arange(500.0), np.full(500, np.nan)])
    expected = 5 * (0.2 - 0.1) * 0 + sum((f - e) * np.log(f / e) for e, f in [(0.1, 0.1)] * 5)
    expected += 5 * (1e-4 - 0.1) * np.log(1e-4 / 0.1) + (0.5 - 1e-4) * np.log(0.5 / 1e-4)
    assert psi(bucket_shares(train, edges), bucket_shares(train, edges)) == 0
    assert psi(bucket_shares(train, edges), bucket_shares(moved, edges)) == pytest.approx(expected, rel=1e-6)


def test_shares_of_ids_are_of_tenths_by_frequency_and_of_new_ids():
    often, seldom = [7] * 50 + [8] * 30 + [*range(100, 120)], [7] * 40 + [8] * 20 + [*range(110, 150)]
    sample = ids_of(pa.array([id for pair in zip(often, seldom, strict=True) for id in pair]))
    first, second = shares_of_ids(sample, ids_of(pa.array([8, 8, 110, 99, None])))
    # Of the rows between: 7 and 8, ten ids that are in a tenth with each other, and thirty that the others do not have.
    assert first[[2, 6, 8, 9, 10]] == pytest.approx([0.4, 0.2, 0.1, 0, 0.3])
    assert second[[6, 8, 10]] == pytest.approx([0.5, 0.25, 0.25])
    none, all_new = shares_of_ids(ids_of(pa.array([], pa.int64())), ids_of(pa.array([1])))
    assert (none.sum(), all_new[10]) == (0, 1)


@pytest.mark.parametrize("hotness", [1, 3])
def test_ids_that_hardly_repeat_do_not_shift_where_nothing_did(hotness):
    random = np.random.default_rng(3)
    samples = [random.zipf(1.1, (4000, hotness)) % 1_000_000 for _ in range(2)]
    lists = [ids_of(pa.array(one.tolist(), pa.large_list(pa.int64()))) for one in samples]
    assert psi(*shares_of_ids(*lists)) < 0.05
    moved = ids_of(pa.array((samples[1] + 1).tolist(), pa.large_list(pa.int64())))
    assert psi(*shares_of_ids(lists[0], moved)) > 0.25


def test_skewness_of_an_exponential_distribution_is_2():
    assert skewness(np.random.default_rng(0).exponential(5, 400_000)) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.8, 1.0, 1.2, 1.6])
@pytest.mark.parametrize("ids", [500, 20_000])
def test_zipf_exponents_are_found(exponent, ids):
    share = np.arange(1, ids + 1) ** -exponent
    drawn = np.random.default_rng(1).choice(ids, 100_000, p=share / share.sum())
    assert zipf_exponent(np.bincount(drawn)) == pytest.approx(exponent, abs=0.1)


def test_ids_of_lists_and_nulls():
    ids = ids_of(pa.chunked_array([pa.array([[3, 3], None, [], [None, 5]], pa.large_list(pa.int64()))]))
    assert dict(zip(ids.distinct.to_pylist(), ids.counts.tolist(), strict=True)) == {3: 2, 5: 1}
    assert ids.row_of.tolist() == [0, 0, 3]
    assert ids.hotness == 0.75


VALUES = {
    "int": pa.array([1, 2, None, 0, 1], pa.int32()),
    "float": pa.array([0.0, 2.0, None, 1.0, -0.0]),
    "text": pa.array(["a", "", None, "b", "a"]),
    "list": pa.array([[1, 2], [2, 1], None, [1], [1, 2]], pa.list_(pa.int64())),
    "texts": pa.array([["a"], ["b"], [], ["a", "a"], ["a"]], pa.list_(pa.string())),
}


@pytest.mark.parametrize("name", VALUES)
def test_equal_values_alone_have_equal_hashes_however_they_are_cut(name):
    array = VALUES[name]
    kind = kind_of(array.type)
    whole = bits_of(computed(array, kind), kind)
    parts = [bits_of(computed(part, kind), kind) for part in (array[:2], array[2:])]
    assert whole.tolist() == np.concatenate(parts).tolist()
    assert whole[0] == whole[4]
    assert len(set(whole.tolist())) == 4


def test_rows_are_chosen_by_their_values_alone():
    keys = np.random.default_rng(0).integers(0, 2**63, 1000, np.int64).astype(np.uint64)
    chosen = chosen_rows([keys], np.uint64(7))
    assert 60 < len(chosen) < 200
    again = chosen_rows([keys[::-1]], np.uint64(7))
    assert {*keys[chosen].tolist()} == {*keys[::-1][again].tolist()}


def test_a_plan_counts_with_measured_statistics(tmp_path, capsys):
    tree = clean_data().write(tmp_path / "data")
    file, statistics = write_config(tmp_path / "config.toml", tree), tmp_path / "statistics.json"
    assert trainer(["check-data", str(file), "--statistics", str(statistics)]) == 0
    found = json.loads(statistics.read_text())
    assert found["version"] == 1
    assert found["rows"] == 4000
    assert found["features"]["city"]["distinct"] == 40
    assert found["features"]["tags"]["hotness"] == pytest.approx(2.0, abs=0.1)
    assert found["features"]["item"]["zipf"] > 1
    assert trainer(["plan", str(file), "--planner.statistics", str(statistics)]) == 0
    assert "item" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["integer", "texts"])
@pytest.mark.parametrize("number", [1, KEPT - 1, 5 * KEPT])
def test_different_ids_are_counted_alike_in_any_parts(kind, number):
    random = np.random.default_rng(number)
    ids = np.unique(random.integers(-(2**62), 2**62, number))
    values = random.permutation(np.concatenate([ids, random.choice(ids, 3 * KEPT)]))

    def column(part):
        if kind == "integer":
            return pa.array([*part, None], pa.int64())
        return pa.array([None, [], *([f"id {one}", None] for one in part)], pa.large_list(pa.large_string()))

    whole, parts = distinct_of(column(values), kind, None), Distinct()
    for part in np.array_split(random.permutation(values), 7):
        parts = distinct_of(column(part), kind, parts.limit).join(parts)
    assert np.array_equal(parts.hashes, whole.hashes)
    assert whole.is_exact == (number < KEPT)
    assert whole.number == pytest.approx(number, rel=0 if number < KEPT else 5 * ERROR)


def test_the_error_of_numbers_of_ids_is_as_stated():
    random = np.random.default_rng(0)
    found = [distinct_of(pa.array(random.integers(0, 2**63, 10_000)), "integer", None).number for _ in range(100)]
    assert np.std(np.array(found) / 10_000 - 1) == pytest.approx(ERROR, rel=0.3)


def test_the_error_of_shares_in_a_sample_is_as_stated():
    ordered = np.sort(np.random.default_rng(0).random((500, 1000)))
    places = np.arange(1000) / 1000
    worst = np.maximum(ordered - places, places + 1e-3 - ordered).max(axis=1)
    assert 0.02 < (worst > rank_error(1000)).mean() < 0.08


def test_texts_with_one_hash_are_equal():
    random = np.random.default_rng(0)
    lengths = [0, 1, 7, 8, 9, 16, 255, 256, 257, 600]
    drawn = ["".join(random.choice([*"ab\0é漢"], size)) for size in random.choice(lengths, 3000)]
    texts = pa.array([*drawn, "", "a", "a\0", None], pa.large_string())
    hashes = bits_of(texts, "text")
    assert len(different(hashes)) == len({*texts.to_pylist()})
    assert np.array_equal(bits_of(pa.concat_arrays([texts[7:], texts[:7]]), "text"), np.roll(hashes, -7))
    assert np.array_equal(bits_of(texts[9:500], "text"), hashes[9:500])
    assert len(bits_of(texts[:0], "text")) == 0
