"""Lists by an export: flags name users and items, of which every rank computes its own with a copy of the model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from torchx_recsys.apps.engines.source import guess_reader
from torchx_recsys.apps.export.load import ColumnError, Export, Model
from torchx_recsys.apps.export.signature import inputs_of
from torchx_recsys.apps.export.source import Source
from torchx_recsys.apps.predict.resume import Record
from torchx_recsys.apps.recommend.answers import PAIRS, Answers
from torchx_recsys.apps.recommend.approximate import check_index, search_of
from torchx_recsys.apps.recommend.exported import ExportedItems
from torchx_recsys.apps.recommend.inputs import Arguments, Inputs
from torchx_recsys.apps.recommend.items import find_items, read_items
from torchx_recsys.apps.recommend.queries import find_queries
from torchx_recsys.apps.recommend.seen import find_seen
from torchx_recsys.apps.recommend.top import checked, first_of_all
from trainer.batches.batch import features_only
from trainer.config.data import DataConfig
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.errors import InputError, nearest, some_of
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.timeouts import COLLECTIVE_SECONDS

KEY = "--export"
Columns = dict[str, list[Any]]


@dataclass(frozen=True, kw_only=True)
class ExportInputs(Inputs):
    """The data of an answer by an export.

    Attributes:
        exported: The items as the model takes them.
    """

    exported: ExportedItems


class FromExport:
    """An export that answers.

    Args:
        url: The directory of exports, or one step-N of it.
    """

    def __init__(self, url: str) -> None:
        self._source = Source(url, compiled=False, key=KEY)
        self._model: Model | None = None
        self.timeout_seconds = COLLECTIVE_SECONDS

    def find(self, arguments: Arguments) -> ExportInputs:
        """Finds users and items for the model, which is loaded; raises InputError."""
        self._model = model = self._source.first(follow=False)
        return find_inputs(model.signature, arguments)

    def choose(self, inputs: ExportInputs, to: RunDirectory | None, context: DistributedContext) -> tuple[str, Record]:
        """Loads the model of the same export on every rank; returns it in words, and what decides the lists."""
        chain = broadcast_from_rank0(context, self._chain)
        self._model = model = self._model or self._source.load(chain)
        step, url = model.signature["step"], without_secrets(self._source.url)
        about = {"step": step, "fingerprint": f"{chain[-1].crc32:08x}", "url": url}
        return f"step {step:,}, exported to {url}", {"checkpoint": about}

    def _chain(self) -> list[Export]:
        """Returns the chain of the export that rank 0 has loaded."""
        chain = self._source.chain()
        if self._model and chain[-1].crc32 != self._model.export.crc32:
            raise InputError(
                f"{KEY} is '{self._source.url}', where another export became current just now; start again"
            )
        return chain

    @contextmanager
    def answering(self, inputs: ExportInputs, batch_size: int, context: DistributedContext) -> Iterator[Answers]:
        """Holds the model while the block asks."""
        assert self._model
        given = self._model, inputs.exported, inputs.queries.key, batch_size
        with _column_errors(inputs.files.key):
            if len(inputs.outputs) == 2:
                answers = ByExportedVectors(*given, inputs.arguments.index)
            else:
                answers = ByExportedScores(*given)
        yield answers

    def keep(self, lists: pa.Table) -> None:
        """Keeps nothing: an export has no page."""

    def words_of_all(self) -> list[str]:
        """Returns the words that name the export and a place for the lists of all users."""
        return [KEY, self._source.url, "--to", "recommendations"]


def find_inputs(signature: Mapping[str, Any], arguments: Arguments) -> ExportInputs:
    """Finds users and items, without computing anything.

    Raises:
        InputError: A flag is missing, names nothing that is there, or files cannot be used.
    """
    for flag, given in (("--items", arguments.items), ("--source", arguments.source)):
        if not given:
            what = "a row for each item" if flag == "--items" else "rows of users"
            raise InputError(f"{flag} is not given, and an export knows no data; name files with {what}")
    column = arguments.item_column or signature.get("items", {}).get("id")
    if column is None:
        raise InputError("--item-column is not given, and the export names none; name the column of the items' ids")
    files = find_items("--items", arguments.items, column, arguments.show, _reader("--items", arguments.items))
    items = read_items(files, None, arguments.where)
    exported = ExportedItems(signature, items, "--items", _output(signature, arguments.task))
    check_index(arguments.index, len(exported.outputs) == 2)
    columns, reader = exported.query_columns, _reader("--source", arguments.source)
    by = arguments.user_column, arguments.time_column, arguments.users
    queries = find_queries("--source", arguments.source, reader, columns, *by)
    had = (queries.column, column)
    return ExportInputs(
        arguments=arguments,
        outputs=exported.outputs,
        sides=f"columns of the user: {some_of(columns)}; of the item: {some_of(exported.columns)}",
        queries=queries,
        columns=columns,
        files=files,
        items=items,
        exclude=exported.seen,
        features={},
        seen=find_seen(arguments.seen, had, _reader("--seen", arguments.seen)) if arguments.seen else None,
        exported=exported,
    )


def _reader(flag: str, patterns: Sequence[str]) -> DataConfig:
    return features_only(DataConfig(reader=guess_reader(patterns, flag)))


def _output(signature: Mapping[str, Any], task: str | None) -> str | None:
    """Returns the first output of a task."""
    if task is None:
        return None
    found = {output["name"].rpartition("_")[0]: output["name"] for output in reversed(signature["outputs"])}
    if task not in found:
        raise InputError(f"--task is '{task}', which the model does not have{nearest(task, found)}")
    return found[task]


@contextmanager
def _column_errors(where: str) -> Iterator[None]:
    """Turns a value that the model refuses into an InputError."""
    try:
        yield
    except ColumnError as error:
        raise InputError(f"{where}: {error}") from error


class ByExportedVectors:
    """Finds items by the inner product of the query's and the item's vector; follows `Answers`.

    Args:
        model: The model.
        items: The items.
        source: The flag that named the files of the queries.
        at_once: Rows that are computed at once.
        index: An index of faiss to search. Unset: all items are compared.
    """

    def __init__(self, model: Model, items: ExportedItems, source: str, at_once: int, index: str | None) -> None:
        self._model, self._items, self._source, self.at_once = model, items, source, at_once
        vectors = [self._outputs(items.of_items(start, start + at_once))[1] for start in range(0, len(items), at_once)]
        self._top = search_of(checked(torch.cat(vectors), "of an item"), index)

    def find(self, queries: pa.Table, most: int, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Returns places of items and scores."""
        if not len(queries):
            return torch.empty(0, k, dtype=torch.int64), torch.empty(0, k)
        with _column_errors(self._source):
            columns = self._items.of_queries(queries)
            vectors = self._outputs(columns)[0]
        return self._top.find(checked(vectors, "of a query"), k, _with_seen(excluded, self._items, columns))

    def _outputs(self, columns: Columns) -> tuple[Tensor, ...]:
        """Returns the vectors of queries and of items, one of which are meant, for some rows.

        As many rows are computed at once on any number of ranks, as a product of another shape is rounded differently.
        """
        rows = _rows(columns)
        whole = {name: [*values, *values[-1:] * (self.at_once - rows)] for name, values in columns.items()}
        found = self._model(whole)
        return tuple(found[name][:rows] for name in self._items.outputs)


