"""Files and directories on any fsspec URL, with one error type whose message ends with a remedy."""

import errno
import hashlib
import json
import os
import posixpath
import re
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, NamedTuple
from urllib.parse import quote

import fsspec
from fsspec import AbstractFileSystem
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.core import split_protocol
from fsspec.implementations.cached import CachingFileSystem
from fsspec.implementations.local import LocalFileSystem

from trainer.core.errors import (
    DamagedError,
    InputError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StoragePermissionError,
    StorageUnsupportedError,
)
from trainer.core.secrets import place, without_secrets

PARTIAL = ".partial"
KINDS = {
    FileNotFoundError: StorageNotFoundError,
    FileExistsError: StorageExistsError,
    PermissionError: StoragePermissionError,
}
READ_ONLY = {"http", "https", "ftp"}
EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "azure"),
}
"""Extra of this package that installs each protocol's file system."""
NO_DIRECTORY = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SOME_PATHS = "write a local path, or a URL such as s3://BUCKET/PATH, gs://BUCKET/PATH or abfs://CONTAINER/PATH"
LONGEST_FILE_NAME = 200  # in bytes; file systems allow 255, and a digest, a number and an ending are added


class Storage:
    """A file system that raises StorageError for every failure, and caches no listings.

    Has all methods of fsspec's file systems, and the methods below.

    Args:
        fs: The file system.
        frame: The parts of a URL around the paths of the file system; None if there is only a scheme.

    Attributes:
        is_local: Whether the file system is mounted, so that it can append to files.
        is_object_store: Whether there are no directories, and a write replaces a whole object or nothing.
    """

    def __init__(self, fs: AbstractFileSystem, frame: "Frame | None" = None) -> None:
        self._fs = fs  # without a cache of listings, as other jobs write there, too
        self._frame = frame
        self.is_local = isinstance(fs, LocalFileSystem)
        self.is_object_store = isinstance(fs, AsyncFileSystem)  # the only mark of fsspec's object stores

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._fs, name)
        return _with_os_errors(found) if callable(found) else found

    def __reduce__(self) -> tuple[type["Storage"], tuple[AbstractFileSystem, "Frame | None"]]:
        return Storage, (self._fs, self._frame)

    def url_of(self, path: str) -> str:
        """Returns the URL of a path, with the host, the user and the links (`zip://...::`) of the opened URL.

        fsspec's `unstrip_protocol` returns the scheme and the path alone.
        """
        return self._frame.around(path) if self._frame else self._fs.unstrip_protocol(path)

    def makedirs(self, path: str) -> None:
        """Makes a directory unless it exists."""
        self.refuse_read_only()
        if not self.is_object_store:  # there fsspec's makedirs would make a bucket
            with os_errors(path):
                self._fs.makedirs(path, exist_ok=True)

    def refuse_read_only(self) -> None:
        """Refuses kinds of storage that cannot hold a run.

        fsspec keeps what is written to a cache on this host until the process ends, and adds to an archive what a run
        replaces. Threads share one connection of FTP: resumed runs timed out.

        Raises:
            StorageError: It is such a storage.
        """
        schemes = {self._fs.protocol} if isinstance(self._fs.protocol, str) else {*self._fs.protocol}
        if isinstance(self._fs, CachingFileSystem | AbstractArchiveFileSystem) or schemes & READ_ONLY:
            raise StorageError(f"{'/'.join(sorted(schemes))} can be read here, but not written to")

    def mv(self, path: str, name: str) -> None:
        """Gives a file another name."""
        with os_errors(path):
            if self.is_object_store:
                self._fs.cp_file(path, name)
                self._fs.rm_file(path)
            else:
                self._fs.mv(path, name)

    def rm(self, path: str, recursive: bool = False) -> None:
        """Removes a file or, with `recursive`, a directory.

        Alibaba's OSS and older servers of S3's protocol take a list of objects to delete only with its MD5, which boto
        has stopped to send. There, objects are deleted one by one.
        """
        with os_errors(path):
            try:
                self._fs.rm(path, recursive=recursive)
            except FileNotFoundError:
                raise
            except OSError:
                if not self.is_object_store:
                    raise
                for file in self._fs.find(path):
                    self._fs.rm_file(file)

    @contextmanager
    def durable(self, path: str, private: bool = False) -> Iterator[Any]:
        """Opens a file to write, durable after the block; on a local disk a private one is for its owner alone."""
        with os_errors(path), self._fs.open(path, "wb") as file:
            if private and self.is_local:
                os.fchmod(file.fileno(), 0o600)
            yield file
            if self.is_local:
                file.flush()
                os.fsync(file.fileno())

    def write(self, path: str, content: bytes, private: bool = False) -> None:
        """Writes a file whole: a reader finds the old or the new content, even after a power cut.

        Args:
            path: The path.
            content: The new content.
            private: Whether only its owner may read the file; on an object store the bucket decides.
        """
        if self.is_object_store:  # replaces whole objects; a write elsewhere and a move take six requests
            self.pipe_file(path, content)
            return
        with self._replacing(path) as partial, self.durable(partial, private) as file:
            file.write(content)

    def create(self, path: str, content: bytes) -> None:
        """Writes a new file whole: a reader finds nothing or all of it, even after a power cut.

        Raises:
            StorageExistsError: There is one.
        """
        if self.is_object_store:
            with os_errors(path):
                file: Any = self._fs.open(path, "xb")
                with file:
                    file.write(content)
            return
        partial = partial_name(path)
        try:
            with self.durable(partial) as file:
                file.write(content)
            with os_errors(path):
                self._name(partial, path)
        finally:
            with suppress(OSError):
                self._fs.rm_file(partial)
        self.sync(path)

    def _name(self, partial: str, path: str) -> None:
        """Gives a file a name that no other has."""
        if self.is_local:
            try:
                os.link(partial, path)
                return
            except OSError as error:  # a file system without links
                if error.errno not in NO_LINKS:
                    raise
        if self._fs.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._fs.mv(partial, path)

    def upload(self, file: str, path: str) -> None:
        """Writes a file of this host whole and durable, as `write` does."""
        if self.is_object_store:
            with os_errors(path):
                self._fs.put_file(file, path)
            return
        with self._replacing(path) as partial:
            with os_errors(path):
                self._fs.put_file(file, partial)
            if self.is_local:
                _sync(partial)

    def sync(self, path: str) -> None:
        """Makes a file's content and its name durable."""
        if self.is_local:
            _sync(path, posixpath.dirname(path))

    @contextmanager
    def whole(self, path: str) -> Iterator[Any]:
        """Opens a file to write, which gets its name, durable, if the block ends without an error."""
        with self._replacing(path) as partial, self.durable(partial) as file:
            yield file

    @contextmanager
    def _replacing(self, path: str) -> Iterator[str]:
        """Yields a name for the new content of a file, which no other writer has, and gives the content the file's."""
        partial = partial_name(path)
        try:
            yield partial
            self.mv(partial, path)
        except BaseException:
            with suppress(OSError):
                self._fs.rm_file(partial)
            raise
        # fsync of a file does not cover its name: a power cut could leave a synced file in no directory. The parent
        # directory counts too, as a checkpoint's own directory is new.
        if self.is_local:
            folder = posixpath.dirname(path)
            _sync(folder, posixpath.dirname(folder))


