"""The predictions of built-in models, and whether they suit the tasks."""

from graphlib import CycleError, TopologicalSorter

from trainer.config.model import USED_BY, ModelConfig
from trainer.config.tasks import TaskConfig
from trainer.core.errors import InputError, nearest

ESMM = ("ctr", "ctcvr", "cvr")  # the last one is part of the second, and need not be asked for
OUTPUTS = {name: ("logit", "value") for name in USED_BY} | {"esmm": ("log_probability",), "two_tower": ("vectors",)}


def check_predictions(model: ModelConfig, tasks: dict[str, TaskConfig]) -> None:
    """Refuses tasks that a built-in model has no prediction for.

    Args:
        model: The model.
        tasks: The tasks, label and prediction set.

    Raises:
        InputError: There is such a task, or a prediction depends on one that there is not, or on itself.
    """
    predictions = [str(task.prediction) for task in tasks.values()]
    if model.name == "esmm":
        _check_esmm(predictions)
    for name, task in tasks.items():
        if task.output not in OUTPUTS.get(model.name, (task.output,)):
            allowed = "' or a '".join(OUTPUTS[model.name])
            raise InputError(
                f"tasks.{name}.output is '{task.output}', but model.name '{model.name}' predicts a '{allowed}'"
            )
    _check_dependencies(model.dependencies, predictions)


def _check_esmm(predictions: list[str]) -> None:
    for name in predictions:
        if name not in ESMM:
            raise InputError(
                f"model.name is 'esmm', which predicts {', '.join(ESMM)}, but not '{name}'; give [tasks] these names, "
                "or set their prediction"
            )
    for name in ESMM[:2]:
        if name not in predictions:
            raise InputError(f"model.name is 'esmm', but no task is for its prediction '{name}'; add [tasks.{name}]")


def _check_dependencies(dependencies: dict[str, list[str]], predictions: list[str]) -> None:
    for name, others in dependencies.items():
        for one in (name, *others):
            if one not in predictions:
                raise InputError(
                    f"model.dependencies.{name} names '{one}', which no task is for{nearest(one, predictions)}"
                )
    try:
        TopologicalSorter(dependencies).prepare()
    except CycleError as error:
        circle = " <- ".join(error.args[1])
        raise InputError(f"model.dependencies lead in a circle: {circle}; leave one of them out") from error
