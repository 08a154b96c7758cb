"""Admission: counts ids that have no row, and gives them one once they have occurred often enough."""

import numpy as np

from trainer.extensions.managed_ids.row_map import Change, RowMap
from trainer.rules.managed import SHARED


class Waiting:
    """The ids of some blocks of a table that are counted and have no row yet.

    They are a row map of their own, of the same blocks, whose rows are places for counts and not for weights. So the
    number of counts is that of the rows of the table, and counts age and give way to others by the same rule as rows.

    Args:
        counted: The map of the places.
        admit_after: Occurrences after which an id gets a row.

    Attributes:
        counted: As above.
    """

    def __init__(self, counted: RowMap, admit_after: int) -> None:
        self.counted, self._after = counted, admit_after

    def update(
        self, table: RowMap, ids: np.ndarray, counts: np.ndarray, step: int, seen: int, unused_since: int | None
    ) -> list[tuple[RowMap, Change]]:
        """Gives rows to the ids of a batch that have occurred often enough, and counts the others.

        Args:
            table: The map of the rows.
            ids: The distinct ids of a global batch in these blocks, ascending, `[N]` int64.
            counts: Occurrences of each id in the batch, `[N]`.
            step: Number of the step.
            seen: Occurrences of all ids of the table in the batch.
            unused_since: Other ids whose last step is this or earlier lose their rows and counts. Unset: they keep
                them.

        Returns:
            The changes of both maps in their order; the first is of the rows.
        """
        has_row = table.rows_of(ids) != SHARED
        total = np.where(has_row, counts, counts + self.counted.counts_of(ids, step, seen))
        qualifies = has_row | (total >= self._after)
        given = table.update(ids[qualifies], total[qualifies], step, seen, unused_since)
        # If all rows of a block are in use by this batch, an id gets none, keeps its count, and tries again later.
        waits = table.rows_of(ids) == SHARED
        left = self.counted.release(ids[~waits & ~has_row])
        kept = self.counted.update(ids[waits], counts[waits], step, seen, unused_since)
        return [(table, given), (self.counted, left), (self.counted, kept)]
