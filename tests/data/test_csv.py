"""CSV and TSV files from outside: texts in, the columns of every block out."""

import bz2
import gzip
import random

import pyarrow as pa
import pytest
from csv_files import blocks_of, csv_config, read_all

from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.readers.csv_index import CsvIndex
from trainer.data.row_groups import RowGroupReader, find_evaluated_files

PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda text: pa.compress(text, "zstd", asbytes=True),
}
TEXT = "x,id,label\n1.5,7,1\n,8,0\n-2,,1\n"
VALUES = {"x": [1.5, None, -2.0], "id": [7, 8, None], "label": [1.0, 0.0, 1.0]}


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def long_text(rows: int) -> str:
    lines = [f"{n / 7!r},{n % 1000},{n % 2}\n" for n in range(rows)]
    return "".join(["x,id,label\n", *lines])


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        TEXT.replace("\n", "\r\n"),
        "\ufeff" + TEXT,
        TEXT.removesuffix("\n"),
        TEXT + "\n\r\n\n",
        TEXT.replace("\n", "\n\n"),
        TEXT.replace("x,id", '"x","id"').replace("1.5,7", '"1.5", 7 '),
        "label,other,id,x\n1,a,7,1.5\n0,b,8,\n1,c,,-2\n",
    ],
    ids=["plain", "CRLF", "BOM", "no last newline", "empty last lines", "empty lines", "quotes", "other columns"],
)
@pytest.mark.parametrize("pack", PACK)
def test_values_and_types(tmp_path, cache, text, pack):
    file = tmp_path / f"a.csv{pack}"
    file.write_bytes(PACK[pack](text.encode()))
    found = read_all(file, csv_config(cache))
    assert found.to_pydict() == VALUES
    assert found.schema.types == [pa.float64(), pa.int64(), pa.float64()]


def test_without_header_by_tabs_and_without_quotes(tmp_path, cache):
    (tmp_path / "a.tsv").write_text('1\t"a\t7\n0\tb"\t8\n')
    settings = {"header": False, "columns": ["label", "id", "x"], "quote": "", "strings": ["id"]}
    config = csv_config(cache, "tsv", settings, sparse={"id": {"rows": 9, "ids": "hash"}})
    assert read_all(tmp_path, config).to_pydict() == {"x": [7.0, 8.0], "id": ['"a', 'b"'], "label": [1.0, 0.0]}


def test_lists_strings_and_nulls(tmp_path, cache):
    (tmp_path / "a.csv").write_text('id;x;label;tags\n1 2 3;NA;1;"a;b c"\n;2;0;NA\n-;3;1;"say ""x""\nand y"\n4;4;0;z\n')
    settings = {
        "delimiter": ";",
        "list_separator": " ",
        "lists": ["id", "tags"],
        "strings": ["tags"],
        "nulls": ["NA", "", "-"],
    }
    sparse = {"id": {"rows": 9}, "tags": {"rows": 9, "ids": "hash"}}
    found = read_all(tmp_path, csv_config(cache, csv=settings, sparse=sparse)).to_pydict()
    assert found["id"] == [[1, 2, 3], None, None, [4]]
    assert found["tags"] == [["a;b", "c"], None, ["say", '"x"\nand', "y"], ["z"]]
    assert found["x"] == [None, 2.0, 3.0, 4.0]


def test_ids_that_look_like_numbers_are_text_where_the_configuration_says_so(tmp_path, cache):
    (tmp_path / "a.csv").write_text("x,id,label\n1,007,1\n1,7,0\n")
    config = csv_config(cache, csv={"strings": ["id"]}, sparse={"id": {"rows": 9, "ids": "hash"}})
    assert read_all(tmp_path, config)["id"].to_pylist() == ["007", "7"]


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.slow
def test_many_blocks_are_the_same_rows(tmp_path, cache, pack):
    file, text = tmp_path / f"a.csv{pack}", long_text(3000)
    file.write_bytes(PACK[pack](text.encode()))
    whole = read_all(file, csv_config(cache))
    assert whole["x"].to_pylist() == [n / 7 for n in range(3000)]
    for size in (64, 1000, 10_000):
        config = csv_config(cache, csv={"block_bytes": size})
        assert read_all(file, config).equals(whole)
        blocks = blocks_of(file, config)
        assert len(blocks) >= len(text) / size
        assert sum(blocks) == 3000
    plain = tmp_path / "plain.csv"
    plain.write_text(text)
    assert blocks_of(plain, config) == blocks


def test_a_directory_stands_for_files_of_its_format(tmp_path, cache):
    for name in ("a.csv", "b.csv.gz", "c.tsv", "d.txt", "e.parquet"):
        (tmp_path / name).write_bytes(gzip.compress(TEXT.encode()) if name.endswith("gz") else TEXT.encode())
    files = find_files("data.train", [str(tmp_path)], csv_config(cache)).files
    assert [file.url.rpartition("/")[2] for file in files] == ["a.csv", "b.csv.gz"]


def test_object_stores_and_a_cache_there():
    import fsspec

    fs = fsspec.filesystem("memory")
    for pack in ("", ".gz"):
        fs.pipe_file(f"/csv/a.csv{pack}", PACK[pack](long_text(500).encode()))
    config = csv_config("memory://csv/cache", csv={"block_bytes": 2000})
    plain, packed = (read_all(f"memory://csv/a.csv{pack}", config) for pack in ("", ".gz"))
    assert plain.num_rows == 500
    assert packed.equals(plain)


