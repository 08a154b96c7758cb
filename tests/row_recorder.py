"""A model that writes down which rows it is trained on: their ids are the last dense feature."""

import os
import time
from pathlib import Path

from torch import fx

from trainer.models.dlrm import dlrm
from trainer.models.model import ModelInputs

STEP_SECONDS = 0.03  # long enough for a test to hit one


def build(inputs: ModelInputs):
    """Returns a DLRM whose training steps each leave a line of row ids in `ROWS/RANK-PID`."""
    model = dlrm(inputs)
    file = Path(os.environ["ROWS"], f"{os.environ['RANK']}-{os.getpid()}")

    def record(module, arguments):
        (dense,) = arguments
        if isinstance(dense, fx.Proxy):
            return None
        if model.training:
            time.sleep(STEP_SECONDS)
            with file.open("a") as lines:
                lines.write(" ".join(str(int(row)) for row in dense[:, -1]) + "\n")
        dense = dense.clone()
        dense[:, -1] = 0
        return (dense,)

    model.dense_arch.register_forward_pre_hook(record)
    return model
