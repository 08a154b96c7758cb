"""Random data sets, each by its number: columns of every kind of docs/reference/column_types.md, in random company."""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from column_kinds import DATES, EPOCH, FLOATS, INTEGERS, MEANINGLESS, TIMES, picked, runs

ROWS = 240
DAY = 86_400
Draw = Callable[[np.random.Generator, int], list]
"""Returns so many values, none of them null."""


def integers(low: int, high: int) -> Draw:
    """Draws integers of a type's range: few, many, counted up, negative, or up to both ends."""

    def draw(random: np.random.Generator, number: int) -> list:
        way = random.choice(["few", "few", "many", "rising", "negative", "wide", "constant", "two"])
        if way == "rising":
            return [int(n) % (high + 1) for n in range(number)]
        if way == "wide":
            wide = np.int64 if low else np.uint64
            return [low, high, *(int(random.integers(low, high, dtype=wide)) for _ in range(number - 2))]
        most = {"few": 9, "many": 999, "negative": 5, "constant": 1, "two": 2}[way]
        least = -5 if way == "negative" else 7 if way == "constant" else 0
        found = random.integers(max(low, least), min(high, max(most, least)) + (way != "two"), number)
        return found.tolist()

    return draw


def ticks(per_second: int, of_day: bool = False) -> Draw:
    """Draws times of the years 1969 to 2030, or of a day, in a unit."""

    def draw(random: np.random.Generator, number: int) -> list:
        first, last = (0, DAY) if of_day else [(-DAY, DAY), (1_600_000_000, 1_900_000_000)][random.integers(2)]
        return [int(n) * per_second for n in random.integers(first, last, number)]

    return draw


def days(random: np.random.Generator, number: int) -> list:
    first = random.choice([-3, 20_000])
    return [EPOCH + datetime.timedelta(int(n)) for n in random.integers(first, first + 400, number)]


def floats(largest: float) -> Draw:
    """Draws numbers: normal, skewed, whole, of one value; sometimes not finite."""

    def draw(random: np.random.Generator, number: int) -> list:
        way = random.choice(["normal", "skewed", "whole", "constant", "tiny", "not finite"])
        found = {
            "skewed": np.exp(2 * random.standard_normal(number)).clip(0, largest),
            "whole": random.integers(0, 5, number).astype(float),
            "constant": np.full(number, 0.1),
            "tiny": random.standard_normal(number) * 1e-6,
        }.get(way, 50 + 20 * random.standard_normal(number))
        if way == "not finite":
            found[random.integers(0, number, 3)] = [np.nan, np.inf, -np.inf]
        return found.tolist()

    return draw


def decimals(scale: int) -> Draw:
    return lambda random, number: [
        Decimal(int(n)).scaleb(-scale) for n in random.integers(-999, 10 ** random.integers(1, 6), number)
    ]


WORDS = ["", " ", "NA", "null", "nan", "ü", "u\u0308", "名前", "😀", "0.5", "0.50", "7", "a,b", "a|b", 'a"b', "x" * 300]


def words(random: np.random.Generator, number: int) -> list:
    """Draws texts: odd ones, a few names, or one for each row."""
    way = random.choice(["odd", "few", "unique", "one", "numbers"])
    few = [f"city {n}" for n in range(random.integers(2, 40))]
    texts = {"odd": WORDS, "few": few, "one": ["x"], "numbers": ["1.5", "2.0", "3.25"]}.get(way)
    return random.choice(texts, number).tolist() if texts else [f"{random.integers(10**9)}-{n}" for n in range(number)]


def no_text(random: np.random.Generator, number: int) -> list:
    """Draws bytes that are not UTF-8."""
    return [bytes([n % 256, 0xFF]) for n in random.integers(0, 9, number)]


def booleans(random: np.random.Generator, number: int) -> list:
    return (random.random(number) < 0.3).tolist()


