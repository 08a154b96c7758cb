"""Converts Criteo's click logs, in their downloaded form, to Parquet.

python -m trainer criteo --source train.txt --out data/criteo
python -m trainer criteo --source 's3://bucket/day_*.gz' --out s3://bucket/criteo --layout terabyte
"""

import codecs
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice
from typing import Any, Literal

from torchx_recsys.apps.datasets import criteo_tsv as tsv
from torchx_recsys.apps.datasets.writer import DataSetWriter, PartWriter, print_summary
from torchx_recsys.apps.engines.engine import engine_of
from torchx_recsys.apps.engines.progress import progress_bar
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.storage import named, open_storage
from trainer.data.listing import LeftOutPaths, files_of_glob

SHOWN_FAULTS = 10
SPLIT_RULES = {
    "kaggle": "by position in bytes, in the order of the lines: 6/7 train, 1/14 validation, 1/14 test",
    "terabyte": "the evaluation source's first half (in bytes) validation, its second half test; all others train",
}


@dataclass(frozen=True)
class SourceSlice:
    """The lines of a source that begin in `[start, end)`, which become one Parquet file."""

    source: tsv.Source
    split: str
    start: int
    end: int
    number: int

    @property
    def name(self) -> str:
        """Name of the file; sorts by source and place."""
        return f"part-{self.source.index:05d}-{self.number:05d}"


class Stopped(Exception):
    """Another thread failed."""


class Progress:
    """The progress bar of the conversion, and whether to stop; a copy on a worker of Spark has no bar.

    Args:
        total_bytes: Bytes of all sources. Unset: no bar.
    """

    def __init__(self, total_bytes: int | None = None) -> None:
        self._lock, self._stop, self._finished = threading.Lock(), threading.Event(), 0
        self._bar = progress_bar(total_bytes, "B")

    def __reduce__(self) -> tuple[type["Progress"], tuple[()]]:
        return Progress, ()

    def advance(self, count: int) -> None:
        """Advances the bar. Raises Stopped if the conversion is over."""
        with self._lock:
            self._bar.update(count)
        if self._stop.is_set():
            raise Stopped

    def finish(self, count: int) -> None:
        """Advances the bar to all finished bytes."""
        with self._lock:
            self._finished += count
            self._bar.update(max(0, self._finished - self._bar.n))

    def close(self) -> None:
        """Ends the bar and lets the threads stop."""
        self._stop.set()
        self._bar.close()


@dataclass
class LeftOut:
    """Malformed lines that were left out.

    Attributes:
        limit: Number of lines to leave out before giving up.
        lines: Number of lines left out.
        shown: The first of these lines, for the report.
    """

    limit: int
    lines: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, lines: int, shown: Iterable[str] = ()) -> None:
        """Counts malformed lines.

        Raises:
            InputError: There are more malformed lines than allowed.
        """
        self.lines += lines
        self.shown += islice(shown, SHOWN_FAULTS - len(self.shown))
        if self.lines > self.limit:
            first = self.shown[0] if self.shown else "they are in files converted before"
            raise InputError(
                f"{plural(self.lines, 'malformed line')}, and --max-malformed is {self.limit}: {first}; "
                "repair the source, or allow more to be left out"
            )


