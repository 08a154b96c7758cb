"""The finding of a check of data under its name in 0.1.0, for one version.

The wheel has this file as `apps/check_data/finding.py`, and no `__init__.py` in a directory above it,
so that it never hides a user's package `apps`.
"""

import warnings

from torchx_recsys.apps.check_data.finding import Finding

warnings.warn("apps.check_data.finding is now torchx_recsys", DeprecationWarning, stacklevel=2)
__all__ = ["Finding"]
