"""A tutorial as it is typed: from a raw log to lists of the films that users like, in at most eight commands."""

import csv
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shell import typed

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/tutorials/from_a_log.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def reader(tmp_path_factory, path):
    """The directory of a reader who has typed all commands, and what each printed."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("trainer", "components", "torchx_recsys"):
        (folder / name).symlink_to(ROOT / name)
    printed = {}
    for language, block in FENCE.findall(PAGE.read_text()):
        if name := re.match(r"# (\w+\.\w+)\n", block):
            (folder / name[1]).write_text(block)
        for command in block.replace("\\\n", " ").splitlines() if language == "sh" else ():
            printed[command] = typed(command, folder, PATH=path)
    return folder, printed


def test_it_takes_at_most_eight_commands_without_an_error(reader):
    _, printed = reader
    assert 4 < len(printed) <= 8
    for command, said in printed.items():
        assert not re.search(r"\b(error:|traceback|warning:)", said, re.IGNORECASE), f"$ {command}\n{said}"


def test_every_user_gets_ten_films_of_the_own_taste_that_were_not_rated_before(reader):
    folder, printed = reader
    with (folder / "ratings.csv").open() as file:
        ratings = [*csv.DictReader(file)]
    with (folder / "films.csv").open() as file:
        genres = {int(film["film"]): film["genre"] for film in csv.DictReader(file)}
    lists = pa.concat_tables([pq.read_table(part) for part in sorted(folder.glob("runs/films-lists/*.parquet"))])
    own, found = {}, {}
    for row in ratings:
        if int(row["rating"]) >= 4:
            own.setdefault(int(row["user"]), Counter())[genres[int(row["film"])]] += 1
    for row in lists.to_pylist():
        assert row["title"] == f"Film {row['item']}"
        found.setdefault(row["user"], []).append(row)
    assert len(found) > 290
    assert {len(rows) for rows in found.values()} == {10}
    right = [row["genre"] == own[user].most_common(1)[0][0] for user, rows in found.items() for row in rows]
    assert sum(right) > 0.9 * len(right)
    before = ratings[: round(0.9 * len(ratings))]
    seen = {(int(row["user"]), int(row["film"])) for row in before}
    assert not seen & {(row["user"], row["item"]) for row in lists.to_pylist()}
    said = next(text for command, text in printed.items() if "--users 42 7" in command)
    for user in (42, 7):
        assert f"\nuser {user}\n" in said
        assert all(row["title"] in said for row in found[user])