def criteo(
    source: tuple[str, ...],
    out: str = "data/criteo",
    layout: Literal["kaggle", "terabyte"] = "kaggle",
    evaluation_source: str = "day_23",
    dense_transform: tsv.DenseTransform = "log",
    source_bytes_per_file: int = 256 * 2**20,
    max_malformed: int = 0,
    workers: int = 0,
    engine: str = "threads",
) -> dict[str, Any]:
    """Converts Criteo's Kaggle or Terabyte text files to Parquet.

    Memory stays at about 100 MB, and 150 MB more for each worker. Started again with the same settings, an
    interrupted conversion continues where it stopped.

    The columns are `label` (float32), `int_0` to `int_12` (float32) and `cat_0` to `cat_25` (int64: the hexadecimal
    string read as an unsigned 32-bit integer; take it modulo the table's rows). A missing value is null.

    The splits never mix times: `kaggle` takes the first 6/7 of the lines to train, then 1/14 to validate and 1/14 to
    test; `terabyte` trains on all days but the evaluation day, whose first half validates and second half tests. The
    fractions are of bytes, cut at the next line.

    Args:
        source: Text files, plain or .gz: paths, globs or fsspec URLs, in the order of time. A glob is sorted by number.
        out: Directory to write to, on any fsspec URL.
        layout: Rule that divides the lines into splits.
        evaluation_source: terabyte: name, without .gz, of the file that validates and tests. Empty: train only.
        dense_transform: log stores log(max(x, -2) + 3) of the 13 integers, none stores them as they are.
        source_bytes_per_file: Bytes of text per Parquet file; 256 MiB are about a million rows.
        max_malformed: Malformed lines to leave out, and report, before giving up.
        workers: Threads. 0: one per core.
        engine: threads converts in this process; a URL of Spark, sc://HOST or spark://HOST:PORT, on that cluster, whose
            workers must see the sources and OUT.

    Returns:
        The summary, as in `OUT/summary.json`.

    Raises:
        InputError: A line is malformed, a source does not exist, or an argument is wrong.
    """
    if source_bytes_per_file < 1:
        raise InputError(f"--source-bytes-per-file is {source_bytes_per_file}; it must be at least 1")
    urls = find_sources(source)
    settings = {
        "source": "criteo",
        "sources": [[url, tsv.size(url)] for url in urls],
        "layout": layout,
        "split_rule": SPLIT_RULES[layout],
        "evaluation_source": evaluation_source if layout == "terabyte" else "",
        "dense_transform": tsv.TRANSFORM_RULES[dense_transform],
        "id_rule": tsv.ID_RULE,
        "source_bytes_per_file": source_bytes_per_file,
    }
    computer = engine_of(engine, "criteo", workers)
    sources = sorted(computer.map(_source, enumerate(urls)), key=lambda source: source.index)
    parts = plan_parts(sources, layout, evaluation_source, source_bytes_per_file)
    data_set = DataSetWriter(out, settings)
    progress, left_out = Progress(sum(source.length for source in sources)), LeftOut(max_malformed)
    convert = partial(_convert, data_set, progress, max_malformed, dense_transform)
    for done, found in computer.map(convert, _tasks(parts), progress.close):
        progress.finish(sum(part.end - part.start for part in done))
        left_out.add(found.lines, found.shown)
    summary = data_set.commit(((part.split, part.name) for part in parts), {"malformed_lines": left_out.lines})
    _report(summary, left_out, out)
    return summary


def find_sources(patterns: tuple[str, ...]) -> list[str]:
    """Returns the files that match the patterns, in the order of the patterns; files of a glob are sorted by number.

    Raises:
        InputError: There is no pattern, or a pattern names a directory or finds nothing.
    """
    if not patterns:
        raise InputError("--source is empty; name Criteo's text files, such as train.txt or 'day_*.gz'")
    urls = []
    for pattern in patterns:
        with named("--source", pattern):
            fs, path = open_storage(pattern)
        if fs.isdir(path):
            raise InputError(
                f"--source '{pattern}' is a directory; name its files, such as '{pattern.rstrip('/')}/day_*'"
            )
        left_out = LeftOutPaths()
        found = files_of_glob(fs, path, left_out)[0] if "*" in path or "?" in path else [path] * fs.exists(path)
        left_out.report("--source")
        if not found:
            raise InputError(
                f"--source '{pattern}' matches no file; name Criteo's text files, such as train.txt or 'day_*.gz'"
            )
        urls += [fs.url_of(name) if "://" in pattern else name for name in sorted(found, key=_by_number)]
    return urls


def plan_parts(sources: list[tsv.Source], layout: str, evaluation_source: str, part_bytes: int) -> list[SourceSlice]:
    """Cuts the sources into splits, and the splits into slices, by length alone.

    Raises:
        InputError: No source, or more than one, is the evaluation source, or all are empty.
    """
    # By bytes, not lines: the start of a slice is then known without reading the lines before, so that slices can be
    # converted in parallel, and again after an interruption.
    parts = []
    segments = _kaggle_segments(sources) if layout == "kaggle" else _terabyte_segments(sources, evaluation_source)
    for source, split, start, end in segments:
        starts = range(start, end, part_bytes)
        parts += [SourceSlice(source, split, at, min(at + part_bytes, end), number) for number, at in enumerate(starts)]
    if not parts:
        urls = ", ".join(source.url for source in sources)
        raise InputError(
            f"--source names no line: {urls} {'is' if len(sources) == 1 else 'are'} empty; name other files"
        )
    return parts


