"""Lists of items as tables: made in parts by all ranks, and shown on a terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tabulate import tabulate
from torch import Tensor

from torchx_recsys.apps.predict.inference import PredictProgress
from torchx_recsys.apps.recommend.answers import Answers
from torchx_recsys.apps.recommend.items import Items
from torchx_recsys.apps.recommend.queries import USER, QueryReader
from torchx_recsys.apps.recommend.seen import SeenItems
from torchx_recsys.apps.recommend.top import NO_SCORE
from trainer.core.distributed import DistributedContext
from trainer.data.epoch_order import RowRange
from trainer.run.preemption import Stopped

SHOWN_USERS = 3
PAGE_ROWS = 10  # of each list on the page of a run
LONGEST_CELL = 40


def make_lists(
    answers: Answers,
    reader: QueryReader,
    seen: SeenItems,
    items: Items,
    show: Sequence[str],
    k: int,
    parts: Sequence[RowRange],
    save: Callable[[int, pa.Table], None],
    context: DistributedContext,
    give_up: Callable[[], bool],
) -> str:
    """Makes parts, which the ranks take in turn.

    Args:
        answers: Finds items.
        reader: Reads queries.
        seen: The items to leave out.
        items: All items.
        show: Their columns in the lists.
        k: How many items.
        parts: Where each part begins and ends among the queries.
        save: Takes a part, by its place in `parts`, as a table.
        context: This process among the ranks.
        give_up: Called before every block of queries; returns whether to give up, the same on all ranks.

    Returns:
        Users and rate.

    Raises:
        Stopped: `give_up` returned True; whole parts are saved.
    """
    progress = PredictProgress(sum(stop - start for start, stop in parts), context, "user")
    for first_place in range(0, len(parts), context.world_size):
        ranges = [*parts[first_place : first_place + context.world_size]]
        ranges += [(0, 0)] * (context.world_size - len(ranges))  # of ranks that take part in the others' steps
        begin, end = ranges[context.rank]
        tables = []
        for start in range(0, max(stop - start for start, stop in ranges), answers.at_once):
            if give_up():
                raise Stopped
            numbers = [min(max(stop - first - start, 0), answers.at_once) for first, stop in ranges]
            own = min(begin + start, end)
            queries = reader.read(own, own + numbers[context.rank])
            found, scores = answers.find(queries, max(numbers), k, seen.of(queries))
            tables.append(as_table(queries[USER], found, scores, items, show))
            progress.add(sum(numbers))
        if end > begin:
            save(first_place + context.rank, pa.concat_tables(tables))
    return progress.summary()


def as_table(users: pa.ChunkedArray, places: Tensor, scores: Tensor, items: Items, show: Sequence[str]) -> pa.Table:
    """Returns lists as rows.

    Args:
        users: The users, `[Q]`.
        places: Places of items, `[Q, k]`.
        scores: Their scores, `[Q, k]`.
        items: All items.
        show: Columns of the items to add.
    """
    row, rank = (scores > NO_SCORE).numpy().nonzero()
    chosen = pa.array(places.numpy()[row, rank])
    columns = {
        "user": users.take(pa.array(row)),
        "rank": (rank + 1).astype(np.int32),
        "item": items.ids.take(chosen),
        "score": scores.numpy()[row, rank],
    }
    return pa.table(columns | {name: items.table[name].take(chosen) for name in show})


def shown(lists: pa.Table, most: int = SHOWN_USERS) -> str:
    """Returns the lists of the first users for a terminal."""
    return "\n\n".join(
        f"user {user}\n{tabulate(columns, headers='keys', floatfmt='.4g')}"
        for user, columns in _first_lists(lists, most)
    )


def rows_for_page(lists: pa.Table) -> list[dict[str, Any]]:
    """Returns the lists of the first users for the page of a run: a table of words for each, with its header."""
    return [
        {"user": str(user), "rows": [[*columns], *_rows_of(columns)]}
        for user, columns in _first_lists(lists, SHOWN_USERS)
    ]


def _rows_of(columns: Mapping[str, list[object]]) -> list[list[str]]:
    return [[_word(one) for one in row] for row in [*zip(*columns.values(), strict=True)][:PAGE_ROWS]]


def _first_lists(lists: pa.Table, most: int) -> Iterator[tuple[object, dict[str, list[object]]]]:
    """Yields the first users, each with the columns of its list."""
    for user in lists["user"].unique()[:most]:
        rows = lists.filter(pc.equal(lists["user"], user)).drop_columns("user")  # pyrefly: ignore[missing-attribute]
        yield _cell(user.as_py()), {name: [_cell(one) for one in rows[name].to_pylist()] for name in rows.column_names}


def _word(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(value: object) -> object:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return value if not isinstance(value, str) or len(value) <= LONGEST_CELL else f"{value[: LONGEST_CELL - 3]}..."
