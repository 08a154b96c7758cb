"""Maps the weights of a model to those of a checkpoint of another model, by names and shapes; reads no tensor.

A weight has a label: the name of a table, or the path of any other weight in the model. Optimizer state follows its
weight.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

import torch

from trainer.checkpoint.restore import Shapes
from trainer.checkpoint.state_dict import is_table, table_of
from trainer.config.data import DataConfig
from trainer.config.optimizer import DenseOptimizerConfig
from trainer.config.train import FinetuneConfig
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.storage import named, read_text
from trainer.models.embeddings import name_in_model
from trainer.optim.dense_optimizers import trained_without_state


@dataclass(frozen=True)
class Weights:
    """The tensors of a model or of a checkpoint, by label.

    Attributes:
        shapes: All shapes, by the names that checkpoints use.
        names: The name of every weight, by label.
        slots: The names of optimizer state, first by the part of the name that stands for the weight, then by slot.
        frozen: The labels of dense weights that no optimizer updates.
    """

    shapes: Shapes
    names: dict[str, str]
    slots: dict[str, dict[str, str]]
    frozen: set[str]

    @classmethod
    def of(cls, shapes: Shapes, frozen: Collection[str]) -> Self:
        """Sorts the tensors of a model by name into weights and state; `frozen` names the frozen weights."""
        weights = [name for name in shapes if name.startswith("model.")]
        names = {_label(name): name for name in weights}
        assert len(names) == len(weights), "a table and another weight have the same name"
        slots: dict[str, dict[str, str]] = defaultdict(dict)
        for name in shapes.keys() - set(weights):
            owner, _, slot = name.rpartition(".")
            slots[owner][slot] = name
        return cls(shapes, names, slots, {label for label, name in names.items() if name in frozen})

    @classmethod
    def of_checkpoint(cls, shapes: Shapes, config: DenseOptimizerConfig) -> Self:
        """Sorts the tensors of a checkpoint; `config` is the dense optimizer that it was trained with."""
        found = cls.of(shapes, ())
        # A checkpoint does not list frozen weights. They are the weights without state, if any other weight has state.
        dense = {label for label, name in found.names.items() if not is_table(name)}
        stateless = {label for label in dense if not found.state(label)}
        frozen = stateless - trained_without_state(dense, config) if stateless != dense else set()
        return cls(found.shapes, found.names, found.slots, frozen)

    def shape(self, label: str) -> torch.Size:
        """Returns the shape of a weight."""
        return self.shapes[self.names[label]]

    def state(self, label: str) -> dict[str, str]:
        """Returns the names of a weight's optimizer state, by slot."""
        return self.slots.get(_owner(label, self.names[label]), {})

    def label_of(self, word: str) -> str | None:
        """Returns the label of the weight with a given label or full name; None if there is none."""
        known = {alias: label for label, name in self.names.items() for alias in _full_names(name)}
        return word if word in self.names else known.get(word)


def _label(name: str) -> str:
    return table_of(name) if is_table(name) else _full_names(name)[-1]


def _owner(label: str, name: str) -> str:
    """Returns the part of the names of optimizer state that stands for the weight."""
    return f"table.{name_in_model(label)}" if is_table(name) else f"dense.{name.removeprefix('model.')}"


def _full_names(name: str) -> list[str]:
    """Returns the names of a weight: in a checkpoint, in the model with its loss, and in the model itself."""
    return [name, name.removeprefix("model."), name.removeprefix("model.").removeprefix("model.")]


@dataclass(frozen=True)
class WeightMap:
    """The sources of the weights to fill, and the outcome of every weight.

    Attributes:
        sources: The name in the checkpoint of the source of each tensor to fill.
        outcomes: Descriptions of all weights, by outcome.
        refused: Labels with an outcome that the configuration does not allow, by outcome.
    """

    sources: dict[str, str]
    outcomes: dict[str, list[str]]
    refused: dict[str, list[str]]


def match(config: FinetuneConfig, data: DataConfig, here: Weights, there: Weights) -> WeightMap:
    """Finds, for each weight of the model, the weight in the checkpoint from which it starts.

    Raises:
        InputError: The file of names or a pattern is wrong, or a weight has a shape that does not fit.
    """
    renamed = read_names(config.names, here, there) if config.names else {}
    excluded = _chosen("exclude", config.exclude, here.names)
    source_of = {label: renamed.get(label, label) for label in here.names}
    pairs = {label: source for label, source in source_of.items() if source in there.names and label not in excluded}
    missing = [label for label in here.names if label not in pairs and label not in excluded]
    # The source of an excluded weight counts as used: otherwise it would be listed as unexpected.
    used = {*pairs.values(), *(source_of[label] for label in excluded)}
    unexpected = [label for label in there.names if label not in used]
    new = _chosen("allow_missing", config.allow_missing, missing)
    allowed = _chosen("ignore_unexpected", config.ignore_unexpected, unexpected)
    grown = [label for label, source in pairs.items() if _grew(config, data, label, here, source, there)]
    outcomes = {
        "loaded": [label for label, source in pairs.items() if label == source and label not in grown],
        "renamed": [f"{label} (was {source})" for label, source in pairs.items() if label != source],
        "resized": [
            f"{label} ({there.shape(pairs[label])[0]:,} to {plural(here.shape(label)[0], 'row')})" for label in grown
        ],
        "new": [label for label in missing if label in new],
        "excluded": sorted(excluded),
        "missing": [label for label in missing if label not in new],
        "unexpected": unexpected,
    }
    refused = {"missing": outcomes["missing"], "unexpected": [label for label in unexpected if label not in allowed]}
    return WeightMap(_sources(config, pairs, here, there), outcomes, refused)


