"""The root of the configuration, and how a configuration is read."""

import contextlib
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pydantic
import tomli_w

from trainer.config.check_model import check_model
from trainer.config.data import DataConfig
from trainer.config.model import ModelConfig
from trainer.config.optimizer import OptimizerConfig
from trainer.config.plan import CommsConfig, PlannerConfig
from trainer.config.tasks import TaskConfig, check_task
from trainer.config.train import (
    REGULAR,
    CheckpointConfig,
    EvaluateConfig,
    FinetuneConfig,
    PublishConfig,
    ReportConfig,
    TrainConfig,
)
from trainer.core.errors import InputError, StorageError, StorageNotFoundError, nearest
from trainer.core.secrets import place
from trainer.core.section import Section, Tree, flat, validate
from trainer.core.storage import read_text
from trainer.rules.expression import NotArithmeticError, columns_in

ALTERNATIVES = ("steps", "epochs"), ("max_norm", "max_value"), ("column", "columns"), REGULAR
"""Keys of a section of which only one can be set."""
READY_MADE = Path(__file__).parent / "presets"


class Config(Section):
    """The whole configuration of a run."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    tasks: dict[str, TaskConfig] = {}
    optimizer: OptimizerConfig = OptimizerConfig()
    comms: CommsConfig = CommsConfig()
    planner: PlannerConfig = PlannerConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    publish: PublishConfig = PublishConfig()
    report: ReportConfig = ReportConfig()

    @pydantic.model_validator(mode="after")
    def _length(self) -> Self:
        if self.train.steps is not None and self.train.epochs is not None:
            raise InputError(
                f"train.steps is {self.train.steps} and train.epochs is {self.train.epochs}; set one of them"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _sections_go_together(self) -> Self:
        if self.tasks and self.model.loss != "binary":
            raise InputError(f"model.loss is '{self.model.loss}', but [tasks] set losses of their own; leave it out")
        tasks = self.named_tasks()
        for name, task in tasks.items():
            check_task(f"tasks.{name}" if self.tasks else "model", task, self.data)
        check_model(self.model, self.data, tasks, self.train, 1 if self.has_joint_loss else len(tasks))
        return self

    @property
    def has_joint_loss(self) -> bool:
        """Whether one loss is computed from all labels at once: a user's own in model.loss, or the default."""
        default = (self.model.loss, self.model.task_weighting) == ("binary", "fixed")
        return not self.tasks and (default or ":" in self.model.loss)

    def evaluation_due(self, step: int, steps_per_epoch: int) -> bool:
        """Returns whether an evaluation on data.validation follows a step, if there is such data.

        Args:
            step: Number of the step, from 1.
            steps_per_epoch: Steps in an epoch.
        """
        is_saved = self.checkpoint.due(step, steps_per_epoch)
        return self.evaluate.due(step, self.data.global_batch_size, steps_per_epoch, is_saved)

    def named_tasks(self) -> dict[str, TaskConfig]:
        """Returns the tasks, with label, prediction and output set: the configured tasks, or one task per label."""
        tasks = self.tasks or {label: TaskConfig(loss=self.model.loss) for label in self.data.labels}
        return {name: task.named(name) for name, task in tasks.items()}

    def predictions(self) -> dict[str, int]:
        """Returns the predictions of the tasks, each with the number of columns that a built-in model gives it."""
        tasks = self.named_tasks().values()
        columns = {str(task.prediction): self._columns(task) for task in tasks if self._columns(task) > 1}
        return {str(task.prediction): 1 for task in tasks} | columns

    def _columns(self, task: TaskConfig) -> int:
        if task.loss == "softmax":
            return len(self.data.classes.get(str(task.label), ())) or 1
        return 2 if task.kind.shape == (2,) else 1


def _check_at_saves(evaluate: EvaluateConfig, checkpoint: CheckpointConfig) -> None:
    """Refuses evaluations at saves whose steps are not known, since a resumed run must evaluate after the same."""
    if not evaluate.at_saves:
        return
    if checkpoint.every_minutes:
        raise InputError(
            f"evaluate.at_saves is true, but checkpoint.every_minutes is {checkpoint.every_minutes:g}, and saves by "
            "the clock follow other steps in each run; save by every_steps or every_epochs, or evaluate by these"
        )
    if not (checkpoint.every_steps or checkpoint.every_epochs):
        raise InputError(
            "evaluate.at_saves is true, but checkpoint.every_steps and checkpoint.every_epochs are 0, so that there is "
            "no save before the end; set one of them, or leave it out"
        )


