"""Configuration of the model, and whether it goes with the data and the tasks."""

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, Self

import pydantic

from trainer.config.data import DataConfig
from trainer.config.tasks import TaskConfig
from trainer.config.train import TrainConfig
from trainer.core.errors import InputError, nearest
from trainer.core.section import Section, flat

# The names of MODELS in trainer/models, which cannot be imported without torch, each with the keys that not all of
# them use. dlrm takes the keys of dlrm_dcn, as one configuration has served both.
USED_BY = {
    "dlrm": ("dense_layers", "over_layers", "over_embeddings", "cross_layers", "cross_rank"),
    "dlrm_dcn": ("dense_layers", "over_layers", "cross_layers", "cross_rank"),
    "deepfm": ("over_layers", "first_order_columns"),
    "wide_deep": ("over_layers", "first_order_columns"),
    "mmoe": ("experts.shared", "experts.layers", "tower_layers"),
    "ple": ("experts.shared", "experts.per_task", "experts.levels", "experts.layers", "tower_layers"),
    "esmm": ("tower_layers",),
    "din": ("over_layers", "history", "target", "inner_product", "attention_layers"),
    "sasrec": (
        *("over_layers", "history", "target", "attention_blocks", "attention_heads"),
        *("item_features", "normalize", "item_bias", "every_position"),
    ),
    "hstu": (
        *("over_layers", "history", "target", "attention_blocks", "attention_heads"),
        *("actions", "history_times", "target_time", "item_features", "normalize", "item_bias", "every_position"),
    ),
    "recency": (
        *("over_layers", "history", "target", "history_times", "target_time"),
        *("item_features", "normalize", "item_bias"),
    ),
    "dbmtl": ("over_layers", "tower_layers", "relation_layers", "dependencies"),
    "two_tower": ("item_features", "tower_layers", "vector_dim", "normalize", "item_bias"),
}
ESMM = ("ctr", "ctcvr", "cvr")  # cvr is part of ctcvr, and need not be asked for
OUTPUTS = {name: ("logit", "value", "log_value") for name in USED_BY} | {
    "esmm": ("log_probability",),
    "two_tower": ("vectors",),
}
RETRIEVES = ("sasrec", "hstu", "recency")  # what comes next, if model.item_features are given
OUTPUTS |= dict.fromkeys(RETRIEVES, ("logit", "value", "log_value", "vectors"))
CHOSEN = {key for keys in USED_BY.values() for key in keys} | {"arguments"}


class ExpertsConfig(Section):
    """The experts of mmoe and ple, networks whose outputs the gate of each task mixes."""

    shared: pydantic.PositiveInt = 4
    """Experts that all tasks share; of ple, on each level."""
    per_task: pydantic.PositiveInt = 2
    """Experts of ple that belong to one task, on each level."""
    levels: pydantic.PositiveInt = 2
    """Levels of ple; each mixes the outputs of the level before."""
    layers: list[pydantic.PositiveInt] = pydantic.Field(default=[256, 128], min_length=1)
    """Layers of each expert."""


