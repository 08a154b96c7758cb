"""Counts the ids of columns and writes vocabularies: the ids that get a row of their own.

python -m trainer vocabulary --source data/mine/train.parquet --columns item --out data/mine/vocabulary
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from tabulate import tabulate
from tqdm import tqdm

from torchx_recsys.apps.engines.progress import progress_bar
from torchx_recsys.apps.engines.source import guess_reader
from torchx_recsys.apps.vocabulary.id_counts import IdCounts, plain_ids
from torchx_recsys.apps.vocabulary.spark_counts import SparkCounts
from trainer.batches.batch import features_only
from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature
from trainer.config.files import CSV_READERS
from trainer.config.root import load_config
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.secrets import place, without_secrets
from trainer.core.storage import as_file_name, below, named, open_storage, refuse_existing
from trainer.data.dataset import FileSet, find_files
from trainer.data.files import DataFiles
from trainer.data.row_groups import RowGroupReader
from trainer.rules.plain_types import is_list, meaning, to_ids, to_plain
from trainer.rules.vocabulary import METADATA, read_vocabulary


def vocabulary(
    source: tuple[str, ...],
    columns: tuple[str, ...],
    out: str = "data/vocabulary",
    together: str | None = None,
    min_count: int = 1,
    max_rows: int | None = None,
    unseen_rows: int | None = None,
    extends: str | None = None,
    memory_mib: int = 1024,
    engine: str = "duckdb",
    reader: str | None = None,
    types_from: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Counts the ids of columns and writes a vocabulary of each: the ids that get a row of their own in its table.

    A vocabulary is a Parquet file, OUT/COLUMN.parquet, with the columns `id` (int64 or string) and `count`. The most
    frequent id comes first; ids with equal counts are in ascending order. The metadata hold the settings. The table
    begins with the rows for unseen ids; then each id has a row, in the order of the file.

    DuckDB counts on all cores, one vocabulary after the other. Memory is `memory_mib` for the counts and for sorting
    them, besides the row group that is read. Counts that do not fit go to files in the temporary directory.

    Args:
        source: Files, globs or directories to count in, on any fsspec URL: the data to train on.
        columns: Columns of integers, strings, or lists of either.
        out: Directory to write to, on any fsspec URL.
        together: Name of one vocabulary of all columns, for features that share a table. Unset: one for each column.
        min_count: Occurrences that an id needs for a row of its own.
        max_rows: Most rows of a table; the most frequent ids get them. Unset: no limit.
        unseen_rows: Rows that all other ids are hashed over, now and in the future. Unset: as in the vocabulary that is
            extended, or 1.
        extends: Directory of earlier vocabularies of these columns: their ids keep their rows, whatever their counts,
            and new ids come after them. A run trained with the earlier vocabularies can be resumed with the new ones.
            Unset: all ids are new.
        memory_mib: Memory for counts, in MiB.
        engine: duckdb counts in this process; a URL of Spark, sc://HOST or spark://HOST:PORT, on that cluster, which
            reads the files by itself.
        reader: Format of the files, as in data.reader. csv and tsv need a configuration instead. Unset: by their names,
            or first bytes.
        types_from: Configuration file, or name of a preset, whose data section describes the files.
        overwrite: Replace vocabularies that exist; runs and exports that use them need the old ones.

    Returns:
        The settings and numbers of each vocabulary, as in its metadata.

    Raises:
        InputError: A file or column cannot be used, an argument is wrong, or no id is frequent enough.
    """
    for name in [together] if together else columns:  # a run trained with a vocabulary is lost without it
        refuse_existing({"--out": _url(out, name)}, overwrite)
    config = _config(reader or ("parquet" if types_from else guess_reader(source)), types_from)
    found = write_vocabularies(
        source, columns, config, out, together, min_count, max_rows, unseen_rows, extends, memory_mib, engine
    )
    _print(found, columns if together else ())
    return found


