"""Embedding tables: built from the configuration, and recognized by the names of their weights."""

import pytest
import torch
from jobs import config
from torchrec.modules.embedding_configs import PoolingType

from trainer.config.root import Config
from trainer.models.builder import build_model
from trainer.models.embeddings import table_configs, table_of_weight, table_shapes


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("embedding_bags.user.weight", "user"),
        ("model.sparse_arch.embedding_bag_collection.embedding_bags.user_id.weight", "user_id"),
        ("model.embedding_bags.embedding_bags.weight", "embedding_bags"),
        ("model.embedding_bags.a.b.weight", None),
        ("model.embedding_bags.user.weight.momentum1", None),
        ("model.embedding_bags.user.bias", None),
        ("model.sequences.embeddings.item.weight", "item"),
        ("model.embeddings.item.weight", None),
        ("not_embedding_bags.user.weight", None),
        ("over_arch.0.weight", None),
    ],
)
def test_table_of_weight(name, table):
    assert table_of_weight(name) == table


@pytest.fixture(scope="module")
def settings():
    tree = config("nowhere", data__sparse__s1__dimension=8, data__sparse__s2__pooling="mean", model__name="custom:Sum")
    tree["data"]["sparse"]["clicked"] = {"rows": 100, "table": "s0"}
    return Config.model_validate(tree)


def test_features_of_one_table_share_its_configuration(settings):
    tables = {table.name: table for table in table_configs(settings.data, settings.model)}
    assert [table.feature_names for table in tables.values()] == [
        ["s0", "clicked"],
        *([f"s{number}"] for number in range(1, 6)),
    ]
    assert {name: table.num_embeddings for name, table in tables.items()} == {f"s{i}": 100 + i for i in range(6)}
    assert [tables[name].embedding_dim for name in ("s0", "s1")] == [16, 8]
    assert [tables[name].pooling for name in ("s1", "s2")] == [PoolingType.SUM, PoolingType.MEAN]


def test_tables_are_found_in_a_custom_model(settings):
    model = build_model(settings.data, settings.model, settings.predictions(), torch.device("cpu"))
    assert table_shapes(model) == {f"s{i}": (100 + i, 8 if i == 1 else 16) for i in range(6)}
    assert {parameter.device.type for parameter in model.tables.parameters()} == {"meta"}
    assert {parameter.device.type for parameter in model.head.parameters()} == {"cpu"}
