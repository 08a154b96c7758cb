"""Files and directories on any fsspec URL, with one error type."""

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
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
from trainer.core.remedies import remedy
from trainer.core.secrets import without_secrets

KINDS = {
    FileNotFoundError: StorageNotFoundError,
    FileExistsError: StorageExistsError,
    PermissionError: StoragePermissionError,
}


class Storage:
    """A file system that raises StorageError for every failure, and caches no listings.

    Has all methods of fsspec's file systems, and the methods below.

    Args:
        fs: The file system.

    Attributes:
        is_local: Whether the file system is mounted, so that files can be appended to.
        is_object_store: Whether a write replaces a whole object or nothing, without directories.
    """

    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs = fs  # without a cache of listings, as other jobs write there, too
        self.is_local = isinstance(fs, LocalFileSystem)
        self.is_object_store = isinstance(fs, AsyncFileSystem)  # the only mark of fsspec's object stores

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fs, name)
        return _with_os_errors(found) if callable(found) else found

    def __reduce__(self) -> tuple[type["Storage"], tuple[AbstractFileSystem]]:
        return Storage, (self._fs,)

    def makedirs(self, path: str) -> None:
        """Makes a directory unless it exists."""
        if not self.is_object_store:  # there fsspec's makedirs would make a bucket
            with os_errors(path):
                self._fs.makedirs(path, exist_ok=True)

    @contextmanager
    def durable(self, path: str) -> Iterator[Any]:
        """Opens a file to write, durable after the block."""
        with os_errors(path), self._fs.open(path, "wb") as file:
            yield file
            if self.is_local:
                file.flush()
                os.fsync(file.fileno())

    def write(self, path: str, content: bytes) -> None:
        """Writes a file whole: a reader finds the old or the new content, even after a power cut."""
        if self.is_object_store:  # replaces whole objects; a write elsewhere and a move take six requests
            self.pipe_file(path, content)
            return
        with self.whole(path) as file:
            file.write(content)

    def upload(self, file: str, path: str) -> None:
        """Writes a file of this host whole and durable, as `write` does."""
        with os_errors(path):
            self._fs.put_file(file, path if self.is_object_store else f"{path}.partial")
        if self.is_local:
            _sync(f"{path}.partial")
        if not self.is_object_store:
            self._replace(path)

    def sync(self, path: str) -> None:
        """Makes what was written to a file durable, and the file's name."""
        if self.is_local:
            _sync(path, posixpath.dirname(path))

    @contextmanager
    def whole(self, path: str) -> Iterator[Any]:
        """Opens a file to write, which gets its name, durable, if the block ends without an error."""
        with self.durable(f"{path}.partial") as file:
            yield file
        self._replace(path)

    def _replace(self, path: str) -> None:
        self.mv(f"{path}.partial", path)
        # fsync of a file does not cover its name: a power cut could leave a synced file in no directory. The parent
        # directory counts too, as a checkpoint's own directory is new.
        if self.is_local:
            folder = posixpath.dirname(path)
            _sync(folder, posixpath.dirname(folder))


def _sync(*paths: str) -> None:
    for path in paths:
        with os_errors(path):
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)


def open_storage(url: str) -> tuple[Storage, str]:
    """Returns the storage of a URL, and the path on it.

    Raises:
        StorageError: There is no such kind of storage, its package is not installed, or the URL ends after its scheme.
    """
    if re.fullmatch(r"[\w.+-]+:/*", url):  # `s3:` would be a local directory
        raise StorageError("it names a kind of storage, but no bucket or directory there")
    try:
        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ValueError, ImportError) as error:
        raise StorageError(_one_line(error)) from error
    return Storage(fs), path


def read_text(url: str) -> str:
    """Returns the text of a file in UTF-8, without the byte-order mark of some editors.

    Raises:
        StorageError: The file cannot be read, or is not such text.
    """
    fs, path = open_storage(url)
    try:
        return fs.cat_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StorageError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error


def refuse_existing(files: Mapping[str, str | None], overwrite: bool) -> None:
    """Refuses to replace files, before any work is done for them.

    Args:
        files: The files by flag; None for an unset flag.
        overwrite: Whether `--overwrite` is set.

    Raises:
        InputError: A file exists and `--overwrite` is not set, or storage fails.
    """
    for flag, url in files.items():
        if url is None or overwrite:
            continue
        with named(flag, url):
            fs, path = open_storage(url)
            exists = fs.exists(path)
        if exists:
            raise InputError(
                f"{flag} would replace '{without_secrets(url)}'; name another file, or add --overwrite True"
            )


def write_file(flag: str, url: str, content: bytes | str) -> None:
    """Writes the file that a flag names.

    Args:
        flag: The flag, with its dashes.
        url: The file.
        content: The content; text is written in UTF-8.

    Raises:
        InputError: The file cannot be written. The message names flag, URL and reason.
    """
    with named(flag, url):
        fs, path = open_storage(url)
        fs.pipe_file(path, content.encode() if isinstance(content, str) else content)


def _with_os_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(path: str, *args: Any, **kwargs: Any) -> Any:
        with os_errors(path):
            try:
                return method(path, *args, **kwargs)
            except ValueError as error:  # from fsspec, for a path that the storage cannot have
                raise StorageError(f"{_one_line(error)}: '{path}'") from error

    return call


@contextmanager
def os_errors(path: str | None = None) -> Iterator[None]:
    """Turns errors of storage in the block into a StorageError: one line, without secrets.

    Libraries of object stores have their own error types. Python's errors, except OSError, are bugs and pass.

    Args:
        path: Path of the block, for errors that do not name a path.
    """
    try:
        yield
    except OSError as error:
        raise _storage_error(error, path) from error
    except Exception as error:
        if isinstance(error, ValueError | ImportError) or type(error).__module__ == "builtins":
            raise
        raise _storage_error(error, path) from error


def _storage_error(error: Exception, path: str | None) -> StorageError:
    """Returns a StorageError with the same message. Errors of cloud libraries often cannot be sent to other ranks."""
    if isinstance(error, StorageError):
        return error
    kind = next((ours for theirs, ours in KINDS.items() if isinstance(error, theirs)), StorageError)
    if isinstance(error, OSError) and error.errno and error.strerror:
        return kind(error.errno, _one_line(error.strerror), error.filename or path)
    return kind((_one_line(error) or type(error).__name__) + (f": '{path}'" if path else ""))


def _one_line(error: object) -> str:
    return " ".join(without_secrets(error).split())


@contextmanager
def named(key: str, url: str) -> Iterator[None]:
    """Turns a storage failure in the block into an error that names the key or flag of the URL.

    Raises:
        InputError: The block failed. The message names key, URL and reason.
    """
    try:
        with os_errors():
            yield
    except StorageError as error:
        raise InputError(
            f"{key} is '{without_secrets(url)}', which cannot be used: {_one_line(error)}; {remedy(error, url)}"
        ) from error
