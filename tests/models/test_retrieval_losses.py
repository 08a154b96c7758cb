"""Losses with negatives from the catalogue, and their corrections, are those of plain float64 loops."""

from functools import partial

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.batches.rows import NO_ITEM
from trainer.config.data import CatalogueConfig, DataConfig, LaneRows
from trainer.models.had_items import HadItems
from trainer.models.losses import LossOverSamples, in_batch_softmax, sampled_softmax
from trainer.rules.registry import id_rule

LANES, ITEMS, TEMPERATURE = 3, 6, 0.7
ROWS = LaneRows(samples=5, drawn=4, hard=2)


class Case:
    """Random rows of three lanes; the last lane has samples of weight 0 only."""

    def __init__(self, rows):
        random = torch.Generator().manual_seed(0)
        count = LANES * rows.total
        self.rows, self.had = rows, {}
        self.prediction = torch.randn(count, 2, 3, generator=random, dtype=torch.float64).requires_grad_()
        self.label = torch.randint(2, (count,), generator=random).double()
        self.item = torch.randint(ITEMS, (count,), generator=random)
        self.present = torch.randint(4, (count,), generator=random) > 0
        self.present[-rows.total :] = False
        place = torch.arange(count) % rows.total
        self.present[place >= rows.samples] = False
        if rows.hard:
            self.item[place == rows.total - 1] = NO_ITEM  # the last sample has one hard negative less
        odds = torch.rand(ITEMS, generator=random, dtype=torch.float64) + 0.1
        self.odds = odds / odds.sum()
        self.odds[2] = 0  # an item that cannot be drawn
        self.log_q = torch.where(self.item == NO_ITEM, -torch.inf, self.odds[self.item.clamp(min=0)].log())

    def found(self, loss, **options):
        rows = {"rows": self.rows} if loss is sampled_softmax else {}
        each = LossOverSamples(partial(loss, temperature=TEMPERATURE, **rows, **options), self.rows.total)
        return each(self.prediction, self.label, self.item, self.present, self.log_q, **self.had)

    def expected(self, negatives):
        """Returns the losses, if `negatives` gives the rows and divisors of a sample's negatives."""
        each = []
        for row in range(len(self.label)):
            loss = self.prediction.sum() * 0
            if self.present[row]:
                own = self._score(row, row)
                others = [
                    torch.exp(self._score(row, other)) / divisor
                    for other, divisor in negatives(row)
                    if self.item[other] not in (self.item[row], NO_ITEM) and divisor > 0
                ]
                loss = self.label[row] * torch.log1p(sum(others, loss) / torch.exp(own))
            each.append(loss)
        return torch.stack(each)

    def _score(self, query, item):
        return self.prediction[query, 0] @ self.prediction[item, 1] / TEMPERATURE