def test_a_file_is_indexed_once(tmp_path, cache):
    file = tmp_path / "a.csv"
    file.write_text(long_text(50))
    config = csv_config(cache, csv={"block_bytes": 200})
    blocks = blocks_of(file, config)
    (kept,) = cache.glob("*.index")
    # What the cache has is believed: a file in it with one block less is what comes back.
    index = CsvIndex.from_bytes(kept.read_bytes())
    kept.write_bytes(CsvIndex(index.size_bytes, index.header, index.blocks[:-1]).to_bytes())
    assert blocks_of(file, config) == blocks[:-1]
    file.write_text(long_text(60))
    assert sum(blocks_of(file, config)) == 60


def test_another_host_makes_the_blocks_of_a_compressed_file_for_itself(tmp_path, cache):
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress(long_text(500).encode()))
    settings = {"block_bytes": 1000}
    found = find_files("data.train", [str(file)], csv_config(cache, csv=settings))
    here = RowGroupReader(found, csv_config(cache, csv=settings))
    there = RowGroupReader(found, csv_config(tmp_path / "other", csv=settings))
    for group in found.row_groups:
        assert here.read(group)("x").equals(there.read(group)("x"))
    assert len(list((tmp_path / "other").glob("*.blocks"))) == 1
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("pack", ["", ".gz"])
def test_a_file_that_changed_after_it_was_indexed(tmp_path, cache, pack):
    file, config = tmp_path / f"a.csv{pack}", csv_config(cache, csv={"block_bytes": 500})
    file.write_bytes(PACK[pack](long_text(50).encode()))
    found = find_files("data.train", [str(file)], config)
    file.write_bytes(PACK[pack](long_text(50).replace("0.14", "0.15").encode()))
    with pytest.raises(InputError, match=r"a\.csv.*, lines 2 to \d+: the file changed after it was indexed; start"):
        RowGroupReader(found, config).read(found.row_groups[0])
    assert sum(blocks_of(file, config)) == 50


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ('"1",5,2', r"column 'label': 2\.0 is not a label"),
        ("1,5000,1", r"column 'id': id 5000 is outside \[0, 1000\)"),
    ],
)
def test_bad_values_are_named_with_their_line(tmp_path, cache, row, fault):
    from trainer.batches.loader import Loader
    from trainer.data.epoch_order import Lanes

    text = long_text(40).splitlines(keepends=True)
    text[20] = f"\n{row}\n"  # behind an empty line: line 22
    (tmp_path / "a.csv").write_text("".join(text))
    config = csv_config(cache, csv={"block_bytes": 100}, global_batch_size=8)
    files = find_files("data.train", [str(tmp_path)], config)
    loader = Loader(files, config, Lanes(files.rows, 8, 8), 0, 1, seed=random.randrange(99), shuffle=True)
    with pytest.raises(InputError, match=rf"a\.csv, line 22, {fault}"):
        list(loader.batches(0, 5))


@pytest.mark.parametrize(
    ("csv", "expected"),
    [
        ({"delimiter": ";;"}, r"data\.csv\.delimiter is ';;'; it must be one ASCII character"),
        ({"delimiter": ""}, r"data\.csv\.delimiter is ''"),
        ({"quote": "é"}, r"data\.csv\.quote is 'é'"),
        ({"quote": ","}, r"data\.csv\.quote is ',', which is also the delimiter"),
        ({"delimiter": "'", "quote": "'"}, r"data\.csv\.quote and data\.csv\.delimiter are both .*make them different"),
        ({"list_separator": ""}, r"data\.csv\.list_separator is ''"),
        (
            {"list_separator": ",", "lists": ["id"], "quote": ""},
            r"data\.csv\.list_separator is ',', which has the delimiter",
        ),
        ({"columns": ["a"]}, r"data\.csv\.columns is set, but data\.csv\.header is true"),
        ({"header": False}, r"data\.csv\.columns is empty"),
        ({"header": False, "columns": ["a", "a"]}, r"data\.csv\.columns names 'a' twice"),
        ({"lists": ["idd"]}, r"data\.csv\.lists names 'idd', which is not read; did you mean 'id'"),
        ({"strings": ["other"]}, r"data\.csv\.strings names 'other'"),
        ({"block_bytes": 2**31}, "less than or equal to 1073741824"),
    ],
)
def test_wrong_keys(cache, csv, expected):
    with pytest.raises(ValueError, match=expected):
        csv_config(cache, csv=csv)


def test_keys_of_csv_need_its_reader(cache):
    with pytest.raises(ValueError, match=r"data\.csv\.cache is set, but data\.reader is 'parquet'"):
        csv_config(cache, "parquet")


def test_a_cache_that_cannot_be_used(tmp_path):
    (tmp_path / "cache").write_text("")
    (tmp_path / "a.csv").write_text(TEXT)
    with pytest.raises(InputError, match=r"data\.csv\.cache is '.*cache', which cannot be used: .*; "):
        read_all(tmp_path / "a.csv", csv_config(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("condition", "rows"),
    [(["country", "==", "de"], [0, 2]), (["price", ">", 1.5], [1, 2]), (["id", "in", [2, 3]], [1, 2])],
)
def test_filters_by_columns_that_training_reads_or_not(tmp_path, cache, condition, rows):
    (tmp_path / "a.csv").write_text("x,country,id,price,label\n0,de,1,1.5,1\n1,fr,2,1.6,1\n2,de,3,9,0\n")
    config = csv_config(cache, select={"filter": [condition]}, shuffle=False)
    files = find_evaluated_files("data.test", [str(tmp_path)], config)
    (group,) = files.row_groups
    assert RowGroupReader(files, config).read(group)("x").to_pylist() == rows
