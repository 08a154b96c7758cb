"""What run.json says about the start of a run."""

import torch

from trainer.core.distributed import DistributedContext
from trainer.run.provenance import describe_run


def test_the_code_that_was_shipped_is_in_the_record(monkeypatch):
    context = DistributedContext(0, 1, 0, 1, torch.device("cpu"))
    assert "code" not in describe_run(context)
    monkeypatch.setenv("TORCHX_RECSYS_CODE", "sha256:12")
    assert describe_run(context)["code"] == "sha256:12"
