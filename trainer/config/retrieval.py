"""Whether models, losses and the catalogue suit one another where vectors of queries and items are learned."""

from collections import Counter

from trainer.config.data import DataConfig
from trainer.config.model import ModelConfig
from trainer.config.tasks import TaskConfig
from trainer.core.errors import InputError, nearest


def check_retrieval(data: DataConfig, model: ModelConfig, tasks: dict[str, TaskConfig]) -> None:
    """Refuses features of items, a catalogue and losses that do not suit one another.

    Args:
        data: The data.
        model: The model.
        tasks: The tasks by name.

    Raises:
        InputError: The message names the key.
    """
    _check_features(data, model)
    _check_catalogue(data, model, tasks)
    for name, task in tasks.items():
        _check_loss(f"tasks.{name}", task, data)


def _check_features(data: DataConfig, model: ModelConfig) -> None:
    known = [*data.dense, *data.sparse]
    for name, times in Counter(model.item_features).items():
        if name not in known:
            raise InputError(
                f"model.item_features names '{name}', which neither data.dense nor data.sparse has"
                f"{nearest(name, known)}"
            )
        if times > 1:
            raise InputError(f"model.item_features names '{name}' {times} times; name each feature once")
    if model.name == "two_tower" and not 0 < len(model.item_features) < len(known):
        lacks = "the query" if model.item_features else "the item"
        raise InputError(
            f"model.item_features is {model.item_features}, which leaves no feature for {lacks}; name those of the "
            "item, and no others"
        )


def _check_catalogue(data: DataConfig, model: ModelConfig, tasks: dict[str, TaskConfig]) -> None:
    catalogue = data.catalogue
    if catalogue.items and not model.item_features:
        raise InputError("data.catalogue.items is set, but model.item_features is empty; name the features of an item")
    sampled = any(task.loss == "sampled_softmax" for task in tasks.values())
    for key in ("negatives", "hard_negatives"):
        if (value := getattr(catalogue, key)) and not sampled:
            raise InputError(
                f"data.catalogue.{key} is {value!r}, but no task has the loss 'sampled_softmax', which uses them; "
                "leave it out or set the loss"
            )


def _check_loss(key: str, task: TaskConfig, data: DataConfig) -> None:
    sampled, catalogue = task.loss == "sampled_softmax", data.catalogue
    if not (sampled or task.log_q):
        return
    needs = f"{key}.loss is 'sampled_softmax'" if sampled else f"{key}.log_q is true"
    if not catalogue.items:
        raise InputError(f"{needs}, which needs a catalogue, but data.catalogue.items is empty; name its files")
    if task.group != catalogue.id:
        raise InputError(
            f"{needs}, which needs the item of each sample, but {key}.group is {task.group!r}; set it to "
            f"data.catalogue.id, '{catalogue.id}'"
        )
    if sampled and not (catalogue.negatives or catalogue.hard_negatives):
        raise InputError(
            f"{needs}, but there are no negatives: data.catalogue.negatives is 0 and data.catalogue.hard_negatives "
            "unset; set one of them"
        )