def check_training(config: Config) -> None:
    """Refuses training without an end, and choices that depend on evaluations that do not happen.

    Raises:
        InputError: Neither steps nor epochs are set, or a key is set without a key that it needs.
    """
    if config.data.segments.path:
        _check_segments(config)
    elif config.checkpoint.keep.segments:
        raise InputError(
            f"checkpoint.keep.segments is {config.checkpoint.keep.segments}, but data.segments.path is not set; set "
            "both or none"
        )
    elif config.train.steps is None and config.train.epochs is None:
        raise InputError("train.steps and train.epochs are both unset; set one of them")
    if config.checkpoint.keep.best and not config.data.validation:
        raise InputError(
            f"checkpoint.keep.best is '{config.checkpoint.keep.best}', but data.validation is empty, so that no "
            "checkpoint is ever the best; name validation data or unset it"
        )
    _check_at_saves(config.evaluate, config.checkpoint)
    _check_stop_early(config)
    _check_final(config)


def _check_segments(config: Config) -> None:
    """Refuses keys that segments take the place of."""
    given = {
        "data.train": config.data.train,
        "data.test": config.data.test,
        "train.steps": config.train.steps,
        "train.epochs": config.train.epochs,
    }
    for key, value in given.items():
        if value:
            raise InputError(
                f"{key} is set, and so is data.segments.path, whose segments are what is trained and evaluated on; "
                "set one of them"
            )
    reasons = {
        "checkpoint.every_epochs": "a save follows each segment; leave it out, or use every_steps",
        "evaluate.every_epochs": "segments are of any length; use every_steps or every_samples",
        "evaluate.at_saves": "a save also follows each segment; use every_steps or every_samples",
    }
    for key, why in reasons.items():
        section, _, name = key.partition(".")
        if value := getattr(getattr(config, section), name):
            raise InputError(f"{key} is {str(value).lower()}, but data.segments.path is set, and {why}")
    _check_ahead(config)
    for key, optimizer in {"dense": config.optimizer.dense, "sparse": config.optimizer.sparse}.items():
        if optimizer.schedule.unit == "epochs":
            raise InputError(
                f"optimizer.{key}.schedule.unit is 'epochs', but segments are of any length; count in 'steps'"
            )


def _check_ahead(config: Config) -> None:
    """Refuses validation data beside segments without a time to evaluate on them, and what it takes the place of."""
    evaluate, data = config.evaluate, config.data
    if bool(data.validation) != evaluate.is_regular:
        regular = "evaluate.every_samples" if evaluate.every_samples else "evaluate.every_steps"
        has, lacks = ("data.validation", regular) if data.validation else (regular, "data.validation")
        raise InputError(
            f"{has} is set, and so is data.segments.path, but {lacks} is not; set both to evaluate on data that lies "
            "ahead of the segments, or none to evaluate on each segment before training on it"
        )
    rules = (name for name in ("metric", "calibration_by", "label_rate_by") if getattr(config.publish, name))
    if data.validation and (rule := next(rules, None)):
        raise InputError(
            f"publish.{rule} is set, which needs metrics on each segment, but data.validation is evaluated on in their "
            "place; leave one of them out"
        )


def _check_stop_early(config: Config) -> None:
    metric = config.train.stop_early.metric
    lacking = {
        "evaluate.every_steps is 0": not config.evaluate.is_regular,
        "data.validation is empty": not config.data.validation,
    }
    if metric and any(lacking.values()):
        lack = next(words for words, lacks in lacking.items() if lacks)
        raise InputError(
            f"train.stop_early.metric is '{metric}', but {lack}, so that no evaluation stops training; set both or none"
        )


def _check_final(config: Config) -> None:
    if config.evaluate.final == "best":
        for key, value in (("checkpoint.keep.best", config.checkpoint.keep.best), ("data.test", config.data.test)):
            if not value:
                raise InputError(f"evaluate.final is 'best', but {key} is not set; set both, or leave it 'last'")


OF_TABLES = (
    *("model.table_precision", "model.table_init", "model.init", "model.tables"),
    *("model.embedding_dim", "model.first_order_columns"),
    *("optimizer.sparse", "optimizer.ema.tables", "comms", "checkpoint.full_every"),
    *("planner.sharding_types", "planner.compute_kernels", "planner.statistics"),
    *("planner.min_columns", "planner.slower_for_memory"),
)
"""Keys, and sections, that only tables use."""
MAKE_VECTORS = ("deepfm", "xdeepfm", "autoint", "masknet", "finalmlp", "wukong")
"""Models that make a vector of model.embedding_dim columns of each number, too."""


def check_keys_of_tables(config: Config) -> None:
    """Refuses keys of tables for a model without any.

    Raises:
        InputError: Such a key is set.
    """
    if config.data.features_of_tables():
        return
    for path, value in flat(config.model_dump(exclude_defaults=True)).items():
        key = ".".join(path)
        makes_vectors = config.model.name in MAKE_VECTORS or ":" in config.model.name
        is_used = key == "model.embedding_dim" and makes_vectors
        if not is_used and f"{key}.".startswith(tuple(f"{one}." for one in OF_TABLES)):
            raise InputError(f"{key} is {value!r}, but no feature has a table, which alone would use it; leave it out")


