"""Unpacks Slurm 24.11, Debian 13's, beside an older system's own: `python tests/support/slurm24.py FOLDER`.

Nothing is installed but patchelf: the programs get their own loader and libraries. About 12 MB to download.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurmdbd", "slurm-wlm-basic-plugins", "slurm-wlm-mysql-plugin"),
    *("libc6", "libgcc-s1", "libmunge2", "libhwloc15", "libnuma1", "liblz4-1", "libreadline8t64", "libtinfo6"),
    *("liblua5.1-0", "libdbus-1-3", "libsystemd0", "libcap2", "libjson-c5", "libjwt2", "libjansson4", "libyaml-0-2"),
    *(
        "libmariadb3",
        "zlib1g",
        "libzstd1",
        "libssl3t64",
        "libpam0g",
        "libaudit1",
        "libcap-ng0",
        "libudev1",
        "libxxhash0",
    ),
)


def unpack(folder: Path) -> None:
    """Leaves the programs in `folder/bin`; does nothing if they are there."""
    if (folder / "bin" / "slurmctld").exists():
        return
    if not shutil.which("patchelf"):
        raise SystemExit("needs: apt-get install patchelf")
    root = folder / "root"
    for package in _download(folder / "packages"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    plugins = root / "usr/lib/x86_64-linux-gnu/slurm-wlm"
    loader = next(root.rglob("ld-linux-x86-64.so.2")).resolve()
    patch = [
        "patchelf",
        "--set-interpreter",
        str(loader),
        "--force-rpath",
        "--set-rpath",
        f"{plugins}:{plugins.parent}",
    ]
    (folder / "bin").mkdir()
    for program in (*(root / "usr/bin").iterdir(), *(root / "usr/sbin").glob("slurm*")):
        if program.is_file() and not program.is_symlink() and program.read_bytes()[:4] == b"\x7fELF":
            subprocess.run([*patch, str(program)], check=True)
            (folder / "bin" / program.name.removesuffix("-wlm")).symlink_to(program)


def _mirror() -> str:
    """The mirror that this system's packages come from."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]
    uris = subprocess.run(targets, check=True, capture_output=True, text=True).stdout.split()
    return uris[0] if uris else sys.exit("needs: apt-get update, on Debian")


def _download(folder: Path) -> list[Path]:
    """Downloads the packages with an apt of its own, so that the system's knows nothing of it."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (folder / "sources.list").write_text(f"deb [signed-by={keys}] {_mirror()} trixie main\n")
    (folder / "status").touch()
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in settings.items())]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *PACKAGES], check=True, cwd=folder)
    return [*folder.glob("*.deb")]


if __name__ == "__main__":
    unpack(Path(sys.argv[1]).resolve())
    os.execv(f"{sys.argv[1]}/bin/slurmctld", ["slurmctld", "-V"])
