"""The weights of ids go wherever their ids go: into catalogues, batches of some features, and rows of managed ids."""

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from torchx_recsys.apps.predict.inference import with_all_features
from trainer.batches.batch import features_only
from trainer.batches.catalogue import read_catalogue
from trainer.batches.loader import Loader
from trainer.batches.negatives import Negatives
from trainer.config.data import DataConfig
from trainer.core.distributed import DistributedContext
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.extensions.managed_ids.managed_ids import ManagedIds

TAGS, SCORES = [[1, 2], [], [3]], [[0.5, 2.0], [], [4.0]]


def write(folder, **columns):
    """Writes items 5, 6 and 7, and a sample of each."""
    table = pa.table({"item": [5, 6, 7], "tags": TAGS, "scores": SCORES} | columns)
    pq.write_table(table, folder / "items.parquet")
    pq.write_table(table.append_column("label", pa.array([0.0, 1.0, 1.0])), folder / "train.parquet")


def config(folder, **data) -> DataConfig:
    tags = {"rows": 9, "weights": "scores"}
    tree = {"sparse": {"item": {"rows": 9}, "tags": tags}, "groups": ["item"], "global_batch_size": 3}
    return DataConfig.model_validate({"train": [str(folder / "train.parquet")]} | tree | data)


def batch_of(data: DataConfig, negatives=None):
    files = find_files("data.train", data.train, data)
    (batch,) = Loader(files, data, Lanes(files.rows, 1, 3), 0, 1, 0, False, negatives).batches(0, 1)
    return batch


def pairs(sparse, name):
    """Returns the ids of a feature with their weights, sample by sample."""
    one = sparse[name]
    parts = (values.split(one.lengths().tolist()) for values in (one.values(), one.weights()))
    return [[*zip(ids.tolist(), weights.tolist(), strict=True)] for ids, weights in zip(*parts, strict=True)]


EXPECTED = [[*zip(ids, weights, strict=True)] for ids, weights in zip(TAGS, SCORES, strict=True)]


def test_items_of_a_catalogue_keep_their_weights(tmp_path):
    write(tmp_path)
    items = {"items": [str(tmp_path / "items.parquet")], "id": "item", "negatives": 4}
    data = config(tmp_path, catalogue=items)
    catalogue = read_catalogue(data, ["item", "tags"], find_files("data.train", data.train, data).files[0])
    (batch,) = catalogue.batches(data, 0, 1, 4)
    assert pairs(batch.sparse, "tags") == [*EXPECTED, []]
    with_negatives = batch_of(data, Negatives(catalogue, data, 0))
    found = pairs(with_negatives.sparse, "tags")
    drawn = [int(item) for item in with_negatives.sparse["item"].values()[3:]]
    assert len(drawn) == 4
    assert found == [*EXPECTED, *(EXPECTED[item - 5] for item in drawn)]
    write(tmp_path, scores=[[0.5, 2.5], [], [4.0]])
    assert read_catalogue(data, ["item", "tags"]).fingerprint != catalogue.fingerprint


def test_batches_of_some_features_have_weights_as_batches_of_all(tmp_path):
    write(tmp_path)
    mean = {"item": {"rows": 9}, "tags": {"rows": 9, "weights": "scores"}, "plain": {"column": "tags", "rows": 9}}
    mean["plain"]["pooling"] = "mean"
    data = config(tmp_path, sparse=mean)
    whole = batch_of(data)
    for names in (["plain"], ["item", "plain"], ["tags"]):
        here = features_only(data, names)
        found = with_all_features(batch_of(here), here, data)
        for name in names:
            assert pairs(found.sparse, name) == pairs(whole.sparse, name)
        assert all(pairs(found.sparse, name) == [[]] * 3 for name in mean if name not in names)


def test_managed_ids_keep_their_weights(tmp_path):
    write(tmp_path)
    managed = {"item": {"rows": 9}, "tags": {"rows": 9, "weights": "scores", "ids": "managed"}}
    data = config(tmp_path, sparse=managed)
    alone = DistributedContext(0, 1, 0, 1, torch.device("cpu"))
    found = ManagedIds(data, alone).looked_up(batch_of(data))
    assert pairs(found.sparse, "tags") == [[(0, weight) for weight in weights] for weights in SCORES]
    assert pairs(found.sparse, "item") == [[(5, 1.0)], [(6, 1.0)], [(7, 1.0)]]