def assert_same(case, found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = torch.linspace(0.5, 2, len(found)).double()
    gradients = [torch.autograd.grad((losses * weights).sum(), case.prediction)[0] for losses in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("log_q", [False, True])
@pytest.mark.parametrize("rows", [ROWS, LaneRows(5, 4, 0), LaneRows(5, 0, 2)])
def test_sampled_softmax_has_the_negatives_of_the_lane_and_those_of_the_sample(rows, log_q):
    case = Case(rows)
    drawable = torch.tensor([item for item in range(ITEMS) if case.odds[item] > 0])
    place = torch.arange(len(case.item)) % rows.total
    is_drawn = (place >= rows.samples) & (place < rows.samples + rows.drawn)
    case.item[is_drawn] = drawable[case.item[is_drawn] % len(drawable)]
    case.log_q = torch.where(is_drawn, case.odds[case.item.clamp(min=0)].log(), case.log_q)

    def negatives(row):
        first = row // rows.total * rows.total
        drawn = range(first + rows.samples, first + rows.samples + rows.drawn)
        divisor = [rows.drawn * case.odds[case.item[other]] if log_q else 1.0 for other in drawn]
        hard = first + rows.samples + rows.drawn + (row - first) * rows.hard
        return [*zip(drawn, divisor, strict=True), *((other, 1.0) for other in range(hard, hard + rows.hard))]

    assert_same(case, case.found(sampled_softmax, log_q=log_q), case.expected(negatives))


@pytest.mark.parametrize("rows", [ROWS, LaneRows(9, 0, 0)])
def test_in_batch_softmax_corrected_by_the_frequency_of_items(rows):
    """Items that cannot be drawn are no negatives, and rows from the catalogue are none either."""
    case = Case(rows)

    def negatives(row):
        first = row // rows.total * rows.total
        others = [other for other in range(first, first + rows.total) if case.present[other] and other != row]
        return [(other, len(others) * case.odds[case.item[other]]) for other in others]

    assert_same(case, case.found(in_batch_softmax, log_q=True), case.expected(negatives))


@pytest.mark.parametrize("loss", [sampled_softmax, in_batch_softmax])
def test_items_that_a_sample_has_had_are_no_negatives_of_it(loss):
    """But for its hard negatives. Features with the items are a list and a single id, with rules of their own."""
    case = Case(ROWS)
    random = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, (len(case.item),), generator=random)
    lists = [torch.randint(ITEMS, (int(length),), generator=random).tolist() for length in lengths]
    last = torch.randint(ITEMS, (len(case.item),), generator=random).tolist()
    sparse = {"list": {"rows": 1000, "ids": "hash", "salt": 5}, "last": {"rows": 50, "offset": 9}}
    data = DataConfig.model_validate({"sparse": sparse})
    data = data.model_copy(update={"catalogue": CatalogueConfig(negatives_not_in=["list", "last"])})
    rows = {
        name: id_rule(name, feature).rows_of(np.arange(ITEMS) + feature.offset) for name, feature in data.sparse.items()
    }
    values = [int(rows["list"][item]) for one in lists for item in one] + [int(rows["last"][item]) for item in last]
    features = KeyedJaggedTensor(
        keys=[*sparse],
        values=torch.tensor(values, dtype=torch.int32),
        lengths=torch.cat([lengths, torch.ones_like(lengths)]).int(),
    )
    case.had = {"had": HadItems(data).of(features, are_rows=False)}

    def negatives(row):
        first = row // ROWS.total * ROWS.total
        start, end = first + ROWS.samples, first + ROWS.samples + ROWS.drawn
        others = [*range(start, end)] if loss is sampled_softmax else [*range(first, start)]
        others = [other for other in others if case.item[other] not in (*lists[row], last[row])]
        hard = range(end + (row - first) * ROWS.hard, end + (row - first + 1) * ROWS.hard)
        others += hard if loss is sampled_softmax else []
        return [(other, 1.0) for other in others if loss is sampled_softmax or case.present[other]]

    with_all = case.expected(negatives)
    assert_same(case, case.found(loss), with_all)
    case.had = {}
    assert not torch.allclose(case.found(loss), with_all)


def test_with_many_draws_the_correction_gives_the_loss_over_all_items():
    rows = LaneRows(samples=1, drawn=200_000, hard=0)
    random = torch.Generator().manual_seed(0)
    vectors, query = torch.randn(ITEMS, 3, generator=random).double(), torch.randn(3, generator=random).double()
    odds = torch.tensor([0.3, 0.05, 0.25, 0.1, 0.1, 0.2]).double()
    item = torch.cat([torch.tensor([1]), torch.multinomial(odds, rows.drawn, replacement=True, generator=random)])
    prediction = torch.stack([query.expand(len(item), 3), vectors[item]], dim=1)
    loss = LossOverSamples(partial(sampled_softmax, rows=rows, log_q=True), rows.total)
    found = loss(prediction, torch.ones(len(item)), item, torch.ones(len(item)) > 0, odds[item].log())[0]
    scores = vectors @ query
    assert found.item() == pytest.approx((scores.logsumexp(0) - scores[1]).item(), rel=0.01)
