"""Statistics of a data set's ids, for plans: a JSON file that is measured once."""

import json
from typing import Literal

import pydantic

from torchx_recsys.planner.skew import ids_behind
from trainer.config.features import SparseFeature
from trainer.config.root import Config
from trainer.core.errors import InputError, nearest
from trainer.core.section import explain
from trainer.core.storage import named, read_text


class FeatureStatistics(pydantic.BaseModel):
    """The ids of a feature."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    hotness: pydantic.NonNegativeFloat
    """Ids of a sample, on average."""
    zipf: pydantic.NonNegativeFloat
    """Zipf's exponent: how fast ids get rarer after the most popular; 0 if all are equally popular."""
    distinct: pydantic.NonNegativeInt
    """Number of different ids seen."""


class Statistics(pydantic.BaseModel):
    """The content of a statistics file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    version: Literal[1]
    rows: pydantic.PositiveInt
    """Number of samples read."""
    features: dict[str, FeatureStatistics]
    """Features by name; features not in the configuration are left out."""


def with_statistics(config: Config) -> Config:
    """Returns the configuration with hotness, skew and number of ids from planner.statistics, if set.

    Raises:
        InputError: The file cannot be read, is not a statistics file, or lacks a feature.
    """
    url = config.planner.statistics
    if not url:
        return config
    found, sparse = _read(url), {}
    for name, feature in config.data.sparse.items():
        if name not in found.features:
            raise InputError(
                f"planner.statistics is '{url}', which has no feature '{name}'"
                f"{nearest(name, found.features, 'measure the data that it is in, or leave planner.statistics out')}"
            )
        sparse[name] = _measured(feature, found.features[name], found.rows)
    return config.model_copy(update={"data": config.data.model_copy(update={"sparse": sparse})})


def _measured(feature: SparseFeature, found: FeatureStatistics, rows: int) -> SparseFeature:
    """Returns a feature as measured; a feature without ids gets one id in all."""
    ids = ids_behind(found.distinct, found.hotness * rows, found.zipf, feature.rows)
    hotness = max(found.hotness, 1 / rows)
    return feature.model_copy(update={"hotness": hotness, "zipf": found.zipf, "distinct": ids})


def _read(url: str) -> Statistics:
    with named("planner.statistics", url):
        text = read_text(url)
    try:
        return Statistics.model_validate(json.loads(text))
    except json.JSONDecodeError as error:
        raise InputError(f"planner.statistics is '{url}', which is not JSON: {error}") from error
    except pydantic.ValidationError as error:
        raise InputError(
            f"planner.statistics is '{url}', which is no statistics: {explain(error, Statistics)}"
        ) from error
