"""Findings about columns and splits beside each other: leakage, shift, duplicates, labels over files and time."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from apps.check_data.finding import Finding, percent
from apps.check_data.profile import Profile
from apps.check_data.reading import Measured
from trainer.config.data import DataConfig

LEAK = 0.99
DECIDES = 0.05  # the part of rows that one value must have to count
EXPECTED = 30  # labels of the other class that chance would have given these rows
SHIFTED, MOVED = 1.0, 0.25  # population stability indices; from 0.25 on it is usually called a shift
COPIES = 0.01
DIFFERENT = 2.0  # times the label rate
DEVIATIONS = 5.0
PERIODS = 10


def check_leak(config: DataConfig, profile: Profile) -> Iterator[Finding]:
    """Yields that a feature alone knows the label."""
    name, where = profile.name, profile.first.name
    remedy = "leave it out unless it is known before the label is"
    if name in config.dense or name in config.sparse:
        auc = profile.auc_as_number if name in config.dense else profile.auc_as_ids
        if auc > LEAK:
            yield Finding("error", "leakage", where, name, f"an AUC of {auc:.4f} by itself", remedy)
        elif found := deciding_value(profile):
            yield Finding("warning", "leakage", where, name, found, remedy)


def deciding_value(profile: Profile) -> str:
    """Returns in words that one frequent value always comes with the same label; empty if none does."""
    if profile.kind not in ("integer", "text") and not (profile.kind == "number" and profile.has_few_values):
        return ""
    ids = profile.first_ids
    for label, positive in profile.labels.items():
        mean = float(positive.mean())
        counts = ids.counts_in(positive, 2)[:, 1]
        for value, place, count in ids.top(int(1 / DECIDES)):
            other = count * (1 - mean if counts[place] == count else mean)
            if count >= DECIDES * ids.rows and counts[place] in (0, count) and other >= EXPECTED:
                always = 1 if counts[place] else 0
                return (
                    f"all {count:,} rows with the value {value!r} have {label} {always}; {percent(mean)} of all are 1"
                )
    return ""


def check_shift(config: DataConfig, profile: Profile) -> Iterator[Finding]:
    """Yields that the values of a dense feature are others in another split."""
    if profile.name not in config.dense:
        return
    for measured in profile.measured[1:]:
        index = profile.shift(measured)
        if index > MOVED and min(measured.sample.num_rows, profile.first.sample.num_rows) >= 100:
            found = f"a population stability index of {index:.2f} from {profile.first.name}"
            severity = "warning" if index > SHIFTED else "note"
            remedy = "compare how both splits are made; the page shows both distributions"
            yield Finding(severity, "shift", measured.name, profile.name, found, remedy)


def check_duplicates(splits: Sequence[Measured]) -> Iterator[Finding]:
    """Yields that rows occur twice, within a split or in two."""
    seen: list[tuple[str, np.ndarray]] = []
    for measured in splits:
        distinct, counts = np.unique(measured.hashes, return_counts=True)
        copies = int((counts - 1).sum())
        if copies > COPIES * len(measured.hashes):
            found = f"{percent(copies, len(measured.hashes))} of the rows are copies of others"
            yield Finding("warning", "duplicate rows", measured.name, "", found, "look at how the files are written")
        for name, earlier in seen:
            again = int(counts[np.isin(distinct, earlier)].sum())
            if again > COPIES * len(measured.hashes):
                found = f"{percent(again, len(measured.hashes))} of the rows are rows of {name}, too"
                remedy = "divide the rows before training: metrics on seen rows mean nothing"
                yield Finding("error", "rows in two splits", measured.name, "", found, remedy)
        seen.append((measured.name, distinct))


def check_label_rates(name: str, measured: Measured) -> Iterator[Finding]:
    """Yields that the mean label of a file is another than those of others."""
    tallies = [(file.name, one) for file, one in zip(measured.split.files.files, measured.tallies[name], strict=True)]
    whole = measured.tally(name)
    if len(tallies) < 2 or not (0 < whole.rate < 1):
        return
    worst, sizes = None, {file: one.rate for file, one in tallies if one.values}
    for file, one in tallies:
        if _differs(one.rate, one.values, (whole.total - one.total) / max(1, whole.values - one.values)):
            worst = worst or file
    if worst:
        found = f"its mean is {sizes[worst]:.3g} there, and {whole.rate:.3g} in all {len(tallies)} files"
        remedy = "look at how that file is made; batches of a mixed order hide it, but labels may be wrong"
        yield Finding("warning", "label rate of files", worst, name, found, remedy)


def _differs(rate: float, rows: int, others: float) -> bool:
    if not rows or not 0 < others < 1:
        return False
    deviations = abs(rate - others) / np.sqrt(others * (1 - others) / rows)
    ratio = max(rate, others) / max(min(rate, others), 1e-12)
    return deviations > DEVIATIONS and ratio > DIFFERENT


def rates_over_time(label: np.ndarray, times: np.ndarray) -> Mapping[str, np.ndarray]:
    """Returns equal numbers of rows in the order of time: where each period begins, its mean label, its rows."""
    order = np.argsort(times, kind="stable")
    parts = [part for part in np.array_split(order, PERIODS) if len(part)]
    return {
        "start": np.array([times[part[0]] for part in parts]),
        "rate": np.array([label[part].mean() for part in parts]),
        "rows": np.array([len(part) for part in parts]),
    }


def check_time(label: str, time: str, profiles: Mapping[str, Profile]) -> Iterator[Finding]:
    """Yields that the label rate of a period is another than that of all."""
    first = profiles[time].first
    values = profiles[label].numbers(first)
    found = rates_over_time(np.nan_to_num(values), profiles[time].numbers(first))
    for number, (rate, rows) in enumerate(zip(found["rate"], found["rows"], strict=True)):
        others = (found["rate"] @ found["rows"] - rate * rows) / max(1, found["rows"].sum() - rows)
        if _differs(rate, rows, others):
            words = (
                f"its mean is {rate:.3g} in period {number + 1} of {len(found['rate'])} of {time}, else {others:.3g}"
            )
            remedy = "look at what changed then: a new logger, or labels that had no time to come"
            yield Finding("warning", "label rate over time", first.name, label, words, remedy)
            return
