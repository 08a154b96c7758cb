"""Silences logs and warnings of libraries that a user of this program can do nothing about."""

import logging
import os
import sys
import warnings
from pathlib import Path

LOGGERS = ("torch.fx", "torchrec", "fbgemm_gpu")
WARNERS = ("torch", "torchrec", "fbgemm_gpu", "trainer", "apps")


def quiet_libraries() -> None:
    """Silences libraries below an error; logs and warnings of the user's own model are shown.

    LOGLEVEL in the environment sets the level and brings the libraries' logs back, PYTHONWARNINGS their warnings.
    """
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING").upper())
    if "LOGLEVEL" not in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # above all levels: it reports every start of a profile as worse
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        logging.getLogger().addFilter(_is_shown)  # TorchRec and FBGEMM also log to the root logger
    if not sys.warnoptions:
        for name in WARNERS:
            warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")


def _is_shown(record: logging.LogRecord) -> bool:
    """Returns whether to show a record of the root logger, by the file that logged it."""
    return record.levelno >= logging.ERROR or not set(LOGGERS) & set(Path(record.pathname).parts)
