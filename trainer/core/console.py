"""Text for the terminal: whole lines, counts of things, commands to type next, and quiet libraries."""

import io
import json
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

from trainer.core.secrets import without_secrets

LOGGERS = ("torch.fx", "torchrec", "fbgemm_gpu")
WARNERS = ("torch", "torchrec", "fbgemm_gpu", "trainer", "torchx_recsys")
LONGEST_WRITE_BYTES = 1 << 20  # size of the largest text that is written at once, so that readers see whole lines


class _WholeLines(io.TextIOWrapper):
    """A text stream that collects text and writes it once it ends with a newline."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if text.endswith("\n"):
            self.flush()
        return written


def write_whole_lines() -> None:
    """Has this process write the lines that it prints in a single write each time, with their newlines.

    Python's line buffering writes a text and the newline that `print` adds separately. If torchrun reads the file of a
    rank in between, it takes them for two lines and puts the rank's prefix before both.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:  # neither a test's capture nor a stream that does so already
            stream.flush()
            file = io.FileIO(stream.fileno(), "w", closefd=False)
            buffer = io.BufferedWriter(file, LONGEST_WRITE_BYTES)
            setattr(sys, name, _WholeLines(buffer, encoding=stream.encoding, errors=stream.errors))


def plural(number: int, name: str) -> str:
    """Returns a number with a noun, such as `1 row` or `1,200 rows`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def next_commands(*commands: Iterable[str]) -> str:
    """Returns lines of commands, quoted for a shell, given each command as a list of words."""
    return "Next:  " + "\n       ".join(without_secrets(shlex.join(words)) for words in commands)


def python_command(statements: str, url: str) -> list[str]:
    """Returns the words of a command that executes Python statements, with a URL in place of `{}`."""
    # In double quotes, as the shell puts single quotes around the statements.
    return ["python", "-c", statements.format(json.dumps(url, ensure_ascii=False))]


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