class ModelConfig(Section):
    """The model and its loss."""

    name: str = "dlrm"
    """dlrm, dlrm_dcn, deepfm, wide_deep, mmoe, ple, esmm, dbmtl, din, sasrec, hstu, recency, two_tower
    (docs/guides/models.md), or package.module:function for a model of your own (see docs/tutorials/your_model.md)."""
    loss: str = "binary"
    """Without [tasks], the loss of every label (docs/guides/tasks.md), or package.module:function over all of them."""
    task_weighting: Literal["fixed", "uncertainty", "pareto"] = "fixed"
    """How the losses of several tasks are combined: by their weights, by learned variances, or by their gradients."""
    embedding_dim: pydantic.PositiveInt = 64
    """Columns of every table that does not set its own; dlrm, dlrm_dcn and deepfm need the same for all tables."""
    table_precision: Literal["fp32", "fp16"] = "fp32"
    """Precision of the tables' weights; fp16 halves their memory. Their optimizer's state stays float32."""
    table_init: pydantic.PositiveFloat | None = None
    """Initial weights of tables are uniform between minus this and this. Unset: 1/sqrt(rows) of each table. A small
    bound, such as 0.001, has ids that were never trained answer almost as zeros."""
    dense_layers: list[pydantic.PositiveInt] = [512, 256]
    """Hidden layers of dlrm and dlrm_dcn over the dense features; a layer of embedding_dim follows. Without dense
    features: unused, a learned vector takes their place."""
    over_layers: list[pydantic.PositiveInt] = [512, 512, 256]
    """Hidden layers over all features or, in dlrm and dlrm_dcn, over their interactions; a layer with an output per
    label follows. In dbmtl, the layers that all tasks share."""
    over_embeddings: bool = False
    """Let the over_layers of dlrm see the embeddings, too, not only their inner products."""
    first_order_columns: pydantic.NonNegativeInt = 0
    """Columns of each table that deepfm and wide_deep keep for the linear part, as weights of its own for each id. 0:
    the linear part sees the columns that the other parts see."""
    dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of the values that each hidden layer, and each block of sasrec and hstu, loses at random in training; in
    recency, of the items of the history."""
    activation: Literal["relu", "gelu", "silu", "leaky_relu"] = "relu"
    """The function after each hidden layer; hstu has SiLU in its units, whatever is set here."""
    normalization: Literal["none", "batch", "layer"] = "none"
    """What each hidden layer is normalized over, before its activation: nothing, the samples of the global batch, or
    its columns. With batch and Adam, set optimizer.dense.eps to 1e-6, or rounding decides on some weights. Not in the
    attention of din; sasrec and hstu always normalize their blocks over columns."""
    cross_layers: pydantic.PositiveInt = 3
    """Cross layers of dlrm_dcn."""
    cross_rank: pydantic.PositiveInt = 512
    """Rank of the low-rank cross layers of dlrm_dcn."""
    tower_layers: list[pydantic.PositiveInt] = [64]
    """Hidden layers of each task's tower in mmoe, ple, esmm and dbmtl, and of both towers of two_tower."""
    item_features: list[str] = []
    """The dense and sparse features of the item, in two_tower and in data.catalogue; all others are the query's. With
    model.target alone, sasrec, hstu and recency find the next item instead of predicting the labels of the target."""
    vector_dim: pydantic.PositiveInt = 64
    """Dimensions of the vectors of two_tower."""
    normalize: bool = True
    """Scale the vectors of query and item to a length of 1, so that their inner product is a cosine."""
    item_bias: bool = False
    """Let the first column of an item's vector be its bias, a learned popularity: in the query's vector it is 1."""
    experts: ExpertsConfig = ExpertsConfig()
    dependencies: dict[str, list[str]] = {}
    """In dbmtl, the predictions that a prediction depends on, as in `buy = ["click"]`."""
    relation_layers: list[pydantic.PositiveInt] = [32]
    """Hidden layers of dbmtl over a task's tower and the tasks that it depends on."""
    target: str | None = None
    """The sparse feature, of pooling none, with the item that din, sasrec, hstu and recency predict the labels of."""
    history: str | None = None
    """The sparse feature, of pooling none, with a user's earlier items for din, sasrec, hstu and recency. Unset: the
    same network without a history, to measure what the history adds."""
    actions: list[str] = []
    """Sparse features, of pooling none, with what the user did to each item of hstu's history, such as a rating; their
    weights, such as the seconds that the user spent, multiply the embeddings."""
    history_times: str | None = None
    """The sparse feature, of pooling raw, with the second of each item of the history of hstu and recency."""
    target_time: str | None = None
    """The sparse feature, of pooling raw, with the second of the target, or for which the next item is to be found."""
    inner_product: bool = False
    """Let the history of din reach the logits by an inner product with the target alone, not through over_layers,
    which memorize the histories of a small data set."""
    attention_layers: list[pydantic.PositiveInt] = [32]
    """Hidden layers of din over each item of the history and the target."""
    attention_blocks: pydantic.PositiveInt = 1
    """Self-attention blocks of sasrec, and units of hstu."""
    attention_heads: pydantic.PositiveInt = 1
    """Heads of each block of sasrec and hstu; they must divide the columns of the table."""
    every_position: bool = False
    """Train sasrec and hstu, where they find the next item, at every position of a history and not only at its end."""
    arguments: dict[str, Any] = {}
    """Values for a model of your own."""

    @property
    def retrieves(self) -> bool:
        """Whether a model of sequences finds the next item."""
        return self.name in RETRIEVES and bool(self.item_features)

    @pydantic.model_validator(mode="after")
    def _keys_are_used(self) -> Self:
        given = flat(self.model_dump(exclude_defaults=True))
        for path, value in given.items():
            key = next((key for key in (".".join(path), path[0]) if key in CHOSEN), None)
            if key and self.name in USED_BY and key not in USED_BY[self.name]:
                users = ", ".join(name for name, keys in USED_BY.items() if key in keys) or "package.module:function"
                raise InputError(
                    f"model.{'.'.join(path)} is {value!r}, which model.name '{self.name}' does not use; leave it out, "
                    f"or use {users}"
                )
        return self