def load_tree(name: str, above: tuple[str, ...] = ()) -> Tree:
    """Reads a configuration as TOML holds it: a file on any fsspec URL, or a ready-made one by its name.

    A configuration may name another one as its `base`; it then replaces or adds to the base's values, `without` the
    features that it lists.

    Args:
        name: The name.
        above: The configurations that have this one as their base.

    Raises:
        InputError: There is no such file; the message lists the ready-made ones. Or it cannot be read as TOML.
    """
    tree = _read_toml(name)
    base, without = tree.pop("base", None), tree.pop("without", [])
    if base is None:
        return leave_out(tree, without, f"configuration '{name}': without")
    if not isinstance(base, str) or base in (name, *above):
        raise InputError(f"configuration '{name}': base is {base!r}; it must name another configuration")
    below = load_tree(base, (name, *above))
    if ("data", "segments", "path") in flat(tree) and isinstance(below.get("train"), dict):  # instead of a length
        below["train"] = {key: value for key, value in below["train"].items() if key not in ALTERNATIVES[0]}
    return _joined(leave_out(below, without, f"configuration '{name}': without"), tree)


def leave_out(tree: Tree, columns: Any, key: str) -> Tree:
    """Returns a tree without the features of some names, and without those that are made of columns of these names.

    Args:
        tree: The tree.
        columns: The names.
        key: The key or flag that has them, for messages.

    Raises:
        InputError: There is no such feature.
    """
    if columns == []:
        return tree
    if not isinstance(columns, list):
        raise InputError(f"{key} is {columns!r}; it must be a list of features")
    data = {kind: subtable(subtable(tree, "data"), kind) for kind in ("dense", "sparse")}
    made_of = {name: {name, *_columns_in(subtable(one, name))} for one in data.values() for name in one}
    for column in columns:
        if not any(column in names for names in made_of.values()):
            raise InputError(f"{key} has '{column}', which is no feature{nearest(str(column), made_of)}")
    kept = {kind: {name: one[name] for name in one if not made_of[name] & {*columns}} for kind, one in data.items()}
    return {**tree, "data": tree["data"] | kept}


def _columns_in(feature: Tree) -> Iterator[str]:
    """Yields the columns that a feature names, before it is validated."""
    columns = feature.get("columns")
    named = [feature.get(key) for key in ("column", "lookup", "lookup_in", "overlap")]
    yield from (one for one in (*named, *(columns if isinstance(columns, list) else ())) if isinstance(one, str))
    with contextlib.suppress(NotArithmeticError):
        yield from columns_in(str(feature.get("expression") or ""))


def subtable(tree: Tree, name: str) -> Tree:
    """Returns a table of a tree; an empty table in place of anything else, which validation refuses."""
    below = tree.get(name)
    return below if isinstance(below, dict) else {}


def _joined(base: Tree, tree: Tree) -> Tree:
    """Returns a tree over its base. Tables are joined, except a table of another `name`: it has other keys."""
    name = tree.get("name")
    if isinstance(name, str) and name != base.get("name"):
        return tree
    base = without_replaced(base, tree)
    tables = {key: value for key, value in tree.items() if isinstance(value, dict) and isinstance(base.get(key), dict)}
    return base | tree | {key: _joined(base[key], value) for key, value in tables.items()}


def without_replaced(tree: Tree, given: Tree) -> Tree:
    """Returns a table without the keys that the keys of another one replace: a length takes the place of the other."""
    replaced = {
        one for keys in ALTERNATIVES for key in keys if _is_value(given.get(key)) for one in keys if one not in given
    }
    return {key: value for key, value in tree.items() if key not in replaced or not _is_value(value)}


def _is_value(value: Any) -> bool:
    return value is not False and not isinstance(value, dict | None)  # features are tables, and may have such names


def _read_toml(name: str) -> Tree:
    ready_made = {path.stem: path for path in READY_MADE.glob("*.toml")}
    if os.path.isfile(of_run := f"{name.rstrip('/')}/config.toml"):
        name = of_run
    try:
        return tomllib.loads(read_text(str(ready_made.get(name.removesuffix(".toml"), name))))
    except StorageNotFoundError as error:
        known = ", ".join(sorted(ready_made))
        raise InputError(f"configuration {place(name)}: no such file; ready-made ones: {known}") from error
    except StorageError as error:
        raise InputError(f"configuration {place(name)} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"configuration '{name}' is not TOML: {error}") from error


def load_config(name: str) -> Config:
    """Reads a configuration.

    Raises:
        InputError: It cannot be read, or a key or a value is wrong; the message names it and what is allowed.
    """
    return validate(Config, load_tree(name), lambda _: f"configuration '{name}': ")


def to_toml(config: Config) -> str:
    """Returns a configuration as a file that can itself be run; keys without a value are left out."""
    return tomli_w.dumps(config.model_dump(exclude_none=True))
