"""Writes a data set: Parquet files, each whole or absent, and a summary that marks the set as complete.

Files under OUT:

* `settings.json`: the source and the arguments. A second call with other arguments stops.
* `{train,validation,test}/part-*.parquet`: row groups of 65,536 rows. A file is written as `*.partial` and then moved.
* `NAME.parquet`: a table beside the splits, if the data set has one.
* `summary.json`: written last, when every file exists.
"""

import json
import posixpath
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tabulate

from trainer.core.console import next_commands
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, open_storage, os_errors

ROW_GROUP_ROWS = 65_536  # the default size of a shuffle window, which then reads one row group at a time
FOOTER_THREADS = 16  # reading a footer from an object store takes several requests, one after the other
SPLITS = ("train", "validation", "test")


class PartWriter:
    """Writes tables of any length as one Parquet file with row groups of 65,536 rows.

    Args:
        writer: Writes the row groups.
        label: The column whose positives are counted.

    Attributes:
        counts: Numbers to record in the file's metadata.
    """

    def __init__(self, writer: pq.ParquetWriter, label: str) -> None:
        self._writer, self._label, self._waiting = writer, label, writer.schema.empty_table()
        self.counts = {"rows": 0, "positives": 0}

    def write(self, table: pa.Table) -> None:
        """Appends rows."""
        self.counts["rows"] += table.num_rows
        self.counts["positives"] += int(np.asarray(table[self._label]).sum())
        self._waiting = pa.concat_tables([self._waiting, table])
        self._flush(self._waiting.num_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS)

    def close(self) -> None:
        """Writes the last, short row group and the counts."""
        self._flush(self._waiting.num_rows)
        # In the footer, so that a restarted call need not read finished files.
        self._writer.add_key_value_metadata({"counts": json.dumps(self.counts)})

    def _flush(self, rows: int) -> None:
        if rows:
            self._writer.write_table(self._waiting.slice(0, rows), row_group_size=ROW_GROUP_ROWS)
            self._waiting = self._waiting.slice(rows)