def check_model(
    model: ModelConfig, data: DataConfig, tasks: dict[str, TaskConfig], train: TrainConfig, losses: int
) -> None:
    """Refuses a model that does not go with the data, the tasks or the way it is trained.

    Args:
        model: The model.
        data: The data.
        tasks: The tasks by name, with label and prediction set.
        train: How the model is trained.
        losses: Number of losses: one for each task, or a single one over all labels.

    Raises:
        InputError: The message names the key, the value and what to do.
    """
    _check_weighting(model, train, losses)
    _check_normalization(model, train)
    _check_sequences(model, data)
    _check_predictions(model, tasks)
    _check_item_features(model, data)
    _check_catalogue(model, data, tasks)
    _check_every_position(model, data, tasks)


def _check_weighting(model: ModelConfig, train: TrainConfig, losses: int) -> None:
    key = f"model.task_weighting is '{model.task_weighting}'"
    if model.task_weighting != "fixed" and losses < 2:
        raise InputError(f"{key}, but there is only one loss to weigh; name several [tasks], or use 'fixed'")
    if model.task_weighting != "pareto":
        return
    if train.micro_batches > 1:
        raise InputError(
            f"{key}, which needs the gradients of a whole batch, but train.micro_batches is {train.micro_batches}; "
            "use 1 or another weighting"
        )
    if train.scales_loss:
        raise InputError(f"{key}, which sees gradients without the loss scale; use train.precision 'bf16' or 'fp32'")


def _check_normalization(model: ModelConfig, train: TrainConfig) -> None:
    if model.normalization == "batch" and train.micro_batches > 1:
        raise InputError(
            f"model.normalization is 'batch', over the samples of a whole batch, but train.micro_batches is "
            f"{train.micro_batches}, which computes one part after the other; use 1, or 'layer'"
        )


def _check_sequences(model: ModelConfig, data: DataConfig) -> None:
    """Refuses sequences that the model does not read, and roles of the model that name no sequence."""
    _check_dimensions(model, data)
    if model.name not in USED_BY:
        return
    roles = {key: getattr(model, key) for key in ("target", "history") if key in USED_BY[model.name]}
    if "target" in roles:
        _check_roles(roles, model, data)
    _check_beside_history(model, data)
    for name in data.raw:
        if name not in (model.history_times, model.target_time, *data.catalogue.exclude):
            raise InputError(
                f"data.sparse.{name}.pooling is 'raw', but model.name '{model.name}' does not read '{name}'; use it "
                "with model.name hstu or recency as model.history_times or model.target_time, or leave the feature out"
            )
    for name in data.sequences:
        if name not in (*roles.values(), *model.actions):
            readers = ", ".join(reader for reader, keys in USED_BY.items() if "target" in keys)
            what = "as model.target or model.history" if roles else f"with model.name {readers}"
            raise InputError(
                f"data.sparse.{name}.pooling is 'none', but model.name '{model.name}' does not read '{name}'; use it "
                f"{what}, set pooling to 'sum' or 'mean', or leave the feature out"
            )
        if (weights := data.sparse[name].weights) and name not in model.actions:
            raise InputError(
                f"data.sparse.{name}.weights is '{weights}', but its pooling is 'none' and model.actions "
                f"lacks '{name}'; name it there, set pooling to 'sum' or 'mean', or leave weights out"
            )


