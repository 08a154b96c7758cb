"""The formulas of DIN, SASRec and BST, sample by sample, against NumPy in float64 over the models' own weights."""

from math import floor, log2

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.config.root import Config
from trainer.models.builder import build_model

DIMENSION, LONGEST = 4, 6
LENGTHS = [3, 0, 1, LONGEST, 2]
LABELS, NOW = ["click", "buy"], 1_700_000_000


def network(name, **keys):
    """Returns the network of a model of two dense features, a pooled one and two sequences, with its weights."""
    shared = {"rows": 9, "table": "items", "pooling": "none"}
    sparse = {"past": shared | {"max_ids": LONGEST}, "city": {"rows": 5}, "item": shared | {"max_ids": 1}}
    history = {} if "history" in keys else {"history": "past"}
    if not history:
        del sparse["past"]
    if "history_times" in keys:
        times = {"rows": 2**31 - 1, "pooling": "raw"}
        sparse |= {"at": times | {"max_ids": LONGEST}, "now": times | {"max_ids": 1}}
    config = Config.model_validate(
        {
            "data": {"labels": LABELS, "dense": {"d0": {}, "d1": {}}, "sparse": sparse},
            "model": {"name": name, "embedding_dim": DIMENSION, "target": "item", "over_layers": [7]} | history | keys,
        }
    )
    torch.manual_seed(0)
    built = build_model(config.data, config.model, config.predictions(), torch.device("cpu")).network
    return built, {key: value.double().numpy() for key, value in built.state_dict().items()}


@pytest.fixture(scope="module")
def samples():
    """Returns vectors, targets of which one is null, and histories, one list for each sample."""
    random = np.random.default_rng(0)
    targets = [random.standard_normal((int(row != 4), DIMENSION)) for row in range(len(LENGTHS))]
    histories = [random.standard_normal((length, DIMENSION)) for length in LENGTHS]
    return random.standard_normal((len(LENGTHS), 2 + DIMENSION)), targets, histories


def predicted(built, samples, times=()):
    """Returns the predictions of samples, and of times of items before `NOW`, if the model reads them."""
    vectors, *sequences = samples
    # FBGEMM pads float32 only.
    target, history = (
        JaggedTensor(
            torch.from_numpy(np.concatenate(each)).float(), lengths=torch.tensor([len(one) for one in each]).int()
        )
        for each in sequences
    )
    targets, read = [target], {"past": history}
    if times:
        read["at"] = JaggedTensor(torch.from_numpy(np.concatenate(times)).int(), lengths=history.lengths())
        targets.append(JaggedTensor(torch.full([len(LENGTHS)], NOW).int(), lengths=torch.ones(len(LENGTHS)).int()))
    with torch.no_grad():
        return built(torch.from_numpy(vectors).float(), targets, read).numpy()


def layers(weights, prefix, x):
    """Applies the layers under a name: ReLU after each but the last one."""
    count = sum(key.startswith(f"{prefix}._mlp.") and key.endswith("weight") for key in weights)
    for at in range(count):
        x = x @ weights[f"{prefix}._mlp.{at}._linear.weight"].T + weights[f"{prefix}._mlp.{at}._linear.bias"]
        x = x if at == count - 1 else np.maximum(x, 0)
    return x


def expected(weights, samples, interest, inner_product=False):
    rows = []
    for vector, target, history in zip(*samples, strict=True):
        item = target[0] if len(target) else np.zeros(DIMENSION)
        found = interest(weights, history, item)
        seen, added = ([], found @ item) if inner_product else (found, 0)
        rows.append(layers(weights, "over", np.concatenate([vector, item, seen])) + added)
    return np.array(rows)


def target_attention(weights, history, item):
    found = np.zeros(DIMENSION)
    for past in history:
        pair = np.concatenate([past, item, past - item, past * item])
        found += layers(weights, "interest.weights", pair)[0] * past
    return found


def divided_attention(weights, history, item):
    return (sum(history) + target_attention(weights, history, item)) / max(len(history), 1) ** 0.5


def linear(weights, name, x):
    return x @ weights[f"interest.{name}.weight"].T + weights[f"interest.{name}.bias"]


def normalized(weights, name, x):
    centered = x - x.mean()
    return centered / np.sqrt(x.var() + 1e-5) * weights[f"interest.{name}.weight"] + weights[f"interest.{name}.bias"]


