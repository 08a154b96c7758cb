"""How long and how a model is trained, evaluated, saved, reported and published."""

from typing import Annotated, Any, Literal, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import AsBegun, MayChange, Section
from trainer.core.timeouts import COLLECTIVE_SECONDS

FP16_LOSS_SCALE = 2.0**16  # torch.amp.GradScaler's first scale


class LossScaleConfig(Section):
    """The dynamic loss scale: loss and gradients are computed times a number, so that small ones do not vanish."""

    initial: float | None = pydantic.Field(default=None, ge=1)
    """The scale at the first step. Unset: 65536 with train.precision fp16, else the loss is not scaled."""
    growth_factor: float = pydantic.Field(default=2.0, gt=1)
    """Factor of the scale after growth_interval steps in a row without an overflow."""
    backoff_factor: float = pydantic.Field(default=0.5, gt=0, lt=1)
    """Factor of the scale at an overflow; it does not fall below 1."""
    growth_interval: pydantic.PositiveInt = 2000
    """Steps without an overflow after which the scale grows."""


class StopEarlyConfig(Section):
    """Early stopping: an end of training once a metric of data.validation gets no better."""

    # All keys may change on resume: they decide when training ends, and no loss until then.
    metric: Annotated[str | None, MayChange] = None
    """Metric of the evaluations to watch; METRIC/TASK if there are several tasks. Unset: train to the last step."""
    patience: Annotated[pydantic.PositiveInt, MayChange] = 3
    """Stop after this many evaluations in a row that are no better than the best before them."""
    min_change: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """An evaluation counts as better only if it is better by more than this."""
    target: Annotated[float | None, MayChange] = None
    """Stop as soon as an evaluation is at least as good as this. Unset: no target."""

    @pydantic.model_validator(mode="after")
    def _belongs_to_a_metric(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if self.metric is None and given:
            key = f"train.stop_early.{min(given)}"
            raise InputError(f"{key} is set, but train.stop_early.metric is not; set both or none")
        return self


class TrainConfig(Section):
    """Length, seed and precision of training."""

    steps: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Steps to train for; set this or epochs, not both."""
    epochs: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Passes over the training data; set this or steps, not both."""
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)
    """Seed of the initial weights and of the order of the data."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision in which the dense part computes; weights and losses stay float32. fp16 has a loss scale."""
    loss_scale: LossScaleConfig = LossScaleConfig()
    """The loss scale, which fp16 needs."""
    tf32: bool = False
    """Let a GPU round the factors of float32 products to TF32's 10 bits, which is faster."""
    compile: Annotated[bool | Literal["auto"], MayChange, AsBegun] = "auto"
    """Compile the dense part, which takes seconds to minutes and shortens every step: true from the first step on,
    false never, auto once a few steps show that what is left of the run pays for it (docs/guides/faster_steps.md)."""
    micro_batches: Annotated[pydantic.PositiveInt, MayChange] = 1
    """Microbatches of a local batch, computed one after the other to need less memory; the step is the same."""
    recompute: Annotated[bool, MayChange] = False
    """Compute hidden layers, the blocks of sasrec and bst and the units of hstu and dlrm_hstu again in backward in
    place of keeping their parts, which needs less memory and takes longer; the step is the same. With train.compile
    they are not compiled."""
    nonfinite: Annotated[Literal["ignore", "error", "skip"], MayChange] = "ignore"
    """If the loss or a gradient is not finite: ignore does not look, error ends the job, skip leaves the step out."""
    collective_timeout_seconds: Annotated[pydantic.PositiveFloat, MayChange] = COLLECTIVE_SECONDS
    """A collective that a rank does not join within this time ends the job."""
    stuck_seconds: Annotated[pydantic.PositiveFloat, MayChange] = 300.0
    """After this time without progress every rank prints its stack; below train.collective_timeout_seconds."""
    preflight_seconds: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """Let all ranks exchange data before training, which names slow and dead hosts, in at most this time. 0: off."""
    stop_early: StopEarlyConfig = StopEarlyConfig()

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is scaled."""
        return self.precision == "fp16" or self.loss_scale.initial is not None

    @property
    def first_loss_scale(self) -> float:
        """The loss scale of the first step; 1 if the loss is not scaled."""
        return self.loss_scale.initial or (FP16_LOSS_SCALE if self.precision == "fp16" else 1.0)

    @pydantic.model_validator(mode="after")
    def _loss_scale_is_used(self) -> Self:
        given = self.loss_scale.model_dump(exclude_defaults=True)
        if given and not self.scales_loss:
            raise InputError(
                f"train.loss_scale.{min(given)} is set, but the loss is not scaled: train.precision is "
                f"'{self.precision}' and train.loss_scale.initial unset; use fp16, set the latter or leave it out"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _reports_come_before_the_timeout(self) -> Self:
        for key in ("stuck_seconds", "preflight_seconds"):
            if (seconds := getattr(self, key)) >= self.collective_timeout_seconds:
                raise InputError(
                    f"train.{key} is {seconds:g} and train.collective_timeout_seconds is "
                    f"{self.collective_timeout_seconds:g}, which would end the job first; {key} must be below it: "
                    "lower it or raise the timeout"
                )
        return self


REGULAR = ("every_steps", "every_samples", "every_epochs", "at_saves")
"""Keys of which one decides when the model is evaluated before the end."""


class EvaluateConfig(Section):
    """Evaluation: when, in which batches, and by which metrics."""

    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Steps between two evaluations on data.validation. 0: evaluate only at the end."""
    every_samples: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Instead: samples between two, each after the step that reaches a multiple of this; a short batch counts as whole.
    0: off."""
    every_epochs: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Instead: epochs between two, each after the last step of an epoch. 0: off."""
    at_saves: Annotated[bool, MayChange] = False
    """Instead: evaluate after every save by checkpoint.every_steps or checkpoint.every_epochs."""
    first_after: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Samples before the first of these evaluations."""
    global_batch_size: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Samples per evaluation step, over all ranks. Unset: data.global_batch_size."""
    metrics: Annotated[list[str] | None, MayChange] = None
    """Metrics of all tasks without their own (docs/guides/metrics.md). Unset: the defaults for each task's output."""
    group_sample: Annotated[float, MayChange, pydantic.Field(gt=0, le=1)] = 1.0
    """Fraction of the groups, chosen by hash, that metrics within groups are computed of, which bounds their memory."""
    final: Annotated[Literal["last", "best"], MayChange] = "last"
    """Evaluate the last step's weights on data.test, or those of the best checkpoint by checkpoint.keep.best."""

    @pydantic.model_validator(mode="after")
    def _regular(self) -> Self:
        given = [f"evaluate.{key} is {str(value).lower()}" for key in REGULAR if (value := getattr(self, key))]
        if len(given) > 1:
            raise InputError(f"{given[0]} and {given[1]}; set one of them")
        if self.first_after and not self.is_regular:
            raise InputError(
                f"evaluate.first_after is {self.first_after}, but evaluate.every_samples and evaluate.every_steps are "
                "0, so that there is no such evaluation; set one of them, every_epochs or at_saves"
            )
        return self

    @property
    def is_regular(self) -> bool:
        """Whether there are evaluations before the end."""
        return any(getattr(self, key) for key in REGULAR)

    def due(self, step: int, batch_size: int, steps_per_epoch: int = 0, is_saved: bool = False) -> bool:
        """Returns whether an evaluation follows a step.

        Args:
            step: Number of the step, counted from the first epoch.
            batch_size: Samples in a step.
            steps_per_epoch: Steps in an epoch, for every_epochs.
            is_saved: Whether a save is due after the step, for at_saves.
        """
        every, done = self.every_samples or _steps(self, steps_per_epoch) * batch_size, step * batch_size
        is_reached = (self.at_saves and is_saved) or (every > 0 and done // every > (done - batch_size) // every)
        return is_reached and done >= self.first_after


class FinetuneConfig(Section):
    """Fine-tuning: another run's checkpoint to start from. A run with a checkpoint of its own resumes from that."""

    checkpoint: str | None = None
    """A run directory, for its newest checkpoint, or one of its checkpoints/step-NUMBER. Unset: start from scratch."""
    take: str = "newest"
    """Which of a run directory's checkpoints: newest, best by that run's checkpoint.keep.best, or a step's number."""
    names: str | None = None
    """A text file for renamed weights: on each line the name in this model and the name in the checkpoint."""
    optimizer_state: bool = True
    """Load the optimizers' state, too. Off: the optimizers start from scratch."""
    allow_missing: list[str] = []
    """Tables and weights that the checkpoint may lack; they start from scratch. Names, or patterns with *."""
    exclude: list[str] = []
    """Tables and weights that start from scratch even if the checkpoint has them. Names or patterns."""
    ignore_unexpected: list[str] = []
    """Tables and weights of the checkpoint that this model may lack. Names or patterns."""

    @pydantic.model_validator(mode="after")
    def _belongs_to_a_checkpoint(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if self.checkpoint is None and given:
            raise InputError(f"finetune.{min(given)} is set, but finetune.checkpoint is not; set both or none")
        return self


class Retention(Section):
    """Checkpoints to keep when a newer one is committed."""

    newest: Annotated[pydantic.PositiveInt, MayChange] = 3
    """Keep this many of the newest. With 1, there is no other checkpoint to resume from if the newest is damaged."""
    best: Annotated[str | None, MayChange] = None
    """Keep the best by this metric of data.validation, such as auc; METRIC/TASK if there are several tasks."""
    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Keep checkpoints whose step is a multiple of this forever. 0: off."""
    segments: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Keep the checkpoints at the ends of this many of the newest segments of data.segments. 0: off."""


class CheckpointConfig(Section):
    """When to save checkpoints, and which to keep."""

    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Steps between two saves. 0: save only at the end."""
    every_epochs: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Instead: epochs between two saves, each after the last step of an epoch. 0: off."""
    every_minutes: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """Save when this many minutes have passed since the last save. 0: off."""
    full_every: Annotated[pydantic.PositiveInt, MayChange] = 1
    """Every Nth checkpoint is whole; those between have only the rows of tables that changed. 1: all are whole."""
    asynchronous: Annotated[bool, MayChange] = True
    """Write while training continues, from a copy in memory as large as the state. Off: training waits, and on a CPU a
    whole checkpoint is written without a copy."""
    keep: Retention = Retention()
    grow_tables: Annotated[bool, MayChange] = False
    """Resume with more rows in a table than the checkpoint has. The new rows start like those of a new table."""
    grace_seconds: Annotated[pydantic.NonNegativeFloat, MayChange] = 120.0
    """Time between a stop request and the kill. A job whose saves take longer stops without a save."""

    @pydantic.model_validator(mode="after")
    def _regular(self) -> Self:
        if self.every_steps and self.every_epochs:
            raise InputError(
                f"checkpoint.every_steps is {self.every_steps} and checkpoint.every_epochs is {self.every_epochs}; set "
                "one of them"
            )
        return self

    def due(self, step: int, steps_per_epoch: int) -> bool:
        """Returns whether a save follows a step, beside those by the clock; the steps are counted as by evaluations."""
        every = _steps(self, steps_per_epoch)
        return every > 0 and step % every == 0

    @property
    def needs_copy(self) -> bool:
        """Whether a save copies the state: to write while it changes, or to find what has changed since."""
        return self.asynchronous or self.full_every > 1


def _steps(section: EvaluateConfig | CheckpointConfig, steps_per_epoch: int) -> int:
    return section.every_steps or section.every_epochs * steps_per_epoch


class ProfileConfig(Section):
    """Steps that torch.profiler records: traces, and a table of where the time of a step goes."""

    first_step: Annotated[int | None, MayChange] = pydantic.Field(default=None, ge=2)
    """First step to record; the step before warms the profiler up. Unset: only steps that are requested."""
    steps: Annotated[pydantic.PositiveInt, MayChange] = 5
    """Steps to record."""
    ranks: Annotated[list[pydantic.NonNegativeInt], MayChange] = [0]
    """Ranks that write a trace; the table covers all ranks."""
    stacks: Annotated[bool, MayChange] = False
    """Record Python's stacks as well, which stalls training for some 20 s when the trace is written."""
    memory: Annotated[bool, MayChange] = False
    """Record allocations as well, with a snapshot of the GPU's memory for pytorch.org/memory_viz; not on a CPU."""


class MlperfLogConfig(Section):
    """MLPerf's log lines in RUN_DIR/mlperf.log. They need data.validation and train.stop_early.target."""

    organization: Annotated[str | None, MayChange, pydantic.Field(min_length=1)] = None
    """Who submits. Unset: no such log."""
    benchmark: Annotated[str, MayChange] = "dlrmv4"
    """The benchmark, as the rules name it."""
    division: Annotated[Literal["closed", "open"], MayChange] = "closed"
    """The division of the rules."""
    platform: Annotated[str | None, MayChange] = None
    """The system. Unset: the number of ranks and their device."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        for key, value in given.items():
            if self.organization is None:
                raise InputError(
                    f"report.mlperf_log.{key} is '{value}', but report.mlperf_log.organization is not set, so that "
                    "there is no such log; name who submits, or leave it out"
                )
        return self


class TrackerConfig(Section):
    """Where a tracker of report.trackers keeps the run. Keys and passwords belong into its environment variables."""

    uri: Annotated[str | None, MayChange] = None
    """Its server. Unset: as its own environment variables say."""
    project: Annotated[str, MayChange, pydantic.Field(min_length=1)] = "torchx-recsys"
    """The project, which MLflow calls an experiment; made if it is not there."""
    name: Annotated[str | None, MayChange] = None
    """The name of the run. Unset: the last part of the run directory."""


class ReportConfig(Section):
    """Reports of training, and their interval."""

    interval_steps: Annotated[pydantic.PositiveInt, MayChange] = 50
    """Steps between two console lines and two lines of metrics.jsonl."""
    tensorboard: Annotated[bool, MayChange] = True
    """Write TensorBoard files to RUN_DIR/tensorboard."""
    histograms_every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Steps between two histograms of weights and embeddings in TensorBoard. 0: none."""
    histograms_of: Annotated[list[str], MayChange] = ["*"]
    """The weights and tables of these histograms: names, or patterns with *."""
    training_metrics: Annotated[list[str], MayChange] = []
    """Metrics of the samples that are trained on, in metrics.jsonl: names of evaluate.metrics."""
    window_samples: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Samples that these metrics are of, rounded up to whole report intervals. 0: those of each interval."""
    gradient_norms: Annotated[list[str], MayChange] = []
    """Dense weights whose gradient norm is in metrics.jsonl: names, or patterns with *, each with its norm."""
    watchers: Annotated[dict[str, dict[str, Any]], MayChange] = {}
    """Your own watchers (docs/guides/watch_a_run.md): the options of each, by its `package.module:Class`."""
    baselines: Annotated[str | None, MayChange] = None
    """The file of data.baselines to show beside the model's metrics. Unset: baselines.json beside the files of
    data.train, if there."""
    trackers: Annotated[list[Literal["mlflow", "trackio", "wandb"]], MayChange] = []
    """Experiment trackers to send the run to (docs/guides/trackers.md), each an extra of the package."""
    mlflow: TrackerConfig = TrackerConfig()
    trackio: TrackerConfig = TrackerConfig()
    wandb: TrackerConfig = TrackerConfig()
    profile: ProfileConfig = ProfileConfig()
    mlperf_log: MlperfLogConfig = MlperfLogConfig()

    @pydantic.model_validator(mode="after")
    def _histograms_are_written(self) -> Self:
        if self.histograms_every_steps and not self.tensorboard:
            raise InputError(
                f"report.histograms_every_steps is {self.histograms_every_steps}, but report.tensorboard is false, and "
                "histograms are written to TensorBoard only; set it to true, or leave histograms_every_steps out"
            )
        if self.window_samples and not self.training_metrics:
            raise InputError(
                f"report.window_samples is {self.window_samples}, but report.training_metrics is empty; set both or "
                "none"
            )
        if self.histograms_of != ["*"] and not self.histograms_every_steps:
            raise InputError("report.histograms_of is set, but report.histograms_every_steps is not; set both or none")
        return self


IN_WINDOW = ("metric", "label_rate_by", "least_samples", "most_samples")


class PublishConfig(Section):
    """Rules for the newest segment, beside those before it, that must hold before a run over segments is exported."""

    metric: Annotated[str | None, MayChange] = None
    """Metric before training on a segment that may not get worse; METRIC/TASK if there are several tasks."""
    worse_by: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.05
    """The metric may be worse by this than its mean on the segments before."""
    calibration_by: Annotated[float | None, MayChange, pydantic.Field(gt=1)] = None
    """The calibration must lie between one over this and this. Unset: anywhere."""
    label_rate_by: Annotated[float | None, MayChange, pydantic.Field(gt=1)] = None
    """The label rate may be this many times its mean on the segments before, or one over this. Unset: any."""
    least_samples: Annotated[float | None, MayChange, pydantic.Field(gt=0, le=1)] = None
    """Fraction of the mean number of samples that a segment must have. Unset: any."""
    most_samples: Annotated[float | None, MayChange, pydantic.Field(gt=1)] = None
    """A segment may have this many times the mean number of samples. Unset: any."""
    shift_by: Annotated[float | None, MayChange, pydantic.Field(gt=0)] = None
    """Greatest population stability index of a feature from the segment before, in a sample. Unset: any."""
    shift_of: Annotated[dict[str, pydantic.PositiveFloat], MayChange] = {}
    """Limits of single columns of features, in place of shift_by."""
    drift_by: Annotated[float | None, MayChange, pydantic.Field(gt=0)] = None
    """Answers to the parity rows of the export before may differ by this, on average. Unset: by anything."""
    size_by: Annotated[float | None, MayChange, pydantic.Field(gt=1)] = None
    """Bytes of the export may be this many times those of the export before, or one over this. Unset: any."""
    window: Annotated[pydantic.PositiveInt, MayChange] = 7
    """Segments before the newest that it is compared with."""

    @pydantic.model_validator(mode="after")
    def _is_used(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if "worse_by" in given and self.metric is None:
            raise InputError(f"publish.worse_by is {self.worse_by:g}, but publish.metric is unset; set both or none")
        if "window" in given and not given.keys() & {*IN_WINDOW}:
            raise InputError(f"publish.window is {self.window}, but there is no rule that compares; set one or none")
        return self
