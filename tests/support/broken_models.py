"""Models with bugs, whose errors are of the types that wrong input has."""

from custom import Sum

from trainer.training.session import Session


class UnequalZip(Sum):
    def forward(self, dense, sparse):
        return list(zip([1], [1, 2], strict=True))


def forgotten_values(*_):
    _first, _second = [1, 2, 3]


class TrainerWithABug(Sum):
    """The bug is the trainer's: it records what a step found."""

    def __init__(self, inputs):
        super().__init__(inputs)
        Session.record = forgotten_values


class EmptyMax(Sum):
    def forward(self, dense, sparse):
        return max([])
