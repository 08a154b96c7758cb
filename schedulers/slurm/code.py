"""The code of a working directory, which is sent to a host once, under the digest of its content."""

import hashlib
import io
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from torchx.specs import Workspace
from torchx.workspace import walk_workspace

from schedulers.code.files import NEVER, is_linked_directory, tell_links
from schedulers.errors import SchedulerError

MOST_CODE_BYTES = 200_000_000
DIGEST_LETTERS = 16
# The last file of every archive: what was cut off lacks it.
COMPLETE = ".torchx-complete"


@dataclass(frozen=True)
class Code:
    """The files of a workspace.

    Attributes:
        files: Each file by the path that it gets.
        links: Where each link to a directory leads, by the path that it gets.
        digest: The digest of their paths, modes and content.
    """

    files: Mapping[str, Path]
    links: Mapping[str, str]
    digest: str

    @classmethod
    def of(cls, workspace: Workspace) -> "Code":
        """Reads a workspace.

        Raises:
            SchedulerError: It is too large to be code, or cannot be read.
        """
        found = {name: file for name, file in sorted(files_of(workspace)) if NEVER.isdisjoint(Path(name).parts)}
        links = {name: os.readlink(file) for name, file in found.items() if is_linked_directory(file)}
        tell_links([*links])
        files = {name: file for name, file in found.items() if name not in links}
        try:
            sizes = {name: file.stat().st_size for name, file in files.items()}
            if (total := sum(sizes.values())) > MOST_CODE_BYTES:
                largest = max(sizes, key=sizes.__getitem__)
                raise SchedulerError(
                    f"{next(iter(workspace.projects))}: {total:,} bytes would be sent as code, of which {largest} has"
                    f" {sizes[largest]:,}: name in .torchxignore what the job does not need"
                )
            digest = hashlib.sha256()
            for name, file in found.items():
                content = links.get(name) or hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{name}\0{_mode(file):o}\0{content}\n".encode())
        except OSError as error:
            raise SchedulerError(
                f"{error.filename}: cannot be read, to be sent to the host: {error.strerror}"
            ) from error
        return cls(files, links, digest.hexdigest()[:DIGEST_LETTERS])

    def archive(self) -> bytes:
        """Returns the files and links as a compressed archive."""
        files = {name: (file.read_bytes(), _mode(file)) for name, file in self.files.items()}
        return archive_of(files, self.links)


def archive_of(files: Mapping[str, tuple[bytes, int]], links: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Returns a compressed archive of files, with the content and the mode of each, and of links."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
        for name, there in links.items():
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
