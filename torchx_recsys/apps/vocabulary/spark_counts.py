"""Counts ids on a Spark cluster, by the queries of `IdCounts`.

The queries are plain SQL for DuckDB and Spark; only the reading of files and the splitting of lists differ.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from typing import Any

import pyarrow as pa

from torchx_recsys.apps.engines.spark import Spark
from torchx_recsys.apps.vocabulary.id_counts import COUNT, KEEP, SUMS
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.data.dataset import FileSet
from trainer.rules.plain_types import is_list, is_string, plain_type

SCHEMES = {"s3": "s3a", "gcs": "gs"}  # Hadoop's names of fsspec's storage


class SparkCounts:
    """Counts the ids of several vocabularies on Spark; only the ids that are kept come to this process.

    Args:
        engine: URL of Spark.
        files: The files, which the cluster reads by itself.
        config: How they are read.

    Raises:
        InputError: pyspark is not installed, or Spark cannot read such files.
        StorageError: Spark cannot be reached.
    """

    def __init__(self, engine: str, files: FileSet, config: DataConfig) -> None:
        self._files = files
        if config.reader != "parquet" or files.chosen is not None:
            raise InputError(
                f"--engine is '{without_secrets(engine)}', but Spark counts all rows of Parquet files only; leave it "
                "out for other formats, and for data.select"
            )
        self._spark = Spark(engine, "vocabulary", bar=True)
        self._session = self._spark.session
        self._counts: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}

    def count(self, name: str, columns: Sequence[str], dtype: pa.DataType) -> None:
        """Counts the ids of columns for a vocabulary.

        Args:
            name: Name of the vocabulary.
            columns: Columns of integers or strings.
            dtype: Their type as `plain_ids`.
        """
        lists = {column: self._is_list(column) for column in columns}
        plain = "BINARY" if is_string(dtype) else "BIGINT"
        types = {column: f"ARRAY<{plain}>" if lists[column] else plain for column in columns}
        schema = ", ".join(f"{_quoted(column)} {types[column]}" for column in columns)
        with self._spark.reported():
            rows = self._session.read.schema(schema).parquet(*map(_url_for_spark, self._urls()))
            ids = [
                rows.selectExpr(f"explode({_quoted(column)}) AS id" if lists[column] else f"{_quoted(column)} AS id")
                for column in columns
            ]
            view = self._view("ids", reduce(lambda one, other: one.unionAll(other), ids))
            self._counts[name] = self._session.sql(COUNT.format(ids=view)).persist()
            self._counts[name].count()

    def keep(self, name: str, min_count: int, limit: int | None, earlier: pa.Array) -> dict[str, int]:
        """Chooses the ids that get a row, as `IdCounts.keep`."""
        known = pa.table({"id": earlier.cast(_small(earlier.type)), "place": pa.array(range(len(earlier)), pa.int64())})
        most = "ALL" if limit is None else limit
        with self._spark.reported():
            # With a schema: Spark Connect does not derive it from a table without rows.
            schema = f"id {'BINARY' if is_string(earlier.type) else 'BIGINT'}, place BIGINT"
            before = self._view("earlier", self._session.createDataFrame(known, schema))
            counts = self._view("counts", self._counts[name])
            keep = KEEP.format(counts=counts, earlier=before, min_count=min_count, limit=most)
            kept = self._session.sql(keep).toArrow()
            ((distinct, occurrences),) = self._session.sql(SUMS.format(table=counts)).collect()
        self._kept[name] = kept
        covered = sum(kept["count"].to_pylist())
        return {"distinct": distinct, "kept": kept.num_rows, "occurrences": occurrences, "covered": covered}

    def kept(self, name: str) -> pa.RecordBatchReader:
        """Reads the ids that get a row, and their counts, as `IdCounts.kept`."""
        kept = self._kept[name]
        for dtype in (pa.large_string(), pa.large_binary()) if is_string(kept["id"].type) else (pa.int64(),):
            with suppress(pa.ArrowInvalid):  # for bytes that are not text
                return kept.cast(pa.schema([("id", dtype), ("count", pa.int64())])).to_reader()
        raise AssertionError("bytes can be read as bytes")

    def _view(self, kind: str, rows: Any) -> str:
        """Registers rows under a new name each time: Spark Connect looks a name up only when the rows are used."""
        name = f"{kind}{len(self._counts) + len(self._kept)}"
        rows.createOrReplaceTempView(name)
        return name

    def _urls(self) -> list[str]:
        return self._files.files.columns["url"].to_pylist()

    def _is_list(self, column: str) -> bool:
        """Returns whether a column holds lists.

        Raises:
            InputError: Spark would read the values differently from training.
        """
        lists = set()
        for schema, file in self._files.files.first_of_schemas().items():
            dtype = plain_type(schema.field(column).type)
            value = dtype.value_type if is_list(dtype) else dtype
            if not (pa.types.is_signed_integer(value) or is_string(value)) or any(
                column == one.name for one in file.path_columns
            ):
                raise InputError(
                    f"{file.name}: column '{column}' is of type {schema.field(column).type}; Spark counts signed "
                    "integers and strings that are in the files, alone or in lists; leave out --engine"
                )
            lists.add(is_list(dtype))
        return lists.pop()


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _url_for_spark(url: str) -> str:
    scheme, separator, path = url.partition("://")
    return f"{SCHEMES.get(scheme, scheme)}://{path}" if separator else f"file://{url}"


def _small(dtype: pa.DataType) -> pa.DataType:
    return pa.binary() if is_string(dtype) else dtype
