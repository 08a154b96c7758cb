"""Watchers: objects that observe a run while it trains, is evaluated and ends, without changing any of its bits."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from trainer.checkpoint.state_dict import State
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, gather_to_all
from trainer.core.errors import InputError, some_of
from trainer.core.registry import find_by_name
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.models.base import BatchOutputs
from trainer.run.reporter import Reporter, tolerate_failed_writes
from trainer.training.extensions import found

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

KEY = "report.watchers"
Curves = Mapping[str, Mapping[str, list[float]]]


@dataclass
class StopRequest:
    """A watcher's request to end training early.

    Attributes:
        reason: The reason that a watcher on this rank gave.
        agreed: The reason that all ranks have agreed on.
    """

    reason: str | None = None
    agreed: str | None = None

    def agree(self, context: DistributedContext) -> None:
        """Agrees on the reason of the first rank that has a request; all ranks call it."""
        self.agreed = next(filter(None, gather_to_all(self.reason, context)), None)


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run as watchers see it, on every rank.

    Attributes:
        config: The configuration.
        context: This process among the ranks: `rank`, `world_size`, `is_rank0` and `device`.
        directory: The run directory: its `url`, and `read` and `write` for small files by name.
    """

    config: Config
    context: DistributedContext
    directory: RunDirectory
    _reporter: Reporter | None = None
    _weights: Callable[[], State] = dict
    _curves: Callable[[], Curves] = dict
    _stop: StopRequest = field(default_factory=StopRequest)
    _gradients: Callable[[], Mapping[str, Tensor | None]] = dict
    _outputs: list[BatchOutputs] = field(default_factory=list)

    def log(self, text: str) -> None:
        """Prints a line on rank 0, above the progress bar."""
        if self._reporter:
            self._reporter.log(text)
        elif self.context.is_rank0:
            print(without_secrets(text), flush=True)

    def draw(self, write: "Callable[[SummaryWriter], None]") -> None:
        """Calls `write` with TensorBoard's writer, on rank 0, unless `report.tensorboard` is false."""
        if self._reporter:
            self._reporter.draw(write)

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns the lines of evaluations.jsonl, oldest first: `step`, `split` and the metrics by name."""
        if self._reporter:
            return self._reporter.evaluations()
        return self.directory.read_records("evaluations.jsonl")

    def calibration_curves(self) -> Curves:
        """Returns for each task of the last evaluation lists of `predicted`, `observed` and `weight`.

        These are means of bins of about equal weight, by rising prediction. Tasks without a metric that orders samples,
        such as AUC, have none.
        """
        return self._curves()

    def weights(self) -> State:
        """Returns this rank's weights as views, by names in checkpoints; tables are `ShardedTensor`s."""
        return self._weights()

    def gradients(self) -> Mapping[str, Tensor | None]:
        """Returns the gradients of dense weights by name: of the global batch, as the optimizer took them.

        A weight that the step did not use has None. Tables have no gradient, as their update is fused into backward.
        """
        return self._gradients()

    def outputs(self) -> Sequence[BatchOutputs]:
        """Returns this rank's predictions, labels and weights of the last step, for each microbatch.

        The predictions are from before the step's update. A skipped step has none.
        """
        return self._outputs

    def resume_clock(self) -> None:
        """Restarts the step clock, so that the time that a watcher took counts for no step."""
        if self._reporter:
            self._reporter.resume_clock()

    def request_stop(self, reason: str) -> None:
        """Ends training early, as `train.stop_early` does: the run is saved, evaluated and counts as finished.

        A call on a single rank is enough, and all ranks end after the same step. After a call in `after_evaluation`
        this is the evaluated step; after other calls it is one of the next steps. After the last step a call changes
        nothing.

        Args:
            reason: The reason, for the console and run.json.
        """
        self._stop.reason = self._stop.reason or reason

    @contextmanager
    def tolerate_failed_writes(self) -> Iterator[None]:
        """Logs a failure of storage inside the block, because it must not end training."""
        with tolerate_failed_writes(self.directory, self.log):
            yield


class Watcher:
    """Observes a run without changing any of its bits: weights, gradients, batches and random numbers.

    Override the methods that you need; the others do nothing. Every rank calls every method, so a watcher may use
    collectives. An error in a watcher ends the job, like any other error.

    Attributes:
        files: The files that it writes, by the label that each has in the summary at the end of a run.
    """

    files: ClassVar[Mapping[str, str]] = {}

    def begin(self, run: RunView, step: int, last_step: int) -> None:
        """Called before the first step of a job and, if the data has segments, of each segment.

        Args:
            run: The run.
            step: Steps done.
            last_step: The last step of training, or of the segment.
        """

    def after_step(self, run: RunView, step: int) -> None:
        """Called after every step. A watcher that takes long should call `run.resume_clock()`."""

    def asks(self) -> bool:
        """Returns whether this rank requests a call of `asked` on all ranks; called after every step."""
        return False

    def asked(self, run: RunView, step: int) -> None:
        """Called on all ranks after the same step, soon after any watcher on any rank has requested it.

        Args:
            run: The run.
            step: Steps done.
        """

    def numbers(self, run: RunView, step: int) -> Mapping[str, float]:
        """Returns numbers by name for the line of metrics.jsonl and TensorBoard; called at every report.

        It precedes `after_step` of the step. All ranks return the same names, which the line does not have otherwise.
        """
        return {}

    def after_evaluation(self, run: RunView, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Called after every evaluation, the final ones included; its time counts for no step.

        The line of the evaluation is in evaluations.jsonl by then.

        Args:
            run: The run.
            step: The step whose weights were evaluated.
            split: validation or test.
            metrics: The metrics of `evaluate.metrics` by name, `auc/clicked` for one of several tasks; the same on
                every rank.
        """

    def at_end(self, run: RunView, step: int, state: str) -> None:
        """Called last, after run.json has recorded the end; not if the job fails.

        Weights and TensorBoard's writer are gone by then.

        Args:
            run: The run.
            step: Steps done.
            state: `finished` or `stopped`.
        """


MOMENTS = [name for name, method in vars(Watcher).items() if inspect.isfunction(method)]


def make_watchers(config: Config) -> tuple[Watcher, ...]:
    """Returns the watchers of a run: first the watchers of extensions, then the user's own.

    Raises:
        InputError: A watcher cannot be imported, or does not take its options.
    """
    own = (_own(name, options) for name, options in config.report.watchers.items())
    return (*(make() for make in found(config, "watcher")), *own)


def _own(name: str, options: Mapping[str, Any]) -> Watcher:
    kind = find_by_name(KEY, name, {})
    if not (isinstance(kind, type) and issubclass(kind, Watcher)):
        raise InputError(f"{KEY} has '{name}', which is no watcher; name a subclass of torchx_recsys.Watcher")
    if all(getattr(kind, moment) is getattr(Watcher, moment) for moment in MOMENTS):
        raise InputError(f"{KEY} has '{name}', which has none of the methods of a watcher: {', '.join(MOMENTS)}")
    takes = inspect.signature(kind)
    try:
        takes.bind(**options)
    except TypeError as error:
        known = some_of(takes.parameters) or "none"
        raise InputError(f"{KEY} has '{name}', which does not take its options: {error}; it takes {known}") from error
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        raise InputError(f"{KEY} has '{name}', which does not take its options: {error}") from error