def _limits(dtype: pa.DataType) -> tuple[int, int]:
    found = np.iinfo(dtype.to_pandas_dtype())
    return int(found.min), int(found.max)


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
Kinds = dict[pa.DataType, Draw]
NUMBERS: Kinds = {dtype: integers(*_limits(dtype)) for dtype in INTEGERS}
FRACTIONS: Kinds = {dtype: floats(6e4 if dtype == pa.float16() else 1e30) for dtype in FLOATS}
DECIMALS: Kinds = {make(9, scale): decimals(scale) for make in (pa.decimal128, pa.decimal256) for scale in (0, 2)}
MOMENTS: Kinds = dict.fromkeys(DATES, days)
CLOCKS: Kinds = {dtype: ticks(UNITS[dtype.unit], not pa.types.is_timestamp(dtype)) for dtype in TIMES}
FLAGS: Kinds = {pa.bool_(): booleans}
TEXTS: Kinds = {pa.string(): words, pa.large_string(): words, pa.string_view(): words}
BYTES: Kinds = dict.fromkeys([pa.binary(), pa.large_binary(), pa.binary(2)], no_text)
BROKEN_TEXTS: Kinds = {pa.string(): no_text}
FAMILIES = [NUMBERS, NUMBERS, TEXTS, TEXTS, FRACTIONS, FLAGS, DECIMALS, MOMENTS, CLOCKS, BYTES, BROKEN_TEXTS]
"""Kinds of columns with one value in each row, the common ones twice."""
LISTS = (pa.list_, pa.large_list, pa.list_view, pa.large_list_view, lambda dtype: pa.list_(dtype, 2))
NAMES = [
    *("user_id", "item", "hour", "weight", "created_at", "ts", "time", "city", "price", "target_id", "is_new", "C14"),
    *("dense", "sparse", "columns", "self", "model", "data", "rows", "outputs", "class", "None", "lambda", "type"),
    *("a.b", "a..b", "with spaces", " ", "  padded ", "tab\t", "line\nbreak", 'quote"d', "it's", "back\\slash", "%2E"),
    *("a/b", "../up", "#", "[0]", "[red]", "a,b", "a|b", "a:b", "a=b", "*", "-", "--rows", "{brace}", "$x", "~", "0"),
    *("7days", "1e5", "цена", "名前", "😀", "e\u0301", "é", "Class", "CLASS", "x" * 200, "ж" * 100, "null", "nan"),
    *("price.values", "price.present", "item.lengths", "city.weights", "label_probability"),
    *("row_id", "__index_level_0__"),
]
LABELS = ["label", "clicked", "click", "y", "is_fraud", "Recommended IND", "purchased"]


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        columns: Its columns.
        label: The column to predict.
        reader: The format of its files.
    """

    columns: Mapping[str, pa.Array]
    label: str
    reader: str

    @property
    def table(self) -> pa.Table:
        """All rows in order."""
        return pa.table(dict(self.columns))

    @property
    def meaningless(self) -> list[str]:
        """Columns that can be no feature."""
        types = [array.type for array in MEANINGLESS.values()]
        return [name for name, array in self.columns.items() if array.type in types]

    def write(self, folder: Path) -> Path:
        """Writes two files."""
        folder.mkdir()
        for number, part in enumerate((self.table.slice(0, 100), self.table.slice(100))):
            part, file = part.combine_chunks(), folder / f"part-{number}.{self.reader}"
            if self.reader == "parquet":
                pq.write_table(part, file, row_group_size=64)
            elif self.reader == "csv":
                pyarrow.csv.write_csv(part, file)
            else:
                with pa.ipc.new_file(file, part.schema) as sink:
                    for batch in part.to_batches(64):
                        sink.write_batch(batch)
        return folder

    def read(self, folder: Path) -> pa.Table:
        """Returns all rows as they are in the files, by pyarrow's own readers; those of CSV files as text."""
        files = sorted(folder.iterdir())
        if self.reader == "csv":
            as_text = pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(self.columns, pa.string()), null_values=[""], strings_can_be_null=True
            )
            return pa.concat_tables(pyarrow.csv.read_csv(file, convert_options=as_text) for file in files)
        if self.reader == "parquet":
            return pa.concat_tables(pq.read_table(file) for file in files)
        return pa.concat_tables(pa.ipc.open_file(file).read_all() for file in files)


def has_only_numbers(number: int) -> bool:
    """Returns whether all features of the data set of a number are numbers: of every fourth."""
    return number % 4 == 0


