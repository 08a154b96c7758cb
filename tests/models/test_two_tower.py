"""The two towers against NumPy in float64, and what each of them sees."""

import numpy as np
import pytest
import torch
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trainer.config.root import Config
from trainer.models.base import ModelInputs
from trainer.models.embeddings import table_configs
from trainer.models.pooled import feature_widths
from trainer.models.two_tower import two_tower

ROWS = 5
OF_ITEM = ["price", "item", "tags"]
# In the order of the vector of a sample; the last feature shares a table with the item, and is the query's.
WIDTHS = {"age": 1, "price": 1, "user": 4, "item": 8, "tags": 4, "history": 8}


def built(**model):
    tree = {
        "data": {
            "dense": {"age": {}, "price": {}},
            "sparse": {
                "user": {"rows": 9},
                "item": {"rows": 7, "dimension": 8, "table": "items"},
                "tags": {"rows": 5},
                "history": {"rows": 7, "dimension": 8, "table": "items"},
            },
        },
        "model": {
            "name": "two_tower",
            "embedding_dim": 4,
            "item_features": OF_ITEM,
            "tower_layers": [6],
            "vector_dim": 3,
        }
        | model,
        "tasks": {name: {"label": "label", "loss": "in_batch_softmax"} for name in ("liked", "bought")},
    }
    config = Config.model_validate(tree)
    tables = EmbeddingBagCollection(tables=table_configs(config.data, config.model))
    names, device = ["age", "price"], torch.device("cpu")
    features, predictions = [*config.data.sparse], ["liked", "bought"]
    inputs = ModelInputs(tables, 2, features, predictions, device, config.model, dense_names=names)
    assert feature_widths(inputs) == WIDTHS
    torch.manual_seed(0)
    return two_tower(inputs).network.double()


def columns(of_item):
    ends = np.cumsum([*WIDTHS.values()])
    ranges = {name: range(end - width, end) for (name, width), end in zip(WIDTHS.items(), ends, strict=True)}
    return [place for name, places in ranges.items() if (name in OF_ITEM) is of_item for place in places]


@pytest.mark.parametrize(("normalize", "item_bias"), [(True, False), (False, False), (True, True), (False, True)])
def test_each_tower_is_a_network_over_its_own_features(normalize, item_bias):
    network = built(normalize=normalize, item_bias=item_bias)
    x = np.random.default_rng(0).standard_normal((ROWS, sum(WIDTHS.values())))
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    found = network(torch.from_numpy(x))
    assert [*found] == ["liked", "bought"]
    for side, (tower, of_item) in enumerate([("query", False), ("item", True)]):
        of_tower = [weights[name] for name in weights if name.startswith(tower)]
        hidden = np.maximum(x[:, columns(of_item)] @ of_tower[0].T + of_tower[1], 0)
        vector = hidden @ of_tower[2].T + of_tower[3]
        bias, vector = np.split(vector, [int(item_bias)], axis=1)
        vector = vector / np.linalg.norm(vector, axis=1, keepdims=True) if normalize else vector
        expected = np.concatenate([bias if of_item else bias**0, vector], axis=1)
        np.testing.assert_allclose(found["bought"][:, side].detach().numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", [0, 1])
def test_no_feature_of_one_side_moves_the_other(side):
    network = built()
    x = torch.randn(ROWS, sum(WIDTHS.values()), dtype=torch.float64, requires_grad=True)
    gradient = torch.autograd.grad(network(x)["liked"][:, side].square().sum() + network(x)["liked"][:, side].sum(), x)[
        0
    ]
    assert (gradient[:, columns(side == 0)] == 0).all()
    assert (gradient[:, columns(side == 1)] != 0).any()