def partial_name(path: str) -> str:
    """Returns a name beside a file for its new content: two processes, or threads, may write the same file at once."""
    return f"{path}.{uuid.uuid4().hex[:8]}{PARTIAL}"


class Frame(NamedTuple):
    """The parts of a URL around the paths of its storage: `before` stands for `root`, the beginning of a path."""

    before: str
    root: str
    after: str

    @classmethod
    def of(cls, url: str, path: str) -> "Frame":
        """Finds the parts around a path in its URL.

        Their common end is the same for all paths there. Of `abfs://container@account/logs`, whose path is
        `container/logs`, `abfs://container@account` stands for `container`.
        """
        links, place = _links(url)
        path = path.rstrip("/")
        link = links[place] if links[place].endswith("://") else links[place].rstrip("/")
        ends = [0, *(found.start() for found in re.finditer("/", path)), len(path)]
        end = next(end for end in ends if link.endswith(path[end:]))
        before = link[: len(link) - len(path) + end]
        return cls("::".join([*links[:place], before]), path[:end], "::".join(["", *links[place + 1 :]]))

    def around(self, path: str) -> str:
        """Returns the URL of a path."""
        return f"{self.before}{path.removeprefix(self.root)}{self.after}"


def below(url: str, name: str) -> str:
    """Returns the URL of a file below a directory."""
    links, place = _links(url)
    links[place] = posixpath.join(links[place], name)
    return "::".join(links)