def draw_data(number: int) -> DataSet:
    """Returns the data set of a number: a label, ids that repeat or numbers like them, and one to eleven columns more.

    See `has_only_numbers`.
    """
    random = np.random.default_rng([52, number])
    reader = str(random.choice(["parquet", "parquet", "arrow", "csv"]))
    # In the header of a CSV file a number is no name.
    names = iter(name for name in random.permutation(NAMES).tolist() if not (reader == "csv" and name.isdigit()))
    label, ids = str(random.choice(LABELS)), random.integers(0, 9, ROWS)
    of_label = random.random(ROWS) < 0.3 + 0.04 * ids
    dtype = [pa.int8(), pa.uint32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_()][random.integers(6)]
    numbers = pa.array(of_label).cast(pa.int8())
    columns = {label: numbers if reader == "csv" else numbers.cast(dtype)}
    only_numbers = has_only_numbers(number)
    columns[next(names)] = pa.array(ids + 0.5) if only_numbers else pa.array([f"id {n}" for n in ids])
    for _ in range(random.integers(1, 12)):
        columns[next(names)] = _number(random, reader) if only_numbers else _column(random, reader)
    order = random.permutation([*columns]).tolist()
    return DataSet({name: columns[name] for name in order}, label, reader)


def _column(random: np.random.Generator, reader: str) -> pa.Array:
    if reader == "csv":
        return _of_csv(random)
    way = random.choice(["single"] * 12 + ["list"] * 6 + ["dictionary"] * 3 + ["runs", "none", "meaningless"])
    if way == "none":
        return pa.nulls(ROWS)
    if way == "meaningless":
        names = [name for name, array in MEANINGLESS.items() if reader == "arrow" or _in_parquet(array.type)]
        return picked(MEANINGLESS[str(random.choice(names))], random.integers(0, 4, ROWS).tolist())
    family = FAMILIES[random.integers(len(FAMILIES))]
    if family is BROKEN_TEXTS and reader == "arrow":  # whose files are refused for them: Arrow's strings are UTF-8
        family = TEXTS
    dtype = [*family][random.integers(len(family))]
    if way == "list" and family is not BROKEN_TEXTS:
        make = LISTS[random.integers(len(LISTS))]
        found = make(dtype) if reader == "arrow" or _in_parquet(make(dtype)) else pa.list_(dtype)
        return _lists(random, family[dtype], found)
    array, is_view = _single(random, dtype, family[dtype]), pa.types.is_string_view(dtype)
    if way == "dictionary" and not is_view:
        nulls = random.choice(["mask", "encode"]) if reader == "arrow" else "mask"
        return array.dictionary_encode(null_encoding=str(nulls))
    return runs(array) if way == "runs" and reader == "arrow" and not is_view else array


def _number(random: np.random.Generator, reader: str) -> pa.Array:
    dtype = pa.float64() if reader == "csv" else [*FRACTIONS][random.integers(len(FRACTIONS))]
    return _single(random, dtype, FRACTIONS[dtype])


def _of_csv(random: np.random.Generator) -> pa.Array:
    way = random.integers(6)
    if way < 2:  # there, words for null are nulls
        few = [text for text in WORDS if text not in ("", "NA", "null", "nan")]
        return _single(random, pa.string(), lambda random, number: random.choice(few, number).tolist())
    families = {
        2: (pa.int64(), NUMBERS),
        3: (pa.float64(), FRACTIONS),
        4: (pa.date32(), MOMENTS),
        5: (pa.bool_(), FLAGS),
    }
    dtype, family = families[way]
    return _single(random, dtype, family[dtype])


def _in_parquet(dtype: pa.DataType) -> bool:
    return not any(word in str(dtype) for word in ("list_view", "run_end", "union", "interval"))


def _single(random: np.random.Generator, dtype: pa.DataType, draw: Draw) -> pa.Array:
    values, missing = draw(random, ROWS), random.choice([0, 0.1, 0.95, 1], p=[0.6, 0.3, 0.07, 0.03])
    found = [None if random.random() < missing else value for value in values]
    # The bytes of a string are not looked at that way.
    return (
        pa.array(found, pa.binary()).view(dtype) if draw is no_text and dtype == pa.string() else pa.array(found, dtype)
    )


def _lists(random: np.random.Generator, draw: Draw, dtype: pa.DataType) -> pa.Array:
    values, missing = iter(draw(random, 5 * ROWS)), random.choice([0, 0.1, 1], p=[0.5, 0.47, 0.03])
    lists = []
    for _ in range(ROWS):
        length = 2 if pa.types.is_fixed_size_list(dtype) else random.integers(0, 5)
        one = [None if random.random() < missing / 2 else next(values) for _ in range(length)]
        lists.append(None if random.random() < missing else one)
    return pa.array(lists, dtype)
