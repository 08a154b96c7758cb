"""Code as an archive on an fsspec URL, which an init container of each pod unpacks before the job starts."""

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schedulers.code.files import CODE_DIR, Code
from schedulers.errors import SchedulerError
from trainer.core.secrets import has_secrets, without_secrets

UNPACKER = "torchx-code"  # name of the init container, and of its volume
_PROGRAM = Path(__file__).with_name("unpack.py").read_text()
# What the init container has in common with the job's own.
_SHARED = ("image", "imagePullPolicy", "env", "envFrom", "resources", "volumeMounts", "securityContext")


@dataclass
class Archive:
    """An archive to be uploaded.

    Attributes:
        code: The code in it.
        folder: URL of the folder for archives, where each keeps the digest of its code as its name.
    """

    code: Code
    folder: str

    @property
    def url(self) -> str:
        """The URL of the archive."""
        return f"{self.folder.rstrip('/')}/{self.code.digest.removeprefix('sha256:')}.tar.gz"

    def would(self) -> str:
        """Returns what submitting the job would upload."""
        return f"{self.code} would be uploaded to {self.url}"

    def ship(self, say: Callable[[str], None]) -> None:
        """Uploads the archive unless it is there.

        Raises:
            SchedulerError: The storage cannot be written to.
        """
        import fsspec

        try:
            files, path = fsspec.core.url_to_fs(self.url)
            if files.exists(path):
                say(f"{self.code} is already in {self.url}")
                return
            if "file" in files.protocol:  # an object store would make a bucket
                files.makedirs(files._parent(path), exist_ok=True)
            # In a transaction, a file has its name only once it is whole.
            with files.transaction, files.open(path, "wb") as target:
                self.code.packed.seek(0)
                shutil.copyfileobj(self.code.packed, target)
        except ImportError as error:
            raise SchedulerError(f"-cfg code={self.folder}: {error}") from error
        except Exception as error:  # of any client of an object store
            reason = without_secrets(" ".join(f"{type(error).__name__}: {error}".split()))
            raise SchedulerError(f"-cfg code={self.folder}: cannot be written to: {reason}") from error
        say(f"{self.code} uploaded to {self.url}")

    def mount(self, pod: dict[str, Any]) -> None:
        """Gives a pod the code: its first container starts in it, and has it first on its PYTHONPATH.

        The init container uses the job's own image, so no other has to be pulled, and the pod's own credentials.
        """
        spec = pod["spec"]
        job = spec["containers"][0]
        spec["volumes"] = [*spec.get("volumes", ()), {"name": UNPACKER, "emptyDir": {}}]
        job["volumeMounts"] = [*job.get("volumeMounts", ()), {"name": UNPACKER, "mountPath": CODE_DIR}]
        shared = copy.deepcopy({key: job[key] for key in _SHARED if key in job})
        # Its own modules are the image's.
        shared["env"] = [one for one in shared.get("env", ()) if one["name"] != "PYTHONPATH"]
        unpacker = shared | {
            "name": UNPACKER,
            "command": ["python", "-P", "-c", _PROGRAM, self.url, self.code.digest, CODE_DIR],
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        spec["initContainers"] = [unpacker, *spec.get("initContainers", ())]
        job["workingDir"] = CODE_DIR


def archive_in(folder: str, code: Code) -> Archive:
    """Returns the archive of a code.

    Raises:
        SchedulerError: The folder is none that pods can read.
    """
    import fsspec

    if has_secrets(folder):
        raise SchedulerError(
            f"-cfg code={without_secrets(folder)}: must be a URL without secrets, which pods would show"
        )
    protocol = fsspec.utils.get_protocol(folder)
    if "://" not in folder or protocol == "memory":
        raise SchedulerError(f"-cfg code={folder}: must be a URL that pods can read, such as s3://bucket/code")
    if protocol not in fsspec.available_protocols():
        raise SchedulerError(f"-cfg code={folder}: must be a URL of fsspec; it knows no {protocol}://")
    return Archive(code, folder)
