"""Learning rates by step, against torch's own schedulers and closed forms."""

import math

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from trainer.config.optimizer import DECAY_KEYS, PartSchedule, Schedule
from trainer.core.errors import InputError
from trainer.optim.schedules import DECAYS, lr_multiplier

EPOCH = 20
STEPS = 3 * EPOCH


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({}, {1: 1, 1000: 1}),
        ({"warmup_steps": 4}, {1: 0.25, 2: 0.5, 4: 1, 5: 1}),
        ({"warmup_steps": 4, "warmup_start": 0.2}, {1: 0.4, 2: 0.6, 4: 1, 5: 1}),
        ({"warmup_steps": 4, "warmup_start": 3.0}, {1: 2.5, 2: 2, 4: 1, 5: 1}),
        ({"decay": "linear", "decay_steps": 10}, {1: 0.9, 5: 0.5, 10: 0, 99: 0}),
        ({"decay": "linear", "decay_steps": 10, "end_multiplier": 0.5}, {5: 0.75, 10: 0.5, 11: 0.5}),
        (
            {"warmup_steps": 2, "decay": "linear", "decay_start": 4, "decay_steps": 2},
            {1: 0.5, 2: 1, 4: 1, 5: 0.5, 6: 0},
        ),
        ({"warmup_steps": 8, "decay": "linear", "decay_start": 4, "decay_steps": 2}, {7: 7 / 8, 8: 1, 9: 0.5}),
    ],
)
def test_multiplier_by_step(schedule, expected):
    assert {step: lr_multiplier(Schedule(**schedule), step) for step in expected} == pytest.approx(expected)


def test_a_custom_decay_follows_the_warm_up():
    schedule = Schedule(warmup_steps=4, decay="custom:halved")
    assert [lr_multiplier(schedule, step) for step in (1, 3, 4, 99)] == [0.25, 0.75, 0.5, 0.5]


# Of each decay, torch's scheduler. Lengths are chosen such that the decay ends before the run where torch goes on as
# ours does; torch's CosineAnnealingLR would rise again.
SAME = {
    "linear": (
        {"decay_steps": 30, "end_multiplier": 0.25},
        lambda it: schedulers.LinearLR(it, 1.0, 0.25, 30),
    ),
    "polynomial": (
        {"decay_steps": 40, "power": 2.5},
        lambda it: schedulers.PolynomialLR(it, 40, 2.5),
    ),
    "exponential": (
        {"decay_steps": 7, "decay_rate": 0.8},
        lambda it: schedulers.ExponentialLR(it, 0.8 ** (1 / 7)),
    ),
    "exponential by stairs": (
        {"decay": "exponential", "decay_steps": 7, "decay_rate": 0.8, "staircase": True},
        lambda it: schedulers.StepLR(it, 7, 0.8),
    ),
    "piecewise": (
        {"boundaries": [1, 5, 31], "multipliers": [1.0, 0.3, 0.09, 0.027]},
        lambda it: schedulers.MultiStepLR(it, [1, 5, 31], 0.3),
    ),
    "cosine": (
        {"decay_steps": STEPS, "end_multiplier": 0.1},
        lambda it: schedulers.CosineAnnealingLR(it, STEPS, 0.1),
    ),
    "cosine_restarts": (
        {"decay_steps": 7, "growth": 1, "end_multiplier": 0.1},
        lambda it: schedulers.CosineAnnealingWarmRestarts(it, 7, 1, 0.1),
    ),
    "cosine_restarts that grow": (
        {"decay": "cosine_restarts", "decay_steps": 3, "growth": 2, "end_multiplier": 0.1},
        lambda it: schedulers.CosineAnnealingWarmRestarts(it, 3, 2, 0.1),
    ),
    "inverse_sqrt": (
        {"decay_steps": 9},
        lambda it: schedulers.LambdaLR(it, lambda n: math.sqrt(9 / (9 + n))),
    ),
}
CYCLES = [(STEPS, 0.3, 0.04, 4e-6), (STEPS, 0.45, 0.1, 0.01), (10, 0.15, 0.5, 0.0), (3, 0.2, 0.5, 0.1)]


