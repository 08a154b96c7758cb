"""A user's own dense optimizer is tried before training: a resume must be able to hold its state."""

import pytest
import torch
from torch import nn

from trainer.core.errors import InputError
from trainer.optim.dense_optimizers import DENSE, check_own_optimizer


def weights():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]


@pytest.mark.parametrize(
    "make",
    [
        *(lambda values, kind=kind: kind(values, lr=0.1, weight_decay=0.01) for kind in DENSE.values()),
        lambda values: torch.optim.Adam(values, lr=0.1, amsgrad=True),
        lambda values: torch.optim.RMSprop(values, lr=0.1, momentum=0.5, centered=True),
        lambda values: torch.optim.Adafactor(values, lr=0.1),
    ],
)
def test_what_a_checkpoint_can_hold_is_taken_and_changes_no_weight(make):
    tried = weights()
    check_own_optimizer("optimizer.dense.name is 'mine:Own'", make, tried)
    assert all(torch.equal(one, other) and one.grad is None for one, other in zip(tried, weights(), strict=True))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda values: torch.optim.NAdam(values, lr=0.1), "has state that does not begin at zero"),
        (lambda values: torch.optim.ASGD(values, lr=0.1), "has state that does not begin at zero"),
        (lambda values: torch.optim.Rprop(values, lr=0.1), "changes weights at a learning rate of 0"),
        (lambda values: torch.optim.Adagrad(values, lr=0.1, initial_accumulator_value=1.0), "does not begin at zero"),
        (lambda values: torch.optim.LBFGS(values, lr=0.1), "cannot take a step without a closure"),
    ],
)
def test_those_of_torch_that_it_cannot_hold_are_refused(make, why):
    with pytest.raises(InputError, match=f"^optimizer.dense.name is 'mine:Own', which .*{why}.*; use another or"):
        check_own_optimizer("optimizer.dense.name is 'mine:Own'", make, weights())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ForgetfulSGD", "keeps it elsewhere than in its `state`"),
        ("CountingSGD", "keeps 'steps' as int in its state instead of as a tensor"),
        ("NamelessRate", "has no 'lr' in its param_groups"),
        ("Restless", "changes weights at a learning rate of 0"),
    ],
)
def test_a_user_s_own_that_it_cannot_hold_is_refused(name, why):
    import custom

    with pytest.raises(InputError, match=why):
        check_own_optimizer(
            "optimizer.dense.name is 'mine:Own'", lambda values: getattr(custom, name)(values, lr=0.1), weights()
        )
