"""Finds the rules of features by their keys."""

from trainer.core.errors import OWN, InputError, nearest
from trainer.rules.base import IdRule, SparseKeys
from trainer.rules.error import Error
from trainer.rules.hash import Hash
from trainer.rules.managed import Managed
from trainer.rules.modulo import Modulo
from trainer.rules.own import OwnRule
from trainer.rules.vocabulary import Listed

ID_RULES: dict[str, type[IdRule]] = {
    "error": Error,
    "modulo": Modulo,
    "hash": Hash,
    "vocabulary": Listed,
    "managed": Managed,
}


def check_id_rule(key: str, feature: SparseKeys) -> None:
    """Refuses unknown names of rules, and options of built-in rules.

    Raises:
        InputError: The message names the key.
    """
    if feature.ids not in ID_RULES and ":" not in feature.ids:
        raise InputError(f"{key}.ids is '{feature.ids}'{nearest(feature.ids, ID_RULES, OWN)}")
    if feature.options and feature.ids in ID_RULES:
        raise InputError(
            f"{key}.options is {feature.options}, but {key}.ids is '{feature.ids}', which is no rule of your own; "
            "leave options out"
        )


def lists_ids(feature: SparseKeys) -> bool:
    """Returns whether a row of the feature's table belongs to one id."""
    return feature.ids in ID_RULES and ID_RULES[feature.ids].lists_ids


def keeps_rows(feature: SparseKeys) -> bool:
    """Returns whether ids keep their rows when the feature's table gets more."""
    return feature.ids in ID_RULES and ID_RULES[feature.ids].keeps_rows


def id_rule(name: str, feature: SparseKeys) -> IdRule:
    """Returns the rule for the ids of a sparse feature.

    Raises:
        InputError: The user's own rule cannot be imported, or does not take its options.
    """
    return ID_RULES.get(feature.ids, OwnRule)(name, feature)
