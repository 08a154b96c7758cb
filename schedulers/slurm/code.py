"""The code of a working directory, which is sent to a host once, under the digest of its content."""

import hashlib
import io
import logging
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchx.specs import Workspace
from torchx.workspace import walk_workspace

from schedulers.code.files import is_linked_directory
from schedulers.errors import SchedulerError

log = logging.getLogger(__name__)

# Would change the digest with every commit or run, and no job needs them.
LEFT_OUT = {".git", "__pycache__"}
MOST_CODE_BYTES = 200_000_000
DIGEST_LETTERS = 16
# The last file of every archive: what was cut off lacks it.
COMPLETE = ".torchx-complete"


@dataclass(frozen=True)
class Code:
    """The files of a workspace.

    Attributes:
        files: Each file by the path that it gets.
        digest: The digest of their paths, modes and content.
    """

    files: Mapping[str, Path]
    digest: str

    @classmethod
    def of(cls, workspace: Workspace) -> "Code":
        """Reads a workspace.

        Raises:
            SchedulerError: It is too large to be code, or cannot be read.
        """
        found = sorted(files_of(workspace))
        files = {name: file for name, file in found if LEFT_OUT.isdisjoint(Path(name).parts)}
        if links := [name for name, file in files.items() if is_linked_directory(file)]:
            log.info("links to directories travel as links, without what is in them: %s", ", ".join(links))
        try:
            sizes = {name: 0 if name in links else file.stat().st_size for name, file in files.items()}
            if (total := sum(sizes.values())) > MOST_CODE_BYTES:
                largest = max(sizes, key=sizes.__getitem__)
                raise SchedulerError(
                    f"{next(iter(workspace.projects))}: {total:,} bytes would be sent as code, of which {largest} has"
                    f" {sizes[largest]:,}: name in .torchxignore what the job does not need"
                )
            digest = hashlib.sha256()
            for name, file in files.items():
                content = os.readlink(file) if name in links else hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{name}\0{_mode(file):o}\0{content}\n".encode())
        except OSError as error:
            raise SchedulerError(
                f"{error.filename}: cannot be read, to be sent to the host: {error.strerror}"
            ) from error
        return cls(files, digest.hexdigest()[:DIGEST_LETTERS])

    def archive(self) -> bytes:
        """Returns the files as a compressed archive."""
        links = {name: os.readlink(file) for name, file in self.files.items() if is_linked_directory(file)}
        files = {name: (file.read_bytes(), _mode(file)) for name, file in self.files.items() if name not in links}
        return archive_of(files, links)


def archive_of(files: Mapping[str, tuple[bytes, int]], links: Mapping[str, str] | None = None) -> bytes:
    """Returns a compressed archive of files, with the content and the mode of each, and of links to directories."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
        for name, there in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, there
            archive.addfile(member)
        for name, (content, mode) in [*files.items(), (COMPLETE, (b"", 0o644))]:
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), mode, int(time.time())
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()


def files_of(workspace: Workspace, besides: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Yields the files of a workspace without those that .torchxignore excludes, each with the path that it gets.

    Args:
        workspace: The workspace.
        besides: A directory to leave out.
    """
    from fsspec.implementations.local import LocalFileSystem

    for source, below in workspace.projects.items():
        root = Path(source).resolve()
        for folder, _, names in walk_workspace(LocalFileSystem(), str(root)):
            if besides and Path(folder).is_relative_to(besides):
                continue
            for name in names:
                yield str(Path(below, Path(folder).relative_to(root), name)), Path(folder, name)


def _mode(file: Path) -> int:
    return 0o755 if os.access(file, os.X_OK) else 0o644
