"""`python -m trainer sort-log`: sorts a log of events by user and time, for histories that training gathers.

python -m trainer sort-log --source ratings.csv --out data/log --user user --time timestamp --values item rating
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from torchx_recsys.apps.sort_log.events import RULE, Events
from torchx_recsys.apps.sort_log.write import LogWriter
from torchx_recsys.apps.split.conditions import whole
from torchx_recsys.apps.split.database import MIB_PER_THREAD, open_database
from torchx_recsys.apps.split.log import read_table
from torchx_recsys.apps.split.text_files import Csv
from torchx_recsys.apps.split.write import refuse_other_files, staged
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.data.history.log import EVENTS, MANIFEST, USERS, EventLog, open_log


def sort_log(
    source: tuple[str, ...],
    out: str,
    user: str,
    time: str,
    values: tuple[str, ...] = (),
    where: tuple[str, ...] = (),
    arrived: str | None = None,
    duplicates: Literal["keep", "drop", "refuse"] = "keep",
    continues: str | None = None,
    columns: tuple[str, ...] = (),
    delimiter: str | None = None,
    nulls: tuple[str, ...] = ("NULL", "null", "\\N"),
    memory_mib: int = 1024,
    threads: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Sorts a log of events, CSV, TSV or Parquet, by user and time, for [data.history].

    OUT gets events.arrow, users.arrow, a file of texts for each column of text, and log.json. It is there as a whole or
    not at all. Events of a user at the same time stay in the order of the names of files and of their rows; a sample at
    that time sees none of them.

    DuckDB sorts, in --memory-mib of memory; a larger log goes to files in the temporary directory.

    Args:
        source: The log: files, globs or directories, on any fsspec URL. A row is an event.
        out: Directory to write to, on any fsspec URL.
        user: The column of the user: integers or text. Events without one are left out.
        time: The column of an event's time: timestamps, dates, or integers, which are seconds since 1970.
        values: The columns that histories list or choose by. Unset: all others.
        where: Conditions that an event must meet, such as "rating >= 4" or "item != null".
        arrived: The column of the time at which the log had an event, of the type of --time. An event that came late
            is at this time in all histories, as it was not known before.
        duplicates: Of events that are equal in user, time and all values: keep all, drop all but the first, or refuse.
        continues: A log that this one continues: runs with it go on with this one. Refused if an event up to its last
            time has changed.
        columns: Names of all columns, for text files without a header.
        delimiter: The text between columns of text files. Unset: found by looking.
        nulls: Texts that mean null, besides an empty one.
        memory_mib: Memory of DuckDB, in MiB.
        threads: Threads of DuckDB. 0: one for each core. No result depends on it.
        overwrite: Replace a log in OUT.

    Returns:
        The manifest, as in OUT/log.json.

    Raises:
        InputError: The log or an argument cannot be used.
    """
    for flag, value, least in (("memory-mib", memory_mib, MIB_PER_THREAD), ("threads", threads, 0)):
        if value < least:
            raise InputError(f"--{flag} is {value}; it must be at least {least}")
    refuse_other_files(out, overwrite, MANIFEST, "log")
    earlier = open_log(continues, "--continues") if continues else None
    csv = Csv(whole(columns), delimiter, nulls)
    with TemporaryDirectory() as place, staged(out, Path(place), (EVENTS, USERS, MANIFEST)) as stage:
        folder = Path(place)
        database = open_database(folder, memory_mib, threads)
        log = read_table(database, "--source", source, "log", csv, folder / "source")
        events = Events(database, log, user, time, values, whole(where), arrived, duplicates)
        print(f"read {plural(events.rows, 'row')} of {plural(log.files, 'file')}", flush=True)
        writer = LogWriter(events, folder, earlier.about["last"] if earlier else None)
        for batch in events.sorted():
            writer.write(batch)
        about = writer.finish(stage)
        if earlier:
            about["continues"] = _continued(earlier, writer)
        told = [*events.told, *_of_equal(events, writer, duplicates)]
        about |= {"rule": RULE, "source": without_secrets(" ".join(source)), "told": told}
        writer.write_manifest(about, stage)
        database.close()
    _print(about, out, user, time, events.listed)
    return about


def _of_equal(events: Events, writer: LogWriter, duplicates: str) -> Iterator[str]:
    """Yields what is to be known of copies of events, and of events of the same moment.

    Raises:
        InputError: There are copies, and `duplicates` refuses them.
    """
    copies = writer.ties.copies + events.kept - writer.rows
    if copies and duplicates == "refuse":
        raise InputError(
            f"--duplicates is refuse, and {plural(copies, 'event')} of --source are copies of others in user, time and "
            "all values; write --duplicates drop or keep"
        )
    if copies:
        done = "dropped" if duplicates == "drop" else "kept; --duplicates drop leaves them out"
        yield f"{plural(copies, 'event')} are copies of others in user, time and all values: {done}"
    if writer.ties.tied:
        yield (
            f"{plural(writer.ties.tied, 'event')} are at the time of another event of the user; a sample at that time "
            "sees none of them"
        )


def _continued(earlier: EventLog, writer: LogWriter) -> list[str]:
    """Returns the versions that a log continues.

    Raises:
        InputError: The events up to the last time of the earlier log are not those that it has.
    """
    if writer.earlier_fingerprint(earlier.about["texts_used"]) != earlier.fingerprint:
        raise InputError(
            f"--continues is '{earlier.name}', but events up to its last time are not the same here, or not in the "
            "same order: histories of samples that a run was trained on would change; sort without --continues"
        )
    return [*earlier.versions]


def _print(about: dict[str, Any], out: str, user: str, time: str, listed: Sequence[str]) -> None:
    """Prints what was sorted, what is to be known, and the keys to gather histories with."""
    for line in about["told"]:
        print(f"note: {line}")
    size = sum(about["files"].values())
    print(
        f"log in {without_secrets(out)}: {plural(about['events'], 'event')} of {plural(about['users'], 'user')}, up to "
        f"{about['longest']:,} of one, {size / 2**20:,.1f} MiB"
    )
    lists = ", ".join(f'{name}_history = "{name}"' for name in listed)
    print(
        f'\n[data.history]\nlog = "{out}"\nuser = "{user}"\ntime = "{time}"\nlength = 50\ncolumns = {{{lists}}}',
        flush=True,
    )
