"""Models that read sequences train alike on any number of ranks, under every plan, in microbatches, and when resumed.

By default each model comes under one plan or two, one of them on four ranks; `--all` takes every plan on every number.
"""

import json
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import launch_rounds, losses, saved_tensors
from sequences import ITEMS, retrieval_config, sequence_config, write_histories

pytestmark = pytest.mark.more("test_built_in_models.py trains these models on several ranks")

MODELS, RANKS = ("din", "sasrec", "hstu", "bst"), (1, 2, 4)
KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel")
STEPS, HALF = 14, 7
SAMPLED = [
    ("din", "row_wise", 2),
    ("sasrec", "column_wise", 2),
    ("hstu", "row_wise", 2),
    ("hstu", "column_wise", 4),
    ("hstu", "data_parallel", 2),
    ("bst", "row_wise", 2),
]
FINDERS = [("sasrec", 2), ("hstu", 2), ("hstu", 4), ("recency", 2), ("mind", 2)]
# With a smaller eps, Adagrad turns rounding of gradients near zero into steps of full size.
ADAGRAD = {"name": "adagrad", "learning_rate": 0.1, "eps": 1e-2}
FILMS = "model.model.sequences.embeddings.films.weight"
VARIANTS = {
    "micro_batches": {"train__micro_batches": 2},
    "clamped": {"optimizer__sparse": ADAGRAD | {"max_gradient": 1e-3}},
    "pareto": {"model__task_weighting": "pareto"},
    "few_rows": {},
    "only_sequences": {
        "data__dense": {},
        "report": {"interval_steps": 1, "tensorboard": True, "histograms_every_steps": 5},
    },
}
BALANCE = {"features": ["history"], "squares": 0.5}
EVEN = {"features": ["history", "at"]}
STRAIGHT = "hstu-row_wise-2"
RESUMED = [("row_wise", 2), ("column_wise", 1), ("table_wise", 4), ("data_parallel", 2)]
SENT = {"fp32": 4.0, "bf16": 2.0, "int8": 1.25}  # bytes of a value


def settings(data: Path, model: str, kind: str, **changes: object) -> dict:
    """Returns the configuration of two tasks that keeps averages of all weights and is evaluated at the end."""
    return sequence_config(
        data,
        model,
        **{
            "data__labels": ["label", "bought"],
            "data__test": [str(data)],
            "planner__sharding_types": [kind],
            "optimizer__sparse": ADAGRAD,
            "optimizer__dense": {"name": "sgd", "learning_rate": 0.1},
            "optimizer__ema": {"decay": 0.9, "tables": True},
            "train__steps": STEPS,
            "checkpoint__every_steps": HALF,
            "model__dropout": 0.1 if model in ("hstu", "bst") else 0.0,
        }
        | changes,
    )


def next_item(data: Path, model: str, kind: str, steps: int = STEPS) -> dict:
    """Returns the configuration of a model that finds the next item, and is evaluated over all items.

    hstu is trained at every position.
    """
    return retrieval_config(
        data,
        model,
        **{
            "data__test": [str(data)],
            "planner__sharding_types": [kind],
            "optimizer__sparse": ADAGRAD,
            "optimizer__dense": {"name": "sgd", "learning_rate": 0.1},
            "train__steps": steps,
            "model__every_position": model == "hstu",
        },
    )


def variant(data: Path, model: str, kind: str, name: str) -> dict:
    tree = settings(data, model, kind, **VARIANTS[name])
    if name == "few_rows":  # on four ranks the last one has none
        for feature in ("item", "history"):
            tree["data"]["sparse"][feature] |= {"rows": 5, "ids": "modulo"}
    if name == "only_sequences":
        del tree["data"]["sparse"]["city"]
    return tree


def several(name: str) -> int:
    """Returns on how many ranks a variant is compared with one on a single rank."""
    return 4 if name == "few_rows" else 2


def quantized(data: Path, kind: str, precision: str) -> dict:
    """Returns the configuration of an epoch whose hotness is exact, in some precision."""
    comms = {"forward": precision, "backward": precision}
    tree = settings(data, "sasrec", kind, comms=comms, model__embedding_dim=32, train__steps=10, data__test=[])
    del tree["data"]["sparse"]["city"]
    return tree


def fine_tuned(data: Path, start: Path) -> dict:
    """Returns the configuration of a step that changes nothing, from a run of fewer items."""
    still = {"name": "sgd", "learning_rate": 0.0}
    changes = {"optimizer__sparse": still, "optimizer__dense": still, "optimizer__ema": {}, "train__steps": 1}
    tree = settings(data, "din", "row_wise", **changes, finetune={"checkpoint": str(start)})
    for feature in ("item", "history"):
        tree["data"]["sparse"][feature]["rows"] = ITEMS + 7
    return tree


