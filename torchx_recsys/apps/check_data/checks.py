"""The list of all checks, in the order of their findings."""

from collections.abc import Sequence

from torchx_recsys.apps.check_data import (
    column_checks,
    file_checks,
    history_checks,
    id_checks,
    label_checks,
    log_checks,
    row_checks,
    text_checks,
    time_checks,
)
from torchx_recsys.apps.check_data.checked import Check
from trainer.core.registry import find_by_name

CHECKS: tuple[Check, ...] = (
    file_checks.check_empty_files,
    file_checks.check_uneven_files,
    file_checks.check_large_row_groups,
    file_checks.check_small_row_groups,
    label_checks.check_label_rates,
    column_checks.check_all_null,
    column_checks.check_mostly_null,
    column_checks.check_constant,
    column_checks.check_not_finite,
    column_checks.check_beyond_float32,
    column_checks.check_huge,
    column_checks.check_transforms,
    id_checks.check_outside,
    id_checks.check_wraps_around,
    label_checks.check_label_nulls,
    label_checks.check_label_range,
    label_checks.check_label_classes,
    column_checks.check_weight_nulls,
    column_checks.check_negative_weights,
    column_checks.check_zero_weights,
    column_checks.check_costs,
    id_checks.check_unique,
    id_checks.check_small_tables,
    id_checks.check_shared_rows,
    id_checks.check_large_tables,
    id_checks.check_unseen_ids,
    label_checks.check_leaks,
    label_checks.check_deciding_values,
    column_checks.check_shift,
    row_checks.check_duplicates,
    row_checks.check_rows_of_others,
    label_checks.check_label_over_time,
    text_checks.check_look_alikes,
    text_checks.check_broken_text,
    text_checks.check_nulls_as_text,
    text_checks.check_numbers_as_text,
    id_checks.check_wrapped_ids,
    row_checks.check_twins,
    row_checks.check_near_copies,
    row_checks.check_users,
    time_checks.check_change,
    time_checks.check_time_zones,
    time_checks.check_days,
    time_checks.check_epoch,
    time_checks.check_young_labels,
    history_checks.check_late_actions,
    history_checks.check_own_ids,
    log_checks.check_log,
    log_checks.check_gathered,
)
"""All checks of what was read; `--checks` adds one's own."""


def own_checks(names: Sequence[str]) -> list[Check]:
    """Returns checks by their names, `package.module:check`.

    Raises:
        InputError: A name is of another form, or cannot be imported.
    """
    return [find_by_name("--checks", name, {}) for name in names]
