"""Histories are computed in groups of like length, and the answers are those of each sample by itself."""

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.models.sequence_model import ALIKE, PAIRS, SHORT, _groups, in_groups

LONGEST, DIMENSION = 700, 3
LENGTHS = {
    "mixed": [0, 5, 700, 1, 0, 8, 9, 64, 63, 5, 400],
    "all empty": [0, 0],
    "one": [12],
    "many of a length": [600] * 4 + [2] * 50,
}


class Interest(nn.Module):
    """A function of the history, its length and the target that no padding may change."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, DIMENSION + 1).double())

    def forward(self, history, lengths, target):
        """Returns `[B, D]`."""
        places = torch.arange(history.shape[1])
        counts = (places < lengths[:, None]) * (places + 1).double()
        return torch.einsum("bl,bld,d->bd", counts, (history * target[:, None]).tanh(), self.weight) + lengths[:, None]


def answers(compute, lengths):
    """Returns what `compute` gives, and the gradients of embeddings and weight."""
    random = torch.Generator().manual_seed(0)
    values = torch.randn(sum(lengths), DIMENSION, generator=random, dtype=torch.float64, requires_grad=True)
    target = torch.randn(len(lengths), DIMENSION, generator=random, dtype=torch.float64)
    interest = Interest()
    found = compute(interest, values, target)
    (found * torch.arange(1, 1 + len(found))[:, None]).sum().backward()
    return found.detach(), values.grad, interest.weight.grad


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_groups_change_no_answer_and_no_gradient(lengths):
    def grouped(interest, values, target):
        return in_groups(
            interest, {"past": JaggedTensor(values, lengths=torch.tensor(lengths).int())}, [target], LONGEST
        )

    def one_by_one(interest, values, target):
        histories = zip(values.split(lengths), lengths, target, strict=True)
        return torch.cat([interest(one[None], torch.tensor([n]), item[None]) for one, n, item in histories])

    for found, expected in zip(answers(grouped, lengths), answers(one_by_one, lengths), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_sample_is_in_a_group_of_like_length(lengths):
    lengths = np.array(lengths, np.int32)
    groups = [*_groups(lengths, PAIRS)]
    assert sorted(np.concatenate([samples for samples, _ in groups])) == [*range(len(lengths))]
    for samples, longest in groups:
        assert longest == max(lengths[samples].max(), 1)
        assert longest <= SHORT or lengths[samples].min() > ALIKE * longest
        assert len(samples) == 1 or len(samples) * longest**2 <= PAIRS
