"""The calibration of a kind of host: a file with the speeds that were measured on one."""

import math
import tomllib
from dataclasses import asdict
from typing import Literal

import pydantic
import tomli_w

from planner.speeds import Speeds
from trainer.core.errors import InputError
from trainer.core.section import explain
from trainer.core.storage import named, read_text, write_file

VERSION = 2
EARLIER = (1,)  # one speed stood for all of the dense part


class Calibration(pydantic.BaseModel):
    """The content of a calibration file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    version: Literal[2] = VERSION
    date: str
    """Day of the measurement, as 2026-11-23."""
    host: str
    """Name of the host."""
    processor: str
    """Its processor, or its GPU."""
    device: Literal["cpu", "cuda"]
    """What the ranks computed on."""
    ranks: pydantic.PositiveInt
    """Ranks that measured; exchanges of a single one are not measured."""
    input_samples_per_second: pydantic.NonNegativeFloat
    """Samples that a rank reads, decodes and batches in a second, of 13 dense and 26 sparse features."""
    assumed: list[str] = []
    """Speeds that could not be measured with these ranks, and are the built-in ones."""
    speeds: Speeds

    @pydantic.field_validator("speeds")
    @classmethod
    def _are_times(cls, speeds: Speeds) -> Speeds:
        """Refuses negative and infinite speeds here, as the planner knows nothing of files."""
        for name, nanoseconds in asdict(speeds).items():
            if not 0 <= nanoseconds < math.inf:
                raise ValueError(f"{{key}}.{name} is {nanoseconds}: it must be a time in nanoseconds, 0 or more")
        return speeds

    @property
    def source(self) -> str:
        """Where the speeds are from, in words to print."""
        assumed = f", without {', '.join(self.assumed)}" if self.assumed else ""
        return f"measured on {self.host} ({self.processor}), {self.date}{assumed}"


def load_calibration(url: str, device_type: str) -> Calibration:
    """Reads a calibration file.

    Args:
        url: URL of the file.
        device_type: What the ranks that are planned for compute on.

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
        InputError: It cannot be written.
    """
    write_file("--out", url, tomli_w.dumps(calibration.model_dump()))
