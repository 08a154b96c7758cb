"""Learning rates by step."""

import pytest

from trainer.config.schedule import Schedule
from trainer.optim.schedules import lr_multiplier


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({}, {1: 1, 1000: 1}),
        ({"warmup_steps": 4}, {1: 0.25, 2: 0.5, 4: 1, 5: 1}),
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
