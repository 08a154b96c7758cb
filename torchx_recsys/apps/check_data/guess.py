"""A first configuration guessed from columns, and better values for the keys of a given configuration."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchx_recsys.apps.check_data.figures import best_transform, transformed
from torchx_recsys.apps.check_data.id_checks import ENOUGH, UNIQUE, suggested_rows
from torchx_recsys.apps.check_data.label_checks import LEAK, deciding_value
from torchx_recsys.apps.check_data.profile import FEW, Profile
from trainer.config.data import DataConfig
from trainer.core.console import plural
from trainer.core.errors import InputError, nearest, some_of
from trainer.core.section import Tree

LABEL = re.compile(
    r"label|target|y|clicks?|clicked|is_\w+|(\w+_)?(label|target|click|clicked)|conversions?|converted|purchased?|"
    r"bought|likes?|liked|recommended\w*",
    re.IGNORECASE,
)
WEIGHT = re.compile(r"((sample_?|row_?)?weights?|importance)", re.IGNORECASE)
GROUP = re.compile(r"(user|session|visitor|customer|member|query)(_?id)?|uid|qid", re.IGNORECASE)
ID = re.compile(
    r"\w*(id|ids|code|zip|zipcode|hour|weekday|category|type|kind|class|gender|sex|region|country|city|brand|device|"
    r"items?|products?|films?|movies?|videos?|songs?|articles?|ads?|campaigns?|shop|merchant|publisher)|"
    r"c\d+|(\w+_)?cat_?\d+",  # names as in Criteo's logs
    re.IGNORECASE,
)
TIME = re.compile(r"(\w+_)?(time|timestamp|ts|date|datetime)|\w+_at", re.IGNORECASE)
INPUTS = ("present", "values", "lengths", "weights")  # suffixes that an exported model adds to the name of a feature
COMPACT = 4  # ids count as consecutive if the highest is below this multiple of their number
ROUNDED = 1000
FEW_IDS = 10_000  # limit for a vocabulary; a sample underestimates, but a longer vocabulary is exact, too
LARGE = 100_000  # from this many rows in all tables on, the model's default sizes stay
STEPS_PER_EPOCH = 256
SMALLEST_BATCH, LARGEST_BATCH = 64, 65536
OFF_CENTER, NARROW, WIDE = 1.0, 0.2, 5.0  # limits for mean and deviation, which are 0 and 1 if standardized
HOTTER = 1.25


@dataclass(frozen=True)
class Suggestion:
    """A key to set.

    Attributes:
        key: The key to set.
        now: Its value.
        value: A better one.
        why: The reason.
    """

    key: str
    now: Any
    value: Any
    why: str


def guess_label(profiles: Mapping[str, Profile], label: str | None, repeated: Mapping[str, str] = {}) -> str:
    """Returns the column to predict: `label`, or the column that most resembles a label.

    Args:
        profiles: The columns.
        label: The column, if it is given.
        repeated: Column names that occur more than once in a file, each with the file.

    Raises:
        InputError: The column is missing or has values other than 0 and 1, or no column looks like a label.
    """
    if label is not None:
        if label not in profiles:
            raise InputError(f"--label is '{label}', which is no column{nearest(label, profiles)}")
        if fault := _no_label(profiles[label]):
            raise InputError(f"--label is '{label}', {fault}")
        return label
    faults = {name: _no_label(profile) for name, profile in profiles.items()}
    binary = [name for name, fault in faults.items() if not fault]
    named = [name for name in binary if _named_like_a_label(name)]
    exact = [name for name in named if name.lower() in ("label", "target", "click", "clicked", "y")]
    if found := exact or named or (binary if len(binary) == 1 else []):
        return found[0]
    if like := [name for name in faults if _named_like_a_label(name) and name not in binary]:
        raise InputError(f"--label is unset, and '{like[0]}' is named like one, {faults[like[0]]}")
    if twice := [name for name in repeated if _named_like_a_label(name)]:
        raise InputError(
            f"--label is unset, and '{twice[0]}' is named like one, but {repeated[twice[0]]} has more than one such "
            "column; name each apart"
        )
    has = f"these have 0 and 1: {some_of(binary)}" if binary else "none has only the values 0 and 1"
    if not binary and (with_nulls := [name for name, profile in profiles.items() if _is_binary(profile)]):
        raise InputError(f"--label is unset, and '{with_nulls[0]}' would do, {faults[with_nulls[0]]}")
    # In tables written by hand or exported for training, the label is usually last.
    such = f", such as --label {shlex.quote(binary[-1])}" if binary else ""
    raise InputError(f"--label is unset, and no column of --source is named like a label; {has}; name one{such}")


def guess_data(profiles: Mapping[str, Profile], label: str) -> tuple[Tree, dict[str, str]]:
    """Guesses the keys of section `data` from columns; also returns the columns left out, each with the reason.

    Args:
        profiles: The columns; their `labels` are `label`.
        label: The label.
    """
    tree: Tree = {"labels": [label], "dense": {}, "sparse": {}}
    left_out: dict[str, str] = {}
    for name, profile in profiles.items():
        if name == label:
            continue
        if _is_weight(profile) and "weight" not in tree:
            tree["weight"] = name
            continue
        if GROUP.fullmatch(name) and profile.kind in ("integer", "text") and not _nulls(profile):
            tree.setdefault("groups", []).append(name)
        if reason := _why_not(profile):
            left_out[name] = reason
        elif _is_sparse(profile):
            tree["sparse"][name] = sparse_rule(profile)
        else:
            tree["dense"][name] = _dense(profile)
    return tree, left_out


def columns_of_few_ids(data: Tree, profiles: Mapping[str, Profile]) -> list[str]:
    """Returns the columns with so few ids that a vocabulary gives each its own row, without collisions of hashes.

    Args:
        data: The result of `guess_data`.
        profiles: The columns.
    """
    hashed = [name for name, feature in data["sparse"].items() if feature.get("ids") == "hash"]
    return [name for name in hashed if profiles[name].distinct <= FEW_IDS]


def guess_config(data: Tree, files: Mapping[str, Sequence[str]], reader: str, rows: int) -> Tree:
    """Returns a whole configuration.

    Args:
        data: The result of `guess_data`.
        files: The files of each split.
        reader: Their format.
        rows: Rows to train on.
    """
    head: Tree = {} if reader == "parquet" else {"reader": reader}
    head |= {name: [*urls] for name, urls in files.items()} | {"global_batch_size": batch_size_for(rows)}
    tree: Tree = {"data": head | _renamed(data)}
    if not data["sparse"]:
        raise InputError("--source has no column of ids that could be a feature, which every model needs; add one")
    model: Tree = {"name": "dlrm"} if data["dense"] else {"name": "wide_deep"}
    if sum(feature["rows"] for feature in data["sparse"].values()) <= LARGE:
        model |= {"embedding_dim": 16, "over_layers": [64, 32]} | ({"dense_layers": [64]} if data["dense"] else {})
    tree |= {"model": model, "train": {"epochs": 1}}
    tree["optimizer"] = {
        "sparse": {"name": "rowwise_adagrad", "learning_rate": 0.05},
        "dense": {"name": "adam", "learning_rate": 1e-3},
    }
    return tree


def _renamed(data: Tree) -> Tree:
    """Renames features whose name equals an input of another feature, such as NAME.values, which exports refuse."""
    kinds = ("dense", "sparse")
    known = [name for kind in kinds for name in data[kind]]

    def renamed(name: str) -> str:
        feature, _, ending = name.rpartition(".")
        new = f"{feature}_{ending}"
        return new if ending in INPUTS and feature in known and new not in known else name

    named = {
        kind: {
            renamed(name): keys | ({"column": name} if renamed(name) != name else {})
            for name, keys in data[kind].items()
        }
        for kind in kinds
    }
    return data | named


def suggestions(config: DataConfig, profiles: Mapping[str, Profile]) -> list[Suggestion]:
    """Suggests values of keys that suit the data better than the configuration's."""
    found = []
    for name in config.dense:
        if name in profiles and profiles[name].kind in ("integer", "number"):
            found += _of_dense(name, config, profiles[name])
    for name in config.sparse:
        if name in profiles:
            found += _of_sparse(name, config, profiles[name])
    rows = next(iter(profiles.values())).first.split.files.rows
    if config.global_batch_size * 8 > rows and batch_size_for(rows) < config.global_batch_size:
        steps = plural(-(-rows // config.global_batch_size), "step")
        why = f"there are {rows:,} rows, so that an epoch has {steps}"
        found.append(Suggestion("data.global_batch_size", config.global_batch_size, batch_size_for(rows), why))
    return found


def sparse_rule(profile: Profile) -> dict[str, Any]:
    """Returns a rule for ids that fits all ids of the data."""
    tallies = [measured.tally(profile.name) for measured in profile.measured]
    ids, whole = profile.first_ids, all(measured.is_all_read for measured in profile.measured)
    distinct = profile.distinct
    low, high = min(one.minimum for one in tallies), max(one.maximum for one in tallies)
    rule: dict[str, Any] = {"rows": suggested_rows(profile), "ids": "hash"}
    if profile.kind in ("integer", "integers") and low >= 0 and high < max(ROUNDED, COMPACT * distinct):
        # Rows that were not read may have higher ids, which only the rule `error` refuses.
        rule = {"rows": int(high) + 1, **({} if whole else {"ids": "modulo"})}
    if profile.kind in ("integers", "texts"):
        rule["hotness"] = max(0.01, round(ids.hotness, 2))
    return rule


def dense_rule(profile: Profile, transform: str | None = None) -> dict[str, Any]:
    """Returns transform, mean and std for a dense feature.

    Args:
        profile: The column.
        transform: The transform. Unset: the best one.
    """
    values = profile.finite(profile.first)
    transform = transform or best_transform(values)
    values = transformed(values, transform)
    std = float(values.std()) if len(values) else 1.0
    mean = float(values.mean()) if len(values) else 0.0
    rule: dict[str, Any] = {} if transform == "none" else {"transform": transform}
    return rule | {"mean": _short(mean), "std": _short(std) or 1.0}


def batch_size_for(rows: int) -> int:
    """Returns a global batch size, a power of two, with a few hundred steps in an epoch of `rows` rows."""
    power = 2 ** int(np.log2(max(1, rows // STEPS_PER_EPOCH)))
    return min(max(power, SMALLEST_BATCH), LARGEST_BATCH)


def _named_like_a_label(name: str) -> bool:
    return LABEL.fullmatch(re.sub(r"\W+", "_", name)) is not None


def _no_label(profile: Profile) -> str:
    """Returns why a column cannot be a label, and the remedy; empty if it can."""
    tally = profile.first.tally(profile.name)
    if profile.kind == "text":
        values = " and ".join(sorted(repr(value) for value, _, _ in profile.first_ids.top(2)))
        return f"whose values are text, such as {values}; write it as 0 and 1, or name another column"
    if profile.kind not in ("integer", "number"):
        return "which is no column of numbers; name a column of 0 and 1"
    if not _is_binary(profile):
        found = f"from {tally.minimum:g} to {tally.maximum:g}" if tally.has_values else "null"
        return f"whose values are not 0 and 1 but {found}; name a column that has these"
    if tally.nulls or tally.nan:
        nulls = plural(tally.nulls + tally.nan, "null")
        return f"which has {nulls} in {tally.rows:,} rows beside 0 and 1; leave these rows out, or write what they mean"
    return ""


def _is_binary(profile: Profile) -> bool:
    """Returns whether the values of a column are 0, 1 and null."""
    if profile.kind not in ("integer", "number"):
        return False
    tally = profile.first.tally(profile.name)
    return {*np.unique(profile.finite(profile.first))} <= {0, 1} and (tally.minimum, tally.maximum) == (0, 1)


def _nulls(profile: Profile) -> int:
    return sum(measured.tally(profile.name).nulls for measured in profile.measured)


def _is_weight(profile: Profile) -> bool:
    if not (WEIGHT.fullmatch(profile.name) and profile.kind in ("integer", "number")):
        return False
    tallies = [measured.tally(profile.name) for measured in profile.measured]
    return not any(one.nulls + one.nan + one.infinite or one.minimum < 0 for one in tallies) and tallies[0].maximum > 0


def _is_sparse(profile: Profile) -> bool:
    if profile.kind != "integer":
        return profile.kind != "number"
    name = re.sub(r"\W+", "_", profile.name)
    named = ID.fullmatch(name) is not None or GROUP.fullmatch(name) is not None
    return named or (len(profile.first_ids.distinct) <= FEW and profile.first.tally(profile.name).minimum >= 0)


def _why_not(profile: Profile) -> str:
    """Returns why a column cannot be a feature; empty if it can."""
    tallies = [measured.tally(profile.name) for measured in profile.measured]
    if profile.kind == "time" or (profile.kind == "integer" and TIME.fullmatch(profile.name)):
        return "a time"
    if profile.kind == "empty" or tallies[0].values == 0:
        return "no value"
    if any(one.nan + one.infinite for one in tallies):
        return "values that are NaN or infinite"
    if profile.kind == "number" and max(one.largest for one in tallies) > 1e38:
        return "values beyond float32"
    if tallies[0].minimum == tallies[0].maximum and not tallies[0].nulls:
        return "one value"
    sparse, ids = _is_sparse(profile), profile.first_ids if profile.kind != "number" else None
    if ids and profile.kind in ("integer", "text"):
        if len(ids.distinct) == 1 and not tallies[0].nulls:
            return "one value"
        hardly_repeats = len(ids.codes) >= min(ENOUGH, ids.rows) and len(ids.distinct) > UNIQUE * len(ids.codes)
        if hardly_repeats and (sparse or len(ids.distinct) == len(ids.codes)):
            return f"{len(ids.distinct):,} different values among {len(ids.codes):,}"
    auc = profile.auc_as_ids if sparse else profile.auc_as_number
    if auc > LEAK:
        return f"an AUC of {auc:.3f} alone: it knows the label"
    return deciding_value(profile)


def _dense(profile: Profile) -> dict[str, Any]:
    rule = dense_rule(profile)
    if _nulls(profile):
        rule["missing"] = float(f"{np.median(profile.finite(profile.first)):.4g}")
    lowest = min(measured.tally(profile.name).minimum for measured in profile.measured)
    if not np.isfinite(transformed(np.array([lowest]), rule.get("transform", "none"))).all():
        return dense_rule(profile, "none") | {key: rule[key] for key in ("missing",) if key in rule}
    return rule


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _of_dense(name: str, config: DataConfig, profile: Profile) -> Iterator[Suggestion]:
    feature, values = config.dense[name], profile.finite(profile.first)
    if not len(values) or values.min() == values.max():
        return
    key, best = f"data.dense.{name}", best_transform(values)
    if feature.transform == "none" and best != "none":
        rule = dense_rule(profile, best)
        yield Suggestion(f"{key}.transform", "none", best, f"a skewness of {profile.skew:.1f}")
        yield Suggestion(f"{key}.mean", feature.mean, rule["mean"], "the mean after that")
        yield Suggestion(f"{key}.std", feature.std, rule["std"], "the standard deviation after that")
    elif feature.transform in ("none", "log1p", "log3"):
        values = (transformed(values, feature.transform) - feature.mean) / feature.std
        if abs(values.mean()) > OFF_CENTER or not NARROW < values.std() < WIDE:
            rule, why = dense_rule(profile, feature.transform), f"now {values.mean():.3g} and {values.std():.3g}"
            yield Suggestion(f"{key}.mean", feature.mean, rule["mean"], f"mean and deviation are {why}")
            yield Suggestion(f"{key}.std", feature.std, rule["std"], "the same")


def _of_sparse(name: str, config: DataConfig, profile: Profile) -> Iterator[Suggestion]:
    feature, ids, key = config.sparse[name], profile.first_ids, f"data.sparse.{name}"
    hotness = _short(round(ids.hotness, 2))
    if hotness and not 1 / HOTTER < ids.hotness / feature.hotness < HOTTER:
        yield Suggestion(f"{key}.hotness", feature.hotness, hotness, "ids per row; plans count with it")
    distinct = profile.distinct
    if feature.ids == "hash" and feature.rows < distinct:
        yield Suggestion(f"{key}.rows", feature.rows, suggested_rows(profile), f"{distinct:,} different ids")
    highest = max(measured.tally(name).maximum for measured in profile.measured)
    if feature.ids == "error" and highest >= feature.rows:
        yield Suggestion(f"{key}.rows", feature.rows, int(highest) + 1, "the largest id")
