"""Guesses the types of columns in CSV files from their values, for data without a configuration."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from torchx_recsys.apps.check_data.splits import Split, chosen_groups, open_split
from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature, SparseFeature
from trainer.config.files import CsvConfig
from trainer.core.errors import InputError
from trainer.core.section import Tree
from trainer.data.row_groups import RowGroupReader

NULLS = ("NA", "N/A", "NULL", "Null", "null", "NaN", "nan", "None", "\\N")  # besides an empty field
DELIMITERS = ",;\t|"
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
KINDS = {"int64": "integer", "float64": "number", "list": "integers", "vector": "numbers"}  # in order of preference
LISTS = 0.1  # a column of texts counts as lists if more than this fraction has a separator


@dataclass
class _Values:
    """The values of a column so far.

    Attributes:
        number: Number of values.
        separated: Number of values with a separator of lists.
        types: The types that fit all values; `list` stands for integers between separators, and `vector` for numbers.
        nulls: The words for null among the values.
    """

    number: int = 0
    separated: int = 0
    types: set[str] = field(default_factory=lambda: {*KINDS})
    nulls: set[str] = field(default_factory=set)

    def add(self, texts: pa.ChunkedArray, separator: str) -> None:
        """Adds the values that are not null."""
        is_null = pc.is_in(texts, value_set=pa.array(NULLS))  # pyrefly: ignore[missing-attribute]
        self.nulls.update(texts.filter(is_null).unique().to_pylist())
        texts = texts.filter(pc.invert(is_null)).drop_null()  # pyrefly: ignore[missing-attribute]
        self.number += len(texts)
        self.separated += pc.sum(pc.match_substring(texts, separator)).as_py() or 0  # pyrefly: ignore[missing-attribute]
        elements = pc.list_flatten(pc.split_pattern(texts, separator))  # pyrefly: ignore[missing-attribute]
        read = {"int64": (texts, "int64"), "float64": (texts, "float64")}
        read |= {"list": (elements, "int64"), "vector": (elements, "float64")}
        self.types = {name for name in self.types if _can_be(*read[name])}

    @property
    def kind(self) -> str:
        """One of integer, number, text, integers, numbers and texts."""
        if self.types and self.number:
            return next(kind for dtype, kind in KINDS.items() if dtype in self.types)
        return "texts" if self.separated > LISTS * self.number else "text"


def _can_be(texts: pa.ChunkedArray, dtype: str) -> bool:
    try:
        texts.cast(dtype)
    except pa.ArrowInvalid:
        return False
    return True


def guess_types(
    config: DataConfig, files: Mapping[str, Sequence[str]], rows: int, everything: bool, seed: int
) -> DataConfig:
    """Returns a data section with types that fit all values in the blocks that a check reads.

    Args:
        config: Names the reader.
        files: The files of each split.
        rows: Rows of the sample.
        everything: Whether all row groups are read, as in a check.
        seed: Decides what is read.

    Raises:
        InputError: A file cannot be read, or has no header.
    """
    columns: dict[str, _Values] = {}
    config = config.model_copy(update={"labels": []})  # so that every column is read as text
    first = open_split("train", "--source", files["train"], config, seed)
    config = config.model_copy(update={"csv": CsvConfig(delimiter=_delimiter(first, config))})
    for name, urls in files.items():
        split = open_split(name, "--source", urls, config, seed)
        names = _own_columns(split)
        reader = RowGroupReader(split.files, config, names)
        for group in chosen_groups(split, rows, everything, seed):
            with reader.open(group) as column:
                for one in names:
                    columns.setdefault(one, _Values()).add(column(one), config.csv.list_separator)
    return _section(config, columns)


def _delimiter(split: Split, config: DataConfig) -> str | None:
    """Returns the delimiter: the configured one, or the most frequent one in a header that would be a single name."""
    (header, *more) = split.files.files[0].schema.names
    best = max(DELIMITERS, key=header.count)
    return best if not more and best in header else config.csv.delimiter


def _own_columns(split: Split) -> list[str]:
    """Returns the columns that are in all files, without columns of their paths."""
    for file in split.files.files:
        if numbers := [name for name in file.schema.names if NUMBER.fullmatch(name)]:
            raise InputError(
                f"{file.name}, line 1: the header names a column '{numbers[0]}', so it seems to be a row; write a "
                "configuration with data.csv.header = false and data.csv.columns, and check that"
            )
    given = {one.name for file in split.files.files for one in file.path_columns}
    return [name for name in split.kinds if name not in given]


def _section(config: DataConfig, columns: Mapping[str, _Values]) -> DataConfig:
    """Returns a data section that reads each column as its kind."""
    kinds = {name: values.kind for name, values in columns.items()}
    texts = [name for name, kind in kinds.items() if kind in ("text", "texts")]
    lists = [name for name, kind in kinds.items() if kind in ("integers", "numbers", "texts")]
    nulls = {word for name, values in columns.items() if name not in texts for word in values.nulls}
    csv = {"strings": texts, "lists": lists, "nulls": ["", *sorted(nulls)]}
    ids = SparseFeature(rows=1, ids="hash")
    return config.model_copy(
        update={
            "csv": config.csv.model_copy(update=csv),
            "dense": {name: DenseFeature() for name, kind in kinds.items() if kind in ("number", "numbers")},
            "sparse": {name: ids for name, kind in kinds.items() if kind not in ("number", "numbers")},
        }
    )


def csv_keys(csv: CsvConfig, used: Collection[str]) -> Tree:
    """Returns the section `data.csv`, limited to the columns that are used."""
    tree = csv.model_dump(exclude_defaults=True)
    tree |= {key: [name for name in tree.get(key, ()) if name in used] for key in ("strings", "lists")}
    return {key: value for key, value in tree.items() if value}
