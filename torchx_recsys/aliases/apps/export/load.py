"""The loader of exports under its name in 0.1.0, for one version.

The wheel has this file as `apps/export/load.py`, and no `__init__.py` in a directory above it,
so that it never hides a user's package `apps`.
"""

import warnings

from torchx_recsys.apps.export.load import Changes, ColumnError, Model, load, read_changes

warnings.warn("apps.export.load is now torchx_recsys", DeprecationWarning, stacklevel=2)
__all__ = ["Changes", "ColumnError", "Model", "load", "read_changes"]
