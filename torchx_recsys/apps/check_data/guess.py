"""Features guessed from columns, and better values for the keys of a given configuration."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.copies import Copies
from torchx_recsys.apps.check_data.figures import Ids, auc_of_ids, best_transform, transformed
from torchx_recsys.apps.check_data.finding import percent
from torchx_recsys.apps.check_data.id_checks import ENOUGH, UNIQUE, suggested_rows
from torchx_recsys.apps.check_data.label import Label, plain, short
from torchx_recsys.apps.check_data.label_checks import LEAK, deciding_value
from torchx_recsys.apps.check_data.profile import FEW, Profile
from torchx_recsys.apps.check_data.vectors import Vectors, off_center
from trainer.config.data import DataConfig
from trainer.core.console import plural
from trainer.core.section import Tree
from trainer.data.stream.manifest import OFFSET, PARTITION

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
BUCKETS, ROWS_OF_BUCKET = 32, 20  # most buckets of a number, and least rows in each
BUCKET_DIM = 4  # columns of their tables: with more, numbers of few rows only learn noise
NEW, SEEN = 0.95, 0.5  # an id is left out if of its ids in a later split this share is new, though training saw as many
REPEATED = 5  # occurrences of an id, on average, from which it is worth a row of its own though it may be a number
CLEARLY = 4  # a difference of two AUCs that is no chance, as a multiple of the root of the rows
COMPACT = 4  # ids count as consecutive if the highest is below this multiple of their number
ROUNDED = 1000
FEW_IDS = 10_000  # limit for a vocabulary; a sample underestimates, but a longer vocabulary is exact, too
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


def guess_data(profiles: Mapping[str, Profile], label: Label) -> tuple[Tree, dict[str, str]]:
    """Guesses the keys of section `data` from columns; also returns the columns left out, each with the reason.

    Args:
        profiles: The columns; their `labels` are `label`, if it is 0 or 1.
        label: The label.
    """
    tree: Tree = label.data() | {"dense": {}, "sparse": {}}
    left_out: dict[str, str] = {}
    copies = Copies()
    for name, profile in profiles.items():
        if name == label.name:
            continue
        if _is_weight(profile) and "weight" not in tree:
            tree["weight"] = name
            continue
        if GROUP.fullmatch(name) and profile.kind in ("integer", "text") and not _nulls(profile):
            tree.setdefault("groups", []).append(name)
        if reason := _why_not(profile) or copies.why_not(profile, _is_sparse(profile)):
            left_out[name] = reason
        elif _is_sparse(profile):
            tree["sparse"][name] = sparse_rule(profile)
        else:
            tree["dense"][name] = _dense(profile)
            if edges := bucket_edges(profile):
                tree["sparse"][_bucket_name(name, profiles)] = {
                    "column": name,
                    "rows": len(edges) + 1,
                    "buckets": edges,
                    "dimension": BUCKET_DIM,
                }
    return tree, left_out


def add_vectors(tree: Tree, vectors: Sequence[Vectors], label: Label) -> dict[str, str]:
    """Adds vectors to the result of `guess_data`; returns those left out, each with the reason."""
    left_out = {one.name: one.why_not() for one in vectors if one.why_not()}
    for one in vectors:
        if one.name not in left_out and label.task == "items":
            left_out[one.name] = (
                f"a vector of {next(iter(one.lengths))} numbers of the query or of the item; name it in data.dense, "
                "and an item's in model.item_features and the catalogue, too"
            )
        elif one.name not in left_out:
            tree["dense"][one.name] = one.rule()
    return left_out


def vector_suggestions(config: DataConfig, vectors: Sequence[Vectors]) -> Iterator[Suggestion]:
    """Suggests means and deviations of vectors that suit the data better than the configuration's."""
    of_column = {one.name: one for one in vectors}
    for name, feature in config.dense.items():
        one = of_column.get(feature.column or name) if feature.width else None
        if one and off_center(feature, one):
            rule, key = one.rule(), f"data.dense.{name}"
            yield Suggestion(f"{key}.mean", feature.mean, rule["mean"], "the mean of all places")
            yield Suggestion(f"{key}.std", feature.std, rule["std"], "vectors then have a length of about 1")


