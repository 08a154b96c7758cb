"""Counts the ids of columns and writes vocabularies: the ids that get a row of their own.

python -m trainer vocabulary --source data/mine/train.parquet --columns item --out data/mine/vocabulary
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tomli_w
from tabulate import tabulate

from apps.vocabulary.id_counts import IdCounts, plain_ids
from trainer.config.csv import CSV_READERS
from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature
from trainer.config.root import load_config
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, open_storage, refuse_existing
from trainer.data.dataset import find_files
from trainer.data.features import features_only
from trainer.data.files import DataFile
from trainer.data.row_groups import RowGroupReader
from trainer.rules.plain_types import is_list, is_string, to_ids, to_plain
from trainer.rules.vocabulary import METADATA, read_vocabulary

MIB = 2**20
# The limit of counts is this fraction of memory: counts exist twice while they are joined, and Arrow groups in a hash
# table.
SHARE_OF_MEMORY = 4


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
    reader: str = "parquet",
    types_from: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Counts the ids of columns and writes a vocabulary of each: the ids that get a row of their own in its table.

    A vocabulary is a Parquet file, OUT/COLUMN.parquet, with the columns `id` (int64 or string) and `count`. The most
    frequent id comes first; ids with equal counts are in ascending order. The metadata hold the settings. The table
    begins with the rows for unseen ids; then each id has a row, in the order of the file.

    Memory is `memory_mib` for the counts, besides the row group that is read and the ids that are kept. Counts that do
    not fit go to files in the temporary directory: 16 bytes for each distinct integer, each time. The files are read a
    64th at a time.

    Args:
        source: Files, globs or directories to count in, on any fsspec URL: the data to train on.
        columns: Columns of integers or strings, or of lists of either.
        out: Directory to write to, on any fsspec URL.
        together: Name of one vocabulary of all columns, for features that share a table. Unset: one for each column.
        min_count: Occurrences that an id needs for a row of its own.
        max_rows: Most rows of a table; the most frequent ids get them. Unset: no limit.
        unseen_rows: Rows that all other ids are hashed over, now and in the future. Unset: as in the vocabulary that is
            extended, or 1.
        extends: Directory of earlier vocabularies of these columns: their ids keep their rows, whatever their counts,
            and the new ones come after. A run that was trained with those can be resumed with these. Unset: all ids
            are new.
        memory_mib: Memory for counts, in MiB.
        reader: Format of the files, as in data.reader. csv and tsv need a configuration instead.
        types_from: Configuration file, or name of a ready-made one, whose data section says how the files are read.
        overwrite: Replace vocabularies that exist; runs and exports that use them need the old ones.

    Returns:
        The settings and numbers of each vocabulary, as in its metadata.

    Raises:
        InputError: A file or column cannot be used, an argument is wrong, or no id is frequent enough.
    """
    names = [together] if together else list(columns)
    earlier = {name: _earlier(_url(extends, name), unseen_rows) for name in names} if extends else {}
    default = 1 if unseen_rows is None else unseen_rows
    of_unseen = {name: earlier[name].unseen_rows if extends else default for name in names}
    _check_arguments(columns, min_count, max_rows, max(of_unseen.values()), memory_mib)
    for name in names:  # a run that was trained with a vocabulary is lost without it
        refuse_existing({"--out": _url(out, name)}, overwrite)
    with TemporaryDirectory() as folder:
        limit = memory_mib * MIB // len(names) // SHARE_OF_MEMORY
        counts = {name: IdCounts(_made(Path(folder, str(i))), limit) for i, name in enumerate(names)}
        of_column = {column: counts[together or column] for column in columns}
        _count(source, of_column, _config(columns, reader, types_from))
        found = {}
        for name in names:
            settings = {"min_count": min_count, "max_rows": max_rows, "unseen_rows": of_unseen[name]}
            limit = max_rows and max_rows - of_unseen[name]
            kept, about = _kept(name, counts[name], min_count, limit, earlier.get(name))
            of = list(columns) if together else [name]
            found[name] = settings | about | {"columns": of, "source": without_secrets(" ".join(source))}
            found[name] |= {"rows": of_unseen[name] + kept.num_rows, "url": _url(out, name)}
            _write(kept, found[name])
    _print(found, columns if together else ())
    return found


@dataclass(frozen=True)
class _Earlier:
    """A vocabulary to extend.

    Attributes:
        ids: Its ids, int64 or bytes, in the order of their rows.
        unseen_rows: Its rows for all other ids.
    """

    ids: pa.Array
    unseen_rows: int


def _earlier(url: str, unseen_rows: int | None) -> _Earlier:
    with named("--extends", url):
        table = read_vocabulary(url)
    there = json.loads((table.schema.metadata or {}).get(METADATA, b"{}")).get("unseen_rows")
    if there is None:
        raise InputError(f"--extends: '{without_secrets(url)}' is not a vocabulary; make one by `data.vocabulary`")
    if unseen_rows not in (None, there):
        raise InputError(
            f"--unseen-rows is {unseen_rows}, but '{without_secrets(url)}', to extend, has {there}; leave it out"
        )
    return _Earlier(plain_ids(table["id"].combine_chunks()), there)


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
    for column in columns:
        if columns.count(column) > 1:
            raise InputError(f"--columns names '{column}' twice; name each column once")


