"""Guesses the format of files given without a configuration."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.data.listing import matching_files
from trainer.data.readers.formats import ANY_FORMAT, NAMES, format_of


def guess_reader(patterns: Sequence[str], flag: str = "--source") -> str:
    """Returns the reader for the files of a flag, by their names, or else by their first bytes.

    Args:
        patterns: Files, globs or directories, on any fsspec URL.
        flag: The flag.

    Raises:
        InputError: They are of several formats.
    """
    urls = chain(*(matching_files(flag, pattern, ANY_FORMAT)["url"].to_pylist() for pattern in patterns))
    found = Counter(filter(None, map(format_of, urls)))
    if len(found) > 1:
        counts = " and ".join(f"{plural(number, 'file')} of {NAMES[name]}" for name, number in found.most_common())
        remedy = f"those to read with --reader {found.most_common(1)[0][0]}" if flag == "--source" else "those of one"
        raise InputError(f"{flag} has {counts}; name {remedy}")
    return next(iter(found), "parquet")
