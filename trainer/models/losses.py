"""Losses by name: losses of single samples, and losses that compare samples with each other.

A loss of single samples takes predictions and labels, and returns the loss of each sample, `[B]`. A loss that compares
samples compares those of a lane in a step, or of the global batch. Both are the same on any number of ranks; a rank's
local batch is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from math import log
from typing import NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn import functional as differentiable
from torch.nn import functional

from trainer.batches.rows import NO_ID, NO_ITEM
from trainer.config.data import LaneRows
from trainer.config.tasks import TaskConfig
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.data.epoch_order import Lanes
from trainer.models.had_items import Had


def binary(logit: Tensor, label: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Returns the binary cross-entropy of logits `[B]` and labels in [0, 1]."""
    if label_smoothing:
        label = label * (1 - label_smoothing) + label_smoothing / 2
    return functional.binary_cross_entropy_with_logits(logit, label, reduction="none")


def focal(logit: Tensor, label: Tensor, gamma: float = 2.0, alpha: float = 0.5) -> Tensor:
    """Returns the binary cross-entropy, times a weight that falls as a sample is predicted better (arXiv:1708.02002).

    The weight is a constant: unlike in the paper, gradients do not flow through it.
    """
    probability = logit.detach().sigmoid()
    positive, negative = label * (1 - probability) ** gamma, (1 - label) * probability**gamma
    return (alpha * positive + (1 - alpha) * negative) * binary(logit, label)


