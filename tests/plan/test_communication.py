"""Quantized communication: what is sent, and what it does to the losses."""

import json

import numpy as np
import pytest
from jobs import config, launch, losses, write_rows

OF_ANY_TYPE = [("fp32", "fp32"), ("fp16", "fp32"), ("fp32", "bf16"), ("bf16", "bf16"), ("fp16", "bf16")]
PAIRS = [*OF_ANY_TYPE, ("int8", "int8"), ("mx4", "fp32"), ("fp32", "mx4")]
BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.25, "fp8": 1.0625, "mx4": 0.53125}
COLUMNS = 32
STEPS = 20


def job(data, kind, forward, backward, out):
    comms = {"forward": forward, "backward": backward}
    # A rate at which rounded gradients move the losses by more than float32 rounds them, on every processor.
    changes = {"planner__sharding_types": [kind], "comms": comms, "optimizer__sparse__learning_rate": 20.0}
    changes |= {"model__embedding_dim": COLUMNS}
    return {"config": config(data, **changes), "out": str(out), "count": True}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comms")
    data = write_rows(folder / "data", [1280])  # 20 full steps of 64 rows
    pairs = [("table_wise", pair) for pair in PAIRS] + [("row_wise", pair) for pair in OF_ANY_TYPE]
    launch([job(data, kind, *pair, folder / f"{kind}-{'-'.join(pair)}") for kind, pair in pairs], 2, folder)
    return folder


@pytest.mark.parametrize("pair", PAIRS)
def test_table_wise_bytes_are_as_reported(runs, pair):
    out = runs / f"table_wise-{'-'.join(pair)}"
    calls = [json.loads((out / f"sent-{rank}.json").read_text())["all_to_all"] for rank in (0, 1)]
    forward, backward = (sum(sum(rank[direction::2]) for rank in calls) for direction in (0, 1))
    values = 64 * 6 * COLUMNS / 2  # every other row of a pooled embedding goes to the other rank
    assert forward == STEPS * values * BYTES[pair[0]]
    assert backward == STEPS * values * BYTES[pair[1]]
    reported = json.loads((out / "run.json").read_text())["communication_bytes_per_step"]
    assert reported["forward"] == forward / STEPS
    assert reported["backward"] == backward / STEPS
    assert reported["fp32"] == values * 4


@pytest.mark.parametrize("pair", OF_ANY_TYPE)
def test_row_wise_bytes_are_as_reported(runs, pair):
    out = runs / f"row_wise-{'-'.join(pair)}"
    ranks = [json.loads((out / f"sent-{rank}.json").read_text()) for rank in (0, 1)]
    reported = json.loads((out / "run.json").read_text())["communication_bytes_per_step"]
    assert reported["forward"] == sum(sum(rank["reduce_scatter"]) for rank in ranks) / STEPS
    assert reported["backward"] == sum(sum(rank["all_gather"]) for rank in ranks) / STEPS


@pytest.mark.parametrize(
    ("kind", "pair"),
    [("table_wise", pair) for pair in PAIRS[1:]] + [("row_wise", pair) for pair in OF_ANY_TYPE[1:]],
)
def test_losses_stay_close_to_fp32(runs, kind, pair):
    exact = losses(runs / f"{kind}-fp32-fp32")
    quantized = losses(runs / f"{kind}-{'-'.join(pair)}")
    assert quantized != exact
    np.testing.assert_allclose(quantized, exact, rtol=0.02 if "mx4" not in pair else 0.1)


def test_bf16_on_gloo_is_not_fp16(runs):
    assert losses(runs / "table_wise-bf16-bf16") != losses(runs / "table_wise-fp16-bf16")


@pytest.mark.parametrize("precision", BYTES)
def test_a_codec_sends_the_bytes_that_plans_count(precision):
    """The codec of fp8 runs on GPUs alone, but knows the size of what it sends."""
    from trainer.config.plan import CommsConfig
    from trainer.plan.communication import codecs

    found = codecs(CommsConfig(forward=precision, backward="bf16" if precision == "fp32" else precision))
    for codec in (found["POOLED_EMBEDDINGS_ALL_TO_ALL"].forward, found["SEQUENCE_EMBEDDINGS_ALL_TO_ALL"].forward):
        sent = codec.calc_quantized_size(4096, codec.create_context()) * codec.quantized_dtype.itemsize
        assert sent == 4096 * BYTES[precision]


