"""Files and directories that people name, on any fsspec URL."""

import os
import posixpath
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from trainer.core.errors import (
    InputError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StoragePermissionError,
)

# What gives whoever reads it the right to use a URL: a password in it, or the parameters that sign it.
SECRETS = re.compile(r"(?<=://)[^/@\s]+(?=@)|(?<=[?&])(?:sig|x-(?:amz|goog)-[a-z-]+)=[^&\s'\"]+", re.IGNORECASE)


KINDS = {
    FileNotFoundError: StorageNotFoundError,
    FileExistsError: StorageExistsError,
    PermissionError: StoragePermissionError,
}


class Storage:
    """A file system that fails with a StorageError, whatever its library raises, and caches no listings.

    It has all methods of fsspec's file systems; those below are its own.

    Args:
        fs: The file system.

    Attributes:
        is_local: Whether it is this machine's, where files can be appended to.
        is_object_store: Whether an object replaces the one before it whole or not at all, and there are no directories.
    """

    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs = fs
        self.is_local = isinstance(fs, LocalFileSystem)
        self.is_object_store = is_object_store(fs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fs, name)
        return _failing_alike(found) if callable(found) else found

    def __reduce__(self) -> tuple[type["Storage"], tuple[AbstractFileSystem]]:
        return Storage, (self._fs,)

    def makedirs(self, path: str) -> None:
        """Makes a directory, unless it is there."""
        with os_errors(path):
            make_directory(self._fs, path)

    @contextmanager
    def durable(self, path: str) -> Iterator[Any]:
        """Opens a file to write; what is written survives a power cut once the block has ended."""
        with os_errors(path), self._fs.open(path, "wb") as file:
            yield file
            if self.is_local:
                file.flush()
                os.fsync(file.fileno())

    def write(self, path: str, content: bytes, durable: bool = False) -> None:
        """Writes a file whole: whoever reads it finds the old content or the new one.

        Args:
            path: Where to.
            content: What.
            durable: Whether it, and what else is new in its directory, has to survive a power cut.
        """
        if self.is_object_store:
            self.pipe_file(path, content)
            return
        if durable:
            with self.durable(f"{path}.partial") as file:
                file.write(content)
        else:
            self.pipe_file(f"{path}.partial", content)
        self.mv(f"{path}.partial", path)
        if durable and self.is_local:
            folder = posixpath.dirname(path)
            _sync_directories(folder, posixpath.dirname(folder))


def _sync_directories(*paths: str) -> None:
    for path in paths:
        with os_errors(path):
            directory = os.open(path, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


def open_storage(url: str) -> tuple[Storage, str]:
    """Returns the file system of a URL, and the path there.

    Raises:
        StorageError: There is no such kind of storage, or its package is not installed.
    """
    try:
        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ValueError, ImportError) as error:
        raise StorageError(without_secrets(error)) from error
    return Storage(fs), path


def read_text(url: str) -> str:
    """Returns the text of a file in UTF-8, without the byte-order mark that some editors begin it with.

    Raises:
        StorageError: It cannot be read, or is no such text.
    """
    fs, path = open_storage(url)
    try:
        return fs.cat_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StorageError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error


def is_object_store(fs: AbstractFileSystem) -> bool:
    """Tells whether a file system is a cloud's object store; those are what fsspec has asynchronous ones for."""
    return isinstance(fs, AsyncFileSystem)


def make_directory(fs: AbstractFileSystem, path: str) -> None:
    """Makes a directory, unless it is there. An object store has none, and if asked for one would make a bucket."""
    if not is_object_store(fs):
        fs.makedirs(path, exist_ok=True)


def _failing_alike(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(path: str, *args: Any, **kwargs: Any) -> Any:
        with os_errors(path):
            return method(path, *args, **kwargs)

    return call


@contextmanager
def os_errors(path: str | None = None) -> Iterator[None]:
    """Turns what the block's storage raises into a StorageError: one line, without secrets.

    The libraries of clouds have error types of their own. Python's errors that are no OSErrors are bugs, and stay.

    Args:
        path: What the block is about, for errors that do not name it.
    """
    try:
        yield
    except OSError as error:
        raise _storage_error(error, path) from error
    except Exception as error:
        if isinstance(error, ValueError | ImportError) or _is_python(error):
            raise
        raise _storage_error(error, path) from error


def _is_python(error: Exception) -> bool:
    return type(error).__module__ == "builtins"


def _storage_error(error: Exception, path: str | None) -> StorageError:
    """Returns a StorageError with the same message, which can be pickled and sent to other ranks."""
    if isinstance(error, StorageError):
        return error
    kind = next((ours for theirs, ours in KINDS.items() if isinstance(error, theirs)), StorageError)
    if isinstance(error, OSError) and error.errno and error.strerror:
        return kind(error.errno, without_secrets(error.strerror), error.filename or path)
    return kind((without_secrets(error) or type(error).__name__) + (f": '{path}'" if path else ""))


def without_secrets(error: object) -> str:
    """Returns an error's text in one line, without the secrets of URLs in it."""
    return SECRETS.sub("***", " ".join(str(error).split()))


@contextmanager
def named(key: str, url: str) -> Iterator[None]:
    """Says which key or flag gave a URL that storage refuses.

    Raises:
        InputError: What the block was to do with the URL failed; the message names key, URL and reason.
    """
    try:
        with os_errors():
            yield
    except (OSError, ValueError, ImportError) as error:
        raise InputError(
            f"{key} is '{without_secrets(url)}', which cannot be used: {without_secrets(error)}; choose another"
        ) from error
