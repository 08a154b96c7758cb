"""Rank correlations between the columns of numbers, with the labels among them."""

from collections.abc import Iterable
from html import escape

import numpy as np

from torchx_recsys.apps.check_data.profile import Profile

MOST = 24  # number of columns in the matrix
REMARK = (
    "Spearman's rank correlation in the sample, from -1 (orange) to 1 (blue); a missing value counts as the middle."
)


def correlations(profiles: Iterable[Profile]) -> tuple[list[str], np.ndarray]:
    """Returns names of columns and their rank correlations, `[C, C]`, of the MOST columns with the strongest ones.

    Args:
        profiles: Columns of numbers; constant columns are left out.
    """
    ranks = {one.name: _ranks(one.numbers(one.first)) for one in profiles}
    ranks = {name: found for name, found in ranks.items() if found.std() > 0}
    if len(ranks) < 2:
        return [], np.zeros((0, 0))
    matrix = np.corrcoef(np.stack([*ranks.values()]))
    strongest = np.abs(matrix - np.eye(len(matrix))).max(axis=1)
    kept = np.sort(np.argsort(-strongest, kind="stable")[:MOST])
    return [name for place, name in enumerate(ranks) if place in kept], matrix[np.ix_(kept, kept)]


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns the mean rank of each value, `[R]`; of a missing one the middle."""
    there = np.isfinite(values)
    _, places, counts = np.unique(values[there], return_inverse=True, return_counts=True)
    ranks = np.full(len(values), (there.sum() - 1) / 2)
    ranks[there] = (np.cumsum(counts) - (counts + 1) / 2)[places]
    return ranks


def draw_correlations(names: list[str], matrix: np.ndarray) -> str:
    """Returns the matrix as a table of colored cells; the names of the rows stay in sight."""
    head = "".join(f"<th><span>{escape(name)}</span></th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(map(_cell, row))}</tr>" for name, row in zip(names, matrix, strict=True)
    )
    table = f'<div class="wide"><table id="correlations"><tr><th></th>{head}</tr>{rows}</table></div>'
    return f'<h2>Correlations</h2><p class="note">{escape(REMARK)}</p>{table}'


def _cell(value: float) -> str:
    color = "31,111,180" if value > 0 else "224,123,57"
    ink = ";color:#fff" if abs(value) > 0.6 else ""
    return f'<td style="background:rgba({color},{abs(value):.2f}){ink}">{value:.2f}</td>'