MATRIX = "model, kind, ranks", lambda whole: [*product(MODELS, KINDS, RANKS)] if whole else SAMPLED


@pytest.fixture(scope="module")
def runs(matrix, tmp_path_factory):
    """All runs: `MODEL-KIND-RANKS`, and variants, the ones on a rank beside those on several."""
    folder = tmp_path_factory.mktemp("sequences")
    data = write_histories(folder / "data", 640)
    jobs: dict[int, list[dict]] = {ranks: [] for ranks in RANKS}

    def add(name: str, ranks: int, tree: dict, **more: object) -> None:
        jobs[ranks].append({"config": tree, "out": str(folder / f"{name}-{ranks}"), **more})

    for model, kind, ranks in dict.fromkeys([*((model, KINDS[0], 1) for model in MODELS), *matrix]):
        add(f"{model}-{kind}", ranks, settings(data, model, kind))
    for at, name in enumerate(VARIANTS):
        add(name, 1, variant(data, MODELS[at % 2], "table_wise", name))
        add(name, several(name), variant(data, MODELS[at % 2], "row_wise", name))
    for model in dict(FINDERS):
        add(f"next-{model}", 1, next_item(data, model, "table_wise"))
    for model, ranks in FINDERS:
        add(f"next-{model}", ranks, next_item(data, model, "row_wise"))
    add("next-half", 2, next_item(data, "mind", "row_wise", HALF))
    for kind, precision in product(("table_wise", "row_wise"), SENT):
        add(f"{kind}-{precision}", 2, quantized(data, kind, precision), count=True)
    add("half", 2, settings(data, "hstu", "row_wise", train__steps=HALF))
    add("balanced", 4, settings(data, "hstu", "row_wise", data__balance=BALANCE))
    add("balanced-half", 4, settings(data, "hstu", "row_wise", data__balance=BALANCE, train__steps=HALF))
    add("even", 1, settings(data, "hstu", "table_wise", data__even_steps=EVEN))
    add("even", 2, settings(data, "hstu", "row_wise", data__even_steps=EVEN))
    add("even-half", 2, settings(data, "hstu", "row_wise", data__even_steps=EVEN, train__steps=HALF))
    launch_rounds([*jobs.items()], folder)
    shutil.copytree(folder / "even-half-2", folder / "even-balanced-on-4")
    for kind, _ in RESUMED:
        shutil.copytree(folder / "half-2", folder / f"resumed-{kind}-on-2")
    later = [
        (ranks, [{"config": settings(data, "hstu", kind), "out": str(folder / f"resumed-{kind}-on-2")}])
        for kind, ranks in RESUMED
    ]
    dealt = {
        "config": settings(data, "hstu", "row_wise", data__balance=BALANCE),
        "out": str(folder / "balanced-half-4"),
    }
    tuned = {"config": fine_tuned(data, folder / "din-table_wise-1"), "out": str(folder / "fine_tuned-2")}
    even = {"config": settings(data, "hstu", "row_wise", data__even_steps=EVEN), "out": str(folder / "even-half-2")}
    dealt_too = settings(data, "hstu", "row_wise", data__even_steps=EVEN, data__balance=BALANCE)
    both = {"config": dealt_too, "out": str(folder / "even-balanced-on-4")}
    found = {"config": next_item(data, "mind", "row_wise"), "out": str(folder / "next-half-2")}
    launch_rounds([*later, (4, [dealt, both]), (2, [tuned, even, found])], folder)
    return folder


