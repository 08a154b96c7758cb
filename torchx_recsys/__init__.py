"""The names that your own code imports: `from torchx_recsys import load, Metric`; docs/reference/api.md has them all.

A name is imported when it is first used: TorchX imports this package before any job, and must not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchx_recsys.apps.export.load import Changes, ColumnError, Model, load, read_changes
    from trainer.data.readers.base import FileContents, Reader, Statistics
    from trainer.metrics.base import Metric, Samples, Sums
    from trainer.models.base import ModelInputs
    from trainer.rules.base import IdRule, RefusedId
    from trainer.training.watchers import RunView, Watcher

__all__ = [
    "Changes",
    "ColumnError",
    "FileContents",
    "IdRule",
    "Metric",
    "Model",
    "ModelInputs",
    "Reader",
    "RefusedId",
    "RunView",
    "Samples",
    "Statistics",
    "Sums",
    "Watcher",
    "load",
    "read_changes",
]
_MODULES = {
    **dict.fromkeys(("Changes", "ColumnError", "Model", "load", "read_changes"), "torchx_recsys.apps.export.load"),
    **dict.fromkeys(("FileContents", "Reader", "Statistics"), "trainer.data.readers.base"),
    **dict.fromkeys(("Metric", "Samples", "Sums"), "trainer.metrics.base"),
    **dict.fromkeys(("IdRule", "RefusedId"), "trainer.rules.base"),
    **dict.fromkeys(("RunView", "Watcher"), "trainer.training.watchers"),
    "ModelInputs": "trainer.models.base",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'torchx_recsys' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
