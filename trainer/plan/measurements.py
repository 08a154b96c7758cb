"""Files of measurements that plans use: statistics of a data set's ids, and the calibration of a host.

A calibration holds speeds that were measured on a host of some kind, and is good for all hosts of that kind.
"""

import json
import math
import tomllib
from dataclasses import asdict
from typing import Literal

import pydantic
import tomli_w

from torchx_recsys.planner.skew import ids_behind
from torchx_recsys.planner.topology import Speeds
from trainer.config.features import SparseFeature
from trainer.config.root import Config
from trainer.core.errors import InputError, nearest
from trainer.core.section import explain
from trainer.core.storage import named, read_text, write_file

VERSION = 2
EARLIER = (1,)  # versions without separate speeds: they have a single speed for the whole dense part


class FeatureStatistics(pydantic.BaseModel):
    """Statistics of the ids of a feature."""

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
    """Returns the configuration with hotness, skew and number of ids from the file planner.statistics, if set.

    Raises:
        InputError: The file cannot be read, is not a statistics file, or lacks a feature.
    """
    url = config.planner.statistics
    if not url:
        return config
    found, sparse = _read_statistics(url), {}
    for name, feature in config.data.sparse.items():
        if name not in found.features:
            raise InputError(
                f"planner.statistics is '{url}', which has no feature '{name}'"
                f"{nearest(name, found.features, 'measure the data that it is in, or leave planner.statistics out')}"
            )
        sparse[name] = _measured(feature, found.features[name], found.rows)
    return config.model_copy(update={"data": config.data.model_copy(update={"sparse": sparse})})


def _measured(feature: SparseFeature, found: FeatureStatistics, rows: int) -> SparseFeature:
    """Returns a feature with the measured values; a feature without any ids counts as having a single id."""
    ids = ids_behind(found.distinct, found.hotness * rows, found.zipf, feature.rows)
    hotness = max(found.hotness, 1 / rows)
    return feature.model_copy(update={"hotness": hotness, "zipf": found.zipf, "distinct": ids})


def _read_statistics(url: str) -> Statistics:
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


class Calibration(pydantic.BaseModel):
    """The content of a calibration file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    version: Literal[2] = VERSION
    date: str
    """Day of the measurement: 2026-11-23."""
    host: str
    """Name of the host."""
    processor: str
    """Its processor or GPU."""
    device: Literal["cpu", "cuda"]
    """Device of the ranks."""
    ranks: pydantic.PositiveInt
    """Ranks that measured; a single rank measures no exchanges."""
    input_samples_per_second: pydantic.NonNegativeFloat
    """Samples that a rank reads, decodes and batches in a second, of 13 dense and 26 sparse features."""
    assumed: list[str] = []
    """Speeds that these ranks could not measure; their values are built in."""
    speeds: Speeds

    @pydantic.field_validator("speeds")
    @classmethod
    def _are_times(cls, speeds: Speeds) -> Speeds:
        """Refuses negative and infinite speeds here, because the planner does not check its input."""
        for name, nanoseconds in asdict(speeds).items():
            if not 0 <= nanoseconds < math.inf:
                raise ValueError(f"{{key}}.{name} is {nanoseconds}: it must be a time in nanoseconds, 0 or more")
        return speeds

    @property
    def source(self) -> str:
        """Where the speeds come from, as text to print."""
        assumed = f", without {', '.join(self.assumed)}" if self.assumed else ""
        return f"measured on {self.host} ({self.processor}), {self.date}{assumed}"


def load_calibration(url: str, device_type: str) -> Calibration:
    """Reads a calibration file.

    Args:
        url: URL of the file.
        device_type: Device of the ranks to plan for.

    Raises:
        InputError: The file is no calibration, or was measured on another kind of device.
    """
    with named("planner.calibration", url):
        text = read_text(url)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"planner.calibration is '{url}', which is not TOML: {error}") from error
    if tree.get("version") in EARLIER:
        raise InputError(
            f"planner.calibration is '{url}', of version {tree['version']}, without the speeds that plans count with "
            "now; measure anew with tools.calibrate"
        )
    try:
        found = Calibration.model_validate(tree)
    except pydantic.ValidationError as error:
        raise InputError(
            f"planner.calibration is '{url}', which is no calibration: {explain(error, Calibration)}; "
            "make one with tools.calibrate"
        ) from error
    if found.device != device_type:
        raise InputError(
            f"planner.calibration is '{url}', measured on {found.device}; the ranks planned for have {device_type}: "
            "calibrate on such a host, or leave it out"
        )
    return found


def save_calibration(calibration: Calibration, url: str) -> None:
    """Writes a calibration file.

    Raises:
        InputError: The file cannot be written.
    """
    write_file("--out", url, tomli_w.dumps(calibration.model_dump()))