class ByExportedScores:
    """Finds items by the scores of all pairs of a query and an item; follows `Answers`.

    The inputs of the items are made once, those of a query once for all items, but for those of columns of both sides,
    such as a history without the item of the pair.

    Args:
        model: The model.
        items: The items.
        source: The flag that named the files of the queries.
        at_once: Pairs that are computed at once.
    """

    def __init__(self, model: Model, items: ExportedItems, source: str, at_once: int) -> None:
        self._model, self._items, self._source = model, items, source
        self._of_both = [column for column in model.signature["columns"] if self._has_both(column)]
        starts = range(0, len(items), at_once)
        self._blocks = [(start, min(start + at_once, len(items))) for start in starts]
        self._of_items = [self._inputs(items.of_items(*block)) for block in self._blocks]
        self.at_once = max(1, PAIRS // len(items))

    def find(self, queries: pa.Table, most: int, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Returns places of items and scores."""
        columns, scores = self._items.of_queries(queries), [torch.empty(0, len(self._items))]
        for row in range(len(queries)):
            with _column_errors(self._source):
                own = {name: values[row : row + 1] for name, values in columns.items()}
                inputs, parts = self._inputs(own), zip(self._blocks, self._of_items, strict=True)
                scores.append(torch.cat([self._scores(own, inputs, *part) for part in parts])[None])
        found = checked(torch.cat(scores), "of a pair")
        return first_of_all(found, k, _with_seen(excluded, self._items, columns))

    def _has_both(self, column: dict[str, Any]) -> bool:
        names = {
            column[key]
            for key in ("name", "ids", "without", "without_in", "lookup", "lookup_in", "overlap")
            if column.get(key)
        }
        return 0 < len(names.intersection(self._items.columns)) < len(names)

    def _inputs(self, columns: Columns) -> dict[str, Tensor]:
        """Returns the model's inputs that columns of one side become."""
        names, rows = {one["name"] for one in self._model.signature["columns"]}, _rows(columns)
        inputs = self._model.inputs(columns | {name: [None] * rows for name in names - columns.keys()})
        return _only(inputs, [one for one in self._model.signature["columns"] if one["name"] in columns])

    def _scores(
        self, query: Columns, inputs: dict[str, Tensor], block: tuple[int, int], of_items: dict[str, Tensor]
    ) -> Tensor:
        """Returns the scores of one query with a block of items; ids of lists and rows alike are repeated for each."""
        start, stop = block
        of_pairs = {name: one.repeat(stop - start) for name, one in inputs.items()} | of_items
        if self._of_both:
            of_pairs |= _only(self._model.inputs(self._items.of_pairs(query, start, stop)), self._of_both)
        ordered = {entry["name"]: of_pairs[entry["name"]] for entry in self._model.signature["inputs"]}
        return self._model.run(ordered)[self._items.outputs[0]]


def _only(inputs: dict[str, Tensor], columns: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Returns the inputs that some columns of a signature become."""
    names = {entry["name"] for column in columns for entry in inputs_of(column)}
    return {name: one for name, one in inputs.items() if name in names}


def _rows(columns: Columns) -> int:
    return len(next(iter(columns.values()), ()))


def _with_seen(excluded: Tensor, items: ExportedItems, columns: Columns) -> Tensor:
    """Returns items to leave out together with those that queries have had by their own columns."""
    pairs = torch.tensor(items.excluded(columns, []), dtype=torch.int64)
    return torch.cat([excluded, pairs.view(-1, 2)])