class DataSetWriter:
    """One data set under construction.

    Args:
        out: Directory, on any fsspec URL.
        settings: The source and the arguments, as JSON values. Files of other settings never mix with these.
        beside: Names of the tables that `beside` writes.
        label: The column whose positives the summary counts.

    Raises:
        InputError: `out` already holds a data set of other settings or unknown files, or cannot be written.
    """

    def __init__(self, out: str, settings: Mapping[str, Any], beside: Sequence[str] = (), label: str = "label") -> None:
        self.out, self._beside, self._label = out.rstrip("/"), beside, label
        self.settings = json.loads(json.dumps(settings))  # tuples become lists, as in the file to compare with
        if not self.out:
            raise InputError(f"--out is '{out}'; name a directory, any fsspec URL")
        with named("--out", out):
            self._fs, self._root = open_storage(self.out)
            self._check_settings()
            for split in SPLITS:
                self._fs.makedirs(f"{self._root}/{split}")
            self.write_json("settings.json", self.settings)

    def counts(self, split: str, part: str) -> dict[str, int] | None:
        """Returns the numbers recorded in a file, None if there is no file."""
        try:
            with self._fs.open(self._path(split, part)) as file:
                return json.loads(pq.read_metadata(file).metadata[b"counts"])
        except FileNotFoundError:
            return None

    @contextmanager
    def part(self, split: str, part: str, schema: pa.Schema) -> Generator[PartWriter, None, None]:
        """Opens one Parquet file. The file gets its name only if the block ends without an exception."""
        path = self._path(split, part)
        # Under another name until the file is whole: jobs that list the directory, and the next call, assume that every
        # .parquet file is finished. The name is unique, as Spark may start a task again before the first attempt ends.
        partial = f"{path}.{uuid.uuid4().hex[:8]}.partial"
        with (
            os_errors(),  # above all, no space left on the device
            self._fs.open(partial, "wb") as file,
            pq.ParquetWriter(file, schema, compression="lz4") as rows,
        ):
            writer = PartWriter(rows, self._label)
            yield writer
            writer.close()
        self._fs.mv(partial, path)

    def beside(self, name: str, table: pa.Table) -> None:
        """Writes a table beside the splits, as `OUT/NAME.parquet`; a name may have a directory."""
        if folder := posixpath.dirname(name):
            self._fs.makedirs(f"{self._root}/{folder}")
        with os_errors(), self._fs.open(f"{self._root}/{name}.parquet", "wb") as file:
            pq.write_table(table, file, compression="lz4")

    def commit(self, parts: Iterable[tuple[str, str]], about: Mapping[str, Any]) -> dict[str, Any]:
        """Writes `summary.json`, which marks the data set as complete, and removes the remains of killed calls.

        Args:
            parts: The split and the name of every file.
            about: Further entries. Values under a split's name describe that split, all others the data set.

        Returns:
            The summary.
        """
        found: dict[str, list[dict[str, int]]] = {split: [] for split in SPLITS}
        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            for split, counts in pool.map(lambda part: (part[0], self.counts(*part)), parts):
                found[split].append(counts or {"rows": 0, "positives": 0})
        summary = {
            **{key: value for key, value in about.items() if key not in SPLITS},
            "settings": self.settings,
            "splits": {split: _total(counts) | about.get(split, {}) for split, counts in found.items()},
        }
        for split in SPLITS:
            for left in self._fs.glob(f"{self._path(split, '*')}.*.partial"):
                self._fs.rm(left)
        self.write_json("summary.json", summary)
        return summary

    def _path(self, split: str, part: str) -> str:
        return f"{self._root}/{split}/{part}.parquet"

    def _check_settings(self) -> None:
        try:
            there = json.loads(self._fs.cat_file(f"{self._root}/settings.json"))
        except FileNotFoundError:
            others = [f"{self._root}/summary.json", *(f"{self._root}/{name}.parquet" for name in self._beside)]
            if any(map(self._fs.exists, others)) or any(
                self._fs.exists(f"{self._root}/{split}") and self._fs.find(f"{self._root}/{split}") for split in SPLITS
            ):
                raise InputError(
                    f"{self.out} holds files but no settings.json; name an empty directory as --out"
                ) from None
            return
        except ValueError as error:
            raise InputError(
                f"{self.out}/settings.json is damaged: {error}; delete the directory, or name another one as --out"
            ) from error
        for key in sorted(self.settings.keys() | there.keys()):
            if self.settings.get(key) != there.get(key):
                raise InputError(
                    f"{self.out} holds a data set made with {key} = {json.dumps(there.get(key))}, and now it is "
                    f"{json.dumps(self.settings.get(key))}; delete the directory, or name another one as --out"
                )

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes JSON as `OUT/NAME`, in place of what is there."""
        self._fs.write(f"{self._root}/{name}", (json.dumps(value, indent=2) + "\n").encode())

    def write_once(self, name: str, text: str) -> None:
        """Writes `OUT/NAME` unless it is there, as its user may have changed it."""
        if not self._fs.exists(f"{self._root}/{name}"):
            self._fs.write(f"{self._root}/{name}", text.encode())


def _total(counts: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    rows, positives = (sum(count[key] for count in counts) for key in ("rows", "positives"))
    return {"files": len(counts), "rows": rows, "label_rate": positives / rows if rows else None}


def print_summary(
    summary: Mapping[str, Any],
    title: str,
    config: str,
    out: str,
    columns: Sequence[str] = (),
    usual: str | None = None,
    below: Mapping[str, str] | None = None,
) -> None:
    """Prints the splits of a data set, one line for each, and the command that trains on it.

    Args:
        summary: The result of `DataSetWriter.commit`.
        title: Name of the data set.
        config: The preset, or the file, that trains on the data set.
        out: The directory.
        columns: Values of each split to show besides files, rows and label rate.
        usual: The directory that it names. Unset: data/NAME.
        below: The keys of the preset that name files, each with what it names in the directory. Unset: the splits.
    """
    names, out = ["files", "rows", "label_rate", *columns], out.rstrip("/")
    lines = [[split, *(values.get(name) for name in names)] for split, values in summary["splits"].items()]
    print(tabulate.tabulate(lines, ["split", *names], intfmt=",", floatfmt=".4f", missingval="-"))
    below = {f"data.{split}": split for split in SPLITS} if below is None else below
    flags = [word for key, name in below.items() for word in (f"--{key}", f"{out}/{name}")]
    elsewhere = ["--", *flags] if out != (usual or f"data/{config}") else []
    print(f"{title} in {without_secrets(out)}\n")
    print(next_commands(["torchx", "run", "dlrm.multi_node", "--config", config, "-j", "1x2", *elsewhere]))
