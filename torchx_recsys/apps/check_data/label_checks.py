"""Checks of labels: invalid values, features that leak the label, label rates by file and over time."""

from collections.abc import Iterator, Mapping

import numpy as np

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.finding import Finding, percent
from torchx_recsys.apps.check_data.profile import Profile
from torchx_recsys.apps.check_data.reading import joined
from trainer.core.console import plural


def check_label_nulls(checked: Checked) -> Iterator[Finding]:
    """Finds labels that are null, from which nothing is learned."""
    for profile, measured, tally in checked.columns(checked.config.labels):
        if tally.nulls:
            found = f"{plural(tally.nulls, 'row')} of {tally.rows:,} without a label"
            yield Finding("error", "label null", measured.name, profile.name, found, "leave these rows out")


def check_label_range(checked: Checked) -> Iterator[Finding]:
    """Finds labels outside [0, 1], or counts below 0, for which the loss is undefined."""
    for profile, measured, tally in checked.columns(checked.probabilities):
        if tally.minimum < 0 or tally.maximum > 1:
            found = f"values from {tally.minimum:g} to {tally.maximum:g}; a label is in [0, 1]"
            remedy = "write 0 and 1, or name it in data.numeric_labels"
            yield Finding("error", "label range", measured.name, profile.name, found, remedy)
    for profile, measured, tally in checked.columns(checked.counts):
        if tally.minimum < 0:
            found = f"values from {tally.minimum:g} to {tally.maximum:g}; the loss 'poisson' takes counts from 0 up"
            remedy = "look at how the label is made, or use the loss 'squared'"
            yield Finding("error", "label range", measured.name, profile.name, found, remedy)


def check_label_classes(checked: Checked) -> Iterator[Finding]:
    """Finds labels that are all equal, except retrieval labels that are all 1."""
    for profile, measured, tally in checked.columns(checked.config.labels):
        is_refused = profile.name in checked.probabilities and not 0 <= tally.minimum <= 1
        is_implicit = profile.name in checked.retrieved and tally.minimum > 0
        if tally.minimum == tally.maximum and not (is_refused or is_implicit):
            found = f"every label is {tally.minimum:g}; there is nothing to learn"
            remedy = "look at how the label is made"
            yield Finding("error", "label of one class", measured.name, profile.name, found, remedy)


LEAK = 0.99
TOO_GOOD = "leave it out unless it is known before the label is"


def check_leaks(checked: Checked) -> Iterator[Finding]:
    """Finds features that predict a label on their own: usually they are known only after the label."""
    for profile in checked.of(checked.features):
        if (auc := _auc(checked, profile)) > LEAK:
            found = f"an AUC of {auc:.4f} by itself"
            yield Finding("error", "leakage", profile.first.name, profile.name, found, TOO_GOOD)


def check_deciding_values(checked: Checked) -> Iterator[Finding]:
    """Finds features with a frequent value whose rows all have the same label."""
    for profile in checked.of(checked.features):
        if not _auc(checked, profile) > LEAK and (found := deciding_value(profile)):
            yield Finding("warning", "leakage", profile.first.name, profile.name, found, TOO_GOOD)


def _auc(checked: Checked, profile: Profile) -> float:
    return profile.auc_as_number if profile.name in checked.config.dense else profile.auc_as_ids


DECIDES = 0.05  # minimum share of rows with the value
EXPECTED = 30  # minimum number of labels of the other class that these rows would have by chance


def deciding_value(profile: Profile) -> str:
    """Describes a frequent value whose rows all have the same label; empty if there is none."""
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


DIFFERENT = 2.0  # ratio of label rates that counts as different
DEVIATIONS = 5.0


def check_label_rates(checked: Checked) -> Iterator[Finding]:
    """Finds a file whose mean label deviates from that of the other files."""
    for name in checked.probabilities:
        for measured in (one for one in checked.splits if name in one.tallies):
            files, tallies = measured.split.files.files, measured.tallies[name]
            whole = joined(tallies)
            if len(tallies) < 2 or not (0 < whole.rate < 1):
                continue
            for file, one in zip(files, tallies, strict=True):
                if _differs(one.rate, one.values, (whole.total - one.total) / max(1, whole.values - one.values)):
                    found = f"its mean is {one.rate:.3g} there, and {whole.rate:.3g} in all {len(tallies)} files"
                    remedy = "look at how that file is made; batches of a mixed order hide it, but labels may be wrong"
                    yield Finding("warning", "label rate of files", file.name, name, found, remedy)
                    break


def _differs(rate: float, rows: int, others: float) -> bool:
    if not rows or not 0 < others < 1:
        return False
    deviations = abs(rate - others) / np.sqrt(others * (1 - others) / rows)
    ratio = max(rate, others) / max(min(rate, others), 1e-12)
    return deviations > DEVIATIONS and ratio > DIFFERENT


PERIODS = 10


def rates_over_time(label: np.ndarray, times: np.ndarray) -> Mapping[str, np.ndarray]:
    """Divides rows into periods of equally many rows; returns the start, the mean label and the rows of each."""
    order = np.argsort(times, kind="stable")
    parts = [part for part in np.array_split(order, PERIODS) if len(part)]
    return {
        "start": np.array([times[part[0]] for part in parts]),
        "rate": np.array([label[part].mean() for part in parts]),
        "rows": np.array([len(part) for part in parts]),
    }


def check_label_over_time(checked: Checked) -> Iterator[Finding]:
    """Finds a period of `--time` whose mean label deviates from the other periods."""
    if not (time := checked.time):
        return
    for profile in checked.of(checked.probabilities):
        labels, times = (checked.profiles[name].numbers(checked.first) for name in (profile.name, time))
        found = rates_over_time(np.nan_to_num(labels), times)
        for number, (rate, rows) in enumerate(zip(found["rate"], found["rows"], strict=True)):
            others = (found["rate"] @ found["rows"] - rate * rows) / max(1, found["rows"].sum() - rows)
            if _differs(rate, rows, others):
                period = f"period {number + 1} of {len(found['rate'])} of {time}"
                words = f"its mean is {rate:.3g} in {period}, else {others:.3g}"
                remedy = "look at what changed then: a new logger, or labels that had no time to come"
                yield Finding("warning", "label rate over time", profile.first.name, profile.name, words, remedy)
                break