def _check_dimensions(model: ModelConfig, data: DataConfig) -> None:
    # TorchRec's collection of sequences has one dimension.
    dimensions = {name: data.sparse[name].dimension or model.embedding_dim for name in data.sequences}
    for name, dimension in dimensions.items():
        first = next(iter(dimensions))
        if dimension != dimensions[first]:
            raise InputError(
                f"data.sparse.{name} has the dimension {dimension}, but data.sparse.{first} has {dimensions[first]}; "
                "features of pooling 'none' must all have the same"
            )


def _check_roles(roles: dict[str, str | None], model: ModelConfig, data: DataConfig) -> None:
    target = roles["target"]
    if target is None:
        raise InputError(
            f"model.target is unset, which model.name '{model.name}' needs; name the sparse feature with the item that "
            "the labels are about"
        )
    for key, name in roles.items():
        if name is None:
            continue
        if name not in data.sparse:
            raise InputError(f"model.{key} is '{name}', which is no sparse feature{nearest(name, data.sparse)}")
        if name not in data.sequences:
            raise InputError(
                f"model.{key} is '{name}', but data.sparse.{name}.pooling is '{data.sparse[name].pooling}'; set it to "
                "'none', and max_ids"
            )
    if roles["history"] == target:
        raise InputError(f"model.history and model.target are both '{target}'; name two features")
    if data.sequences[target] != 1:
        raise InputError(
            f"data.sparse.{target}.max_ids is {data.sequences[target]}, but model.target is '{target}', which is one "
            "item; set it to 1"
        )
    dimension = data.sparse[target].dimension or model.embedding_dim
    if dimension % model.attention_heads:
        raise InputError(
            f"model.attention_heads is {model.attention_heads}, which does not divide the dimension {dimension} of "
            f"data.sparse.{target}; use a divisor of it"
        )


def _check_beside_history(model: ModelConfig, data: DataConfig) -> None:
    """Refuses features of hstu that are not what they have to be beside the history."""
    if bool(model.history_times) != bool(model.target_time):
        raise InputError(
            f"model.history_times is {model.history_times!r} and model.target_time is {model.target_time!r}; set both "
            "or none"
        )
    longest = data.sequences.get(model.history or "")
    beside = [
        *(("actions", name, "none", longest) for name in model.actions),
        ("history_times", model.history_times, "raw", longest),
        ("target_time", model.target_time, "raw", 1),
    ]
    for key, name, pooling, length in beside:
        if name is None:
            continue
        if longest is None:
            raise InputError(f"model.{key} names '{name}', but model.history is unset; set it")
        if name not in data.sparse:
            raise InputError(f"model.{key} names '{name}', which is no sparse feature{nearest(name, data.sparse)}")
        alike = () if key == "target_time" else ("keep", "times", "before", "within_seconds", "without")
        rules = {"pooling": pooling, "max_ids": length}
        history = data.sparse[str(model.history)]
        rules |= {rule: getattr(history, rule) for rule in alike}
        if alike and history.without:
            rules["without_in"] = history.without_in or history.column or model.history
        for rule, wanted in rules.items():
            if (found := getattr(data.sparse[name], rule)) != wanted:
                remedy = "leave it out" if wanted is None else f"set it to {wanted!r}"
                raise InputError(f"data.sparse.{name}.{rule} is {found!r}, but model.{key} names '{name}'; {remedy}")


def _check_predictions(model: ModelConfig, tasks: dict[str, TaskConfig]) -> None:
    """Refuses tasks that a built-in model does not predict, and dependencies on predictions that do not exist."""
    predictions = [str(task.prediction) for task in tasks.values()]
    if model.name == "esmm":
        _check_esmm(predictions)
    if model.name in RETRIEVES:
        _check_retrieval(model, tasks)
    for name, task in tasks.items():
        if task.output not in OUTPUTS.get(model.name, (task.output,)):
            allowed = "' or a '".join(OUTPUTS[model.name])
            raise InputError(
                f"tasks.{name}.output is '{task.output}', but model.name '{model.name}' predicts a '{allowed}'"
            )
    _check_dependencies(model.dependencies, predictions)