def _kaggle_segments(sources: list[tsv.Source]) -> Iterator[tuple[tsv.Source, str, int, int]]:
    total = sum(source.length for source in sources)
    ends = {"train": total * 6 // 7, "validation": total * 13 // 14, "test": total}
    before = 0
    for source in sources:
        start = 0
        for split, split_end in ends.items():
            end = max(start, min(source.length, split_end - before))
            yield source, split, start, end
            start = end
        before += source.length


def _terabyte_segments(sources: list[tsv.Source], evaluation_source: str) -> Iterator[tuple[tsv.Source, str, int, int]]:
    names = [source.url.rsplit("/", 1)[-1].removesuffix(".gz") for source in sources]
    if evaluation_source and names.count(evaluation_source) != 1:
        raise InputError(
            f"--evaluation-source '{evaluation_source}' must name one of the sources ({', '.join(names)}); "
            "name another, or '' to convert training days only"
        )
    for name, source in zip(names, sources, strict=True):
        if name == evaluation_source:
            yield source, "validation", 0, source.length // 2
            yield source, "test", source.length // 2, source.length
        else:
            yield source, "train", 0, source.length


def _tasks(parts: list[SourceSlice]) -> list[list[SourceSlice]]:
    """Groups the slices that one thread converts: one slice, or all slices of a compressed source."""
    groups = groupby(parts, key=lambda part: part.source if part.source.compressed else part)
    return [list(group) for _, group in groups]


def _source(item: tuple[int, str]) -> tsv.Source:
    return tsv.Source(*item, tsv.length(item[1]))


def _convert(
    data_set: DataSetWriter, progress: Progress, limit: int, transform: tsv.DenseTransform, parts: list[SourceSlice]
) -> tuple[list[SourceSlice], LeftOut]:
    """Converts the slices of a source that are not converted yet; returns all slices, and the lines left out."""
    left_out = LeftOut(limit)
    with closing(tsv.LineReader(parts[0].source)) as reader:
        for part in parts:
            counts = data_set.counts(part.split, part.name)
            if counts is None:
                _convert_part(data_set, progress, left_out, transform, part, reader)
            else:
                left_out.add(counts["malformed_lines"])
                progress.advance(part.end - part.start)
    return parts, left_out


def _convert_part(
    data_set: DataSetWriter,
    progress: Progress,
    left_out: LeftOut,
    transform: tsv.DenseTransform,
    part: SourceSlice,
    reader: tsv.LineReader,
) -> None:
    about = {"dense_transform": tsv.TRANSFORM_RULES[transform], "id_rule": tsv.ID_RULE, "lines": part.source.url}
    with data_set.part(part.split, part.name, tsv.SCHEMA.with_metadata(about)) as rows:
        reader.skip_to(part.start)
        before, reached = left_out.lines, part.start
        for block in reader.blocks(part.end):
            _write(rows, block, transform, part, reader.position - len(block), left_out)
            progress.advance(min(reader.position, part.end) - reached)
            reached = min(reader.position, part.end)
        rows.counts["malformed_lines"] = left_out.lines - before


def _write(
    rows: PartWriter, block: bytes, transform: tsv.DenseTransform, part: SourceSlice, at: int, left_out: LeftOut
) -> None:
    if at == 0:
        block = block.removeprefix(codecs.BOM_UTF8)
    block = block.replace(b"\r\n", b"\n")
    # Whole blocks first: `sift` examines every line in Python, which would take most of the time.
    try:
        rows.write(tsv.parse(block, transform))
    except tsv.Malformed:
        good, faults = tsv.sift(block, transform)
        left_out.add(len(faults), _located(part.source, at, faults))
        if good:
            rows.write(tsv.parse(good, transform))


def _located(source: tsv.Source, at: int, faults: list[tuple[int, str]]) -> Iterator[str]:
    lines = tsv.lines_before(source.url, at)
    for number, fault in faults:
        yield f"{source.url}:{lines + number + 1}: {fault}"


def _by_number(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]  # day_2 before day_10


def _report(summary: dict[str, Any], left_out: LeftOut, out: str) -> None:
    for line in left_out.shown:
        print(f"left out: {line}", file=sys.stderr)
    print(f"{plural(summary['malformed_lines'], 'malformed line')} left out; ids: {tsv.ID_RULE}")
    print_summary(summary, "Criteo", f"criteo_{summary['settings']['layout']}", out)
