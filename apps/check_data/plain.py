"""Features that are the values of one column, so that the column's figures are theirs."""

from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature, SparseFeature, columns_of, takes

LOGARITHMS = ("none", "log1p", "log3")


def plain_features(config: DataConfig) -> DataConfig:
    """Returns the data with those features alone that can be judged by the column of their name.

    What others are made of, such as buckets, times, clipped values and crossed columns, is measured only.
    """
    dense = {name: feature for name, feature in config.dense.items() if _is_plain_number(name, feature)}
    sparse = {name: feature for name, feature in config.sparse.items() if _is_plain_id(name, feature)}
    return config.model_copy(update={"dense": dense, "sparse": sparse})


def _is_plain_number(name: str, feature: DenseFeature) -> bool:
    return columns_of(name, feature) == [name] and feature.transform in LOGARITHMS and not feature.clip


def _is_plain_id(name: str, feature: SparseFeature) -> bool:
    return columns_of(name, feature) == [name] and takes(feature) == "ids" and not feature.offset