def _check_every_position(model: ModelConfig, data: DataConfig, tasks: dict[str, TaskConfig]) -> None:
    """Refuses to train at every position what has no next item, or other losses than that of drawn negatives."""
    if not model.every_position:
        return
    given = "model.every_position is true"
    if not model.retrieves:
        raise InputError(f"{given}, but model.item_features is empty; set it to find the next item, or leave both out")
    for name, task in tasks.items():
        if task.loss != "sampled_softmax":
            raise InputError(f"{given}, but tasks.{name}.loss is '{task.loss}'; use 'sampled_softmax'")
    if column := data.catalogue.hard_negatives:
        raise InputError(
            f"{given}, but data.catalogue.hard_negatives is '{column}', the negatives of a sample's own item; leave "
            "one of them out"
        )
    here, there = (data.table_of(str(name)) for name in (model.history, model.target))
    if here != there:
        raise InputError(
            f"{given}, but model.history '{model.history}' has the table '{here}' and model.target '{model.target}' "
            f"'{there}'; an item of the history is a target, too, so give both one table"
        )


def _check_retrieval(model: ModelConfig, tasks: dict[str, TaskConfig]) -> None:
    """Refuses tasks that rank in a model that finds the next item, and the other way round."""
    for name, task in tasks.items():
        if (task.output == "vectors") != model.retrieves:
            takes = "find the next item, with a loss of vectors" if model.retrieves else "predict labels"
            raise InputError(
                f"tasks.{name}.output is '{task.output}', but model.item_features is {model.item_features}, with which "
                f"model.name '{model.name}' is to {takes}; change one of them"
            )


def _check_esmm(predictions: list[str]) -> None:
    for name in predictions:
        if name not in ESMM:
            raise InputError(
                f"model.name is 'esmm', which predicts {', '.join(ESMM)}, but not '{name}'; give [tasks] these names, "
                "or set their prediction"
            )
    for name in ESMM[:2]:
        if name not in predictions:
            raise InputError(f"model.name is 'esmm', but no task has its prediction '{name}'; add [tasks.{name}]")


def _check_dependencies(dependencies: dict[str, list[str]], predictions: list[str]) -> None:
    for name, others in dependencies.items():
        for one in (name, *others):
            if one not in predictions:
                raise InputError(
                    f"model.dependencies.{name} names '{one}', which no task predicts{nearest(one, predictions)}"
                )
    try:
        TopologicalSorter(dependencies).prepare()
    except CycleError as error:
        cycle = " <- ".join(error.args[1])
        raise InputError(f"model.dependencies form a cycle: {cycle}; leave one of them out") from error


def _check_item_features(model: ModelConfig, data: DataConfig) -> None:
    known = [*data.dense, *data.sparse]
    for name, times in Counter(model.item_features).items():
        if name not in known:
            raise InputError(
                f"model.item_features names '{name}', which neither data.dense nor data.sparse has"
                f"{nearest(name, known)}"
            )
        if times > 1:
            raise InputError(f"model.item_features names '{name}' {times} times; name each feature once")
    if model.retrieves and model.item_features != [model.target]:
        raise InputError(
            f"model.item_features is {model.item_features}, but model.name '{model.name}' finds items by "
            f"model.target alone; set it to ['{model.target}']"
        )
    read = (model.target, model.history, *model.actions, model.history_times, model.target_time)
    unread = {name for name in data.raw if name in data.catalogue.exclude}
    for name in known if model.retrieves else ():
        if name not in (*read, *unread) or model.history is None:
            what = f"does not read '{name}'" if model.history else "needs model.history"
            raise InputError(f"model.item_features is set, but model.name '{model.name}' {what} to find the next item")
    if model.name == "two_tower" and not 0 < len(model.item_features) < len(known):
        lacks = "the query" if model.item_features else "the item"
        raise InputError(
            f"model.item_features is {model.item_features}, which leaves no feature for {lacks}; name those of the "
            "item, and no others"
        )


def _check_catalogue(model: ModelConfig, data: DataConfig, tasks: dict[str, TaskConfig]) -> None:
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