def assert_alike(one: Path, other: Path) -> None:
    """Checks losses, evaluations, weights and averages; those of a replicated table are stored at every step."""
    np.testing.assert_allclose(losses(one), losses(other), rtol=1e-5)
    found, expected = (json.loads((out / "evaluations.jsonl").read_text().splitlines()[-1]) for out in (one, other))
    for metric in ("log_loss/label", "log_loss/bought"):
        assert found[metric] == pytest.approx(expected[metric], rel=1e-5)
    found, expected = saved_tensors(one, STEPS), saved_tensors(other, STEPS)
    assert found.keys() == expected.keys()
    kinds = "model." if '"data_parallel"' in (one / "plan.json").read_text() else ("model.", "ema.")
    for name in (name for name in expected if name.startswith(kinds)):
        np.testing.assert_allclose(found[name].float(), expected[name].float(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_runs_do_not_depend_on_plan_and_ranks(runs, model, kind, ranks):
    out = runs / f"{model}-{kind}-{ranks}"
    assert (out / "plan.json").read_text().count(f'"sharding_type": "{kind}"') == (3 if model == "hstu" else 2)
    assert_alike(out, runs / f"{model}-table_wise-1")


@pytest.mark.parametrize(("model", "ranks"), FINDERS)
def test_the_next_item_is_found_alike_on_any_number_of_ranks(runs, model, ranks):
    one, several = (runs / f"next-{model}-{number}" for number in (1, ranks))
    np.testing.assert_allclose(losses(one), losses(several), rtol=1e-5)
    assert np.mean(losses(one)[-5:]) < np.mean(losses(one)[:5])
    found, expected = (json.loads((out / "evaluations.jsonl").read_text().splitlines()[-1]) for out in (several, one))
    for metric in ("recall@10", "ndcg@10", "mrr"):
        assert found[metric] == pytest.approx(expected[metric], abs=2e-3)  # a rank may change by rounding
    assert 0.1 < expected["recall@10"] < 0.9


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_do_not_depend_on_plan_and_ranks(runs, name):
    assert_alike(runs / f"{name}-{several(name)}", runs / f"{name}-1")


def test_micro_batches_change_nothing(runs):
    assert_alike(runs / "micro_batches-2", runs / f"{MODELS[0]}-table_wise-1")


def test_histories_are_learned_from(runs):
    for model in MODELS:
        curve = losses(runs / f"{model}-table_wise-1")
        assert np.mean(curve[-5:]) < np.mean(curve[:5])
        before, after = (saved_tensors(runs / f"{model}-table_wise-1", step) for step in (HALF, STEPS))
        assert (before[FILMS] != after[FILMS]).any(dim=1).sum() > ITEMS / 2
        assert any(not torch.equal(before[key], after[key]) for key in before if "interest" in key)


def test_a_resumed_run_takes_the_same_steps(runs):
    """Bit for bit on the same ranks, but for rounding on others."""
    expected, found = (saved_tensors(runs / name, STEPS) for name in (STRAIGHT, "resumed-row_wise-on-2"))
    assert losses(runs / "resumed-row_wise-on-2") == losses(runs / STRAIGHT)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    for kind in ("column_wise", "table_wise", "data_parallel"):
        assert_alike(runs / f"resumed-{kind}-on-2", runs / STRAIGHT)


def test_interests_are_routed_alike_after_a_resume(runs):
    expected, found = (saved_tensors(runs / name, STEPS) for name in ("next-mind-2", "next-half-2"))
    assert losses(runs / "next-half-2") == losses(runs / "next-mind-2")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_samples_dealt_by_cost_train_alike(runs):
    """On four ranks like on one without, but for rounding; bit for bit when it is resumed."""
    np.testing.assert_allclose(losses(runs / "balanced-4"), losses(runs / "hstu-table_wise-1"), rtol=1e-6)
    assert_alike(runs / "balanced-4", runs / "hstu-table_wise-1")
    expected, found = (saved_tensors(runs / name, STEPS) for name in ("balanced-4", "balanced-half-4"))
    assert losses(runs / "balanced-half-4") == losses(runs / "balanced-4")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_even_steps_train_alike(runs):
    """On two ranks like on one, bit for bit when resumed, and so resumed on four ranks, to which steps are dealt."""
    assert losses(runs / "even-1") != losses(runs / "hstu-table_wise-1")
    assert_alike(runs / "even-2", runs / "even-1")
    expected, found = (saved_tensors(runs / name, STEPS) for name in ("even-2", "even-half-2"))
    assert losses(runs / "even-half-2") == losses(runs / "even-2")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert_alike(runs / "even-balanced-on-4", runs / "even-2")


@pytest.mark.parametrize("precision", SENT)
@pytest.mark.parametrize("kind", ["table_wise", "row_wise"])
def test_the_embeddings_of_all_ids_are_sent(runs, kind, precision):
    out = runs / f"{kind}-{precision}-2"
    calls = [json.loads((out / f"sent-{rank}.json").read_text())["all_to_all"] for rank in (0, 1)]
    reported = json.loads((out / "run.json").read_text())["communication_bytes_per_step"]
    for offset, direction in enumerate(("forward", "backward")):
        sent = sum(sum(rank[offset::2]) for rank in calls) / 10
        # Which ids are of the other rank is chance, and the hotness of 3.2 is but close to the mean length.
        assert sent == pytest.approx(reported[direction], rel=0.1)
        assert reported[direction] == pytest.approx(64 * (3.2 + 1.0) * 32 / 2 * SENT[precision])
    if precision != "fp32":
        exact = losses(runs / f"{kind}-fp32-2")
        assert losses(out) != exact
        np.testing.assert_allclose(losses(out), exact, rtol=0.02)


def test_fine_tuning_with_more_items_keeps_those_there_are(runs):
    before, after = saved_tensors(runs / "din-table_wise-1", STEPS), saved_tensors(runs / "fine_tuned-2", 1)
    assert len(after[FILMS]) == ITEMS + 7
    assert torch.equal(after.pop(FILMS)[:ITEMS], before[FILMS])
    for name, value in after.items():
        assert torch.equal(value, before[name]), name
