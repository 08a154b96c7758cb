"""The root of the configuration, and how a file and flags become one."""

import tomllib
from pathlib import Path
from typing import Literal, Self

import fsspec
import pydantic

from trainer.comms import CommsConfig
from trainer.data.schema import DataConfig, DenseFeature, SparseFeature
from trainer.distributed import COLLECTIVE_TIMEOUT
from trainer.matching import FinetuneConfig
from trainer.models.model import ModelConfig
from trainer.optimizers import OptimizerConfig
from trainer.planning import PlannerConfig, TablePlan
from trainer.report import ReportConfig
from trainer.saving import CheckpointConfig
from trainer.section import Section, explain
from trainer.storage import os_errors

READY_MADE = Path(__file__).parent / "configs"


class TrainConfig(Section):
    """How long and how training goes."""

    steps: pydantic.PositiveInt | None = None
    """Steps to train for; set this or epochs, not both."""
    epochs: pydantic.PositiveInt | None = None
    """Passes over the training data; set this or steps, not both."""
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)
    """Seed of the initial weights and of the order of the data."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """What the dense part computes in; weights and losses stay float32."""
    stuck_seconds: float = pydantic.Field(default=300.0, gt=0, lt=COLLECTIVE_TIMEOUT.total_seconds())
    """When nothing has happened for so long, every rank prints where it is; after 600 s the job ends."""


class EvaluateConfig(Section):
    """When and how the model is evaluated."""

    every_steps: pydantic.NonNegativeInt = 0
    """Evaluate on data.validation every so many steps. 0: only at the end."""
    global_batch_size: pydantic.PositiveInt | None = None
    """Rows per evaluation step, over all ranks. Unset: data.global_batch_size."""


class Config(Section):
    """The whole configuration of a run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    comms: CommsConfig = CommsConfig()
    planner: PlannerConfig = PlannerConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    report: ReportConfig = ReportConfig()

    @pydantic.model_validator(mode="after")
    def _length(self) -> Self:
        if self.train.steps is not None and self.train.epochs is not None:
            raise ValueError(
                f"train.steps is {self.train.steps} and train.epochs is {self.train.epochs}; set one of them"
            )
        return self


def check_length(config: Config) -> None:
    """Refuses a training run without an end.

    Raises:
        ValueError: Neither the number of steps nor of epochs is set.
    """
    if config.train.steps is None and config.train.epochs is None:
        raise ValueError("train.steps and train.epochs are both unset; set one of them")


def find_config(name: str) -> str:
    """Returns the text of a configuration: a file on any fsspec URL, or the name of a ready-made one.

    Raises:
        FileNotFoundError: There is no such file; the message lists the ready-made ones.
        ValueError: The file cannot be read.
    """
    ready_made = {path.stem: path for path in READY_MADE.glob("*.toml")}
    try:
        with os_errors(), fsspec.open(str(ready_made.get(name.removesuffix(".toml"), name)), "r") as file:
            return file.read()  # pyrefly: ignore
    except FileNotFoundError as error:
        known = ", ".join(sorted(ready_made))
        raise FileNotFoundError(f"configuration '{name}': no such file; ready-made ones: {known}") from error
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"configuration '{name}' cannot be read: {error}") from error


def load_config(name: str) -> Config:
    """Reads a configuration file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no TOML, or a key or a value is wrong; the message names it and what is allowed.
    """
    try:
        return Config.model_validate(tomllib.loads(find_config(name)))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"configuration '{name}' is not TOML: {error}") from error
    except pydantic.ValidationError as error:
        raise ValueError(f"configuration '{name}': {explain(error, Config)}") from error


def example_config() -> Config:
    """Returns the defaults, with one feature of each kind called NAME, for help texts and documentation."""
    return Config(
        data=DataConfig(dense={"NAME": DenseFeature()}, sparse={"NAME": SparseFeature(rows=1)}),
        planner=PlannerConfig(tables={"NAME": TablePlan()}),
    )
