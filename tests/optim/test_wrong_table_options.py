"""Options that a table optimizer lacks, or that contradict others, are refused in one line, with exit code 2."""

import pytest

CASES = {
    "option of another table optimizer": (
        ["optimizer.sparse.momentum is 0.5", "'adam' does not have", "use one of lars_sgd"],
        {"optimizer__sparse": {"name": "adam", "momentum": 0.5}},
    ),
    "weight decay that FBGEMM ignores": (
        ["optimizer.sparse.weight_decay is 0.1", "'sgd' does not have", "rowwise_adagrad, adam"],
        {"optimizer__sparse__weight_decay": 0.1},
    ),
    "accumulator of an optimizer without one": (
        ["optimizer.sparse.initial_accumulator is 0.1", "'lamb'", "use one of adagrad, rowwise_adagrad"],
        {"optimizer__sparse": {"name": "lamb", "initial_accumulator": 0.1}},
    ),
    "mode without weight decay": (
        ["optimizer.sparse.weight_decay_mode is 'l2'", "set both or none"],
        {"optimizer__sparse": {"name": "rowwise_adagrad", "weight_decay_mode": "l2"}},
    ),
    "optimizer that replicated tables lack": (
        ["planner.mode has data_parallel", "table 's0'", "its optimizer is 'adam'", "rowwise_adagrad"],
        {"optimizer__sparse__name": "adam", "planner__mode": "data_parallel"},
    ),
    "weight decay of replicated tables": (
        ["planner.sharding_types has data_parallel", "its weight_decay is 0.1"],
        {
            "optimizer__sparse": {"name": "rowwise_adagrad", "weight_decay": 0.1},
            "planner__sharding_types": ["row_wise", "data_parallel"],
        },
    ),
    "replicated tables of half precision": (
        ["planner.tables.s2.sharding_types has data_parallel", "model.table_precision is 'fp16'"],
        {"model__table_precision": "fp16", "planner__tables": {"s2": {"sharding_types": ["data_parallel"]}}},
    ),
    "mean pooling on grid_shard": (
        ["planner.sharding_types has grid_shard", "table 's3'", "pooling is 'mean'"],
        {"data__sparse__s3__pooling": "mean", "planner__sharding_types": ["grid_shard"]},
    ),
    "optimizer of an unknown table": (
        ["optimizer.tables.s9: there is no such table", "known: s0, s1, s2"],
        {"optimizer__tables": {"s9": {"learning_rate": 0.1}}},
    ),
    "option that a table's optimizer lacks": (
        ["optimizer.tables.s1.beta1 is 0.5", "'sgd' does not have", "use one of adam"],
        {"optimizer__tables": {"s1": {"beta1": 0.5}}},
    ),
    "rate of a frozen table": (
        ["optimizer.tables.s1.learning_rate is set", "optimizer.tables.s1.frozen is true"],
        {"optimizer__tables": {"s1": {"frozen": True, "learning_rate": 0.1}}},
    ),
    "optimizer that a replicated table lacks": (
        ["planner.tables.s1.sharding_types has data_parallel", "table 's1'", "its optimizer is 'adam'"],
        {
            "optimizer__tables": {"s1": {"name": "adam"}},
            "planner__tables": {"s1": {"sharding_types": ["data_parallel"]}},
        },
    ),
    "unknown decay of a table": (
        ["optimizer.tables.s1.schedule.decay is 'zigzag'", "constant, "],
        {"optimizer__tables": {"s1": {"schedule": {"decay": "zigzag"}}}},
    ),
    "rounding without half precision": (
        ["optimizer.sparse.stochastic_rounding is true", "model.table_precision is 'fp32'"],
        {"optimizer__sparse__stochastic_rounding": True},
    ),
    "stochastic rounding on a CPU": (
        ["optimizer.sparse.stochastic_rounding is true", "a CPU rounds to nearest"],
        {"optimizer__sparse__stochastic_rounding": True, "model__table_precision": "fp16"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_combination_is_one_line(refusal, case):
    expected, changes = CASES[case]
    line = refusal(changes)
    assert all(words in line for words in expected), line