def _config(columns: Sequence[str], reader: str, types_from: str | None) -> DataConfig:
    """Returns a data section whose only features are the columns to count."""
    if not types_from and reader in CSV_READERS:
        raise InputError(
            f"--reader is '{reader}', whose columns need types; name the configuration that has them with --types-from"
        )
    data = load_config(types_from).data if types_from else DataConfig(reader=reader)
    features = dict.fromkeys(columns, SparseFeature(rows=1, ids="hash"))
    return features_only(data.model_copy(update={"sparse": features, "dense": {}}))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _count(source: Sequence[str], counts: dict[str, IdCounts], config: DataConfig) -> None:
    """Counts the ids of each column."""
    files = find_files("--source", source, config)
    _check_alike(counts, files.files[0])
    groups = RowGroupReader(files, config)
    for group in files.row_groups:
        with groups.open(group) as read:
            for column, found in counts.items():
                for chunk in read(column).chunks:
                    found.add(_ids(chunk, f"{groups.where(group)}: column '{column}'"))


def _ids(chunk: pa.Array, where: str) -> pa.Array:
    try:
        ids = to_ids(to_plain(chunk))
    except pa.ArrowInvalid as error:
        raise InputError(f"{where}: an id has more than 64 bits ({error})") from error
    return ids.flatten() if is_list(ids.type) else ids


def _check_alike(counts: dict[str, IdCounts], file: DataFile) -> None:
    """Refuses to count a column of integers together with a column of strings."""
    for column, found in counts.items():
        for other in counts:
            if counts[other] is found and column in file.texts and other not in file.texts:
                raise InputError(
                    f"{file.name}: column '{column}' is of strings, and '{other}' is not; one vocabulary is of "
                    "integers or of strings"
                )


def _kept(
    name: str, counts: IdCounts, min_count: int, limit: int | None, earlier: _Earlier | None
) -> tuple[pa.Table, dict[str, int]]:
    """Returns the ids to keep, those of an earlier vocabulary first, and the numbers of distinct, kept and counted."""
    kept, known, distinct, occurrences = [], [], 0, 0
    if earlier and limit is not None:
        limit -= len(earlier.ids)
        if limit < 0:
            raise InputError(
                f"--max-rows is too few for column '{name}': {len(earlier.ids):,} ids are extended; raise it"
            )
    for part in counts.parts():
        distinct += part.num_rows
        occurrences += int(part["count"].to_numpy().sum())
        if earlier:
            _check_type(name, part["id"].type, earlier.ids.type)
            is_known = pc.field("id").isin(earlier.ids)
            known.append(part.filter(is_known))
            part = part.filter(~is_known)
        kept.append(part.filter(pc.field("count") >= min_count))
        if limit is not None:
            kept = [_most_frequent(pa.concat_tables(kept), limit)]
    found = _most_frequent(pa.concat_tables(kept), limit) if kept else pa.table({"id": [], "count": []})
    if earlier:
        found = pa.concat_tables([_counted(earlier.ids, known), *([found] if kept else [])])
    if not found.num_rows:
        raise InputError(
            f"column '{name}' has {plural(distinct, 'distinct id')}, none of which occurs --min-count "
            f"{min_count} times; lower it"
        )
    found = found.set_column(0, "id", _as_text(found["id"]))
    about = {"distinct": distinct, "kept": found.num_rows, "occurrences": occurrences}
    return found, about | {"covered": int(found["count"].to_numpy().sum())}


def _check_type(name: str, ids: pa.DataType, earlier: pa.DataType) -> None:
    if ids != earlier:
        raise InputError(
            f"--extends: the ids of column '{name}' are of another type than those of its vocabulary there"
        )


def _counted(ids: pa.Array, known: list[pa.Table]) -> pa.Table:
    """Returns ids with their counts, 0 for those that did not occur."""
    counted = pa.concat_tables(known) if known else pa.table({"id": ids[:0], "count": pa.array([], pa.int64())})
    counts = counted["count"].combine_chunks().take(pc.index_in(ids, value_set=counted["id"].combine_chunks()))  # pyrefly: ignore
    return pa.table({"id": ids, "count": pc.fill_null(counts, 0)})


def _as_text(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns bytes as strings if all of them are text."""
    try:
        return ids.cast(pa.large_string()) if is_string(ids.type) else ids
    except pa.ArrowInvalid:
        return ids


def _most_frequent(table: pa.Table, limit: int | None) -> pa.Table:
    """Returns the most frequent ids; ids with equal counts are in ascending order."""
    return table.sort_by([("count", "descending"), ("id", "ascending")]).slice(0, limit)


def _url(out: str, name: str) -> str:
    return f"{out.rstrip('/')}/{quote(name, safe='')}.parquet"


def _write(kept: pa.Table, about: dict[str, Any]) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(kept.replace_schema_metadata({METADATA: json.dumps(about)}), sink, compression="zstd")
    with named("--out", about["url"]):
        fs, path = open_storage(about["url"])
        fs.makedirs(path.rpartition("/")[0])
        fs.write(path, sink.getvalue().to_pybytes(), durable=True)


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