def bucket_edges(profile: Profile) -> list[float]:
    """Returns edges with about equally many rows between two of them, so that a model may learn a curve of a number.

    Training compares with them in float32, in which two edges may be one.
    """
    values = profile.finite(profile.first)
    number = min(BUCKETS, len(values) // ROWS_OF_BUCKET)
    if number < 2:
        return []
    edges = np.unique(np.quantile(values, np.linspace(0, 1, number + 1)[1:-1]).astype(np.float32))
    edges = edges[np.isfinite(edges) & (edges > values[0])]
    return [float(f"{edge:.9g}") for edge in edges]


def _bucket_name(name: str, profiles: Mapping[str, Profile]) -> str:
    new = f"{name}_bucket"
    while new in profiles:
        new += "_"
    return new


def columns_of_few_ids(data: Tree, profiles: Mapping[str, Profile]) -> list[str]:
    """Returns the columns with so few ids that a vocabulary gives each its own row, without collisions of hashes.

    Args:
        data: The result of `guess_data`.
        profiles: The columns.
    """
    hashed = [name for name, feature in data["sparse"].items() if feature.get("ids") == "hash"]
    return [name for name in hashed if profiles[name].distinct <= FEW_IDS]


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
    return rule | {"mean": short(mean), "std": short(std) or 1.0}


def batch_size_for(rows: int) -> int:
    """Returns a global batch size, a power of two, with a few hundred steps in an epoch of `rows` rows."""
    power = 2 ** int(np.log2(max(1, rows // STEPS_PER_EPOCH)))
    return min(max(power, SMALLEST_BATCH), LARGEST_BATCH)


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
    name = plain(profile.name)
    named = ID.fullmatch(name) is not None or GROUP.fullmatch(name) is not None
    few = len(profile.first_ids.distinct) <= FEW and profile.first.tally(profile.name).minimum >= 0
    return named or few or _numbers_nothing(profile)


def _numbers_nothing(profile: Profile) -> bool:
    """Returns whether integers tell clearly more of a label as ids than in the order of their size, so are ids."""
    ids = profile.first_ids
    if not profile.labels or ids.rows < ENOUGH or len(ids.codes) < REPEATED * len(ids.distinct):
        return False
    values = profile.numbers(profile.first)[ids.row_of]
    places = np.searchsorted(bucket_edges(profile), values, side="right")
    numbers, codes = np.unique(places, return_inverse=True)
    buckets = Ids(pa.array(numbers), codes, ids.row_of, ids.rows)
    in_order = max(auc_of_ids(buckets, label, seed=0) for label in profile.labels.values())
    return profile.auc_as_ids > in_order + CLEARLY / np.sqrt(ids.rows)


def _why_not(profile: Profile) -> str:
    """Returns why a column cannot be a feature; empty if it can."""
    tallies = [measured.tally(profile.name) for measured in profile.measured]
    if profile.kind == "time" or (profile.kind == "integer" and TIME.fullmatch(profile.name)):
        return "a time"
    if profile.name in (PARTITION, OFFSET):
        return "where the log of a topic has the record"
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
    if sparse and (reason := _unseen(profile)):
        return reason
    auc = profile.auc_as_ids if sparse else profile.auc_as_number
    if auc > LEAK:
        return f"an AUC of {auc:.3f} alone: it knows the label"
    return deciding_value(profile)


def _unseen(profile: Profile) -> str:
    """Returns that nearly all ids of a later split are new, though training's own repeat; empty if they are not."""
    once = int((profile.first_ids.counts == 1).sum())
    repeat = 1 - once / max(1, len(profile.first_ids.codes))  # an id drawn next is new with the chance of one seen once
    for measured in profile.measured[1:]:
        new = 1 - profile.known(measured)
        if repeat > SEEN and new > NEW and len(profile.ids[measured.name].codes):
            there = f"{percent(new)} of its ids in {measured.name} are not in {profile.first.name}"
            return f"{there}: nothing is learned of them"
    return ""


def _dense(profile: Profile) -> dict[str, Any]:
    rule = dense_rule(profile)
    if _nulls(profile):
        rule["missing"] = float(f"{np.median(profile.finite(profile.first)):.4g}")
    lowest = min(measured.tally(profile.name).minimum for measured in profile.measured)
    if not np.isfinite(transformed(np.array([lowest]), rule.get("transform", "none"))).all():
        return dense_rule(profile, "none") | {key: rule[key] for key in ("missing",) if key in rule}
    return rule


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
    hotness = short(round(ids.hotness, 2))
    if hotness and not 1 / HOTTER < ids.hotness / feature.hotness < HOTTER:
        yield Suggestion(f"{key}.hotness", feature.hotness, hotness, "ids per row; plans count with it")
    distinct = profile.distinct
    if feature.ids == "hash" and feature.rows < distinct:
        yield Suggestion(f"{key}.rows", feature.rows, suggested_rows(profile), f"{distinct:,} different ids")
    highest = max(measured.tally(name).maximum for measured in profile.measured)
    if feature.ids == "error" and highest >= feature.rows:
        yield Suggestion(f"{key}.rows", feature.rows, int(highest) + 1, "the largest id")