def softmax(logits: Tensor, label: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Returns the cross-entropy of logits `[B, C]` and labels that are class numbers; NaN where a label is not."""
    known = are_classes(
        label, logits.shape[1]
    )  # a GPU would end the process at a wrong class, without a word about data
    number = label.long().where(known, 0)
    each = functional.cross_entropy(logits, number, reduction="none", label_smoothing=label_smoothing)
    return each.where(known, torch.nan)


def are_classes(label: Tensor, classes: int) -> Tensor:
    """Returns which labels are class numbers, `[B]`; they count from 0."""
    return (label >= 0) & (label < classes) & (label == label.floor())


def squared(value: Tensor, label: Tensor) -> Tensor:
    """Returns the squared error of values `[B]`."""
    return functional.mse_loss(value, label, reduction="none")


def absolute(value: Tensor, label: Tensor) -> Tensor:
    """Returns the absolute error of values `[B]`."""
    return functional.l1_loss(value, label, reduction="none")


def huber(value: Tensor, label: Tensor, delta: float = 1.0) -> Tensor:
    """Returns half the squared error of values `[B]`, linear beyond an error of `delta`."""
    return functional.huber_loss(value, label, reduction="none", delta=delta)


def poisson(log_value: Tensor, label: Tensor) -> Tensor:
    """Returns e^z - y z of logarithms of values `[B]` and labels from 0 up; NaN where a label is below 0.

    That is the negative logarithm of a count's probability by Poisson, without what does not depend on z.
    """
    each = functional.poisson_nll_loss(log_value, label, log_input=True, reduction="none")
    return each.where(label >= 0, torch.nan)


LOSSES: dict[str, Callable[..., Tensor]] = {
    loss.__name__: loss for loss in (binary, focal, softmax, squared, absolute, huber, poisson)
}
"""Each takes predictions, labels, and the options of a task that `LOSS_KINDS` lists for it."""


def side_by_side(columns: Sequence[Tensor]) -> Tensor:
    """Returns columns `[B]` as `[B, N]`. A single column is not copied, as a copy takes a part of backward, too."""
    return torch.stack([*columns], dim=1) if len(columns) > 1 else columns[0].unsqueeze(1)


def total(columns: Tensor) -> Tensor:
    """Returns the sum of columns `[B, N]` as `[B]`; a single column as it is."""
    return columns.sum(dim=1) if columns.shape[1] > 1 else columns.squeeze(1)


def to_logit(log_probability: Tensor) -> Tensor:
    """Returns the logits of probabilities given by their logarithms, exact where the probabilities would be rounded.

    With x the logarithm, binary's -(y x + (1 - y) log(1 - e^x)) is the cross-entropy of the logit x - log(1 - e^x).
    """
    # At 0 the logit would be infinite; a float32 this close to 0 has a logit of 87.
    log_probability = log_probability.clamp(max=-torch.finfo(log_probability.dtype).tiny)
    return log_probability - log1mexp(log_probability)


def log1mexp(x: Tensor) -> Tensor:
    """Returns log(1 - e^x) of x < 0 (Maechler, "Accurately computing log(1 - exp(-|a|))", 2012)."""
    near = x > -log(2)
    # The branch of `torch.where` that is not taken must not have an infinite gradient either.
    return torch.where(near, (-x.where(near, -1.0).expm1()).log(), (-x.where(~near, -1.0).exp()).log1p())


@dataclass(frozen=True)
class ComparedSamples:
    """Samples `[B]`, or units `[U, N]`; samples are compared only within their unit.

    Attributes:
        prediction: Predictions, `[..., P]`, where `P` stands for the dimensions of a prediction.
        label: Labels.
        group: Groups; without groups, every sample is its own group.
        present: Whether a sample counts; samples of weight 0 do not.
        log_q: Logarithm of the probability of the sample's item in a draw from the catalogue.
    """

    prediction: Tensor
    label: Tensor
    group: Tensor
    present: Tensor
    log_q: Tensor

    def in_units(self, size: int) -> Self:
        """Returns samples `[B]` in units of `size` consecutive samples."""
        return self._each(lambda tensor: tensor.unflatten(0, (-1, size)))

    def in_lanes(self, size: int) -> Self:
        """Returns units `[U, N]` as `[U, N / size, size]`."""
        return self._each(lambda tensor: tensor.unflatten(1, (-1, size)))

    def rows(self, start: int, stop: int) -> Self:
        """Returns some rows of each lane of `[U, lanes, rows]`."""
        return self._each(lambda tensor: tensor[:, :, start:stop])

    def of_all_ranks(self) -> Self:
        """Returns the samples of all ranks, in their order; gradients flow to all ranks."""
        return self._each(lambda tensor: torch.cat(differentiable.all_gather(tensor.contiguous())))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(*(change(getattr(self, field.name)) for field in fields(self)))


def jrc(own: ComparedSamples, others: ComparedSamples, alpha: float = 0.5) -> Tensor:
    """Returns the joint loss of ranking and calibration (Sheng et al., arXiv:2208.06164).

    Logits are `[U, N, 2]`, one for each of the labels 0 and 1. Calibration is their cross-entropy. Ranking is the
    cross-entropy of finding the sample, by its label's logit, among the samples of its group.
    """
    positive = own.label > 0.5
    logit = torch.where(positive, own.prediction[..., 1], own.prediction[..., 0])
    rivals = torch.where(positive[..., None], others.prediction[:, None, :, 1], others.prediction[:, None, :, 0])
    ranking = _logsumexp(rivals, _same_group(own, others) & others.present[:, None]) - logit
    calibration = own.prediction.logsumexp(-1) - logit
    return alpha * calibration + (1 - alpha) * ranking


def bpr(own: ComparedSamples, others: ComparedSamples) -> Tensor:
    """Returns -log sigmoid of the lead over each sample of the group with a lower label, in the mean (arXiv:1205.2618).

    Predictions are `[U, N]`. A sample without such others has a loss of 0.
    """
    lower = _same_group(own, others) & others.present[:, None] & (own.label[..., None] > others.label[:, None])
    lead = own.prediction[..., None] - others.prediction[:, None]
    return functional.softplus(-lead).where(lower, 0.0).sum(-1) / lower.sum(-1).clamp(min=1)


def in_batch_softmax(
    own: ComparedSamples,
    others: ComparedSamples,
    temperature: float = 1.0,
    log_q: bool = False,
    had: Had | None = None,
) -> Tensor:
    """Returns the cross-entropy of finding a query's item among the items of all samples, times the label.

    Predictions are `[U, N, 2, D]`: the vectors of the query and of the item. Only items of another group, the item's
    id, count as negatives, without those that the query has `had`. With `log_q`, the other samples are taken as draws
    from the catalogue, and only items that can be drawn count.
    """
    query, item = own.prediction.unbind(2)
    positive = (query * item).sum(-1) / temperature
    negatives = query @ others.prediction[:, :, 1].mT / temperature
    counts = others.present[:, None] & ~_same_group(own, others)
    if had:
        counts = counts & ~had(others.group)
    if log_q:
        draws = (others.present.sum(-1) - 1).clamp(min=1)
        counts = counts & others.log_q.isfinite()[:, None]
        negatives = negatives - expected(others.log_q, draws[:, None])[:, None]
    return own.label * (torch.logaddexp(positive, _logsumexp(negatives, counts)) - positive)


class EarlierPairs(NamedTuple):
    """Queries within a sample, each of which is followed by an item, before that of the sample itself.

    Attributes:
        pairs: Vectors of query and item, `[B, P, 2, D]`.
        group: The group of each item, `[B, P]`; NO_ID where a sample has fewer.
    """

    pairs: Tensor
    group: Tensor


def sampled_softmax(
    own: ComparedSamples,
    others: ComparedSamples,
    rows: LaneRows,
    temperature: float = 1.0,
    log_q: bool = False,
    earlier: EarlierPairs | None = None,
    had: Had | None = None,
) -> Tensor:
    """Returns the cross-entropy of finding a query's item among negatives from the catalogue, times the label.

    Predictions are `[U, N, 2, D]`, for one or more lanes with their negatives. The samples of a unit share the
    negatives drawn for all its lanes, and each has its own hard negatives. An item is no negative of itself.

    Args:
        own: The samples of this rank.
        others: The samples whose drawn negatives count.
        rows: The rows of a lane.
        temperature: Divides the inner products.
        log_q: Whether drawn negatives are corrected for how often they are expected.
        earlier: Earlier queries of the samples of this rank, whose negatives are those drawn. The loss of a sample is
            then the mean over all its queries.
        had: Finds the drawn items that the samples of this rank have had, which are no negatives of theirs.
    """
    lanes, end = own.in_lanes(rows.total), rows.samples + rows.drawn
    samples, hard = lanes.rows(0, rows.samples), lanes.rows(end, rows.total)
    drawn = others.in_lanes(rows.total).rows(rows.samples, end)
    items = drawn.group.flatten(1)
    new = ~had(items).unflatten(1, (-1, rows.total))[:, :, : rows.samples] if had else None

    def scores_of(pairs: Tensor, group: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the scores of the items and of the drawn negatives, and which count, for `[U, lanes, N, 2, D]`."""
        query, item = pairs.unbind(3)
        positive = (query * item).sum(-1, keepdim=True)
        shared = query @ drawn.prediction[..., 1, :].flatten(1, 2)[:, None].mT
        scores = [score / temperature for score in (positive, shared)]
        if log_q:
            scores[1] = scores[1] - expected(drawn.log_q.flatten(1), drawn.log_q[0].numel())[:, None, None]
        group = group[..., None]
        others = group != items[:, None, None]
        if new is not None:  # of a sample's queries alike
            others = others & new.repeat_interleave(others.shape[2] // rows.samples, dim=2)
        return scores, [torch.ones_like(group, dtype=torch.bool), others]

    scores, counts = scores_of(samples.prediction, samples.group)
    query, ours = samples.prediction[..., 0, :], hard.prediction[..., 1, :].unflatten(2, (rows.samples, rows.hard))
    scores.append((query[..., None, :] * ours).sum(-1) / temperature)
    of_hard = hard.group.unflatten(2, (rows.samples, rows.hard))
    counts.append((samples.group[..., None] != of_hard) & (of_hard != NO_ITEM))
    loss = _cross_entropy(scores, counts)
    if earlier:
        pairs, group = (one.view(*lanes.label.shape, *one.shape[1:])[:, :, : rows.samples] for one in earlier)
        each = _cross_entropy(*scores_of(pairs.flatten(2, 3), group.flatten(2))).view_as(group)
        there = group != NO_ID
        loss = (loss + each.where(there, 0.0).sum(-1)) / (1 + there.sum(-1))
    return functional.pad(samples.label * loss, (0, rows.negatives)).flatten(1)


def _cross_entropy(scores: list[Tensor], counts: list[Tensor]) -> Tensor:
    return _logsumexp(torch.cat(scores, -1), torch.cat(counts, -1)) - scores[0][..., 0]


def expected(log_q: Tensor, draws: Tensor | int) -> Tensor:
    """Returns the logarithm of how often an item is expected among `draws` draws.

    Divided by this, the expected sum over the draws is the sum over all items of the catalogue except the query's own,
    which is not drawn (Bengio and Senecal, 2008).
    """
    return log_q + torch.as_tensor(draws, dtype=log_q.dtype, device=log_q.device).log()


def _same_group(own: ComparedSamples, others: ComparedSamples) -> Tensor:
    return own.group[..., None] == others.group[:, None]


def _logsumexp(scores: Tensor, counts: Tensor) -> Tensor:
    # Not infinite: where nothing counts, the gradient would be NaN.
    return scores.masked_fill(~counts, torch.finfo(scores.dtype).min).logsumexp(-1)


LOSSES_OVER_SAMPLES: dict[str, Callable[..., Tensor]] = {
    loss.__name__: loss for loss in (jrc, bpr, in_batch_softmax, sampled_softmax)
}
"""Each takes this rank's samples, the samples to compare them with, and its own options of the task."""


def check_units(tasks: dict[str, TaskConfig], lanes: Lanes, world_size: int, micro_batches: int) -> None:
    """Refuses numbers of ranks and microbatches with which samples that a loss compares would be separated.

    Raises:
        InputError: Samples of a comparison would be on different ranks or in different microbatches.
    """
    for name, task in tasks.items():
        whole_lanes = task.loss == "sampled_softmax" or (task.compares_samples and task.across == "lane")
        if whole_lanes and world_size * micro_batches > lanes.lanes:
            raise InputError(
                f"tasks.{name}.loss is '{task.loss}', which needs the samples of a lane together, but "
                f"{plural(world_size, 'rank')} with train.micro_batches = {micro_batches} cut the "
                f"{plural(lanes.lanes, 'lane')}; use fewer ranks or a smaller train.micro_batches, or more data.lanes "
                "in a new run"
            )
        if task.compares_samples and task.across == "batch" and micro_batches > 1:
            raise InputError(
                f"tasks.{name}.across is 'batch', but train.micro_batches is {micro_batches}, and a microbatch is "
                "only a part of it; use 1 microbatch or 'lane'"
            )


class LossOverSamples:
    """A loss that compares samples, for a local batch.

    Args:
        loss: The loss.
        lane_rows: Rows of a lane in a step; None to compare across the global batch.
    """

    def __init__(self, loss: Callable[..., Tensor], lane_rows: int | None) -> None:
        self._loss, self._lane_rows = loss, lane_rows

    def __call__(
        self,
        prediction: Tensor,
        label: Tensor,
        group: Tensor | None,
        present: Tensor,
        log_q: Tensor,
        **options: EarlierPairs | Had,
    ) -> Tensor:
        """Returns the loss of each sample of the local batch, `[B]`, 0 where it is not present."""
        group = self._positions(label) if group is None else group
        samples = ComparedSamples(prediction, label, group, present, log_q)
        if self._lane_rows is None:
            own = samples.in_units(len(label))
            everyone = samples.of_all_ranks()
            others = everyone.in_units(len(everyone.label))
        else:
            own = others = samples.in_units(self._lane_rows)
        return self._loss(own, others, **options).where(own.present, 0.0).flatten()

    def _positions(self, label: Tensor) -> Tensor:
        """Returns a number for each sample, different from the numbers of the samples that it is compared with."""
        first = dist.get_rank() * len(label) if self._lane_rows is None else 0
        return torch.arange(first, first + len(label), device=label.device)
