"""A real sshd in front of a test's Slurm, and a laptop that reaches it: with a home of its own and without Slurm.

`python tests/support/ssh_host.py FOLDER SLURM_CONF` starts one and prints what to export, until Ctrl-C.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from command import run_torchx
from ports import free_port
from slurm_cluster import Cluster
from slurm_shell import Shell, number

from schedulers.slurm.record import SCRIPT

SSHD = "/usr/sbin/sshd"
ALIAS = "login"
"""The host as the laptop's ~/.ssh/config names it."""
PROGRAMS = ("bash", "cat", "env", "sh", "sleep", "stty")
BARE_PROGRAMS = (
    "base64",
    "cat",
    "cp",
    "env",
    "find",
    "grep",
    "mkdir",
    "mktemp",
    "mv",
    "rm",
    "stat",
    "tail",
    "tar",
    "gzip",
    "touch",
)
SSHD_CONFIG = """\
Port {port}
Port {bare_port}
Port {ending_port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/authorized_keys
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
MaxStartups 100
Match LocalPort {bare_port}
    SetEnv HOME={folder}/bare
Match LocalPort {ending_port}
    SetEnv HOME={folder}/ending
Match LocalPort {port}
    SetEnv HOME={home} SLURM_CONF={conf}
"""
# Besides the host itself: one without Slurm, one that runs no command, and some that cannot be reached.
CLIENT_CONFIG = """\
Host bare
    Port {bare_port}
Host ending
    Port {ending_port}
Host closed
    Port 9
Host stranger
    IdentityFile {folder}/host_key
Host unknown
    UserKnownHostsFile /dev/null
Host changed
    UserKnownHostsFile {folder}/changed_hosts
Host new
    UserKnownHostsFile {folder}/new_hosts
Host {alias} {alias}.example bare ending closed unknown changed new
    IdentityFile {folder}/key
Host {alias} {alias}.example bare ending closed stranger unknown changed new
    HostName 127.0.0.1
    Port {port}
    User root
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
"""
# The first lines of a profile as sites have them: it prints, and asks for input.
PROFILE = """\
echo "Welcome to $HOSTNAME"
echo "Maintenance on Tuesday" >&2
read -r answer
"""


def missing() -> str:
    """Returns what has to be installed; empty if nothing."""
    lacking = [
        package
        for package, file in (("openssh-server", SSHD), ("openssh-client", "/usr/bin/ssh"))
        if not os.path.exists(file)
    ]
    return f"needs: apt-get install {' '.join(lacking)}" if lacking else ""


