"""The top items of a catalogue for users.

python -m trainer recommend runs/mine/config.toml --out runs/mine --user-column user_id --users 42 7
"""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pydantic

from torchx_recsys.apps.predict.predict import model_fingerprint
from torchx_recsys.apps.predict.resume import (
    ON_STOP,
    PartsJob,
    Record,
    choose_checkpoint,
    claimed,
    record_of_checkpoint,
)
from torchx_recsys.apps.recommend.answers import answers_of
from torchx_recsys.apps.recommend.inputs import Arguments, Inputs, find_inputs
from torchx_recsys.apps.recommend.lists import make_lists, shown
from torchx_recsys.apps.recommend.queries import QueryReader
from trainer.checkpoint.choice import NEWEST, find_checkpoint
from trainer.checkpoint.store import FindDamage
from trainer.checkpoint.verify import verify_together
from trainer.config.root import Config
from trainer.core.console import next_commands
from trainer.core.distributed import DistributedContext, broadcast_when_done, process_group
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.data.columns import RecordedTypes
from trainer.data.epoch_order import RowRange
from trainer.run.preemption import Action, StopRequests, stop_on_signals
from trainer.training.evaluate import restore_evaluated


def recommend(
    config: Config,
    out: str,
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
    checkpoint: str = NEWEST,
    users_per_part: pydantic.PositiveInt = 1024,
    batch_size: pydantic.PositiveInt = 1024,
) -> None:
    """Lists the top k items for users. CONFIG is a TOML file, such as RUN_DIR/config.toml.

    A model of vectors compares each user with all items, any other model scores all pairs of a user and an item. The
    lists are exact; of equal scores the smaller id comes first. Those of the first users are printed.

    TO/part-00000-of-00002.parquet and so on have the columns user, rank, item, score and those to show. As with
    `predict`, an interrupted job continues when it is started again.

    Args:
        config: The configuration; its planner section may differ from the run's.
        out: The run directory, any fsspec URL.
        to: Directory for the parts, on any fsspec URL. Unset: lists are only printed, for `users`.
        k: Items of a list.
        users: Ids of users. Unset: all users of the source.
        source: Files, globs or directories with rows of users. Unset: data.test, or else data.validation.
        user_column: Column of the users' ids. Unset: the one of data.groups besides data.catalogue.id.
        time_column: Column by which a user's newest row, which asks, is found. Unset: the last row.
        items: Files, globs or directories with a row for each item. Unset: data.catalogue.items.
        item_column: Column of the items' ids. Unset: data.catalogue.id.
        show: Columns of the items to show. Unset: title or name, if there is one.
        where: Condition on the columns of the items, as in SQL, such as "year >= 1990".
        seen: Files, globs or directories with users and items to leave out, besides data.catalogue.exclude.
        task: Task that scores items. Unset: the first.
        checkpoint: newest, best (by checkpoint.keep.best of RUN_DIR/config.toml), or the number of a step.
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
    )
    sizes = {"rows_per_part": users_per_part, "batch_size": batch_size}
    with (
        process_group(config.train.collective_timeout_seconds) as context,
        stop_on_signals(context, ON_STOP) as stop_requests,
    ):
        inputs = broadcast_when_done(context, lambda: _find(config, arguments, to))
        job = verify_together(context, lambda find: _job(config, inputs, out, to, checkpoint, sizes, find))
        if context.is_rank0:
            print(inputs, flush=True)
        if to:
            _write(config, inputs, job, stop_requests, context)
        else:
            _print(config, inputs, job, stop_requests, context)


def _find(config: Config, arguments: Arguments, to: str | None) -> Inputs:
    if not (to or arguments.users):
        raise InputError("--to is not given; name a directory for the lists of all users, or name --users")
    return find_inputs(config, arguments)


def _job(
    config: Config,
    inputs: Inputs,
    out: str,
    to: str | None,
    checkpoint: str,
    sizes: Record,
    find: FindDamage,
) -> PartsJob:
    """Finds the checkpoint, and everything that decides the contents of the parts."""
    directory = RunDirectory(to, "--to") if to else RunDirectory(out, "--out")
    if to:
        chosen = choose_checkpoint(directory, out, checkpoint, find)
    else:
        chosen = find_checkpoint(directory, "--out", checkpoint, "--checkpoint", find)
    inputs.check(RecordedTypes.of_checkpoint(chosen.url, chosen.train_state))
    about = {"checkpoint": record_of_checkpoint(chosen), "model": model_fingerprint(config)}
    record = about | inputs.record() | sizes
    return PartsJob(directory=directory, checkpoint=chosen, record=record, rows=len(inputs.queries), of="user")


def _write(
    config: Config, inputs: Inputs, job: PartsJob, stop_requests: StopRequests, context: DistributedContext
) -> None:
    """Makes the missing parts of a job, prints the first lists, and writes the manifest."""
    with claimed(job, stop_requests, context) as claim:

        def save(place: int, lists: pa.Table) -> None:
            number = claim.missing[place]
            start, stop = claim.parts.parts[number]
            claim.parts.open(number).add(lists, stop - start)

        if claim.missing:
            parts = [claim.parts.parts[number] for number in claim.missing]
            _make(config, inputs, job, claim.record["batch_size"], parts, save, context, claim.give_up)
        if context.is_rank0:  # which has made the first part, now or before
            with job.directory.fs.open(job.directory.path(claim.parts.name(0)), "rb") as file:
                print(f"\n{shown(pq.read_table(file))}\n", flush=True)


def _print(
    config: Config, inputs: Inputs, job: PartsJob, stop_requests: StopRequests, context: DistributedContext
) -> None:
    """Prints the lists of all users, which rank 0 makes, and the command that writes lists."""
    found: list[pa.Table] = []
    parts, batch_size = [(0, len(inputs.queries))], job.record["batch_size"]
    _make(
        *(config, inputs, job, batch_size, parts, lambda _, lists: found.append(lists), context),
        lambda: stop_requests.all_reduce() is Action.STOP,
    )
    if context.is_rank0:
        print(f"\n{shown(found[0], len(inputs.queries))}\n")
        url = without_secrets(job.directory.url)
        words = ["python", "-m", "trainer", "recommend", url, "--out", url, "--to", f"{url}/recommendations"]
        print(next_commands([*words, *inputs.arguments.words_of_all_users()]))


def _make(
    config: Config,
    inputs: Inputs,
    job: PartsJob,
    batch_size: int,
    parts: Sequence[RowRange],
    save: Callable[[int, pa.Table], None],
    context: DistributedContext,
    give_up: Callable[[], bool],
) -> None:
    reader = QueryReader(inputs.queries, config.data, inputs.sides.query_columns)
    seen = broadcast_when_done(context, lambda: inputs.seen_items(config.data))
    evaluate = config.evaluate.model_copy(update={"global_batch_size": batch_size * context.world_size})
    model = restore_evaluated(config.model_copy(update={"evaluate": evaluate}), job.checkpoint, context)
    with model.averaged():
        answers = answers_of(model, config, inputs, batch_size, context)
        items, show, k = inputs.items, inputs.files.show, min(inputs.arguments.k, len(inputs.items))
        summary = make_lists(answers, reader, seen, items, show, k, parts, save, context, give_up)
    if context.is_rank0:
        print(summary, flush=True)
