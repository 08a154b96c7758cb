"""The top items of a catalogue for users.

python -m trainer recommend runs/mine/config.toml --out runs/mine --user-column user_id --users 42 7
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic

from torchx_recsys.apps.predict.resume import ON_STOP, PartsJob, Record, claimed
from torchx_recsys.apps.recommend.answers import Answers
from torchx_recsys.apps.recommend.from_export import FromExport
from torchx_recsys.apps.recommend.from_run import FromRun
from torchx_recsys.apps.recommend.inputs import Arguments, Inputs
from torchx_recsys.apps.recommend.lists import make_lists, shown
from torchx_recsys.apps.recommend.queries import QueryReader
from trainer.checkpoint.choice import NEWEST
from trainer.config.root import Config
from trainer.core.console import next_commands
from trainer.core.distributed import DistributedContext, broadcast_when_done, process_group
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.data.epoch_order import RowRange
from trainer.run.preemption import Action, StopRequests, stop_on_signals

Found = TypeVar("Found", bound=Inputs)


def recommend(
    config: Config | None = None,
    out: str | None = None,
    to: str | None = None,
    k: pydantic.PositiveInt = 10,
    users: tuple[str, ...] = (),
    source: tuple[str, ...] = (),
    user_column: str | None = None,
    time_column: str | None = None,
    items: tuple[str, ...] = (),
    item_column: str | None = None,
    show: tuple[str, ...] | None = None,
    where: str | None = None,
    seen: tuple[str, ...] = (),
    task: str | None = None,
    index: str | None = None,
    export: str | None = None,
    checkpoint: str = NEWEST,
    users_per_part: pydantic.PositiveInt = 1024,
    batch_size: pydantic.PositiveInt = 1024,
) -> None:
    """Lists the top k items for users. CONFIG is a TOML file, such as RUN_DIR/config.toml, unless --export is given.

    A model of vectors compares each user with all items, any other model scores all pairs of a user and an item. The
    lists are exact, unless --index is given; of equal scores the smaller id comes first. Those of the first users are
    printed.

    TO/part-00000-of-00002.parquet and so on have user, rank, item, score and the columns to show. An interrupted job
    continues when it is started again.

    Args:
        config: The configuration; its planner section may differ from the run's.
        out: The run directory, any fsspec URL; with CONFIG.
        to: Directory for the parts, on any fsspec URL. Unset: lists are only printed, for `users`.
        k: Items of a list.
        users: Ids of users. Unset: all users of the source.
        source: Files, globs or directories with rows of users. Unset: data.test, or else data.validation.
        user_column: Column of the users' ids. Unset: the one of data.groups besides data.catalogue.id.
        time_column: Column of times: the newest row of a user asks. Unset: the last.
        items: Files, globs or directories with a row for each item. Unset: data.catalogue.items.
        item_column: Column of the items' ids. Unset: data.catalogue.id.
        show: Columns of the items to show. Unset: title or name.
        where: Condition on the columns of the items, as in SQL, such as "year >= 1990".
        seen: Files, globs or directories with users and items to leave out, besides data.catalogue.exclude.
        task: Task that scores items. Unset: the first.
        index: An index of faiss, for a model of vectors, by words of its index_factory and parameters, such as
            "HNSW32;efSearch=200". Unset: exact.
        export: The directory of exports, or a step-N of it, in place of CONFIG and --out; with --items, --source and
            --user-column.
        checkpoint: newest, best (by checkpoint.keep.best), or the number of a step.
        users_per_part: Users of a part.
        batch_size: Rows computed at once.

    Raises:
        InputError: There is no such checkpoint, user, column or task, the data cannot be used, or TO holds the parts of
            another job.
    """
    arguments = Arguments(
        k=k,
        users=users,
        source=source,
        user_column=user_column,
        time_column=time_column,
        items=items,
        item_column=item_column,
        show=show,
        where=where,
        seen=seen,
        task=task,
        index=index,
    )
    sizes = {"rows_per_part": users_per_part, "batch_size": batch_size}
    origin = _origin(config, out, export, checkpoint)
    with (
        process_group(origin.timeout_seconds) as context,
        stop_on_signals(context, ON_STOP) as stop_requests,
    ):
        inputs, directory = broadcast_when_done(context, lambda: _find(origin, arguments, to))
        words, about = origin.choose(inputs, directory, context)
        record = about | inputs.record() | sizes
        if context.is_rank0:
            print(inputs, flush=True)
        if directory:
            job = PartsJob(directory=directory, origin=words, record=record, rows=len(inputs.queries), of="user")
            _write(origin, inputs, job, stop_requests, context)
        else:
            _print(origin, inputs, batch_size, stop_requests, context)


class Origin(Protocol[Found]):
    """What answers: a run or an export.

    Attributes:
        timeout_seconds: How long ranks wait for each other.
    """

    timeout_seconds: float

    def find(self, arguments: Arguments) -> Found:
        """Finds users and items, on rank 0; raises InputError."""
        ...

    def choose(self, inputs: Found, to: RunDirectory | None, context: DistributedContext) -> tuple[str, Record]:
        """Finds the model; returns it in words, and what decides the lists besides the inputs. All ranks call it.

        Args:
            inputs: The inputs.
            to: The directory of the parts, which may be there; None without parts.
            context: This process among the ranks.

        Raises:
            InputError: There is no such model, or it does not belong to the inputs.
        """
        ...

    def answering(self, inputs: Found, batch_size: int, context: DistributedContext) -> AbstractContextManager[Answers]:
        """Holds the model while the block asks."""
        ...

    def keep(self, lists: pa.Table) -> None:
        """Keeps the lists of the first users where one looks at the model, on rank 0."""
        ...

    def words_of_all(self) -> list[str]:
        """Returns the words of a command that name the model and a place for the lists of all users."""
        ...


def _origin(config: Config | None, out: str | None, export: str | None, checkpoint: str) -> Origin[Any]:
    if export is None:
        if config is None or out is None:
            raise InputError(f"{'CONFIG' if config is None else '--out'} is missing; name a run, or an --export")
        return FromRun(config, out, checkpoint)
    given = {"CONFIG": config, "--out": out, "--checkpoint": None if checkpoint == NEWEST else checkpoint}
    if extra := [name for name, value in given.items() if value is not None]:
        raise InputError(f"--export is '{export}', and {extra[0]} is given, too; name a run or an export")
    return FromExport(export)


def _find(origin: Origin[Any], arguments: Arguments, to: str | None) -> tuple[Inputs, RunDirectory | None]:
    if not (to or arguments.users):
        raise InputError("--to is not given; name a directory for the lists of all users, or name --users")
    return origin.find(arguments), RunDirectory(to, "--to") if to else None


def _write(
    origin: Origin[Any], inputs: Inputs, job: PartsJob, stop_requests: StopRequests, context: DistributedContext
) -> None:
    """Makes the missing parts of a job, prints the first lists, and writes the manifest."""
    with claimed(job, stop_requests, context) as claim:

        def save(place: int, lists: pa.Table) -> None:
            number = claim.missing[place]
            start, stop = claim.parts.parts[number]
            claim.parts.open(number).add(lists, stop - start)

        if claim.missing:
            parts = [claim.parts.parts[number] for number in claim.missing]
            _make(origin, inputs, claim.record["batch_size"], parts, save, context, claim.give_up)
        if context.is_rank0:  # which has made the first part, now or before
            with job.directory.fs.open(job.directory.path(claim.parts.name(0)), "rb") as file:
                lists = pq.read_table(file)
            print(f"\n{shown(lists)}\n", flush=True)
            origin.keep(lists)


def _print(
    origin: Origin[Any], inputs: Inputs, batch_size: int, stop_requests: StopRequests, context: DistributedContext
) -> None:
    """Prints the lists of all users, which rank 0 makes, and the command that writes lists."""
    found: list[pa.Table] = []
    parts = [(0, len(inputs.queries))]
    _make(
        *(origin, inputs, batch_size, parts, lambda _, lists: found.append(lists), context),
        lambda: stop_requests.all_reduce() is Action.STOP,
    )
    if context.is_rank0:
        print(f"\n{shown(found[0], len(inputs.queries))}\n")
        origin.keep(found[0])
        words = [without_secrets(word) for word in origin.words_of_all()]
        flags = inputs.arguments.words_of_all_users()
        print(next_commands(["python", "-m", "trainer", "recommend", *words, *flags]))


def _make(
    origin: Origin[Any],
    inputs: Inputs,
    batch_size: int,
    parts: Sequence[RowRange],
    save: Callable[[int, pa.Table], None],
    context: DistributedContext,
    give_up: Callable[[], bool],
) -> None:
    reader, items, show = QueryReader(inputs.queries, inputs.columns), inputs.items, inputs.files.show
    seen, k = broadcast_when_done(context, inputs.seen_items), min(inputs.arguments.k, len(items))
    with origin.answering(inputs, batch_size, context) as answers:
        summary = make_lists(answers, reader, seen, items, show, k, parts, save, context, give_up)
    if context.is_rank0:
        print(summary, flush=True)
