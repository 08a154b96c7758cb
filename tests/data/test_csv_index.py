"""Blocks of CSV files, of any text, read in any parts."""

import csv
import io

import pyarrow as pa
import pyarrow.csv as pa_csv
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.readers.csv import Dialect, find_fault
from trainer.data.readers.csv_index import Blocks, CsvIndex, rows_of

VALUES = st.text(st.sampled_from('ab,"\n\r |é'), max_size=8)
ROWS = st.lists(st.tuples(VALUES, VALUES), max_size=40)


def written(rows: list[tuple[str, str]], newline: str) -> bytes:
    """Returns rows as Python's writer quotes them."""
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator=newline).writerows(rows)
    return text.getvalue().encode()


@settings(deadline=None)  # a busy machine is no fault
@given(ROWS, st.sampled_from(["\n", "\r\n"]), st.integers(64, 300), st.integers(1, 97), st.booleans())
def test_blocks_are_whole_rows_in_order_whatever_a_read_returns(rows, newline, size, part, whole):
    text = written(rows, newline)
    text = text if whole else text.removesuffix(newline.encode())
    source = io.BytesIO(text)
    found = list(Blocks(lambda count: source.read(min(count, part)), "file", '"', size))
    assert b"".join(one for _, one in found) == text
    assert found == list(Blocks(io.BytesIO(text).read, "file", '"', size))
    read, start = [], 0
    for block, one in found:
        assert (block.start, block.size) == (start, len(one))
        assert block.size <= size
        assert block.line == 1 + text.count(b"\n", 0, start)
        start += block.size
        table = pa_csv.read_csv(
            pa.BufferReader(one),
            pa_csv.ReadOptions(column_names=["a", "b"]),
            pa_csv.ParseOptions(newlines_in_values=True),
            pa_csv.ConvertOptions(column_types={"a": pa.string(), "b": pa.string()}),
        )
        assert table.num_rows == block.rows == len(rows_of(one, '"'))
        assert find_fault(one, 1, ["a", "b"], {"a": pa.string()}, Dialect(",", '"', "|", ("",))) is None
        read += zip(*table.to_pydict().values(), strict=True)
    assert read == rows
    index = CsvIndex(len(text), "a,b", tuple(block for block, _ in found))
    assert CsvIndex.from_bytes(index.to_bytes()) == index


def test_an_index_is_short():
    line = b"0.123456789,987654321,1\n"
    source = io.BytesIO(line * 100_000)
    blocks = tuple(block for block, _ in Blocks(source.read, "file", '"', 4096))
    assert len(CsvIndex(0, "", blocks).to_bytes()) < 25 * len(blocks)