def read_names(url: str, here: Weights, there: Weights) -> dict[str, str]:
    """Reads a file with two names per line: the name in this model, and the name in the checkpoint.

    Raises:
        InputError: The file cannot be read, or a line is wrong. The message names the line.
    """
    with named("finetune.names", url):
        lines = [line.split() for line in read_text(url).splitlines()]
    renamed: dict[str, str] = {}
    for number, words in enumerate(lines, 1):
        if not words:
            continue
        where = f"finetune.names: {url}:{number}"
        if len(words) != 2:
            raise InputError(
                f"{where} has {plural(len(words), 'word')}; two are needed: the name here and the name there"
            )
        label, source = here.label_of(words[0]), there.label_of(words[1])
        if label is None:
            raise InputError(
                f"{where}: this model has no '{words[0]}'; name one of its tables or weights, then the old"
            )
        if source is None:
            raise InputError(
                f"{where}: the checkpoint has no '{words[1]}'; the name here comes first, then the old one"
            )
        if label in renamed:
            raise InputError(f"{where} names '{words[0]}' again; once is enough")
        renamed[label] = source
    return renamed


def _chosen(key: str, patterns: list[str], labels: dict[str, str] | list[str]) -> set[str]:
    for pattern in patterns:
        if not any(fnmatchcase(label, pattern) for label in labels):
            among = {
                "allow_missing": "that the checkpoint lacks",
                "exclude": "of this model",
                "ignore_unexpected": "of the checkpoint that this model lacks",
            }[key]
            known = ", ".join([*labels][:5]) or "there is none"
            raise InputError(f"finetune.{key} has '{pattern}', which matches nothing {among} ({known}); take it out")
    return {label for label in labels if any(fnmatchcase(label, pattern) for pattern in patterns)}


def _grew(config: FinetuneConfig, data: DataConfig, label: str, here: Weights, source: str, there: Weights) -> bool:
    now, before = here.shape(label), there.shape(source)
    if now == before:
        return False
    start, end = f"finetune.checkpoint is '{config.checkpoint}', where", "or list it in finetune.exclude"
    if not is_table(here.names[label]) or now[1:] != before[1:]:
        raise InputError(f"{start} '{source}' has the shape {[*before]}, and {[*now]} here; make them equal, {end}")
    if now[0] < before[0]:
        raise InputError(
            f"{start} table '{source}' has {plural(before[0], 'row')}, more than the {now[0]} here; add rows, {end}"
        )
    ids = (feature.ids for name, feature in data.sparse.items() if data.table_of(name) == label)
    if scattering := [rule for rule in ids if rule == "hash" or ":" in rule]:
        raise InputError(
            f"{start} table '{source}' has {plural(before[0], 'row')}, and {now[0]} here, among which ids = "
            f"'{scattering[0]}' puts every id in another row; keep the rows, {end}"
        )
    return True


def _sources(config: FinetuneConfig, pairs: dict[str, str], here: Weights, there: Weights) -> dict[str, str]:
    sources = {here.names[label]: there.names[source] for label, source in pairs.items()} | _managed(pairs, here, there)
    if not config.optimizer_state:
        return sources
    for label, source in pairs.items():
        if label in here.frozen or source in there.frozen:
            continue  # a weight that was frozen there has no state, so it starts from scratch
        # Slots of different optimizers can share a name: Adagrad and row-wise Adagrad have momentum1 in other shapes.
        ours, theirs = here.state(label), there.state(source)
        if not ours:  # a frozen table has no state to fill
            continue
        now, before = _kinds(ours, here.shapes), _kinds(theirs, there.shapes)
        if now != before:
            raise InputError(
                f"finetune.optimizer_state is true, but another optimizer trained '{source}' of '{config.checkpoint}': "
                f"its state is {before or 'empty'} there and {now or 'empty'} here; set it to false"
            )
        sources |= {ours[slot]: theirs[slot] for slot in ours}
    return sources


def _managed(pairs: dict[str, str], here: Weights, there: Weights) -> dict[str, str]:
    """Returns the tensors to fill for tables with managed ids: without the ids, rows would be meaningless."""
    sources = {}
    for label, source in pairs.items():
        ours, theirs = (
            side.slots.get(f"managed.{name_in_model(name)}", {}) for side, name in ((here, label), (there, source))
        )
        if ("ids" in ours) != ("ids" in theirs):
            raise InputError(
                f"table '{label}' has {'managed' if ours else 'other'} ids, and '{source}' of the checkpoint has "
                f"{'managed' if theirs else 'other'} ones, whose rows are of other ids; list it in finetune.exclude"
            )
        # Only one of the two may count ids before they get a row.
        sources |= {ours[slot]: theirs[slot] for slot in ours.keys() & theirs.keys()}
    return sources


def _kinds(slots: dict[str, str], shapes: Shapes) -> str:
    return ", ".join(sorted(f"{slot} of {len(shapes[name])} dimensions" for slot, name in slots.items()))