def _links(url: str) -> tuple[list[str], int]:
    """Returns the links of fsspec's chain, and the place of the one whose path is that of the URL."""
    links = url.split("::")
    return links, next((place for place, link in enumerate(links) if "://" in link), len(links) - 1)


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
    if url.startswith("ftp:///"):
        raise StorageError("it names no host")
    if url.startswith("file://localhost/"):  # fsspec takes the host for a directory of the working directory
        raise StorageError(f"a file:// URL has no host; write file://{url.removeprefix('file://localhost')}")
    if split_protocol(url.rpartition("::")[2])[0] == "oss":
        # Without a cache of listings, ossfs 2025.5 fails at each listing, and its asynchronous form writes nothing.
        raise StorageError("ossfs cannot be used; OSS also speaks S3's protocol")
    with os_errors():
        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    # Where scheme and path are enough, the names of files stay as fsspec has them, which checkpoints record.
    has_more = "::" in url or fs._get_kwargs_from_urls(url)
    return Storage(fs, Frame.of(url, path) if has_more else None), path


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
        if url is None:
            continue
        with named(flag, url):
            fs, path = open_storage(url)
            fs.refuse_read_only()
            exists = not overwrite and fs.exists(path)
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
        fs.refuse_read_only()
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

    Libraries of object stores have their own error types. Python's errors are bugs and pass, except OSError, and
    those that fsspec raises for what a kind of storage, or a server, cannot do.

    Args:
        path: Path of the block, for errors that do not name a path.
    """
    try:
        yield
    except OSError as error:
        raise _storage_error(error, path) from error
    except Exception as error:
        if _is_of_fsspec(error):
            raise StorageUnsupportedError(_refusal(error)) from error
        if isinstance(error, ValueError | ImportError) or type(error).__module__ == "builtins":
            raise
        raise _storage_error(error, path) from error


def _is_of_fsspec(error: Exception) -> bool:
    """Returns whether fsspec's own code refuses a URL or an operation."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    is_refusal = isinstance(error, ValueError | TypeError | ImportError | NotImplementedError)
    return is_refusal and frame.f_globals.get("__name__", "").startswith("fsspec.")


def _refusal(error: Exception) -> str:
    if "range requests" in str(error):
        return "the server sends files only whole; write simplecache:: before its URL, and each host copies them first"
    return _one_line(error) or "this kind of storage cannot do that"


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
            f"{key} is {place(url)}, which cannot be used: {_one_line(error)}; {remedy(error, url)}"
        ) from error


def remedy(error: Exception, url: str) -> str:
    """Returns the remedy for an unusable URL.

    Args:
        error: The error of the URL.
        url: The URL, or a local path.
    """
    if isinstance(error, DamagedError):
        return "put a copy of the file back"
    if url.rstrip("/").endswith(":"):
        return SOME_PATHS
    protocol = split_protocol(url.rpartition("::")[2])[0] or "file"
    if protocol == "oss":
        return "write s3:// in place of oss://, and set AWS_ENDPOINT_URL as docs/guides/object_stores.md shows"
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError:
        extra = EXTRAS.get(protocol)
        return f"pip install 'torchx-recsys[{extra}]'" if extra else "install that package"
    except ValueError:
        return SOME_PATHS
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, PermissionError) or number == errno.EROFS:
        return "grant this user access to it, or name a path that it has access to"
    if isinstance(error, FileNotFoundError):
        return "name a path that exists, or one that can be made"
    if number in NO_DIRECTORY:
        return "name a path without a file where a directory is needed"
    if number in FULL:
        return "free some space, or name a path on another disk"
    if "::" in url:
        return "check each part of the URL; to write, name a directory or a URL without '::'"
    if protocol in ("file", "local"):
        return "repair it, or name a path on another disk"
    return "check the URL, the network and the credentials"


def digest(content: Any) -> str:
    """Returns a short digest of a value that JSON can hold; equal values have equal digests."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def as_file_name(name: str) -> str:
    """Returns the name of a column or table as the beginning of a file name: quoted as in URLs, long ones cut."""
    quoted = quote(name, safe="")
    if len(quoted) <= LONGEST_FILE_NAME:
        return quoted
    return f"{quoted[:LONGEST_FILE_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
