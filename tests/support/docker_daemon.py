"""A Docker daemon for tests, with a network and images of its own; nothing is pulled."""

import io
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EMPTY = ("usr", "etc", "tmp", "proc", "sys", "dev", "root", "work", "run", "out")
LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
# What the image `base:1` takes from this machine.
PLACES = {place: place for place in ("/usr", "/etc", "/opt", str(ROOT))}
MOUNTS = ",".join(f"type=bind,src={here},dst={there},readonly" for here, there in PLACES.items() if Path(here).exists())


@contextmanager
def docker_daemon(folder: Path) -> Iterator[dict[str, str]]:
    """Starts a daemon with two images, `base:1` and, without a shell, `empty:1`; yields what clients need."""
    if os.getuid() or not shutil.which("dockerd") or not shutil.which("docker"):
        pytest.skip("needs a Docker daemon of its own: root, and apt-get install docker.io iptables")
    places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid"}
    words = [word for flag, name in places.items() for word in (flag, str(folder / name))]
    address = f"unix://{folder}/docker.sock"
    environment = {"DOCKER_HOST": address}
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            ["dockerd", *words, "-H", address, "--bridge", "none"], stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            while docker(environment, "version", check=False).returncode:
                assert process.poll() is None, (folder / "log").read_text()[-2000:]
                time.sleep(0.2)
            docker(environment, "import", "-", "base:1", input=_tree(EMPTY, LINKS))
            docker(environment, "import", "-", "empty:1", input=_tree(("out",), {}))
            yield environment
        finally:
            if ids := docker(environment, "ps", "-aq", check=False).stdout.split():
                docker(environment, "rm", "-f", *map(bytes.decode, ids), check=False)
            docker(environment, "network", "rm", "torchx", check=False)
            process.terminate()
            process.wait()
            subprocess.run(
                ["umount", folder / "exec/netns/default"], stderr=subprocess.DEVNULL
            )  # which it leaves behind


def docker(environment: dict[str, str], *words: str, check: bool = True, input: bytes | None = None):
    """Runs Docker's own client."""
    return subprocess.run(
        ["docker", *words], env=os.environ | environment, check=check, input=input, capture_output=True
    )


def _tree(folders: tuple[str, ...], links: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name in ("tmp", "out", "work") else 0o755
            tar.addfile(entry)
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return buffer.getvalue()
