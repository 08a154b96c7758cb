"""What libraries say in warnings that a user of this program can do nothing about."""

import logging
import warnings


def hush() -> None:
    """Silences libraries' warnings; errors still show."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
