"""`python -m trainer split`: from a log of events to train, validation and test.

python -m trainer split --source ratings.csv --out data/mine --time timestamp --label "liked = rating >= 4"
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.conditions import whole
from torchx_recsys.apps.split.cuts import EVENTS, SHARE, Cut, Keys, make_moments
from torchx_recsys.apps.split.database import MIB_PER_THREAD, open_database
from torchx_recsys.apps.split.events import Events
from torchx_recsys.apps.split.leaks import shared_knowledge
from torchx_recsys.apps.split.log import Table, read_table
from torchx_recsys.apps.split.past import averaged
from torchx_recsys.apps.split.report import as_table, figures
from torchx_recsys.apps.split.text_files import Csv
from torchx_recsys.apps.split.write import refuse_other_files, staged, write_summary
from trainer.core.console import next_commands, plural
from trainer.core.errors import InputError, some_of
from trainer.core.secrets import without_secrets
from trainer.core.storage import below


def split(
    source: tuple[str, ...],
    out: str,
    by: Literal["time", "user", "share", "last"] | None = None,
    validation: str | None = None,
    test: str | None = None,
    label: tuple[str, ...] = (),
    time: str | None = None,
    user: str | None = None,
    item: str | None = None,
    keep: tuple[str, ...] = (),
    drop: tuple[str, ...] = (),
    aggregate: tuple[str, ...] = (),
    smoothing: float = 5.0,
    history: int = 0,
    history_with: tuple[str, ...] = (),
    history_where: tuple[str, ...] = (),
    items: str | None = None,
    users: str | None = None,
    catalogue: bool = False,
    leaks: Literal["refuse", "tell"] = "refuse",
    columns: tuple[str, ...] = (),
    delimiter: str | None = None,
    nulls: tuple[str, ...] = ("NULL", "null", "\\N"),
    seed: int = 0,
    memory_mib: int = 1024,
    threads: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Cuts a log of events, CSV, TSV or Parquet, into train, validation and test in OUT.

    Args:
        source: Files, globs or directories; a row is an event.
        out: Directory to write to; it is there as a whole or not at all.
        by: time: train is earlier than validation, and validation than test. user: a user's rows are in one split.
            share: rows by chance. last: the last events of each user. Unset: time with --time, else share.
        validation: A share, such as 0.1; by time also a moment; by last a number of events. Unset: 0.1, or 1 event.
        test: The same for test.
        label: "liked = rating >= 4" is 1 or 0, "seconds = watched" a column's values, "label = 1" always 1.
        time: The column of an event's time.
        user: The column of the user.
        item: The column of the item.
        keep: Conditions that a row must meet, as "rating != 3".
        drop: Columns to leave out.
        aggregate: Columns by which to count earlier rows, and average their labels.
        smoothing: Rows of the overall mean that such an average counts.
        history: Most items of a user before a row, as ITEM_history.
        history_with: Columns to list beside these items.
        history_where: Conditions of events in a history.
        items: A file of items, whose columns every row gets.
        users: A file of users, the same.
        catalogue: Write items.parquet, a row for each item.
        leaks: What happens if a column gives a label away.
        columns: Columns of text files without a header.
        delimiter: Of text files. Unset: found by looking.
        nulls: Texts that mean null, besides "".
        seed: Chooses by share and by user.
        memory_mib: Memory of DuckDB, in MiB.
        threads: Threads of DuckDB. 0: one for each core.
        overwrite: Replace a data set in OUT.

    Returns:
        The summary, as in OUT/summary.json.

    Raises:
        InputError: The log or an argument cannot be used, a split would be empty, or a column gives a label away.
    """
    _check_numbers({"memory-mib": (memory_mib, MIB_PER_THREAD), "threads": (threads, 0)})
    _check_numbers({"history": (history, 0), "smoothing": (smoothing, 0)})
    refuse_other_files(out, overwrite)
    by = by or ("time" if time else "share")
    usual = EVENTS if by == "last" else SHARE
    cut = Cut(by, usual if validation is None else validation, usual if test is None else test, seed)
    csv = Csv(whole(columns), delimiter, nulls)
    with TemporaryDirectory() as place, staged(out, Path(place)) as stage:
        folder = Path(place)
        database = open_database(folder, memory_mib, threads)
        log = read_table(database, "--source", source, "log", csv, folder / "source")
        _print_log(database, log)
        keys = _keys(log, user, item, time)
        events = Events(database, log, keys, whole(keep), whole(label), whole(drop))
        if keys.time:
            make_moments(database, log, keys, [one.name for one in averaged(events.labels)])
        rule = cut.make(database, log, keys)
        told = [*events.leaks(leaks), *shared_knowledge(database, log, keys, by)]
        made = events.aggregates(whole(aggregate), smoothing)
        made += events.histories(history, whole(history_with), whole(history_where), folder)
        known = events.known(items, users, Csv((), delimiter, nulls), folder)
        written = events.write(made, known, stage)
        summary = {
            "settings": {"source": without_secrets(" ".join(source)), "by": by, "keep": [*keep], "seed": seed},
            "split_rule": rule,
            "splits": figures(database, keys, events.labels),
            "labels": {one.name: one.about for one in events.labels},
            "left_out": events.left_out,
            "columns": written,
        }
        if catalogue:
            found, about = events.catalogue(known, stage)
            summary["catalogue"], told = found, told + about
        summary["told"] = told
        write_summary(summary, stage)
        database.close()
    _print(summary, out)
    return summary


def _check_numbers(numbers: Mapping[str, tuple[float, float]]) -> None:
    for flag, (value, least) in numbers.items():
        if not value >= least:
            raise InputError(f"--{flag} is {value}; it must be at least {least}")


def _keys(log: Table, user: str | None, item: str | None, time: str | None) -> Keys:
    given = {"user": user, "item": item, "time": time}
    keys = {key: None if value is None else log.column(f"--{key}", value) for key, value in given.items()}
    named = [value for value in keys.values() if value is not None]
    if twice := [one for one in named if named.count(one) > 1]:
        raise InputError(f"'{twice[0]}' is named by two of --user, --item and --time; name a column for each")
    return Keys(**keys)


def _print_log(database: Database, log: Table) -> None:
    rows = database.value("SELECT count(*) FROM log")
    print(f"read {plural(rows, 'row')} of {plural(log.files, 'file')}: ", end="")
    print(", ".join(f"{one} {dtype}" for one, dtype in log.types.items()), flush=True)


def _print(summary: Mapping[str, Any], out: str) -> None:
    """Prints what was left out and made, the splits as a table, what is to be known, and what to type next."""
    for column, why in summary["left_out"].items():
        print(f"left out '{column}': {why}")
    for column, about in summary["labels"].items():
        classes = about.get("classes", ())
        print(
            f"label '{column}': {about['rule']}"
            + (f": {some_of(f'{i} {c}' for i, c in enumerate(classes))}" if classes else "")
        )
    print(summary["split_rule"], end="\n\n")
    print(as_table(summary["splits"]), end="\n\n")
    for line in summary["told"]:
        print(f"note: {line}")
    print(f"data set in {without_secrets(out)}\n")
    sources = [below(out, one) for one in summary["splits"]]
    labels = [*summary["labels"]]
    words = ["python", "-m", "trainer", "check-data", "--source", *sources]
    words += [
        *(("--label", labels[0]) if labels else ()),
        "--write-config",
        f"{out.rstrip('/').rpartition('/')[2]}.toml",
    ]
    print(next_commands(words))
