"""Options of a step that cannot work, alone or together, lead to one clear line and exit code 2."""

import pytest

CASES = {
    "microbatches that do not divide the batch": (
        {"train__micro_batches": 3},
        ["train.micro_batches is 3", "64 / 1 rank)", "use one of 1, 2, 4, 8, 16, 32, 64"],
    ),
    "microbatches across lanes": (
        {"train__micro_batches": 12, "data__global_batch_size": 96},
        ["train.micro_batches is 12", "a rank's 96 samples", "8 lanes", "use one of 1, 2, 4, 8, 16, 24, 32"],
    ),
    "no microbatch": ({"train__micro_batches": 0}, ["train.micro_batches is 0", "greater than 0"]),
    "TF32 on a CPU": ({"train__tf32": True}, ["train.tf32 is true", "no GPU"]),
    "a loss scale that nothing uses": (
        {"train__loss_scale": {"growth_interval": 5}, "train__precision": "bf16"},
        ["train.loss_scale.growth_interval", "train.precision is 'bf16'", "fp16"],
    ),
    "a loss scale below 1": (
        {"train__loss_scale": {"initial": 0.5}},
        ["train.loss_scale.initial is 0.5", "greater than or equal to 1"],
    ),
    "a loss scale that does not grow": (
        {"train__loss_scale": {"initial": 2.0, "growth_factor": 1.0}},
        ["train.loss_scale.growth_factor is 1.0", "greater than 1"],
    ),
    "a loss scale that does not fall": (
        {"train__loss_scale": {"initial": 2.0, "backoff_factor": 1.0}},
        ["train.loss_scale.backoff_factor is 1.0", "less than 1"],
    ),
    "an unknown precision": ({"train__precision": "fp8"}, ["train.precision", "'fp8'", "'fp16'"]),
    "an unknown handling of overflows": ({"train__nonfinite": "warn"}, ["train.nonfinite", "'warn'", "'skip'"]),
    "two ways to clip": (
        {"optimizer__dense__max_norm": 1.0, "optimizer__dense__max_value": 2.0},
        ["optimizer.dense.max_norm is 1.0", "optimizer.dense.max_value is 2.0", "one of them"],
    ),
    "a norm that nothing limits": (
        {"optimizer__dense__norm_type": 1.0},
        ["optimizer.dense.norm_type is 1.0", "optimizer.dense.max_norm is unset"],
    ),
    "gradients clamped to nothing": (
        {"optimizer__sparse__max_gradient": 0.0},
        ["optimizer.sparse.max_gradient is 0.0", "greater than 0"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_and_exit_code_2(case, refusal):
    changes, expected = CASES[case]
    line = refusal(changes)
    assert all(words in line for words in expected), line
