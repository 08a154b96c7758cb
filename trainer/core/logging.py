"""What libraries log in logs and warnings that a user of this program can do nothing about."""

import logging
import os
import sys
import warnings
from pathlib import Path

LOGGERS = ("torch.fx", "torchrec", "fbgemm_gpu")
WARNERS = ("torch", "torchrec", "fbgemm_gpu", "trainer")


def quiet_libraries() -> None:
    """Silences libraries below an error; what a model of your own logs or warns of is shown.

    LOGLEVEL in the environment sets the level and brings the libraries' logs back, PYTHONWARNINGS their warnings.
    """
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING").upper())
    if "LOGLEVEL" not in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        logging.getLogger().addFilter(_worth_showing)
    if not sys.warnoptions:
        for name in WARNERS:
            warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")


def _worth_showing(record: logging.LogRecord) -> bool:
    """Tells whether to show a record that was logged without a logger, as some libraries do."""
    return record.levelno >= logging.ERROR or not set(LOGGERS) & set(Path(record.pathname).parts)
