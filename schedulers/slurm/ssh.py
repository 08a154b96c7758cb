"""A host reached by OpenSSH's own client: keys, agents, jump hosts and second factors are those of `ssh HOST`.

A command is a script for a login shell of bash there. It says on stderr when it begins and when it ends, so that a
connection that was lost is told from a command that failed. What was lost is repeated: every script here may run twice.
"""

import base64
import functools
import hashlib
import logging
import os
import re
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from schedulers.errors import SchedulerError
from schedulers.slurm.transport import PATIENCE_SECONDS, HostAway
from schedulers.state_directory import state_directory

log = logging.getLogger(__name__)

HOST = re.compile(r"\w[\w.@-]*")
BEGINS, ENDS = "torchx-recsys-begins", "torchx-recsys-ends"
# What a profile prints or reads must not mix with the script's own: 3 and 4 are the true stdout and stdin.
PROLOGUE = f"""\
exec <&4 >&3 3>&- 4<&-
trap 'printf "\\n{ENDS} %s\\n" "$?" >&2' EXIT
printf '%s\\n' {BEGINS} >&2
"""
SSH_ITSELF = 255  # ssh's own exit code; any other is that of the shell there, negative if ssh was killed
# Most connections in use at once: sshd allows 10 sessions of one connection.
AT_ONCE = 4
PERSIST = "10m"
CONNECT_SECONDS = 20
# A first contact that is cut off is tried again as long.
FIRST_PATIENCE_SECONDS = 20
LONGEST_SOCKET = 86  # of the 104 bytes of a socket's path on macOS, of which ssh takes 17 for itself
# What ssh says if it does not come to the host, and what to do. Without contact before, waiting would not help.
TRY = "until `ssh {host} true` works, nothing here can"
REFUSED = (
    ("Host key verification failed|IDENTIFICATION HAS CHANGED", "its key is not the known one: accept it, or have it"
     " explained, with `ssh {host} true`"),
    ("Permission denied", f"it refuses the user or the key: {TRY}; name user and key in ~/.ssh/config"),
    ("Too many authentication failures", f"it refuses the keys: {TRY}; name the key in ~/.ssh/config"),
    ("[Bb]ad configuration|Bad owner or permissions|terminating, \\d+ bad", TRY),
)  # fmt: skip
UNREACHABLE = (
    ("Could not resolve", "no such host: check the name, or describe it in ~/.ssh/config"),
    ("refused|timed out|No route|unreachable", "it does not answer: check the network, a VPN, and the port"),
)


@dataclass(frozen=True)
class Said:
    """How a script on a host ended: its exit code, and what it wrote."""

    code: int
    output: bytes
    errors: str


class Connection:
    """The shared connection to a host: ssh's own master process, which outlives this process for some minutes.

    Args:
        host: The host, as `ssh` takes it.
    """

    def __init__(self, host: str) -> None:
        if not HOST.fullmatch(host):
            raise SchedulerError(
                f"-cfg host={host}: must be HOST or USER@HOST; describe anything else, such as a port, in ~/.ssh/config"
            )
        self.host = host
        self._first = threading.Lock()
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._has_answered = False

    def run(self, script: str, content: bytes = b"") -> Said:
        """Runs a script on the host, again if the connection is lost.

        Args:
            script: Lines of bash.
            content: Its stdin.

        Raises:
            SchedulerError: The host cannot be reached or refuses the user.
            HostAway: The connection was lost, and did not come back.
        """
        since, pause = time.monotonic(), 1
        while True:
            try:
                return self._try(script, content)
            except HostAway as error:
                patience = PATIENCE_SECONDS if self._has_answered else FIRST_PATIENCE_SECONDS
                if time.monotonic() + pause > since + patience:
                    again = f"it did not come back in {patience} s: check the network, and type the command again"
                    raise HostAway(f"{error}; {again}") from error
                log.warning("%s; connecting again", error)
            time.sleep(pause)
            pause = min(2 * pause, 15)

    def _try(self, script: str, content: bytes) -> Said:
        if self._has_answered:
            with self._slots:
                return self._once(script, content)
        with self._first:  # asks for a password once, not in every thread
            return self._once(script, content)

    def _once(self, script: str, content: bytes) -> Said:
        # Files, not pipes: a master process that stays in the background may keep them open.
        with TemporaryFile() as source, TemporaryFile() as output, TemporaryFile() as errors:
            source.write(content)
            source.seek(0)
            try:
                done = subprocess.run(
                    ["ssh", *self._options(), "--", self.host, _command(script)],
                    stdin=source,
                    stdout=output,
                    stderr=errors,
                )
            except FileNotFoundError as error:
                raise SchedulerError(
                    f"-cfg host={self.host}: needs ssh, the client of OpenSSH, which is not installed here"
                ) from error
            output.seek(0)
            errors.seek(0)
            return self._said(done.returncode, output.read(), errors.read().decode(errors="replace"))

    def _said(self, ended_with: int, output: bytes, text: str) -> Said:
        before, begun, said = text.partition(f"{BEGINS}\n")
        said, ended, code = said.rpartition(f"\n{ENDS} ")
        if begun and ended:
            self._has_answered = True
            return Said(int(code.split()[0]), output, said)
        if begun:
            self._has_answered = True
            raise HostAway(f"{self.host}: the connection was lost")
        raise self._refusal(ended_with, before)

    def _refusal(self, ended_with: int, text: str) -> SchedulerError:
        """Returns why a script has not begun."""
        line = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        for pattern, remedy in REFUSED if self._has_answered else (*REFUSED, *UNREACHABLE):
            if found := re.search(f".*({pattern}).*", text):
                return SchedulerError(f"{self.host}: {found[0].strip()}; {remedy.format(host=self.host)}")
        if ended_with >= 0 and ended_with != SSH_ITSELF:
            said = line or "its profile ends the shell"
            remedy = f"a login shell of bash must run there: see what `ssh {self.host} bash -lc true` says"
            return SchedulerError(f"{self.host}: {said}; {remedy}")
        return HostAway(f"{self.host}: {line or 'the connection was lost'}")

    def _options(self) -> list[str]:
        options = {
            "ControlMaster": "auto",
            "ControlPath": str(_sockets() / "%C"),
            "ControlPersist": PERSIST,
            "ConnectTimeout": CONNECT_SECONDS,
            "ServerAliveInterval": 15,
            "ServerAliveCountMax": 3,
            "ForwardX11": "no",
            "RemoteCommand": "none",
            **({} if _can_ask() else {"BatchMode": "yes"}),
        }
        return ["-T", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


def _command(script: str) -> str:
    """Returns the command line for the user's shell there, whichever that is."""
    text = base64.b64encode(f"{PROLOGUE}{script}".encode()).decode()
    inner = f'eval \\"\\$(base64 -d <<< {text})\\"'
    return f"bash -c 'exec bash -lc \"{inner}\" 3>&1 1>&2 4<&0 0</dev/null'"


def _can_ask() -> bool:
    """Returns whether ssh can ask for a password: at a terminal, or by the user's own program."""
    if os.environ.get("SSH_ASKPASS"):
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


@functools.cache
def _sockets() -> Path:
    """Returns a directory of this user alone for the sockets of connections."""
    folder = state_directory("ssh")
    if len(os.fsencode(folder)) + 41 > LONGEST_SOCKET:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
        folder = Path("/tmp", f"torchx-ssh-{os.getuid()}-{name}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise SchedulerError(f"{folder}: must belong to you alone, as it holds your connections; remove it")
    return folder
