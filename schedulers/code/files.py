"""The files of a workspace as a reproducible tar: equal files have an equal digest, whenever and wherever packed."""

import gzip
import hashlib
import logging
import os
import stat
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torchx.specs import Workspace
from torchx.workspace.api import TORCHX_IGNORE, walk_workspace

from schedulers.errors import SchedulerError

log = logging.getLogger(__name__)

# Where the code is in a container, for a layer and for an archive. A directory that no image has for itself.
CODE_DIR = "/torchx-code"

DOCKER_IGNORE = ".dockerignore"
# Files of the tools of this machine, which change while the code does not.
NEVER = {".git", "__pycache__"}
# Names that the job imports itself, with a file that ours has: the workspace comes first on its PYTHONPATH.
OWN_PACKAGES = {"trainer": "launch.py", "torchx_recsys": "console.py"}
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Code:
    """The code of a workspace.

    Attributes:
        digest: `sha256:...` of the tar.
        packed_digest: That of the compressed tar.
        size: Bytes of the compressed tar.
        count: The number of files.
        packed: The compressed tar, a temporary file.
    """

    digest: str
    packed_digest: str
    size: int
    count: int
    packed: IO[bytes]

    def __str__(self) -> str:
        return f"code {short(self.digest)} ({self.count} files, {in_units(self.size)})"


def short(digest: str) -> str:
    """Returns the digits of a digest that people compare."""
    return digest.removeprefix("sha256:")[:12]


def in_units(size: float) -> str:
    """Returns a number of bytes in kB, MB or GB."""
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"


def code_of(workspace: Workspace) -> Code:
    """Returns the code of a workspace, without the files that .torchxignore excludes.

    Raises:
        SchedulerError: There are no files, too many bytes, a file that cannot be read, or a package that would replace
            the trainer's.
    """
    files = dict(sorted(_files(workspace)))
    _check(files, str(workspace))
    tell_links([path for path, file in files.items() if is_linked_directory(file)])
    packed = tempfile.TemporaryFile(prefix="torchx-code-")  # noqa: SIM115, kept until the job is submitted
    try:
        digest = _pack(files, packed)
    except OSError as error:
        raise SchedulerError(f"--workspace {workspace}: must be files that can be read: {error}") from error
    packed.seek(0)
    packed_digest = hashlib.file_digest(packed, "sha256").hexdigest()
    return Code(digest, f"sha256:{packed_digest}", packed.tell(), len(files), packed)


def tell_links(links: Sequence[str]) -> None:
    """Says that links to directories travel as links."""
    if links:
        log.info("links to directories travel as links, without what is in them: %s", ", ".join(links))


def _files(workspace: Workspace) -> Iterator[tuple[str, Path]]:
    """Yields the files that travel, with their paths in the container."""
    from fsspec.implementations.local import LocalFileSystem

    for source, below in workspace.projects.items():
        root = Path(source.removeprefix("file://")).resolve()
        if not root.is_dir():
            raise SchedulerError(f"--workspace {source}: must be a directory")
        ignore = DOCKER_IGNORE if not (root / TORCHX_IGNORE).exists() else TORCHX_IGNORE
        for folder, _, names in walk_workspace(LocalFileSystem(), str(root), ignore):
            inside = Path(folder).relative_to(root)
            for name in names:
                if not NEVER.intersection((*inside.parts, name)):
                    yield str(below / inside / name), Path(folder) / name


def _check(files: dict[str, Path], workspace: str) -> None:
    sizes: Counter[str] = Counter()
    for path, file in files.items():
        if not file.is_file() and not is_linked_directory(file):
            kind = "a link to nothing, a socket or a device"
            raise SchedulerError(f"--workspace {workspace}: {path} is no file ({kind}): name it in {TORCHX_IGNORE}")
        sizes[path.partition("/")[0]] += 0 if is_linked_directory(file) else file.stat().st_size
    if not files:
        raise SchedulerError(f"--workspace {workspace}: has no files; --workspace '' takes the image as it is")
    if sizes.total() > MOST_BYTES:
        largest = ", ".join(f"{name} ({in_units(size)})" for name, size in sizes.most_common(3))
        raise SchedulerError(
            f"--workspace {workspace}: must have at most {in_units(MOST_BYTES)}, and has {in_units(sizes.total())}: "
            f"{largest}; name what the job does not need in {TORCHX_IGNORE}"
        )
    for package, own_file in OWN_PACKAGES.items():
        if {f"{package}.py", f"{package}/__init__.py"} & {*files} and f"{package}/{own_file}" not in files:
            raise SchedulerError(
                f"--workspace {workspace}: its package {package} would replace the one that the job runs: "
                f"rename it, or name it in {TORCHX_IGNORE}"
            )


def _pack(files: dict[str, Path], packed: IO[bytes]) -> str:
    """Writes the files as a compressed tar, and returns the digest of the tar itself."""
    top = tarfile.TarInfo(CODE_DIR.strip("/"))
    # As in /tmp, any user of the image may write beside the code, such as relative run directories.
    top.type, top.mode = tarfile.DIRTYPE, 0o1777
    with gzip.GzipFile("", "wb", compresslevel=6, fileobj=packed, mtime=0) as compressed:
        hashed: Any = _Hashed(compressed)
        with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            tar.addfile(top)
            for path, file in files.items():
                _add(tar, tarfile.TarInfo(f"{top.name}/{path}"), file)
    return f"sha256:{hashed.digest.hexdigest()}"


def _add(tar: tarfile.TarFile, entry: tarfile.TarInfo, file: Path) -> None:
    if is_linked_directory(file):
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(file)
        tar.addfile(entry)
        return
    with file.open("rb") as content:
        found = file.stat()
        entry.size, entry.mode = found.st_size, 0o755 if found.st_mode & stat.S_IXUSR else 0o644
        tar.addfile(entry, content)


def is_linked_directory(file: Path) -> bool:
    """Returns whether a file is a link to a directory, which travels as a link; a link to a file is followed."""
    return file.is_symlink() and file.is_dir()


class _Hashed:
    """A file to write to, with the digest of what was written."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)
