"""Quantized communication: what is sent, and what it does to the losses."""

import json
import re

import numpy as np
import pytest
from jobs import config, launch, losses, write_rows

PAIRS = [("fp32", "fp32"), ("fp16", "fp32"), ("fp32", "bf16"), ("bf16", "bf16"), ("fp16", "bf16"), ("int8", "int8")]
BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.25}
STEPS = 20


def job(data, kind, forward, backward, out):
    comms = {"forward": forward, "backward": backward}
    # A rate at which rounded gradients move the losses by more than float32 rounds them, on every processor.
    changes = {"planner__sharding_types": [kind], "comms": comms, "optimizer__sparse__learning_rate": 20.0}
    return {"config": config(data, **changes), "out": str(out), "count": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comms")
    data = write_rows(folder / "data", [1280])  # 20 full steps of 64 rows
    pairs = [("table_wise", pair) for pair in PAIRS] + [("row_wise", pair) for pair in PAIRS[:-1]]
    launch([job(data, kind, *pair, folder / f"{kind}-{'-'.join(pair)}") for kind, pair in pairs], 2, folder)
    return folder


@pytest.mark.parametrize("pair", PAIRS)
def test_table_wise_bytes_are_as_reported(runs, pair):
    out = runs / f"table_wise-{'-'.join(pair)}"
    calls = [json.loads((out / f"sent-{rank}.json").read_text())["all_to_all"] for rank in (0, 1)]
    forward, backward = (sum(sum(rank[direction::2]) for rank in calls) for direction in (0, 1))
    values = 64 * 6 * 16 / 2  # every other row of a pooled embedding goes to the other rank
    assert forward == STEPS * values * BYTES[pair[0]]
    assert backward == STEPS * values * BYTES[pair[1]]
    reported = json.loads((out / "run.json").read_text())["communication_bytes_per_step"]
    assert reported["forward"] == forward / STEPS
    assert reported["backward"] == backward / STEPS
    assert reported["fp32"] == values * 4


@pytest.mark.parametrize("pair", PAIRS[:-1])
def test_row_wise_bytes_are_as_reported(runs, pair):
    out = runs / f"row_wise-{'-'.join(pair)}"
    ranks = [json.loads((out / f"sent-{rank}.json").read_text()) for rank in (0, 1)]
    reported = json.loads((out / "run.json").read_text())["communication_bytes_per_step"]
    assert reported["forward"] == sum(sum(rank["reduce_scatter"]) for rank in ranks) / STEPS
    assert reported["backward"] == sum(sum(rank["all_gather"]) for rank in ranks) / STEPS


@pytest.mark.parametrize(
    ("kind", "pair"),
    [("table_wise", pair) for pair in PAIRS[1:]] + [("row_wise", pair) for pair in PAIRS[1:-1]],
)
def test_losses_stay_close_to_fp32(runs, kind, pair):
    exact = losses(runs / f"{kind}-fp32-fp32")
    quantized = losses(runs / f"{kind}-{'-'.join(pair)}")
    assert quantized != exact
    np.testing.assert_allclose(quantized, exact, rtol=0.02)


def test_bf16_on_gloo_is_not_fp16(runs):
    assert losses(runs / "table_wise-bf16-bf16") != losses(runs / "table_wise-fp16-bf16")


@pytest.mark.parametrize("kind", ["row_wise", "table_row_wise", "grid_shard"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_int8_is_refused_where_partial_sums_are_reduced(tmp_path, kind, direction):
    import torch

    from trainer.config.root import Config
    from trainer.core.distributed import process_group
    from trainer.training.sharded_model import build_sharded_model

    data = write_rows(tmp_path / "data", [64])
    settings = Config.model_validate(config(data, planner__sharding_types=[kind], comms={direction: "int8"}))
    with (
        process_group() as context,
        pytest.raises(ValueError, match=re.escape(f"comms.{direction} is 'int8'")) as error,
    ):
        build_sharded_model(settings, context)
    assert f"is sharded {kind}" in str(error.value)
    assert "fp16 or bf16" in str(error.value)
    assert torch.distributed.is_initialized() is False


def test_int8_needs_whole_blocks(tmp_path):
    from trainer.config.root import Config
    from trainer.core.distributed import process_group
    from trainer.training.sharded_model import build_sharded_model

    data = write_rows(tmp_path / "data", [64])
    settings = Config.model_validate(
        config(
            data, planner__sharding_types=["table_wise"], comms={"forward": "int8"}, evaluate={"global_batch_size": 3}
        )
    )
    with process_group() as context, pytest.raises(ValueError, match=r"3 rows of 16 columns .* no multiple of 32"):
        build_sharded_model(settings, context)
