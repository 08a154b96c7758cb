"""Silences logs and warnings of libraries about which the user can do nothing."""

import logging
import os
import sys
import warnings
from pathlib import Path

LOGGERS = ("torch.fx", "torchrec", "fbgemm_gpu")
WARNERS = ("torch", "torchrec", "fbgemm_gpu", "trainer", "torchx_recsys")


def quiet_libraries() -> None:
    """Silences libraries below an error; shows logs and warnings of the user's own model.

    LOGLEVEL in the environment sets the level and brings back the logs of libraries, PYTHONWARNINGS the warnings.
    """
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING").upper())
    if "LOGLEVEL" not in os.environ:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # above all levels: each start of a profile is logged as worse
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        logging.getLogger().addFilter(_is_shown)  # TorchRec and FBGEMM also log to the root logger
    if not sys.warnoptions:
        for name in WARNERS:
            warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")


def _is_shown(record: logging.LogRecord) -> bool:
    """Returns whether to show a record of the root logger, by the file of the record."""
    return record.levelno >= logging.ERROR or not set(LOGGERS) & set(Path(record.pathname).parts)
