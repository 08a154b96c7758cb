"""How CSV files are read, and files that come in segments."""

from collections.abc import Collection
from typing import Annotated, Literal, Self

import pydantic

from trainer.core.errors import InputError, nearest
from trainer.core.section import MayChange, Section

NEWLINES = "\r\n"
CSV_READERS = ("csv", "tsv")


class CsvConfig(Section):
    """How CSV files are read, with data.reader csv or tsv."""

    delimiter: str | None = None
    """Character between columns. Unset: a comma for csv, a tab for tsv."""
    header: bool = True
    """Whether the first line of every file names its columns."""
    columns: list[str] = []
    """Names of all columns in order, with header = false only."""
    quote: str = '"'
    """Character around a value that contains delimiters or newlines; inside the value it is doubled. Empty: none."""
    lists: list[str] = []
    """Columns with a list in each value: of ids, or of their weights."""
    list_separator: str = "|"
    """Text between the elements of a list."""
    strings: list[str] = []
    """Columns of ids that are text. The ids of all other columns are integers."""
    nulls: list[str] = [""]
    """Values that mean null."""
    block_bytes: int = pydantic.Field(default=8 * 2**20, ge=64, le=2**30)
    """Largest block in bytes: the rows that are read together. No row may be longer."""
    cache: Annotated[str | None, MayChange] = None
    """Cache directory, on any fsspec URL, for where the blocks of files begin, and for the blocks of compressed files.
    Unset: data.cache."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        for key in ("delimiter", "quote"):
            value = getattr(self, key)
            if value and (len(value) != 1 or not value.isascii() or value in NEWLINES):
                raise InputError(f"data.csv.{key} is {value!r}; it must be one ASCII character, and no newline")
        if self.delimiter == "":
            raise InputError("data.csv.delimiter is ''; it must be one ASCII character")
        if self.quote and self.quote == self.delimiter:
            raise InputError(f"data.csv.quote and data.csv.delimiter are both {self.quote!r}; make them different")
        if not self.list_separator or set(self.list_separator) & {*NEWLINES, self.quote}:
            raise InputError(
                f"data.csv.list_separator is {self.list_separator!r}; it must be a text without quote and newline"
            )
        if self.header and self.columns:
            raise InputError("data.csv.columns is set, but data.csv.header is true; set it to false or leave them out")
        if not self.header and not self.columns:
            raise InputError("data.csv.header is false, but data.csv.columns is empty; name all columns in order")
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise InputError(f"data.csv.columns names '{name}' twice; every column needs a name of its own")
        return self

    def delimiter_of(self, reader: str) -> str:
        """Returns the delimiter for a reader, csv or tsv."""
        return self.delimiter or ("\t" if reader == "tsv" else ",")

    def check(self, reader: str, columns: Collection[str]) -> None:
        """Raises InputError where a key does not go with the reader, or with the columns that are read."""
        given = sorted(self.model_dump(exclude_defaults=True))
        if given and reader not in CSV_READERS:
            raise InputError(
                f"data.csv.{given[0]} is set, but data.reader is '{reader}', which does not use it; set it to 'csv' or "
                "'tsv', or leave data.csv out"
            )
        for key in ("lists", "strings"):
            if unknown := [name for name in getattr(self, key) if name not in columns]:
                raise InputError(
                    f"data.csv.{key} names '{unknown[0]}', which is not read{nearest(unknown[0], columns)}"
                )
        delimiter = self.delimiter_of(reader)
        if reader in CSV_READERS and self.quote == delimiter:
            raise InputError(f"data.csv.quote is {delimiter!r}, which is also the delimiter of '{reader}'; change one")
        if self.lists and not self.quote and delimiter in self.list_separator:
            raise InputError(
                f"data.csv.list_separator is {self.list_separator!r}, which has the delimiter {delimiter!r} in it, and "
                "data.csv.quote is empty; then no value can contain it; change one of them"
            )


NAME = "{segment}"


class SegmentsConfig(Section):
    """Data that comes in segments, such as days: each is evaluated and then trained on once, in the order of names.

    With data.validation, that is evaluated on in place of each segment, as often as [evaluate] says.
    """

    path: str | None = None
    """Files of a segment, as in data.train, with {segment} for its name: logs/dt={segment}. Unset: no segments."""
    first: str | None = None
    """Name of the first segment. Unset: the first by name that is there when the run begins."""
    until: Annotated[str | None, MayChange] = None
    """Name of the last segment. Unset: no end."""
    most: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Most segments that one job trains on. Unset: no limit."""
    skip: Annotated[list[Annotated[str, pydantic.StringConstraints(min_length=1)]], MayChange] = []
    """Names of segments to leave out, or patterns of names such as 2026-11-*."""
    marker: Annotated[str | None, MayChange] = None
    """File in the directory of a segment that says that it is complete, such as _SUCCESS. Unset: none is needed."""
    least_files: Annotated[pydantic.PositiveInt, MayChange] = 1
    """A segment with fewer files is not complete."""
    least_age_seconds: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """A segment is complete once its files have not changed for this long."""
    follow: Annotated[bool, MayChange] = False
    """Wait for the next segment in place of ending the job."""
    poll_seconds: Annotated[pydantic.PositiveFloat, MayChange] = 60.0
    """Time between two looks for the next segment."""
    forget_after: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """A managed id that none of this many segments had loses its row. Unset: once another id needs the row."""
    changed: Annotated[Literal["tell", "train", "stop"], MayChange] = "tell"
    """If files of a trained segment changed, or a segment came late: tell goes on without it, train trains on it next,
    stop ends the job."""

    @pydantic.model_validator(mode="after")
    def _is_a_pattern(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if self.path is None and given:
            raise InputError(f"data.segments.{min(given)} is set, but data.segments.path is not; set both or none")
        if self.path is not None and self.path.count(NAME) != 1:
            raise InputError(f"data.segments.path is '{self.path}', which must have {NAME} once: logs/dt={NAME}")
        if self.until is not None and self.first is not None and self.until < self.first:
            raise InputError(f"data.segments.until is '{self.until}', before data.segments.first, '{self.first}'")
        return self
