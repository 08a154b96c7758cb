"""The names that your own code imports: `from torchx_recsys import load, Metric`; docs/reference/api.md has them all.

A name is imported when it is first used: TorchX imports this package before any job, and must not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchx_recsys.apps.check_data.finding import Finding
    from torchx_recsys.apps.export.load import Changes, ColumnError, Model, load, read_changes
    from torchx_recsys.apps.row_store.stored_model import StoredModel
    from trainer.core.distributed import gather_to_all
    from trainer.data.readers.base import FileContents, IndexedReader, PlacedReader, Reader, Statistics
    from trainer.metrics.base import Metric, Samples, Sums
    from trainer.models.base import ModelBuilder, ModelInputs, Predictions
    from trainer.rules.base import IdRule, RefusedId
    from trainer.training.watchers import RunView, Watcher

__all__ = [
    "Changes",
    "ColumnError",
    "FileContents",
    "Finding",
    "IdRule",
    "IndexedReader",
    "Metric",
    "Model",
    "ModelBuilder",
    "ModelInputs",
    "PlacedReader",
    "Predictions",
    "Reader",
    "RefusedId",
    "RunView",
    "Samples",
    "Statistics",
    "StoredModel",
    "Sums",
    "Watcher",
    "gather_to_all",
    "load",
    "read_changes",
]
_NAMES_OF_MODULES = {
    "torchx_recsys.apps.check_data.finding": ("Finding",),
    "torchx_recsys.apps.export.load": ("Changes", "ColumnError", "Model", "load", "read_changes"),
    "torchx_recsys.apps.row_store.stored_model": ("StoredModel",),
    "trainer.core.distributed": ("gather_to_all",),
    "trainer.data.readers.base": ("FileContents", "IndexedReader", "PlacedReader", "Reader", "Statistics"),
    "trainer.metrics.base": ("Metric", "Samples", "Sums"),
    "trainer.models.base": ("ModelBuilder", "ModelInputs", "Predictions"),
    "trainer.rules.base": ("IdRule", "RefusedId"),
    "trainer.training.watchers": ("RunView", "Watcher"),
}
_MODULES = {name: module for module, names in _NAMES_OF_MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'torchx_recsys' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
