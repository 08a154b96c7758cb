"""The data set and the model that `bench` measures."""

from torchx_recsys.apps.datasets.synthetic import DENSE_FEATURES, SPARSE_FEATURES, synthetic
from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature, SparseFeature
from trainer.config.root import Config

TABLE_ROWS = 100_000
MODEL = {"embedding_dim": 32, "dense_layers": [256, 128], "over_layers": [256, 128]}
WARM_STEPS = 5


def make_data(out: str, rows: int) -> None:
    """Makes the data set, in Criteo's shape, unless it is there.

    Raises:
        InputError: The directory holds data of other settings.
    """
    synthetic(f"{out}/data", rows, validation_rows=0, test_rows=0, table_rows=(TABLE_ROWS,))


def make_config(out: str, global_batch_size: int) -> Config:
    """Returns the configuration of a DLRM on this data set."""
    data = DataConfig(
        train=[f"{out}/data/train"],
        dense={f"int_{i}": DenseFeature() for i in range(DENSE_FEATURES)},
        sparse={f"cat_{i}": SparseFeature(rows=TABLE_ROWS) for i in range(SPARSE_FEATURES)},
        global_batch_size=global_batch_size,
    )
    return Config.model_validate({"data": data, "model": MODEL, "train": {"epochs": 1}})
