"""Files and directories that people name, on any fsspec URL."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named(key: str, url: str) -> Iterator[None]:
    """Says which key or flag gave a URL that storage refuses.

    Raises:
        ValueError: What the block was to do with the URL failed; the message names key, URL and reason.
    """
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(f"{key} is '{url}', which cannot be used: {error}; choose another") from error