class SshHost:
    """A login node behind an sshd of its own, with a home that the laptop does not have.

    Args:
        folder: A short path for keys and the homes of both.
        slurm_conf: The configuration of its cluster.
    """

    def __init__(self, folder: Path, slurm_conf: str) -> None:
        self.folder = folder
        self.home, self.laptop = folder / "there", folder / "laptop"
        self.port, self.bare_port, self.ending_port = (free_port() for _ in range(3))
        for each in (
            self.home,
            folder / "bare" / "bin",
            folder / "ending",
            self.laptop / "bin",
            self.laptop / "work",
            self.laptop / ".ssh",
        ):
            each.mkdir(parents=True)
        for name in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "key.pub", folder / "authorized_keys")
        for file, key in (("known_hosts", "host_key.pub"), ("changed_hosts", "key.pub")):
            public = " ".join((folder / key).read_text().split()[:2])
            ports = (self.port, self.bare_port, self.ending_port)
            (folder / file).write_text("".join(f"[127.0.0.1]:{port} {public}\n" for port in ports))
        values = {
            "port": self.port,
            "bare_port": self.bare_port,
            "ending_port": self.ending_port,
            "folder": folder,
            "home": self.home,
            "alias": ALIAS,
        }
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(**values, conf=slurm_conf))
        (self.laptop / ".ssh" / "config").write_text(CLIENT_CONFIG.format(**values))
        (self.home / ".profile").write_text(PROFILE)
        (folder / "ending" / ".profile").write_text("echo No jobs today; exit 0\n")
        (folder / "bare" / ".profile").write_text(f"PATH={folder}/bare/bin\n")
        for programs, bin_ in ((PROGRAMS, self.laptop / "bin"), (BARE_PROGRAMS, folder / "bare" / "bin")):
            for program in programs:
                (bin_ / program).symlink_to(shutil.which(program) or program)
        # ssh looks for its files in the home that /etc/passwd names.
        client = self.laptop / "bin" / "ssh"
        client.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F "{self.laptop}/.ssh/config" "$@"\n')
        client.chmod(0o755)
        self._sshd: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """The environment of the laptop, on whose PATH is no Slurm."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SSH", "XDG"))}
        own = {"HOME": str(self.laptop), "PATH": str(self.laptop / "bin"), "COLUMNS": "200"}
        return kept | own

    def start(self) -> None:
        """Starts sshd, or starts it again."""
        Path("/run/sshd").mkdir(exist_ok=True)
        self._sshd = subprocess.Popen(
            [SSHD, "-D", "-E", self.folder / "sshd.log", "-f", self.folder / "sshd_config"], start_new_session=True
        )
        while not _listens(self.port):
            assert self._sshd.poll() is None, (self.folder / "sshd.log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends sshd and all connections."""
        if self._sshd:
            self._sshd.kill()
            self._sshd.wait()
        self.cut("master", "session")

    def cut(self, *parts: str) -> None:
        """Kills what a connection is made of: its `session` on the host, or the laptop's `client` and `master`."""
        for pid, words in self.processes().items():
            part = self._part(pid, words)
            if part in parts:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _part(self, pid: int, words: str) -> str:
        if words.startswith(("ssh: ", "/usr/bin/ssh ")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/cwd").startswith(str(self.laptop)):
                    return "client" if words.startswith("/") else "master"
        return "session" if self._sshd and self._is_child(pid, self._sshd.pid) else ""

    def _is_child(self, pid: int, of: int) -> bool:
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == of
        return False

    @staticmethod
    def processes() -> dict[int, str]:
        """All command lines, by process."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        return found


class Laptop(Shell):
    """A shell on the laptop, which sees no file of the cluster."""

    def __init__(self, host: SshHost, cluster: Cluster) -> None:
        super().__init__(cluster, host.laptop / "work")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        (host.laptop / ".torchxconfig").write_text(f"[slurm]\nhost = {ALIAS}\n")
        self.host, self.env = host, host.env

    def try_torchx(self, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs torchx and returns how it ended."""
        hidden = (self.host.home, self.cluster.folder)
        return run_torchx(*args, cwd=cwd or self.folder, hidden=hidden, **self.env)

    def job_dir(self, handle: str) -> Path:
        """Returns the directory of a job, on the host."""
        entry = self.host.home / ".local/state/torchx-recsys/slurm" / self.cluster.name / number(handle)
        return Path(entry.read_text().strip())

    def work_dir(self, handle: str) -> Path:
        """Returns the directory in which a job works, on the host."""
        return Path(re.findall("^#SBATCH --chdir=(.*)$", (self.job_dir(handle) / SCRIPT).read_text(), re.MULTILINE)[0])

    def jobs(self) -> list[str]:
        """Returns the numbers of all jobs that were submitted on the host from here, as Slurm knows them."""
        listed = self.cluster.run("squeue", "--states=all", "--noheader", "--format=%A|%o").split()
        return [line.partition("|")[0] for line in listed if line.partition("|")[2].startswith(str(self.host.home))]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(folder: str, slurm_conf: str) -> None:
    """Keeps a host up until Ctrl-C."""
    Path(folder).mkdir(parents=True)
    host = SshHost(Path(folder).resolve(), slurm_conf)
    host.start()
    print(
        *(f"export {name}={value}" for name, value in host.env.items() if name in ("HOME", "PATH", "TORCHXCONFIG")),
        sep="\n",
        flush=True,
    )
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
