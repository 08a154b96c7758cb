"""Checks of the values of single columns: missing, constant, forbidden and moved values, and weights of samples."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.figures import middle_std, readable
from torchx_recsys.apps.check_data.finding import Finding, percent
from torchx_recsys.apps.check_data.profile import Profile
from torchx_recsys.apps.check_data.reading import Measured, Tally
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.config.data import DataConfig, DenseFeature
from trainer.core.console import plural
from trainer.core.errors import InputError


def check_all_null(checked: Checked) -> Iterator[Finding]:
    """Finds features without any value."""
    for profile, measured, tally in checked.columns(checked.features):
        if not tally.values:
            found = f"none of {plural(tally.rows, 'row')} has a value"
            yield Finding("warning", "all null", measured.name, profile.name, found, "leave it out")


MOSTLY_NULL = 0.9


def check_mostly_null(checked: Checked) -> Iterator[Finding]:
    """Finds features that seldom have a value: they cost as much as others and carry little information."""
    for profile, measured, tally in checked.columns(checked.features):
        if tally.values and tally.nulls >= MOSTLY_NULL * tally.rows:
            found = f"{percent(tally.nulls, tally.rows)} of the rows have no value"
            yield Finding("warning", "mostly null", measured.name, profile.name, found, "leave it out")


def check_constant(checked: Checked) -> Iterator[Finding]:
    """Finds features with a single value."""
    for profile, measured, tally in checked.columns(checked.features):
        if _is_constant(profile, measured, tally):
            value = readable(measured.sample.column(profile.name).drop_null()[0].as_py())
            found = f"every value is {value!r}"
            remedy = "leave it out: it carries no signal"
            yield Finding("warning", "constant", measured.name, profile.name, found, remedy)


def _is_constant(profile: Profile, measured: Measured, tally: Tally) -> bool:
    if tally.nulls or tally.rows < 2:
        return False
    if profile.kind in ("integer", "number"):
        return tally.minimum == tally.maximum and not tally.nan + tally.infinite
    return profile.kind == "text" and len(profile.ids[measured.name].distinct) == 1


def check_not_finite(checked: Checked) -> Iterator[Finding]:
    """Finds NaN and infinite values, which training refuses."""
    config = checked.config
    remedies = dict.fromkeys(config.dense, "write a null where there is no number, and set 'missing'")
    remedies |= dict.fromkeys(config.labels, "leave these rows out") | {config.weight: "write 0 or 1"}
    remedies |= dict.fromkeys(config.costs, "write the mean where the cost is not known")
    for profile, measured, tally in checked.columns(remedies):
        for check, count in (("not a number", tally.nan), ("infinite", tally.infinite)):
            if count:
                found = f"{plural(count, 'value')} ({percent(count, tally.rows)})"
                yield Finding("error", check, measured.name, profile.name, found, remedies[profile.name])


LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


def check_beyond_float32(checked: Checked) -> Iterator[Finding]:
    """Finds values that are infinite in float32, in which training computes."""
    for profile, measured, tally in checked.columns(checked.config.dense):
        if tally.largest > LARGEST_FLOAT32:
            found = f"a value of {tally.largest:.3g} is beyond float32, which ends at {LARGEST_FLOAT32:.3g}"
            remedy = "find out where it comes from, and write a null instead"
            yield Finding("error", "huge", measured.name, profile.name, found, remedy)


HUGE = 1e6  # distance of an outlier from the mean, in standard deviations


def check_huge(checked: Checked) -> Iterator[Finding]:
    """Finds values far beyond all others, which have gradients far beyond all others."""
    for profile, measured, tally in checked.columns(checked.config.dense):
        values, feature = profile.finite(profile.first), checked.config.dense[profile.name]
        spread = middle_std(values) if len(values) else 0.0
        is_huge = spread > 0 and abs(tally.largest - np.median(values)) > HUGE * spread
        if is_huge and feature.transform == "none" and tally.largest <= LARGEST_FLOAT32:
            found = (
                f"a value of {tally.largest:.3g} is {tally.largest / spread:.1g} standard deviations of all but the "
                "extremes"
            )
            remedy = "write a null instead, or use a transform"
            yield Finding("warning", "huge", measured.name, profile.name, found, remedy)


def check_transforms(checked: Checked) -> Iterator[Finding]:
    """Finds values that training refuses for the transform of their feature."""
    for profile, measured, tally in checked.columns(checked.config.dense):
        feature = checked.config.dense[profile.name]
        is_float32 = tally.has_values and tally.largest <= LARGEST_FLOAT32
        if is_float32 and (refused := _refused(profile.name, tally, feature)):
            remedy = f"set another data.dense.{profile.name}.transform, or write a null instead"
            yield Finding("error", "transform", measured.name, profile.name, refused, remedy)


def _refused(name: str, tally: Tally, feature: DenseFeature) -> str:
    """Returns why training refuses the smallest or the largest value; empty if training takes both."""
    config = DataConfig(dense={name: feature}).model_copy(update={"labels": []})
    for value in (tally.minimum, tally.maximum):
        try:
            decode(Chunk(pa.table({name: [float(value)]}).column, range(1)), config, ())
        except InputError as error:
            return f"the value {value:g} is refused: {error}"
    return ""


SHIFTED, MOVED = 1.0, 0.25  # population stability indices; by convention, 0.25 or more is a shift


def check_shift(checked: Checked) -> Iterator[Finding]:
    """Finds features whose distribution in another split differs from the training split."""
    for profile in checked.of(checked.config.dense):
        for measured in profile.measured[1:]:
            index = profile.shift(measured)
            if index > MOVED and min(measured.sample.num_rows, profile.first.sample.num_rows) >= 100:
                found = f"a population stability index of {index:.2f} from {profile.first.name}"
                severity = "warning" if index > SHIFTED else "note"
                remedy = "compare how both splits are made; the page shows both distributions"
                yield Finding(severity, "shift", measured.name, profile.name, found, remedy)


def check_weight_nulls(checked: Checked) -> Iterator[Finding]:
    """Finds weights of samples that are null."""
    for profile, measured, tally in checked.columns([checked.config.weight]):
        if tally.nulls:
            found = f"{plural(tally.nulls, 'row')} without a weight"
            yield Finding("error", "weight null", measured.name, profile.name, found, "write 0 or 1")


def check_negative_weights(checked: Checked) -> Iterator[Finding]:
    """Finds negative weights, with which training would unlearn."""
    for profile, measured, tally in checked.columns([checked.config.weight]):
        if tally.minimum < 0:
            found = f"the smallest weight is {tally.minimum:g}; none may be below 0"
            remedy = "look at how the weight is made"
            yield Finding("error", "weight negative", measured.name, profile.name, found, remedy)


def check_costs(checked: Checked) -> Iterator[Finding]:
    """Finds costs of samples that are null or negative, which training refuses."""
    for profile, measured, tally in checked.columns(checked.config.costs):
        if tally.nulls:
            found = f"{plural(tally.nulls, 'row')} without a cost"
            remedy = "write the mean where the cost is not known"
            yield Finding("error", "cost null", measured.name, profile.name, found, remedy)
        if tally.minimum < 0:
            found = f"the smallest cost is {tally.minimum:g}; none may be below 0"
            remedy = "look at how the cost is made"
            yield Finding("error", "cost negative", measured.name, profile.name, found, remedy)


MOSTLY_ZERO = 0.5


def check_zero_weights(checked: Checked) -> Iterator[Finding]:
    """Finds weights that are mostly or always 0."""
    for profile, measured, tally in checked.columns([checked.config.weight]):
        if tally.minimum == tally.maximum == 0:
            found, remedy = "every weight is 0: nothing is learned", "leave it out"
            yield Finding("error", "weight zero", measured.name, profile.name, found, remedy)
        elif tally.minimum >= 0 and (share := float((profile.numbers(measured) == 0).mean())) > MOSTLY_ZERO:
            found = f"{percent(share)} of the rows weigh 0: they cost time and teach nothing"
            yield Finding("warning", "weight zero", measured.name, profile.name, found, "leave these rows out")
