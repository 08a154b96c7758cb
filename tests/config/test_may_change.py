"""Keys of a configuration that may change when a run is resumed: the marked ones, and no others."""

from typing import Annotated, Any

import pytest
from command import run_trainer, write_config
from jobs import config

from trainer.core.section import MayChange, Section, changed_keys, named_on_one_side


class Feature(Section):
    """One of several named things."""

    rows: int
    scale: float = 1.0
    note: Annotated[str, MayChange] = ""


class Choice(Section):
    """One of several named things, all of whose keys may change."""

    kinds: Annotated[list[str], MayChange] = []


class Part(Section):
    """A section of the root."""

    former = {"left": (0, "which is left; leave it out")}
    seed: int = 0
    threads: Annotated[int | None, MayChange] = None
    weight: str | None = None
    features: dict[str, Feature] = {}
    choices: dict[str, Choice] = {}
    arguments: dict[str, Any] = {}


class Root(Section):
    """The root."""

    part: Part = Part()


def both_ways(earlier, now):
    """The keys that changed, which are the same when the two configurations change places."""
    forth = list(changed_keys(Root, {"part": earlier}, {"part": now}))
    back = list(changed_keys(Root, {"part": now}, {"part": earlier}))
    assert back == [(key, after, before) for key, before, after in forth]
    return forth


@pytest.mark.parametrize(
    ("earlier", "now", "changed"),
    [
        ({"seed": 1}, {"seed": 2}, [("part.seed", 1, 2)]),
        ({}, {"seed": 2}, [("part.seed", 0, 2)]),
        ({}, {"weight": "w"}, [("part.weight", None, "w")]),
        ({"gone": 1}, {}, [("part.gone", 1, None)]),
        ({"seed": 1, "weight": "w"}, {"seed": 2}, [("part.seed", 1, 2), ("part.weight", "w", None)]),
        ({"features": {"a": {"rows": 1}}}, {"features": {"a": {"rows": 2}}}, [("part.features.a.rows", 1, 2)]),
        (
            {"features": {"a": {"rows": 1}}},
            {"features": {"a": {"rows": 1, "scale": 2.0}}},
            [("part.features.a.scale", 1.0, 2.0)],
        ),
        ({}, {"features": {"a": {"rows": 1}}}, [("part.features.a.rows", None, 1)]),
        ({}, {"features": {"a": {"scale": 1.0}}}, [("part.features.a.scale", None, 1.0)]),
        (
            {"features": {"a.rows": {"rows": 1}}},
            {"features": {"a.rows": {"rows": 2}}},
            [("part.features.a.rows.rows", 1, 2)],
        ),
        (
            {"features": {"part.note": {"rows": 1, "note": "x", "scale": 3.0}}},
            {"features": {"part.note": {"rows": 1, "note": "y"}}},
            [("part.features.part.note.scale", 3.0, 1.0)],
        ),
        ({"arguments": {"depth": 1}}, {"arguments": {"depth": 2}}, [("part.arguments.depth", 1, 2)]),
        ({}, {"arguments": {"deep": {"er": 2}}}, [("part.arguments.deep.er", None, 2)]),
        (
            {"features": {"a": {"rows": 1}, "b": {"rows": 2}}},
            {"features": {"b": {"rows": 2}, "a": {"rows": 1}}},
            [("part.features", ["a", "b"], ["b", "a"])],
        ),
    ],
)
def test_a_key_without_the_mark_may_not_change(earlier, now, changed):
    assert both_ways(earlier, now) == changed


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        ({"threads": 1}, {"threads": 2}),
        ({"left": 1}, {}),
        ({}, {"threads": 2}),
        ({}, {"seed": 0}),
        ({"features": {"a": {"rows": 1}}}, {"features": {"a": {"rows": 1, "scale": 1.0}}}),
        ({"features": {"a.b": {"rows": 1, "note": "x"}}}, {"features": {"a.b": {"rows": 1}}}),
        ({"choices": {"seed": {"kinds": ["x"]}}}, {"choices": {"seed": {"kinds": []}}}),
        ({}, {"choices": {"seed": {"kinds": ["x"]}}}),
        ({"choices": {"a": {}, "b": {}}}, {"choices": {"b": {}, "a": {}}}),
        ({"arguments": {"a": 1, "b": 2}}, {"arguments": {"b": 2, "a": 1}}),
    ],
)
def test_a_marked_key_may_change_and_a_missing_one_has_its_default(earlier, now):
    assert both_ways(earlier, now) == []


def test_a_section_that_an_earlier_configuration_lacks_has_its_defaults():
    assert list(changed_keys(Root, {}, {"part": {"seed": 0}})) == []
    assert list(changed_keys(Root, {}, {"part": {"seed": 1}})) == [("part.seed", 0, 1)]


@pytest.mark.parametrize(
    ("earlier", "now", "expected"),
    [
        ({"features": {"a": {"rows": 1}}}, {}, {"part.features": (["a"], [])}),
        ({"features": {"a": {"rows": 1}}}, {"features": {"b": {"rows": 1}}}, {"part.features": (["a"], ["b"])}),
        ({}, {"features": {"a": {"note": "x"}}, "choices": {"b": {"kinds": ["x"]}}, "seed": 3}, {}),
    ],
)
def test_a_feature_that_one_side_lacks_is_named(earlier, now, expected):
    assert named_on_one_side(Root, {"part": earlier}, {"part": now}) == expected


def test_a_run_is_resumed_with_marked_keys_changed_and_with_no_others(rows, tmp_path):
    tree = config(rows, train__steps=2)
    out = tmp_path / "out"
    assert run_trainer("train", write_config(tmp_path / "config.toml", tree), "--out", out).returncode == 0
    free = ["--train.steps", 4, "--evaluate.metrics", "auc", "--data.read-threads", 1]
    assert run_trainer("train", tmp_path / "config.toml", "--out", out, *free).returncode == 0
    before = (out / "config.toml").read_bytes()
    for flags, says in (
        (["--model.loss", "custom:loss"], "model.loss is 'binary' there and 'custom:loss' here, and may not change"),
        (["--data.dense.row_id.mean", 0], "data.dense has 'row_id' only here, and may not change"),
    ):
        done = run_trainer("train", tmp_path / "config.toml", "--out", out, *free, *flags)
        assert done.returncode == 2, done.stdout + done.stderr
        assert says in done.stderr
    assert (out / "config.toml").read_bytes() == before
