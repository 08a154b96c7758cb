"""Unpacks the archive with the code of a job: the program of the init container, in the job's image.

It runs as `python -c PROGRAM URL DIGEST FOLDER`, with the standard library and fsspec alone. It exits with WRONG_INPUT
and one line if no other attempt would help.
"""

import hashlib
import sys
import tarfile
import tempfile
from typing import IO, Any, NoReturn

FAILED, WRONG_INPUT = 1, 2
CHUNK = 1 << 20


def main() -> None:
    """Unpacks the archive that the arguments name."""
    url, digest, folder = sys.argv[1:]
    with tempfile.TemporaryFile() as archive:
        try:
            fetch(url, archive)
        except ImportError as error:
            leave(WRONG_INPUT, f"the image cannot read {url}: {error}")
        except FileNotFoundError:
            leave(WRONG_INPUT, f"there is no {url} for this pod: it was deleted, or the pod looks in another place")
        except PermissionError as error:
            leave(WRONG_INPUT, f"the pod may not read {url}: {error}")
        except Exception as error:  # of any client of an object store
            leave(FAILED, f"{url} cannot be read: {type(error).__name__}: {error}")
        try:
            unpack(archive, digest, folder)
        except (OSError, EOFError, tarfile.TarError, ValueError) as error:
            leave(FAILED, f"{url} cannot be unpacked into {folder}: {error}")
    print(f"[torchx] code {digest.removeprefix('sha256:')[:12]} from {url}", flush=True)


def fetch(url: str, archive: IO[bytes]) -> None:
    """Copies the archive from its storage."""
    import fsspec

    opened: Any = fsspec.open(url, "rb")
    with opened as source:
        while chunk := source.read(CHUNK):
            archive.write(chunk)


def unpack(archive: IO[bytes], digest: str, folder: str) -> None:
    """Unpacks the archive without its top directory, after a check of its digest."""
    import gzip

    archive.seek(0)
    with gzip.open(archive) as tar:
        if f"sha256:{hashlib.file_digest(tar, 'sha256').hexdigest()}" != digest:
            raise ValueError("it has changed since the job was submitted")
    archive.seek(0)
    with tarfile.open(fileobj=archive, mode="r:gz") as tar:
        members = [member for member in tar.getmembers() if "/" in member.name]
        for member in members:
            member.name = member.name.partition("/")[2]
        # Not "data", which refuses links to places outside: its digest says that this is what the user sent.
        safely: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        tar.extractall(folder, members, **safely)


def leave(code: int, line: str) -> NoReturn:
    """Ends the pod, with a line for the status of the job."""
    print(f"code: {' '.join(line.split())}", file=sys.stderr, flush=True)  # the end of a log is a container's message
    sys.exit(code)


if __name__ == "__main__":
    main()
