"""A task whose loss, output, columns and options do not suit each other is refused in one line."""

import pytest
from command import load_text

from trainer.config.root import Config
from trainer.core.errors import InputError

DATA = """
[data]
labels = ["click", "seconds"]
numeric_labels = ["seconds"]
groups = ["user"]
[data.sparse.s]
rows = 5
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tasks.click]\nloss = 'binry'", ["tasks.click.loss is 'binry'", "did you mean 'binary'?", "for your own"]),
        ("[model]\nloss = 'focl'", ["model.loss is 'focl'", "'focal'"]),
        ("[tasks.buy]", ["tasks.buy.label is 'buy'", "data.labels does not name", "it has: click, seconds"]),
        ("[tasks.click]\ngroup = 'click'", ["tasks.click.group is 'click'", "data.groups does not name", "user"]),
        ("[tasks.click]\nwhere = { column = 'user' }", ["tasks.click.where.column is 'user'", "data.labels"]),
        ("[tasks.click]\nwhere = { outside = 0.5 }", ["tasks.click.where.outside is 0.5", "where.column is unset"]),
        ("[tasks.click]\nwhere = { column = 'seconds', outside = -1.0 }", ["tasks.click.where.outside is -1.0"]),
        (
            "[tasks.click]\ngamma = 1.0",
            ["tasks.click.gamma is 1.0", "'binary' does not have", "leave it out", "use one of focal"],
        ),
        ("[tasks.click]\nloss = 'focal'\nlabel_smoothing = 0.1", ["label_smoothing is 0.1", "binary, softmax"]),
        ("[tasks.seconds]\nloss = 'squared'\ndelta = 2.0", ["delta is 2.0", "'squared' does not have", "huber"]),
        ("[tasks.click]\nstd = 2.0", ["tasks.click.mean is 0", "std is 2", "is a logit", "leave them out"]),
        ("[data.classes]\nclik = ['a', 'b']", ["data.classes.clik is set", "did you mean 'click'?"]),
        ("[data.classes]\nclick = ['a', 'b', 'c']", ["data.classes.click has 3 values", "data.numeric_labels lacks"]),
        ("[data.classes]\nclick = ['a', 1]", ["data.classes.click is ['a', 1]", "of one type"]),
        ("[tasks.click]\nacross = 'batch'", ["across is 'batch'", "jrc, bpr, in_batch_softmax"]),
        ("[tasks.click]\nacross = 'rank'", ["tasks.click.across is 'rank'", "'lane' or 'batch'"]),
        ("[tasks.click]\nloss = 'custom:one'\nalpha = 0.1", ["alpha is 0.1", "'custom:one' does not have"]),
        ("[tasks.click]\nlabel_smoothing = 1.0", ["tasks.click.label_smoothing is 1.0", "less than 1"]),
        ("[tasks.click]\nloss = 'in_batch_softmax'\ntemperature = 0.0", ["temperature is 0.0", "greater than 0"]),
        ("[tasks.click]\noutput = 'value'", ["tasks.click.output is 'value'", "takes a logit or log_probability"]),
        ("[tasks.click]\nloss = 'huber'\noutput = 'logit'", ["output is 'logit'", "'huber' takes a value"]),
        (
            "[tasks.seconds]",
            ["tasks.seconds.loss is 'binary'", "'seconds' is in data.numeric_labels", "softmax, squared, absolute"],
        ),
        ("", ["model.loss is 'binary'", "'seconds' is in data.numeric_labels"]),
        ("[tasks.click]\nloss = 'jrc'", ["tasks.click.loss is 'jrc'", "no group is set", "data.groups"]),
        (
            "[model]\nloss = 'focal'\n[tasks.click]",
            ["model.loss is 'focal'", "[tasks] set losses of their own", "leave it out"],
        ),
        (
            "[model]\ntask_weighting = 'uncertainty'\n[tasks.click]",
            ["model.task_weighting is 'uncertainty'", "only one loss", "'fixed'"],
        ),
        ("[model]\ntask_weighting = 'pareto'\nloss = 'custom:one'", ["model.task_weighting is 'pareto'", "only one"]),
        (
            "[model]\ntask_weighting = 'pareto'\n[train]\nmicro_batches = 2\n[tasks]\n"
            "click = {}\nagain = { label = 'click' }",
            ["model.task_weighting is 'pareto'", "train.micro_batches is 2", "use 1"],
        ),
        (
            "[model]\ntask_weighting = 'pareto'\n[train]\nprecision = 'fp16'\n[tasks]\n"
            "click = {}\nagain = { label = 'click' }",
            ["model.task_weighting is 'pareto'", "loss scale", "'bf16'"],
        ),
    ],
)
def test_what_does_not_suit_a_task_is_explained(tmp_path, text, words):
    with pytest.raises(InputError) as raised:
        load_text(tmp_path, text + DATA)
    assert all(part in str(raised.value) for part in words), raised.value
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("loss", "output"),
    [
        ("binary", "logit"),
        ("softmax", "logit"),
        ("squared", "value"),
        ("bpr", "logit"),
        ("in_batch_softmax", "vectors"),
        ("custom:one", "logit"),
    ],
)
def test_the_output_of_a_task_is_what_its_loss_takes(loss, output):
    task = {"label": "click", "loss": loss, "group": "user"}
    data, model = {"labels": ["click"], "groups": ["user"]}, {"name": "own:model"}
    config = Config.model_validate({"data": data, "model": model, "tasks": {"buy": task}})
    named = config.named_tasks()["buy"]
    assert (named.label, named.prediction, named.output) == ("click", "buy", output)


def test_every_label_is_a_task_with_the_loss_of_the_model():
    config = Config.model_validate({"data": {"labels": ["a", "b"]}, "model": {"loss": "focal"}})
    assert {name: (task.label, task.loss) for name, task in config.named_tasks().items()} == {
        "a": ("a", "focal"),
        "b": ("b", "focal"),
    }