def write_vocabularies(
    source: Sequence[str],
    columns: Sequence[str],
    config: DataConfig,
    out: str,
    together: str | None = None,
    min_count: int = 1,
    max_rows: int | None = None,
    unseen_rows: int | None = None,
    extends: str | None = None,
    memory_mib: int = 1024,
    engine: str = "duckdb",
    flag: str = "--out",
) -> dict[str, dict[str, Any]]:
    """Like `vocabulary`, for data that a configuration describes; `flag` is the name of `out` in messages."""
    of_name = {together: columns} if together else {name: [name] for name in columns}
    earlier = {name: _earlier(_url(extends, name), unseen_rows) for name in of_name} if extends else {}
    of_unseen = {
        name: earlier[name].unseen_rows if extends else 1 if unseen_rows is None else unseen_rows for name in of_name
    }
    _check_arguments(columns, min_count, max_rows, max(of_unseen.values()), memory_mib)
    config = _limited_to(columns, config)
    files = find_files("--source", source, config)
    types = {name: _type_of(of, files.files) for name, of in of_name.items()}
    meanings = {name: _meaning_of(of, files.files) for name, of in of_name.items()}
    for name, one in earlier.items():
        _check_meaning(name, one, meanings[name])
    with TemporaryDirectory() as folder, progress_bar(files.rows * len(columns), " rows") as progress:
        if engine == "duckdb":
            counts = IdCounts(partial(_ids, files, config, progress), Path(folder), memory_mib)
        else:
            counts = SparkCounts(engine, files, config)
        for name, of in of_name.items():
            counts.count(name, of, types[name])
        found = {}
        for name, of in of_name.items():
            settings = {"min_count": min_count, "max_rows": max_rows, "unseen_rows": of_unseen[name]}
            limit = max_rows and max_rows - of_unseen[name]
            about = _keep(name, counts, types[name], min_count, limit, earlier[name].ids if extends else None)
            found[name] = settings | about | {"columns": [*of], "source": without_secrets(" ".join(source))}
            found[name] |= {"rows": of_unseen[name] + about["kept"], "url": _url(out, name), "ids": meanings[name]}
        for name, about in found.items():
            _write(flag, counts.kept(name), about)
    return found


@dataclass(frozen=True)
class _Earlier:
    """A vocabulary to extend.

    Attributes:
        ids: Its ids, int64 or bytes, in the order of their rows.
        unseen_rows: Its rows for all other ids.
        meaning: The kind of its ids, such as dates; None if the vocabulary does not record it.
    """

    ids: pa.Array
    unseen_rows: int
    meaning: str | None


def _earlier(url: str, unseen_rows: int | None) -> _Earlier:
    with named("--extends", url):
        table = read_vocabulary(url)
    about = json.loads((table.schema.metadata or {}).get(METADATA, b"{}"))
    if (there := about.get("unseen_rows")) is None:
        raise InputError(f"--extends: {place(url)} is not a vocabulary; make one by `data.vocabulary`")
    if unseen_rows not in (None, there):
        raise InputError(
            f"--unseen-rows is {unseen_rows}, but '{without_secrets(url)}', to extend, has {there}; leave it out"
        )
    return _Earlier(plain_ids(table["id"].combine_chunks()), there, about.get("ids"))


def _check_arguments(
    columns: Sequence[str], min_count: int, max_rows: int | None, unseen_rows: int, memory_mib: int
) -> None:
    for flag, value in (("min-count", min_count), ("unseen-rows", unseen_rows), ("memory-mib", memory_mib)):
        if value < 1:
            raise InputError(f"--{flag} is {value}; it must be at least 1")
    if max_rows is not None and max_rows <= unseen_rows:
        raise InputError(
            f"--max-rows is {max_rows}, of which --unseen-rows takes {unseen_rows}; it must be greater than that"
        )
    if twice := [column for number, column in enumerate(columns) if column in columns[:number]]:
        raise InputError(f"--columns names '{twice[0]}' twice; name each column once")


def _config(reader: str, types_from: str | None) -> DataConfig:
    """Returns the data section that describes the files."""
    if not types_from and reader in CSV_READERS:
        raise InputError(
            f"--reader is '{reader}', whose columns need types; name the configuration that has them with --types-from"
        )
    return load_config(types_from).data if types_from else DataConfig(reader=reader)


def _limited_to(columns: Sequence[str], config: DataConfig) -> DataConfig:
    """Returns a data section whose only features are columns of ids."""
    features = dict.fromkeys(columns, SparseFeature(rows=1, ids="hash"))
    return features_only(config.model_copy(update={"sparse": features, "dense": {}}))


