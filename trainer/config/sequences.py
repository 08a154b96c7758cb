"""Checks that a model and the sequences in its data belong together."""

from trainer.config.data import DataConfig
from trainer.config.model import USED_BY, ModelConfig
from trainer.core.errors import InputError, nearest


def check_sequences(data: DataConfig, model: ModelConfig) -> None:
    """Refuses sequences that the model does not read, and keys of the model that name no sequence.

    Raises:
        InputError: The message names the key, the value and what to do.
    """
    _check_dimensions(data, model)
    if model.name not in USED_BY:
        return
    roles = {key: getattr(model, key) for key in ("target", "history") if key in USED_BY[model.name]}
    if "target" in roles:
        _check_roles(roles, data, model)
    for name in data.sequences:
        if name not in roles.values():
            readers = ", ".join(reader for reader, keys in USED_BY.items() if "target" in keys)
            what = "as model.target or model.history" if roles else f"with model.name {readers}"
            raise InputError(
                f"data.sparse.{name}.pooling is 'none', but model.name '{model.name}' does not read '{name}'; use it "
                f"{what}, set pooling to 'sum' or 'mean', or leave the feature out"
            )


def _check_dimensions(data: DataConfig, model: ModelConfig) -> None:
    # TorchRec's collection of sequences has one dimension.
    dimensions = {name: data.sparse[name].dimension or model.embedding_dim for name in data.sequences}
    for name, dimension in dimensions.items():
        first = next(iter(dimensions))
        if dimension != dimensions[first]:
            raise InputError(
                f"data.sparse.{name} has the dimension {dimension}, but data.sparse.{first} has {dimensions[first]}; "
                "features of pooling 'none' must all have the same"
            )


def _check_roles(roles: dict[str, str | None], data: DataConfig, model: ModelConfig) -> None:
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
        raise InputError(f"model.history is '{target}', and model.target is, too; name two features")
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
