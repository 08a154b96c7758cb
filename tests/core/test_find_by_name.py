"""Losses, metrics, readers, models and schedules are found by name."""

import re
from fractions import Fraction

import pytest

from trainer.core.registry import find_by_name

REGISTRY = {"object": len, "lazy": "fractions:Fraction"}


@pytest.mark.parametrize(("name", "expected"), [("object", len), ("lazy", Fraction), ("fractions:Fraction", Fraction)])
def test_names_lead_to_objects(name, expected):
    assert find_by_name("model.loss", name, REGISTRY) is expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("objet", "model.loss is 'objet'; did you mean 'object'? If not, name package.module:object for your own"),
        ("xyz", "model.loss is 'xyz'; known: lazy, object; name package.module:object for your own"),
        ("nowhere:x", "model.loss is 'nowhere:x', which cannot be imported: No module named 'nowhere'"),
        ("fractions:Fracton", "has no attribute 'Fracton'; did you mean 'fractions:Fraction'?"),
        ("fractions:x", "model.loss is 'fractions:x', which cannot be imported: module 'fractions' has no attribute"),
    ],
)
def test_unknown_names_are_the_users_mistake(name, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        find_by_name("model.loss", name, REGISTRY)


def test_a_broken_built_in_is_a_bug():
    with pytest.raises(ModuleNotFoundError):
        find_by_name("model.loss", "broken", {"broken": "nowhere:x"})