def _type_of(columns: Sequence[str], files: DataFiles) -> pa.DataType:
    """Returns the type of the ids of columns as `plain_ids`.

    Raises:
        InputError: A column has integers and another strings.
    """
    texts = [column for column in columns if column in files.texts]
    if texts and len(texts) < len(columns):
        other = next(column for column in columns if column not in texts)
        raise InputError(
            f"{files[0].name}: column '{texts[0]}' is of strings, and '{other}' is not; one vocabulary is of integers "
            "or of strings"
        )
    return pa.large_binary() if texts else pa.int64()


def _meaning_of(columns: Sequence[str], files: DataFiles) -> str | None:
    """Returns the kind of the ids of columns; None for columns without values.

    Raises:
        InputError: The columns differ, such as dates in one and timestamps in another.
    """
    found: dict[str, str] = {}
    for schema in files.first_of_schemas():
        for column in columns:
            if kind := meaning(schema.field(column).type, of_ids=True):
                found.setdefault(kind, column)
    if len(found) > 1:
        (first, one), (second, other) = [*found.items()][:2]
        raise InputError(
            f"{files[0].name}: column '{one}' has {first}, and '{other}' has {second}; one vocabulary has ids of one "
            "kind"
        )
    return next(iter(found), None)


def _check_meaning(name: str, earlier: _Earlier, now: str | None) -> None:
    if earlier.meaning and now and earlier.meaning != now:
        raise InputError(f"--extends: column '{name}' has {now}, but its vocabulary there has {earlier.meaning}")


def _ids(files: FileSet, config: DataConfig, progress: tqdm, columns: Sequence[str]) -> Iterator[pa.Array]:
    """Yields the ids of columns, with lists flattened."""
    groups = RowGroupReader(files, config, columns)
    for group in files.row_groups:
        with groups.open(group) as read:
            for column in columns:
                for chunk in read(column).chunks:
                    yield _flat(chunk, f"{groups.where(group)}: column '{column}'")
                progress.update(group.rows)


def _flat(chunk: pa.Array, where: str) -> pa.Array:
    try:
        ids = to_ids(to_plain(chunk))
    except pa.ArrowInvalid as error:
        raise InputError(f"{where}: an id has more than 64 bits ({error})") from error
    return ids.flatten() if is_list(ids.type) else ids


def _keep(
    name: str,
    counts: IdCounts | SparkCounts,
    dtype: pa.DataType,
    min_count: int,
    limit: int | None,
    earlier: pa.Array | None,
) -> dict[str, int]:
    """Chooses the ids of a vocabulary; ids of an earlier one come first."""
    if earlier is not None and limit is not None and limit < len(earlier):
        raise InputError(f"--max-rows is too few for column '{name}': {len(earlier):,} ids are extended; raise it")
    if earlier is not None and earlier.type != dtype:
        raise InputError(
            f"--extends: the ids of column '{name}' are of another type than those of its vocabulary there"
        )
    about = counts.keep(name, min_count, limit, pa.array([], dtype) if earlier is None else earlier)
    if not about["kept"]:
        raise InputError(
            f"column '{name}' has {plural(about['distinct'], 'distinct id')}, none of which occurs --min-count "
            f"{min_count} times; lower it"
        )
    return about


def _url(out: str, name: str) -> str:
    return below(out, f"{as_file_name(name)}.parquet")


def _write(flag: str, kept: pa.RecordBatchReader, about: dict[str, Any]) -> None:
    schema = kept.schema.with_metadata({METADATA: json.dumps(about)})
    with named(flag, about["url"]):
        fs, path = open_storage(about["url"])
        fs.makedirs(path.rpartition("/")[0])
        with fs.whole(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in kept:
                writer.write_batch(batch)


def _print(found: dict[str, dict[str, Any]], together: Sequence[str]) -> None:
    rows = [
        [name, one["distinct"], one["kept"], f"{one['covered'] / one['occurrences']:.2%}", one["rows"]]
        for name, one in found.items()
    ]
    print(tabulate(rows, ["column", "distinct ids", "kept", "share of occurrences", "rows"], intfmt=","))
    print("\nnext, in the configuration:\n")
    for name, one in found.items():
        feature = {"rows": one["rows"], "ids": "vocabulary", "vocabulary": without_secrets(one["url"])}
        for column in together or [name]:
            section = feature | ({"table": name} if together else {})
            print(tomli_w.dumps({"data": {"sparse": {column: section}}}))