def last_state(blocks, heads):
    """Returns SASRec's state times the target, of loops over blocks, items, heads and the items before each."""
    columns = DIMENSION // heads

    def interest(weights, history, item):
        ages = range(len(history) - 1, -1, -1)
        states = [past + weights["interest.positions.weight"][age] for age, past in zip(ages, history, strict=True)]
        for number in range(blocks):
            block = f"blocks.{number}"
            projected = [
                linear(weights, f"{block}.projections", normalized(weights, f"{block}.norm", one)) for one in states
            ]
            queries, keys, values = np.array(projected).reshape(-1, 3, heads, columns).transpose(1, 0, 2, 3)
            after = []
            for at, state in enumerate(states):
                seen = []
                for head in range(heads):
                    scores = np.exp(keys[: at + 1, head] @ queries[at, head] / np.sqrt(columns))
                    seen.append(scores / scores.sum() @ values[: at + 1, head])
                state = state + linear(weights, f"{block}.output", np.concatenate(seen))
                inner = linear(weights, f"{block}.inner", normalized(weights, f"{block}.inner_norm", state))
                after.append(state + linear(weights, f"{block}.outer", np.maximum(inner, 0)))
            states = after
        state = normalized(weights, "norm", states[-1])
        return np.concatenate([state, state * item])

    return lambda weights, history, item: interest(weights, history, item) if len(history) else np.zeros(2 * DIMENSION)


def all_states(blocks, heads):
    """Returns BST's states of the target and the items from new to old, of loops over layers, tokens and heads."""
    columns = DIMENSION // heads

    def interest(weights, history, item):
        states = np.array([item, *history[::-1]]) + weights["interest.positions"][: len(history) + 1]
        for number in range(blocks):
            layer = f"layers.{number}"
            projected = states @ weights[f"interest.{layer}.projections.weight"].T
            queries, keys, values = projected.reshape(-1, 3, heads, columns).transpose(1, 0, 2, 3)
            after = []
            for at, state in enumerate(states):
                scores = np.exp((keys * queries[at]).sum(2) / np.sqrt(columns))
                seen = np.einsum("lh,lhc->hc", scores / scores.sum(axis=0), values).flatten()
                state = normalized(weights, f"{layer}.norm", state + linear(weights, f"{layer}.output", seen))
                inner = np.maximum(linear(weights, f"{layer}.inner", state), 0)
                outer = linear(weights, f"{layer}.outer", inner)
                after.append(normalized(weights, f"{layer}.outer_norm", state + outer))
            states = np.array(after)
        return np.pad(states.flatten(), (0, DIMENSION * (LONGEST - len(history))))

    return interest


@pytest.mark.parametrize(
    ("name", "keys", "interest"),
    [
        ("din", {}, target_attention),
        ("din", {"attention_layers": [5, 3], "over_layers": []}, target_attention),
        ("sasrec", {}, last_state(1, 1)),
        ("sasrec", {"attention_blocks": 3, "attention_heads": 2}, last_state(3, 2)),
        ("bst", {}, all_states(1, 1)),
        ("bst", {"attention_blocks": 3, "attention_heads": 2}, all_states(3, 2)),
        ("din", {"inner_product": True}, divided_attention),
        ("din", {"history": None}, lambda weights, history, item: []),
        ("sasrec", {"history": None}, lambda weights, history, item: []),
        ("bst", {"history": None}, lambda weights, history, item: []),
    ],
)
def test_a_model_is_its_formula(samples, name, keys, interest):
    built, weights = network(name, **keys)
    found = predicted(built, samples)
    assert found.shape == (len(LENGTHS), len(LABELS))
    formula = expected(weights, samples, interest, "inner_product" in keys)
    np.testing.assert_allclose(found, formula, rtol=1e-5, atol=1e-6)


def test_positions_of_bst_are_times_by_powers_of_two(samples):
    built, weights = network("bst", history_times="at", target_time="now")
    random = np.random.default_rng(1)
    ages = [np.sort(random.integers(0, 90_000, length))[::-1] for length in LENGTHS]
    ages[0][-1] = 0  # in the very second of the target
    rows = []
    for *sample, of_items in zip(*samples, ages, strict=True):
        buckets = [0, *(floor(log2(age + 1)) for age in of_items[::-1])]
        of_tokens = weights | {"interest.positions": weights["interest.positions"][buckets]}
        rows += [*expected(of_tokens, [[one] for one in sample], all_states(1, 1))]
    found = predicted(built, samples, [NOW - of_items for of_items in ages])
    np.testing.assert_allclose(found, rows, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["din", "sasrec", "bst", "hstu", "recency"])
def test_without_a_history_the_rest_of_the_network_stays(name):
    with_history, without = network(name)[1], network(name, history=None)[1]
    assert without.keys() == {key for key in with_history if key.startswith("over.")}
