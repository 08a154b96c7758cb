"""The output of a check: tables for a terminal, a tree for JSON, and statistics for the planner."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tabulate import tabulate

from torchx_recsys.apps.check_data.distinct import ERROR, KEPT
from torchx_recsys.apps.check_data.figures import rank_error
from torchx_recsys.apps.check_data.finding import ORDER, Finding, percent
from torchx_recsys.apps.check_data.guess import Suggestion
from torchx_recsys.apps.check_data.profile import Profile
from torchx_recsys.apps.check_data.reading import Measured
from torchx_recsys.apps.check_data.vectors import Vectors
from trainer.config.data import DataConfig
from trainer.config.features import columns_of, takes
from trainer.core.console import plural
from trainer.core.secrets import without_secrets
from trainer.plan.measurements import FeatureStatistics, Statistics

WIDTH = 60
COLUMNS = ("column", "as", "type", "null", "values", "ids/row", "AUC alone")


@dataclass(frozen=True)
class Report:
    """The result of a check.

    Attributes:
        config: The use of the data.
        splits: The figures of each split.
        profiles: Figures of its columns.
        findings: The findings, the worst first.
        suggestions: Keys to set.
        left_out: Columns without a place in the guessed configuration or in the check, each with the reason.
        time: The column of times, if one is named.
        vectors: Figures of the columns of vectors.
    """

    config: DataConfig
    splits: Sequence[Measured]
    profiles: Mapping[str, Profile]
    findings: Sequence[Finding]
    suggestions: Sequence[Suggestion]
    left_out: Mapping[str, str]
    time: str | None = None
    vectors: Sequence[Vectors] = ()

    def count(self, severity: str) -> int:
        """Returns the number of findings of a severity."""
        return sum(one.severity == severity for one in self.findings)


def role_of(name: str, config: DataConfig) -> str:
    """Returns the use of a column: dense, sparse, label, weight, cost, group, or `-`."""
    roles = {"dense": config.dense, "sparse": config.sparse, "label": config.labels, "weight": [config.weight]}
    roles["cost"] = config.costs
    return next((role for role, names in roles.items() if name in names), "group" if name in config.groups else "-")


def render(report: Report) -> str:
    """Returns the report for a terminal: findings, columns, suggestions."""
    parts = [*_read(report), "", _counts(report)]
    if report.findings:
        rows = [_line(alike) for alike in _alike(report.findings)]
        parts += [
            "",
            tabulate(rows, ["", "column", "found", "what to do"], "simple", maxcolwidths=[None, 28, WIDTH, 44]),
        ]
    rows = rows_of_columns(report)
    parts += ["", tabulate(rows, COLUMNS, "simple", maxcolwidths=[28, None, None, None, WIDTH, None, None])]
    parts += [note] if (note := note_on_sample(report)) else []
    if report.left_out:
        parts += ["", "left out:", *(f"  {name}: {why}" for name, why in report.left_out.items())]
    if report.suggestions:
        rows = [[one.key, one.now, one.value, one.why] for one in report.suggestions]
        parts += ["", tabulate(rows, ["suggested", "now", "better", "why"], "simple", disable_numparse=True)]
    return "\n".join(parts)


def _alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Groups findings of the same check in the same place, so that a hundred columns take one line."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.severity, one.check, one.where), []).append(one)
    return [*groups.values()]


def _line(alike: Sequence[Finding]) -> list[str]:
    first = alike[0]
    column = first.column or _short(first.where)
    column += f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    return [first.severity, column, f"{first.check}: {first.found} ({_short(first.where)})", first.remedy]


def _short(where: str) -> str:
    return without_secrets(where).rpartition("/")[2] or where


def _read(report: Report) -> Iterator[str]:
    for one in report.splits:
        files = one.split.files
        part = "all read" if one.is_all_read else f"{one.rows_read:,} read"
        figures = "" if one.is_whole else f", figures from {one.sample.num_rows:,} of them"
        yield f"{one.name}: {plural(files.rows, 'row')} in {plural(len(files.files), 'file')}, {part}{figures}"


def note_on_sample(report: Report) -> str:
    """Describes the sample behind the figures, and their errors; empty if the sample has all rows."""
    if all(one.is_whole for one in report.splits):
        return ""
    if not report.splits[0].distinct:
        return (
            "Nulls, least and greatest values are of all rows that were read. Means, ids and AUCs, like the plots and "
            "suggestions, are of the sample only; --rows sets its size."
        )
    sampled = min(one.sample.num_rows for one in report.splits if not one.is_whole)
    return (
        "Nulls, least and greatest values and numbers of different ids are of all rows; of more than "
        f"{KEPT - 1:,} ids, the number has a standard deviation of {percent(ERROR)}. Other figures are of a sample of "
        "all rows: 19 of 20 times, the share of rows below any value is right to "
        f"{percent(rank_error(sampled))} of the rows; --rows sets its size."
    )


def _counts(report: Report) -> str:
    counts = [plural(report.count(one), one) for one in ORDER]
    return ", ".join(counts)


def rows_of_columns(report: Report) -> list[list[str]]:
    """Returns the rows of the table of columns."""
    rows = [row_of(profile, report) for profile in report.profiles.values()]
    return rows + [one.row(_role_of_vectors(one, report)) for one in report.vectors]


def _role_of_vectors(vectors: Vectors, report: Report) -> str:
    used = {feature.column or name for name, feature in report.config.dense.items() if feature.width}
    return "dense" if vectors.name in used else "-"


def row_of(profile: Profile, report: Report) -> list[str]:
    """Returns the cells of a column's row in the table."""
    tally, role = profile.first.tally(profile.name), role_of(profile.name, report.config)
    as_ids = is_of_ids(profile, role)
    auc = float("nan")
    if role in ("dense", "sparse"):
        auc = profile.auc_as_ids if as_ids else profile.auc_as_number
    dtype = str(profile.first.split.files.files[0].schema.field(profile.name).type)
    values = _ids_in_words(profile) if as_ids else _numbers_in_words(profile)
    hotness = f"{profile.first_ids.hotness:.3g}" if profile.kind in ("integers", "texts") else ""
    return [profile.name, role, dtype, percent(tally.nulls, tally.rows), values, hotness, _auc_in_words(auc)]


