"""The work of the dense part, beside what a model does by hand: products of its layers, bytes of its operations."""

import itertools

import numpy as np
import pytest
import torch
from jobs import config
from sequences import sequence_config
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.config.root import Config, load_config
from trainer.models.builder import build_model
from trainer.models.embeddings import table_of_weight
from trainer.plan.dense_part import WorkCounter, dense_part

SAMPLES, TABLES, COLUMNS, DENSE = 32, 6, 16, 2  # of a rank; as the configuration has them
MIB = 2**20


def work_of(ranks=2, **changes):
    return dense_part(Config.model_validate(config("data", **changes)), ranks).work


def products(layers, inputs_are_learned):
    """Returns the operations of the products of some layers: forward, and backward for weights and for inputs."""
    flops = [2 * SAMPLES * above * below for above, below in itertools.pairwise(layers)]
    return 3 * sum(flops) - (0 if inputs_are_learned else flops[0])


def test_products_are_those_of_the_layers():
    found = work_of(model__dense_layers=[24], model__over_layers=[40])
    vectors = TABLES + 1
    pairs = vectors * (vectors - 1) // 2
    over = products([COLUMNS + pairs, 40, 1], inputs_are_learned=True)
    assert found.flops == products([DENSE, 24, COLUMNS], inputs_are_learned=False) + over
    assert found.batched_flops == 3 * 2 * SAMPLES * vectors * vectors * COLUMNS
    weights = (DENSE + 1) * 24 + (24 + 1) * COLUMNS + (COLUMNS + pairs + 1) * 40 + (40 + 1) * 1
    assert found.gradients == 4 * weights


def test_hidden_layers_with_more_parts_have_more_bytes_and_the_same_products():
    layers = {"model__dense_layers": [24], "model__over_layers": [40]}
    plain, found = (
        work_of(**layers, **more) for more in ({}, {"model__dropout": 0.1, "model__normalization": "batch"})
    )
    assert found.flops == plain.flops
    assert found.bytes > plain.bytes
    assert found.gradients - plain.gradients == 4 * (24 + COLUMNS + 40)  # a factor of each column; a summand for a bias


def test_attention_is_products_of_each_sample():
    queries = torch.ones(3, 2, 5, 8, requires_grad=True)
    with WorkCounter() as counter:
        torch.nn.functional.scaled_dot_product_attention(queries, queries, queries).sum().backward()
    forward = 2 * 2 * 3 * 2 * 5 * 5 * 8  # queries with keys, weights with values
    assert counter.batched_flops == pytest.approx(3.5 * forward)  # backward computes the weights anew
    assert counter.flops == 0


@pytest.mark.parametrize("name", ["xdeepfm", "autoint", "masknet", "finalmlp", "wukong", "pepnet"])
def test_models_that_let_features_interact_take_a_step_without_values(name, caplog):
    settings = load_config(f"movielens_{name}")
    found = dense_part(settings, 2)
    model = build_model(settings.data, settings.model, settings.predictions(), torch.device("meta"))
    dense = [weight for path, weight in model.named_parameters() if table_of_weight(path) is None]
    assert found.work.gradients == found.memory.weights == sum(4 * weight.numel() for weight in dense)
    assert found.work.flops > 0
    assert not caplog.messages


def test_bytes_are_those_that_operations_read_and_write():
    values, factors = torch.ones(MIB // 4, requires_grad=True), torch.ones(MIB // 4)
    with WorkCounter() as counter:
        multiplied = values.view(2, -1) * factors.view(2, -1)  # reads two, writes one
        multiplied.backward(torch.empty_like(multiplied))  # the same: factors have no gradient
    assert counter.bytes == 6 * MIB
    assert (counter.flops, counter.batched_flops) == (0, 0)


def test_work_grows_with_the_batch_of_a_rank_and_not_with_its_parts():
    one, two, parts = work_of(ranks=1), work_of(ranks=2), work_of(ranks=2, train__micro_batches=4)
    assert one.flops == 2 * two.flops == 2 * parts.flops
    assert one.batched_flops == 2 * two.batched_flops
    assert two.bytes < one.bytes < 2 * two.bytes  # weights and their optimizer are the same
    assert one.gradients == two.gradients == parts.gradients


@pytest.mark.parametrize("model", ["sasrec", "bst", "hstu"])
def test_attention_over_histories_counts_by_their_lengths(model):
    """Beside a step of histories with lengths by Zipf's law, of which the plan knows only mean and longest."""
    samples, mean, longest = 2048, 16, 64
    tree = sequence_config("data", model, data__global_batch_size=samples)
    read = {"hstu": ("history", "rated", "at"), "bst": ("history", "at")}.get(model, ("history",))
    for name in read:
        tree["data"]["sparse"][name] |= {"max_ids": longest, "hotness": mean}
    settings = Config.model_validate(tree)
    network = build_model(settings.data, settings.model, settings.predictions(), torch.device("cpu")).network
    drawn = longest * np.random.default_rng(0).random(samples) ** (longest / mean - 1)
    lengths = torch.from_numpy(np.rint(drawn)).int()

    def sequence(lengths, *columns):
        return JaggedTensor(torch.ones(int(lengths.sum()), *columns, requires_grad=bool(columns)), lengths=lengths)

    history, target = {"history": sequence(lengths, COLUMNS)}, [sequence(torch.ones(samples).int(), COLUMNS)]
    if model == "hstu":
        history |= {"rated": sequence(lengths, COLUMNS), "rated.weights": sequence(lengths)}
    if "at" in read:
        history["at"] = sequence(lengths)
        target.append(sequence(torch.ones(samples).int()))
    with WorkCounter() as counter:
        network(torch.ones(samples, DENSE + COLUMNS), target, history).sum().backward()
    found = dense_part(settings, 1).work
    assert found.batched_flops == pytest.approx(counter.batched_flops, rel=0.1)
    assert found.flops == pytest.approx(counter.flops, rel=0.1)


def test_the_state_of_each_part_counts():
    layers = {"model__dense_layers": [24], "model__over_layers": [40]}
    parts = {"top": {"weights": ["over_arch.*"], "name": "adam"}}
    settings = Config.model_validate(config("data", **layers, optimizer__dense={"name": "sgd", "parts": parts}))
    vectors = TABLES + 1
    over = (COLUMNS + vectors * (vectors - 1) // 2 + 1) * 40 + (40 + 1) * 1
    steps = 4  # a number for each weight and bias
    assert dense_part(settings, 1).memory.state == 4 * (2 * over + steps)
