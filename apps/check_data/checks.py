"""All checks of a data set."""

from collections.abc import Mapping, Sequence

from apps.check_data.finding import Finding, by_severity
from apps.check_data.id_checks import check_tables
from apps.check_data.layout_checks import check_layout
from apps.check_data.profile import Profile
from apps.check_data.reading import Measured
from apps.check_data.relation_checks import (
    check_duplicates,
    check_label_rates,
    check_leak,
    check_shift,
    check_time,
)
from apps.check_data.value_checks import check_values
from trainer.config.data import DataConfig

OF_COLUMNS = (check_values, check_tables, check_leak, check_shift)


def all_findings(
    config: DataConfig, splits: Sequence[Measured], profiles: Mapping[str, Profile], time: str | None
) -> list[Finding]:
    """Returns what is wrong with a data set that is used as configured, the worst first.

    Args:
        config: The configuration.
        splits: What was read.
        profiles: Figures of its columns.
        time: A column to compare label rates along. Unset: files only.
    """
    found: list[Finding] = []
    for measured in splits:
        found += check_layout(config, measured.split)
        for label in config.labels:
            if label in measured.tallies and label not in config.numeric_labels:
                found += check_label_rates(label, measured)
    for name in config.columns:
        for check in OF_COLUMNS if name in profiles else ():
            found += check(config, profiles[name])
    found += check_duplicates(splits)
    for label in config.labels:
        if time and label in profiles:
            found += check_time(label, time, profiles)
    return by_severity(found)
