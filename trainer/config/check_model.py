"""Whether a model goes with the data, the tasks and the way it is trained."""

from collections import Counter
from graphlib import CycleError, TopologicalSorter

from trainer.config.data import DataConfig
from trainer.config.model import ESMM, OUTPUTS, RETRIEVES, USED_BY, ModelConfig
from trainer.config.tasks import WITH_NEGATIVES, TaskConfig
from trainer.config.train import TrainConfig
from trainer.core.errors import InputError, nearest
from trainer.core.secrets import place

OF_TARGET = ("target_attributes", "context", "target_time")  # features of single ids


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
    _check_tables(model, data)
    _check_weighting(model, train, losses)
    _check_normalization(model, train)
    _check_sequences(model, data)
    _check_predictions(model, tasks)
    _check_item_features(model, data)
    _check_gates(model, data)
    _check_heads(model)
    _check_catalogue(model, data, tasks)
    _check_every_position(model, data, tasks)


def _check_tables(model: ModelConfig, data: DataConfig) -> None:
    tables = data.features_of_tables()
    for name, table in model.tables.items():
        if name not in tables:
            raise InputError(f"model.tables.{name}: there is no such table{nearest(name, tables)}")
        if table.vectors and name in data.managed_tables:
            raise InputError(
                f"model.tables.{name}.vectors is {place(table.vectors)}, but the table's ids are 'managed', which have "
                "no rows before they are seen; use 'vocabulary', or leave it out"
            )


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
    if model.normalization == "batch" and train.recompute:
        raise InputError(
            "model.normalization is 'batch', whose running means would move twice in a step, but train.recompute is "
            "true; leave that out, or use 'layer'"
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
    _check_attributes(model, data)
    read = {*roles.values(), *model.actions, *model.history_attributes, *model.target_attributes, *model.context}
    read |= {model.history_times, model.target_time}
    for name in data.raw:
        if name not in (*read, *data.catalogue.had):
            raise InputError(
                f"data.sparse.{name}.pooling is 'raw', but model.name '{model.name}' does not read '{name}'; use it "
                "with model.name bst, hstu, dlrm_hstu or recency as model.history_times or model.target_time, or leave "
                "the feature out"
            )
    for name in data.sequences:
        if name not in read:
            readers = ", ".join(reader for reader, keys in USED_BY.items() if "target" in keys)
            what = "as model.target or model.history" if roles else f"with model.name {readers}"
            raise InputError(
                f"data.sparse.{name}.pooling is 'none', but model.name '{model.name}' does not read '{name}'; use it "
                f"{what}, set pooling to 'sum' or 'mean', or leave the feature out"
            )
        if (weights := data.sparse[name].weights) and name not in model.actions:
            raise InputError(
                f"data.sparse.{name}.weights is {weights!r}, but its pooling is 'none' and model.actions "
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
    """Refuses features that are not what they have to be beside the history and the target."""
    if bool(model.history_times) != bool(model.target_time):
        raise InputError(
            f"model.history_times is {model.history_times!r} and model.target_time is {model.target_time!r}; set both "
            "or none"
        )
    longest = data.sequences.get(model.history or "")
    of_actions = "raw" if model.name == "dlrm_hstu" else "none"
    beside = [
        *(("actions", name, of_actions, longest) for name in model.actions),
        *(("history_attributes", name, "none", longest) for name in model.history_attributes),
        *(("target_attributes", name, "none", 1) for name in model.target_attributes),
        *(("context", name, "none", 1) for name in model.context),
        ("history_times", model.history_times, "raw", longest),
        ("target_time", model.target_time, "raw", 1),
    ]
    for key, name, pooling, length in beside:
        if name is None:
            continue
        if longest is None and key not in OF_TARGET:
            raise InputError(f"model.{key} names '{name}', but model.history is unset; set it")
        if name not in data.sparse:
            raise InputError(f"model.{key} names '{name}', which is no sparse feature{nearest(name, data.sparse)}")
        alike = () if key in OF_TARGET else ("keep", "times", "before", "within_seconds", "without")
        rules = {"pooling": pooling, "max_ids": length}
        if alike:
            history = data.sparse[str(model.history)]
            rules |= {rule: getattr(history, rule) for rule in alike}
            if history.without:
                rules["without_in"] = history.without_in or history.column or model.history
        for rule, wanted in rules.items():
            if (found := getattr(data.sparse[name], rule)) != wanted:
                remedy = "leave it out" if wanted is None else f"set it to {wanted!r}"
                raise InputError(f"data.sparse.{name}.{rule} is {found!r}, but model.{key} names '{name}'; {remedy}")


def _check_attributes(model: ModelConfig, data: DataConfig) -> None:
    """Refuses actions and attributes that dlrm_hstu cannot put into one token with their item."""
    if model.name != "dlrm_hstu":
        return
    if len(model.actions) > 1:
        raise InputError(
            f"model.actions is {model.actions}, but model.name 'dlrm_hstu' reads one feature with the sum of bits, one "
            "for each kind of action; name one"
        )
    for name in model.actions:
        if (rows := data.sparse[name].rows) > 2**model.action_bits:
            raise InputError(
                f"model.action_bits is {model.action_bits}, for numbers below {2**model.action_bits}, but data.sparse."
                f"{name}.rows is {rows}; set one of them"
            )
    given = f"model.history_attributes is {model.history_attributes} and model.target_attributes is "
    given += f"{model.target_attributes}"
    if model.history and len(model.history_attributes) != len(model.target_attributes):
        raise InputError(f"{given}; name the same attributes in both")
    for past, now in zip(model.history_attributes, model.target_attributes, strict=False):
        if data.table_of(past) != data.table_of(now):
            raise InputError(
                f"{given}, but '{past}' has the table '{data.table_of(past)}' and '{now}' the table "
                f"'{data.table_of(now)}'; name attributes of one table at the same place"
            )


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
    if model.name == "mind" and not model.retrieves:
        raise InputError(
            f"model.item_features is [], but model.name 'mind' only finds the next item; set it to ['{model.target}']"
        )
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
    _check_features("model.item_features", model.item_features, data)
    if model.retrieves and model.item_features != [model.target]:
        raise InputError(
            f"model.item_features is {model.item_features}, but model.name '{model.name}' finds items by "
            f"model.target alone; set it to ['{model.target}']"
        )
    read = (model.target, model.history, *model.actions, model.history_times, model.target_time)
    unread = {name for name in data.raw if name in data.catalogue.had}
    for name in known if model.retrieves else ():
        is_read = model.name == "mind" or name in (*read, *unread)  # with all features of the user
        if not is_read or model.history is None:
            what = f"does not read '{name}'" if model.history else "needs model.history"
            raise InputError(f"model.item_features is set, but model.name '{model.name}' {what} to find the next item")
    if model.name == "two_tower" and not 0 < len(model.item_features) < len(known):
        lacks = "the query" if model.item_features else "the item"
        raise InputError(
            f"model.item_features is {model.item_features}, which leaves no feature for {lacks}; name those of the "
            "item, and no others"
        )


def _check_features(key: str, names: list[str], data: DataConfig) -> None:
    known = [*data.dense, *data.sparse]
    for name, times in Counter(names).items():
        if name not in known:
            raise InputError(
                f"{key} names '{name}', which neither data.dense nor data.sparse has{nearest(name, known)}"
            )
        if times > 1:
            raise InputError(f"{key} names '{name}' {times} times; name each feature once")


def _check_gates(model: ModelConfig, data: DataConfig) -> None:
    """Refuses gates over features that do not exist, and a pepnet without any gate or without what a gate scales."""
    gates = model.gates
    for key in ("first", "second", "domain", "personal"):
        _check_features(f"model.gates.{key}", getattr(gates, key), data)
    if model.name != "pepnet":
        return
    if not (gates.domain or gates.personal):
        raise InputError(
            "model.name is 'pepnet', but model.gates.domain and model.gates.personal are empty; name features in one "
            "of them, or use model.name dbmtl, which has no gates"
        )
    if gates.personal and not model.tower_layers:
        raise InputError(
            "model.tower_layers is empty, so that there is no hidden layer for model.gates.personal to scale; name at "
            "least one, or leave model.gates.personal out"
        )


def _check_heads(model: ModelConfig) -> None:
    """Refuses heads that do not divide what they are to divide."""
    if model.name == "autoint" and model.attention_dim % model.attention_heads:
        raise InputError(
            f"model.attention_heads is {model.attention_heads}, which does not divide model.attention_dim "
            f"{model.attention_dim}; use a divisor of it"
        )
    if model.name != "finalmlp":
        return
    if not model.over_layers:
        raise InputError("model.over_layers is empty; name at least one hidden layer")
    for key in ("over_layers", "second_layers"):
        if (layers := getattr(model, key)) and layers[-1] % model.fusion_heads:
            raise InputError(
                f"model.fusion_heads is {model.fusion_heads}, which does not divide {layers[-1]}, the last of "
                f"model.{key}; use a divisor of it"
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
    _check_had(model, data, tasks)


def _check_had(model: ModelConfig, data: DataConfig, tasks: dict[str, TaskConfig]) -> None:
    """Refuses items that are to be no negatives where there are none, or where they could not be found."""
    names, key = data.catalogue.negatives_not_in, "data.catalogue.negatives_not_in"
    if not names:
        return
    compared = {name: task for name, task in tasks.items() if task.loss in WITH_NEGATIVES}
    if not compared:
        raise InputError(
            f"{key} is {names}, but no task has the loss 'sampled_softmax' or 'in_batch_softmax', which has negatives; "
            "leave it out or set the loss"
        )
    for name, task in compared.items():
        if task.group != data.catalogue.id:
            raise InputError(
                f"{key} is {names}, which needs the item of each sample, but tasks.{name}.group is {task.group!r}; set "
                f"it to data.catalogue.id, '{data.catalogue.id}'"
            )
    for name in names:
        if name in model.item_features:
            raise InputError(f"{key} names '{name}', which is the item's own feature; name one of the query")
        if model.every_position and data.table_of(name) != data.table_of(str(model.target)):
            raise InputError(
                f"{key} names '{name}', but with model.every_position items are found in the table of model.target, "
                f"'{data.table_of(str(model.target))}'; name features of that table, such as model.history"
            )