def rates_of_torch(scheduler, count):
    """Returns the learning rates of a base rate of 1, as torch's scheduler sets them one after the other."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], 1.0)
    scheduler, rates = scheduler(optimizer), []
    for _ in range(count):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


def schedule_of(name, **changes):
    return Schedule(**{"decay": name, **SAME[name][0], **changes})


def multipliers(schedule, steps=STEPS):
    return [lr_multiplier(schedule, step, steps_per_epoch=EPOCH) for step in range(1, steps + 1)]


def close(expected):
    return pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", SAME)
def test_a_decay_is_that_of_torch(name):
    assert multipliers(schedule_of(name)) == close(rates_of_torch(SAME[name][1], STEPS + 1)[1:])


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(("warmup", "start"), [(8, 0), (8, 11), (0, 5)])
def test_a_decay_after_a_warm_up_is_that_of_torch(name, warmup, start):
    """Its first step is torch's at 0, and the last one of the warm-up."""
    ramp = [step / warmup for step in range(1, warmup + 1)]
    plateau = [1.0] * (max(warmup, start) - warmup)
    decay = rates_of_torch(SAME[name][1], STEPS)[1:]
    found = multipliers(schedule_of(name, warmup_steps=warmup, decay_start=start))
    assert found == close([*ramp, *plateau, *decay][:STEPS])


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize(("warmup", "begun"), [(0, 0), (5, 0), (EPOCH, 0), (EPOCH + 5, 1)])
def test_a_decay_by_epochs_is_that_of_torch(name, warmup, begun):
    """It begins with the epoch in which the warm-up ends."""
    by_epoch = [1.0] * begun + rates_of_torch(SAME[name][1], 12)
    expected = [by_epoch[step // EPOCH] for step in range(12 * EPOCH)]
    expected[:warmup] = [step / warmup for step in range(1, warmup + 1)]
    assert multipliers(schedule_of(name, unit="epochs", warmup_steps=warmup), 12 * EPOCH) == close(expected)


@pytest.mark.parametrize(("length", "rise", "start", "end"), CYCLES)
def test_one_cycle_is_that_of_torch(length, rise, start, end):
    settings = {"decay_steps": length, "rise_fraction": rise, "start_multiplier": start, "end_multiplier": end}
    schedule = Schedule(decay="one_cycle", **settings)

    def cycle(optimizer):
        final = start / end if end else math.inf
        return schedulers.OneCycleLR(
            optimizer, 1.0, length, pct_start=rise, div_factor=1 / start, final_div_factor=final, cycle_momentum=False
        )

    expected = rates_of_torch(lambda optimizer: cycle(optimizer), length - 1)
    assert multipliers(schedule, length - 1) == close(expected)
    assert multipliers(schedule)[length - 1 :] == close([end] * (STEPS - length + 1))
    by_epoch = Schedule(decay="one_cycle", unit="epochs", **settings)
    expected = [rate for rate in expected for _ in range(EPOCH)]
    assert multipliers(by_epoch, len(expected)) == close(expected)


def test_one_cycle_may_begin_at_its_peak():
    """Where torch's divides by zero."""
    schedule = Schedule(decay="one_cycle", decay_steps=10, rise_fraction=0.1)
    assert multipliers(schedule)[0] == 1.0


def test_inverse_sqrt_over_the_warm_up_is_that_of_the_transformer():
    schedule = Schedule(decay="inverse_sqrt", warmup_steps=8, decay_steps=8)
    assert multipliers(schedule) == close([min(n / 8, math.sqrt(8 / n)) for n in range(1, STEPS + 1)])


@pytest.mark.parametrize("name", ["polynomial", "cosine", "exponential"])
def test_a_decay_stays_at_its_end(name):
    schedule = schedule_of(name, decay_steps=5, end_multiplier=0.4)
    assert multipliers(schedule)[20:] == close([0.4] * (STEPS - 20))
    assert min(multipliers(schedule)) == close(0.4)


def test_polynomial_of_power_one_is_linear():
    lines = [Schedule(decay=name, decay_steps=30, end_multiplier=0.25) for name in ("linear", "polynomial")]
    assert multipliers(lines[0]) == close(multipliers(lines[1]))


def test_restarts_far_away_are_exact():
    """A logarithm would put one of them a step off."""
    schedule = Schedule(decay="cosine_restarts", decay_steps=10, growth=3)
    restarts = [10 * (3**n - 1) // 2 for n in range(1, 25)]
    assert [lr_multiplier(schedule, step) for step in restarts] == [1.0] * 24
    assert all(lr_multiplier(schedule, step - 1) < 0.1 for step in restarts)


def test_a_warm_up_between_rates_by_hand_is_that_of_torch_easy_rec():
    # Its ManualStep with `warmup`, of a base rate of .001; it counts the steps that are done, so it is a step behind.
    expected = [0.001 + (0.01 - 0.001) * step / 10 for step in range(1, 11)] + [0.01] * 20 + [0.002] * (STEPS - 30)
    schedule = Schedule(warmup_steps=10, warmup_start=0.1, decay="piecewise", boundaries=[21], multipliers=[1.0, 0.2])
    assert [0.01 * multiplier for multiplier in multipliers(schedule)] == close(expected)


def test_the_keys_of_every_decay_are_known():
    assert DECAY_KEYS.keys() - {"inherit"} == DECAYS.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay_steps": 5}, "{key}.decay_steps is 5, which {key}.decay 'constant' does not use"),
        ({"decay": "cosine", "power": 2.0}, "{key}.power is 2.0, .*; leave it out, or use polynomial"),
        ({"decay": "linear", "decay_steps": 5, "growth": 2}, "{key}.growth is 2, .* 'linear' does not use"),
        ({"decay": "one_cycle", "decay_steps": 5, "warmup_steps": 2}, "{key}.warmup_steps is 2"),
        ({"decay": "inverse_sqrt", "end_multiplier": 0.1}, "{key}.end_multiplier is 0.1"),
        ({"decay": "one_cycle", "decay_steps": 5, "warmup_start": 0.1}, "{key}.warmup_start is 0.1, which"),
        ({"warmup_start": 0.1}, "{key}.warmup_start is 0.1; set {key}.warmup_steps, too, or leave it out"),
        ({"unit": "epochs"}, "{key}.unit is 'epochs', which {key}.decay 'constant' does not use"),
        ({"decay": "cosine"}, "{key}.decay_steps is 1; set the length of {key}.decay 'cosine', 2 or more"),
        ({"decay": "piecewise"}, "{key}.boundaries is \\[\\]; they must be set and ascend"),
        ({"decay": "piecewise", "boundaries": [3, 3], "multipliers": [1.0] * 3}, "{key}.boundaries is \\[3, 3\\]"),
        ({"decay": "piecewise", "boundaries": [3], "multipliers": [1.0]}, "1 boundaries need 2 of them"),
    ],
)
def test_a_key_that_the_decay_does_not_use_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**settings)


def test_the_user_s_own_decay_may_use_every_key_and_counts_epochs_from_0():
    schedule = Schedule(decay="custom:per_count", unit="epochs", growth=2, boundaries=[1])
    assert multipliers(schedule) == [1.0] * EPOCH + [0.5] * EPOCH + [1 / 3] * EPOCH


def test_a_part_inherits_the_schedule_of_the_whole():
    whole = Schedule(decay="cosine", decay_steps=10)
    assert PartSchedule().or_else(whole) is whole
    assert PartSchedule(decay="constant").or_else(whole).decay == "constant"
    with pytest.raises(ValueError, match=r"{key}.warmup_steps is 3, which {key}.decay 'inherit'"):
        PartSchedule(warmup_steps=3)
    with pytest.raises(InputError, match=r"^schedule.decay is 'inherit'"):
        lr_multiplier(Schedule(decay="inherit"), 1)
