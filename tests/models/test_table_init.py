"""Initial weights of tables: distributions by configuration, each value a function of seed, table, row and column."""

import zlib
from statistics import NormalDist

import numpy as np
import pytest
import torch
from jobs import config

from trainer.config.model import TableInit
from trainer.config.root import Config
from trainer.core.arrays import mix
from trainer.core.errors import InputError
from trainer.core.section import validate
from trainer.models.embeddings import collections
from trainer.models.table_init import initial_rows, initialize_tables

SIZE, SEED, STEP = torch.Size([1000, 24]), 3, 7
WIDE = TableInit(distribution="uniform", low=-0.005, high=0.01)
NORMAL = TableInit(distribution="normal", mean=0.5, std=0.1)
TRUNCATED = TableInit(distribution="truncated_normal", std=0.02)


def drawn(rows, columns, init, size=SIZE, step=0):
    return initial_rows(torch.arange(*rows), torch.arange(*columns), size, "item", SEED, step, init)


def expected(init, step=0):
    """The same values from NumPy and the standard library."""
    key = np.uint64((zlib.crc32(b"item") << 32) ^ SEED ^ (step * 0x9E3779B97F4A7C15) % 2**64)
    bits = mix(mix(np.arange(SIZE.numel())) ^ key)
    if init.std is None:
        low, high = (init.low, init.high) if init.distribution else (-(1000**-0.5), 1000**-0.5)
        return (low + (high - low) * (bits >> np.uint64(40)) / 2**24).reshape(SIZE)
    chances = ((bits >> np.uint64(12)) + 0.5) / 2**52
    normal = NormalDist()
    if init.distribution == "truncated_normal":
        chances = normal.cdf(-2) + chances * (normal.cdf(2) - normal.cdf(-2))
    return np.reshape([init.mean + init.std * normal.inv_cdf(chance) for chance in chances], SIZE)


@pytest.mark.parametrize("init", [TableInit(), WIDE, NORMAL, TRUNCATED])
@pytest.mark.parametrize("step", [0, STEP])
def test_values_are_of_their_distribution(init, step):
    found = drawn((1000,), (24,), init, step=step)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.double(), expected(init, step), rtol=2e-7, atol=1e-8)


@pytest.mark.parametrize("init", [WIDE, NORMAL, TRUNCATED])
def test_values_do_not_depend_on_the_cut_of_shards(init):
    whole = drawn((1000,), (24,), init)
    for rows, columns in [((0, 1), (0, 24)), ((3, 10), (0, 24)), ((501, 1000), (5, 18)), ((999, 1000), (23, 24))]:
        assert torch.equal(drawn(rows, columns, init), whole[slice(*rows), slice(*columns)])


def test_normal_values_reach_into_both_tails():
    size = torch.Size([200_000, 8])
    found = initial_rows(torch.arange(200_000), torch.arange(8), size, "item", 0, 0, NORMAL).double()
    standard = (found - 0.5) / 0.1
    assert standard.mean().abs() < 0.003
    assert (standard.std() - 1).abs() < 0.002
    for bound in (1.0, 2.0, 3.0, 4.0):
        chance = 1 - NormalDist().cdf(bound)
        for tail in (standard > bound, standard < -bound):
            assert tail.double().mean().item() == pytest.approx(chance, abs=4 * (chance / standard.numel()) ** 0.5)
    truncated = initial_rows(torch.arange(200_000), torch.arange(8), size, "item", 0, 0, TRUNCATED)
    assert 0.0399 < truncated.abs().max() <= 0.04
    assert truncated.std().item() == pytest.approx(0.02 * 0.87963, rel=0.005)  # of a normal cut at two deviations


def test_a_table_may_begin_in_another_way_than_all_tables():
    tables = {"s1": {"init": WIDE.model_dump(exclude_defaults=True)}, "s2": {"precision": "fp16"}}
    normal = NORMAL.model_dump(exclude_defaults=True)
    ways = {
        "none": (config("nowhere", model__tables=tables), TableInit()),
        "bound": (
            config("nowhere", model__tables=tables, model__table_init=0.001),
            TableInit(distribution="uniform", low=-0.001, high=0.001),
        ),
        "init": (config("nowhere", model__tables=tables, model__init=normal), NORMAL),
    }
    for name, (tree, for_all) in ways.items():
        settings = Config.model_validate(tree)
        pooled, _ = collections(settings.data, settings.model, torch.device("cpu"))
        initialize_tables(pooled, SEED, settings.model.init_of)
        for number in range(6):
            weight = pooled.state_dict()[f"embedding_bags.s{number}.weight"]
            init = WIDE if number == 1 else for_all
            rows, columns = (torch.arange(count) for count in weight.shape)
            values = initial_rows(rows, columns, weight.shape, f"s{number}", SEED, 0, init)
            assert weight.dtype == (torch.float16 if number == 2 else torch.float32)
            assert torch.equal(weight, values.to(weight.dtype)), (name, number)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model__init": {"std": 1.0}}, "model.init.std is 1.0, but model.init.distribution is unset; leave one of"),
        (
            {"model__init": {"distribution": "normal", "std": 1.0, "low": 0.5}},
            "model.init.low is 0.5, but model.init.distribution is 'normal', which does not use it",
        ),
        (
            {"model__init": {"distribution": "normal"}},
            "model.init.distribution is 'normal', but model.init.std is unset",
        ),
        (
            {"model__init": {"distribution": "uniform", "high": 0.5}},
            "model.init.distribution is 'uniform', but model.init.low is unset; set it",
        ),
        (
            {"model__tables": {"s1": {"init": {"distribution": "uniform", "low": 1.0, "high": 1.0}}}},
            "model.tables.s1.init.low is 1.0 and model.tables.s1.init.high is 1.0; low must be the lower",
        ),
        (
            {"model__init": {"distribution": "normal", "std": 1.0}, "model__table_init": 0.5},
            "model.table_init is 0.5 and model.init.distribution is 'normal'; set one of them",
        ),
        ({"model__tables": {"s9": {"precision": "fp16"}}}, "model.tables.s9: there is no such table; "),
        ({"model__tables": {"s1": {"precision": "fp8"}}}, "model.tables.s1.precision is 'fp8': input should be 'fp32'"),
        (
            {"model__tables": {"s1": {"vectors": "s3://b/v.npy"}}, "data__sparse__s1": {"rows": 99, "ids": "managed"}},
            "model.tables.s1.vectors is 's3://b/v.npy', but the table's ids are 'managed'",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(changes, line):
    with pytest.raises(InputError) as raised:
        validate(Config, config("nowhere", **changes), lambda _: "")
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)