@pytest.mark.parametrize(("precision", "error"), [("int8", 1 / 255), ("mx4", 1 / 4)])
def test_a_value_comes_back_near_itself(precision, error):
    """An int8 step is a 255th of a block's range; mx4 has the values 0, 0.5, 1, 1.5, 2, 3, 4 and 6 of a scale."""
    import torch

    from trainer.config.plan import CommsConfig
    from trainer.plan.communication import codecs

    values = torch.randn(128, 32, generator=torch.Generator().manual_seed(0))
    codec = codecs(CommsConfig(forward=precision))["POOLED_EMBEDDINGS_ALL_TO_ALL"].forward
    context = codec.create_context()
    found = codec.decode(codec.encode(values.flatten(), context), context).view_as(values)
    worst = (found - values).abs().amax(dim=1) / (values.amax(dim=1) - values.amin(dim=1))
    assert 0.25 * error < worst.max() < error


@pytest.fixture
def refused(tmp_path):
    """Builds a model that is refused, and returns the message."""
    from trainer.config.root import Config
    from trainer.core.distributed import process_group
    from trainer.core.errors import InputError
    from trainer.training.sharded_model import build_sharded_model

    data = write_rows(tmp_path / "data", [64])

    def refused(**changes):
        settings = Config.model_validate(config(data, **changes))
        with process_group() as context, pytest.raises(InputError) as error:
            build_sharded_model(settings, context)
        return str(error.value)

    return refused


@pytest.mark.parametrize("kind", ["row_wise", "table_row_wise", "grid_shard"])
@pytest.mark.parametrize(("direction", "precision"), [("forward", "int8"), ("backward", "int8"), ("forward", "mx4")])
def test_scales_are_refused_where_partial_sums_are_reduced(refused, kind, direction, precision):
    message = refused(planner__sharding_types=[kind], comms={direction: precision})
    assert message.startswith(f"comms.{direction} is '{precision}', but table 's0' is sharded {kind}, which adds up")
    assert "fp16 or bf16" in message


def test_scales_need_whole_blocks(refused):
    table_wise, three = {"planner__sharding_types": ["table_wise"]}, {"evaluate": {"global_batch_size": 3}}
    message = refused(**table_wise, **three, comms={"forward": "int8"})
    assert "sends 3 rows of 16 columns from a rank, which is no multiple of 32" in message
    message = refused(**table_wise, comms={"backward": "mx4"})
    assert (
        "comms.backward is 'mx4', but table 's0' sends embeddings of 16 columns, which is no multiple of 32" in message
    )


def test_fp8_needs_gpus(refused):
    assert refused(comms={"backward": "fp8"}).startswith("comms.backward is 'fp8', which needs GPUs, as FBGEMM has no")


def test_plans_for_gpus_count_the_bytes_of_fp8(tmp_path, capsys):
    from command import write_config

    from trainer.__main__ import main as trainer

    data = write_rows(tmp_path / "data", [64])

    def exchange(precision, **changes):
        comms = {"forward": precision, "backward": precision}
        large = config(
            data, data__global_batch_size=2**20, planner__sharding_types=["table_wise"], comms=comms, **changes
        )
        return trainer(["plan", str(write_config(tmp_path / f"{precision}.toml", large)), "--on", "h100:1"])

    found = {}
    for precision in ("fp32", "fp8"):
        assert exchange(precision) == 0
        (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("exchange: embeddings")]
        found[precision] = float(line.split()[2])
    assert found["fp8"] / found["fp32"] == pytest.approx(BYTES["fp8"] / 4, rel=0.01)
    assert exchange("fp8", evaluate={"global_batch_size": 8}) == 2
    assert "sends 1 row of 16 columns from a rank, which is no multiple of 128" in capsys.readouterr().err