def is_of_ids(profile: Profile, role: str) -> bool:
    """Returns whether a column is shown as ids, not as numbers."""
    return role == "sparse" or profile.kind in ("text", "integers", "texts")


def _auc_in_words(auc: float) -> str:
    return "" if math.isnan(auc) else f"{auc:.3f}"


def _numbers_in_words(profile: Profile) -> str:
    tally = profile.first.tally(profile.name)
    if not tally.has_values:
        return "none"
    values = profile.finite(profile.first)
    mean = f"{values.mean():.4g}" if len(values) else "?"
    return f"{tally.minimum:.4g} .. {mean} .. {tally.maximum:.4g}"


def _ids_in_words(profile: Profile) -> str:
    ids = profile.first_ids
    distinct = f"{'' if profile.is_distinct_exact else 'about '}{profile.distinct:,} different"
    if not profile.knows_all_ids:
        distinct = f"{len(ids.distinct):,} different of about {ids.estimated:,}"
    top = ids.top(1)
    return distinct + (f", {percent(top[0][2], len(ids.codes))} are {top[0][0]!r}" if top else "")


def as_tree(report: Report) -> dict[str, Any]:
    """Returns the report as JSON holds it."""
    return {
        "version": 1,
        "splits": {
            one.name: {
                "rows": one.split.files.rows,
                "files": len(one.split.files.files),
                "read": one.rows_read,
                "sample": one.sample.num_rows,
            }
            for one in report.splits
        },
        "findings": [asdict(one) for one in report.findings],
        "columns": {name: _column_tree(profile, report) for name, profile in report.profiles.items()}
        | {one.name: one.tree(_role_of_vectors(one, report)) for one in report.vectors},
        "left_out": dict(report.left_out),
        "suggestions": [asdict(one) for one in report.suggestions],
    }


def _column_tree(profile: Profile, report: Report) -> dict[str, Any]:
    tally, role = profile.first.tally(profile.name), role_of(profile.name, report.config)
    tree: dict[str, Any] = {"as": role, "kind": profile.kind, "rows": tally.rows, "nulls": tally.nulls}
    if tally.has_values:
        tree |= {"minimum": tally.minimum, "maximum": tally.maximum}
    if is_of_ids(profile, role):
        ids = profile.first_ids
        known = profile.knows_all_ids
        tree |= {"distinct": profile.distinct if known else len(ids.distinct)}
        tree |= {"distinct_is": "exact" if profile.is_distinct_exact else "estimated" if known else "of the sample"}
        tree |= {"hotness": ids.hotness, "zipf": profile.zipf}
        tree |= {"top": [[value, count] for value, _, count in ids.top(10)]}
    elif len(values := profile.finite(profile.first)):
        tree |= {"mean": float(values.mean()), "std": float(values.std())}
        quantiles = np.quantile(values, [0.01, 0.25, 0.5, 0.75, 0.99])
        tree |= {"quantiles": dict(zip(("0.01", "0.25", "0.5", "0.75", "0.99"), quantiles.tolist(), strict=True))}
    if role in ("dense", "sparse"):
        auc = profile.auc_as_ids if is_of_ids(profile, role) else profile.auc_as_number
        tree |= {} if math.isnan(auc) else {"auc": auc}
    return tree


def statistics_of(config: DataConfig, profiles: Mapping[str, Profile]) -> Statistics:
    """Returns hotness, skew and distinct ids of every sparse feature, in the rows of the sample.

    Plans estimate the distinct ids of all rows from these figures. If the distinct ids are known, they are of all rows.
    """
    first = next(iter(profiles.values())).first
    counts_all = bool(first.distinct)
    features = {}
    for name, feature in config.sparse.items():
        column, *others = columns_of(name, feature)
        if column in profiles and not others and takes(feature) == "ids" and not feature.lookup:
            profile = profiles[column]
            ids = profile.first_ids
            features[name] = FeatureStatistics(
                hotness=round(ids.hotness, 4),
                zipf=profile.zipf,
                distinct=profile.distinct if counts_all else len(ids.distinct),
            )
    rows = first.rows_read if counts_all else first.sample.num_rows
    return Statistics(version=1, rows=rows, features=features)
