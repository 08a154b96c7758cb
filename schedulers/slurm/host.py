"""Slurm on a host: its commands and the files of its jobs over one connection (ssh.py).

Files are copied, as far as they are needed, to a temporary directory here, where the same code reads them as on the
host itself.
"""

import functools
import io
import os
import re
import shlex
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from schedulers.errors import MaybeSubmitted, SchedulerError
from schedulers.log_files import PART_BYTES
from schedulers.slurm.ssh import Connection, Said
from schedulers.slurm.transport import ACCESS, COMMANDS, HERE, Answer, HostAway, Transport
from schedulers.state_directory import STATE_FOLDER

# The end of a file is copied if it is longer; a log is read by `open_log`.
TAIL_BYTES = 262144
LOG_BYTES = 8 * PART_BYTES  # read from a log at once
SUBMIT_SECONDS = 120  # which a command of another connection may need that runs already
# Keeps the variables of Slurm whose names are arguments, and removes the others.
WITHOUT_VARIABLES = f"""\
run() {{
    local name
    for name in $(compgen -v | grep -E '^({"|".join(COMMANDS)})(_|$)'); do
        [[ " {" ".join(ACCESS)} $kept " == *" $name "* ]] || unset "$name"
    done
    "$@"
}}
"""
# Runs a command unless an attempt of this name was begun; prints what the first one printed.
ONCE = """\
cd -- "$job_dir" || exit 1
if mkdir "$attempt" 2> /dev/null; then
    run "$@" > "$attempt/out" 2> "$attempt/err" < /dev/null
    echo $? > "$attempt/code.part" && mv "$attempt/code.part" "$attempt/code"
elif [[ ! -d $attempt ]]; then
    echo "cannot write to $job_dir" >&2
    exit 1
fi
for ((tenths = 0; tenths < seconds * 10; tenths++)); do
    [[ -e $attempt/code ]] && break
    sleep 0.1
done
cat "$attempt/out"
cat "$attempt/err" >&2
[[ -e $attempt/code ]] || { echo "timed out: the submission was begun, and its end is not known" >&2; exit 1; }
exit "$(cat "$attempt/code")"
"""
# Prints an archive of the files on stdin and of those in directories; of long files only the end.
PULL = """\
work=$(mktemp -d) || exit 1
while IFS= read -r path; do
    if [[ -d $path ]]; then find "$path" -maxdepth 2 -type f ! -name '*.out' ! -name '*.err'; else echo "$path"; fi
done | while IFS= read -r path; do
    [[ -f $path && -r $path ]] || continue
    if (($(stat -c %s "$path") <= limit)); then
        printf '%s\\n' "${path#/}" >> "$work/short"
    else
        end=$work/ends$path
        mkdir -p "${end%/*}" && tail -c "$limit" "$path" > "$end" && touch -r "$path" "$end"
    fi
done
[[ -e $work/short ]] \\
    && tar -cf - -C / --ignore-failed-read --no-recursion --verbatim-files-from -T "$work/short" 2> /dev/null
[[ -d $work/ends ]] && tar -cf - -C "$work/ends" .
rm -rf "$work"
"""
# Prints an archive of a directory, without a part of it; tar ends with 1 if a file grew meanwhile.
FETCH = """\
[[ -d $path ]] || { echo "there is no directory $path" >&2; exit 1; }
tar -C "$path" -czhf - --exclude="./$without" . || (($? == 1))
"""


class Host(Transport):
    """A host that has Slurm's commands."""

    poll_seconds = 1.0

    def __init__(self, host: str) -> None:
        self.connection = Connection(host)
        self.host = host
        self.remedy = f"{host} must be a login node, with Slurm's commands on the PATH of a login shell"
        self._copies = tempfile.TemporaryDirectory(prefix="torchx-slurm-")
        self._lock = threading.Lock()

    @functools.cached_property
    def environ(self) -> Mapping[str, str]:
        """The variables of a login shell there."""
        found = self.done("env -0").decode(errors="replace")
        return dict(line.split("=", 1) for line in found.split("\0") if "=" in line)

    def absolute(self, path: str) -> Path:
        """Returns a path there in full: relative to, or `~` for, the user's home."""
        home = self.environ.get("HOME", "/")
        return Path(os.path.normpath(Path(home, re.sub(r"^~(/|$)", "", path))))

    def call(self, *command: str, kept: Collection[str] = ()) -> Answer:
        """Runs a command of Slurm there."""
        return _answer(command, self.connection.run(f"{WITHOUT_VARIABLES}{_kept(kept)}run {shlex.join(command)}"))

    def call_once(self, *command: str, job_dir: Path, attempt: int, kept: Collection[str] = ()) -> Answer:
        """Runs a command that must not run twice, however often the connection is lost.

        A second call of the same attempt runs nothing, and returns what the first has printed.

        Raises:
            MaybeSubmitted: The connection did not come back.
        """
        named = variables(job_dir=str(job_dir), attempt=f"submission-{attempt}", seconds=SUBMIT_SECONDS)
        script = f"{WITHOUT_VARIABLES}{_kept(kept)}{named}set -- {shlex.join(command)}\n{ONCE}"
        try:
            return _answer(command, self.connection.run(script))
        except HostAway as error:
            raise MaybeSubmitted(
                f"{error}; whether the job was submitted is not known: look with `torchx list -s slurm -cfg"
                f" host={self.host}`, and if it stays away, submit it again"
            ) from error

    def state_directory(self, scheduler: str) -> Path:
        """Returns the directory there in which a scheduler keeps records of the user's jobs."""
        base = self.environ.get("XDG_STATE_HOME") or self.absolute(".local/state")
        return Path(base) / STATE_FOLDER / scheduler

    def pull(self, *paths: Path) -> None:
        """Copies files to where `here` shows them, and removes copies of those that are gone."""
        if not paths:
            return
        wanted = "".join(f"{path}\n" for path in paths).encode()
        archive = self.done(f"limit={TAIL_BYTES}\n{PULL}", wanted)
        with self._lock:
            found = _unpack(archive, self.here)
            for path in paths:
                copy = self.here(path)
                for file in [*copy.rglob("*")] if copy.is_dir() else [copy]:
                    if file not in found and file.is_file():
                        file.unlink()

    def here(self, path: Path) -> Path:
        """Returns where the copy of a file is, if it was pulled."""
        return _below(Path(self._copies.name), path)

    def fetch(self, path: Path, to: Path, without: str) -> None:
        """Copies the files of a directory."""
        archive = self.done(variables(path=str(path), without=without) + FETCH)
        _unpack(archive, lambda name: _below(to, name))

    def open_log(self, path: Path, position: int) -> tuple[BinaryIO, int] | None:
        """Reads a part of a log from a position, or from its beginning if it has become shorter."""
        named = variables(path=str(path), position=position, most=LOG_BYTES)
        said = self.connection.run(
            f"{named}[[ -f $path ]] || exit 3\n"
            '(($(stat -c %s "$path") < position)) && position=0\n'
            'echo "$position"; tail -c "+$((position + 1))" "$path" | head -c "$most"\n'
        )
        if said.code == 3:
            return None
        self._check(said)
        start, _, content = said.output.partition(b"\n")
        return io.BytesIO(content), int(start)

    def write(self, path: Path, text: str) -> None:
        """Writes a file there, and creates its directory."""
        named = variables(path=str(path), text=text)
        self.done(f'{named}mkdir -p "${{path%/*}}" && printf %s "$text" > "$path"')

    def touch(self, paths: Iterable[Path]) -> None:
        """Creates empty files there, where that is possible."""
        files = [*map(str, paths)]
        folders = [*map(os.path.dirname, files)]
        self.done(f"mkdir {shlex.join(folders)} 2> /dev/null; touch {shlex.join(files)} 2> /dev/null; true")

    def remove(self, path: Path) -> None:
        """Removes a file there, if it is there."""
        self.done(f"rm -f -- {shlex.quote(str(path))}")

    def call_script(self, script: str) -> Said:
        """Runs lines of bash, in which `run` calls a command of Slurm."""
        return self.connection.run(f"{WITHOUT_VARIABLES}{_kept(())}{script}")

    def exists(self, path: Path) -> bool:
        """Returns whether there is a file or directory."""
        return not self.connection.run(f"[[ -e {shlex.quote(str(path))} ]]").code

    def is_readable(self, path: Path) -> bool:
        """Returns whether the user may read a file."""
        return not self.connection.run(f"[[ -r {shlex.quote(str(path))} ]]").code

    def done(self, script: str, content: bytes = b"") -> bytes:
        """Returns what a script has printed.

        Raises:
            SchedulerError: It has failed.
        """
        said = self.connection.run(script, content)
        self._check(said)
        return said.output

    def _check(self, said: Said) -> None:
        if said.code:
            line = " ".join(said.errors.split()) or f"exit code {said.code}"
            raise SchedulerError(f"{self.host}: {line}")


@functools.cache
def reach(host: str) -> Transport:
    """Returns the way to a host, or to this machine if none is named.

    Raises:
        SchedulerError: The name cannot be that of a host.
    """
    return Host(host) if host else HERE


def _below(folder: Path, path: Path) -> Path:
    """Returns the place of a path in a folder, which it cannot leave."""
    return folder / os.path.normpath(f"/{path}").lstrip("/")


def _unpack(archive: bytes, place: Callable[[Path], Path]) -> set[Path]:
    """Writes the files of an archive to their places, which it returns."""
    found: set[Path] = set()
    if not archive:
        return found
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r|*", ignore_zeros=True) as files:
        for member in files:
            if not member.isfile():
                continue
            copy = place(Path(member.name))
            if copy.parent.is_file():  # was a file once
                copy.parent.unlink()
            copy.parent.mkdir(parents=True, exist_ok=True)
            content = files.extractfile(member)
            assert content
            part = copy.with_name(f".{copy.name}.part")
            with part.open("wb") as target:
                shutil.copyfileobj(content, target)
            os.utime(part, (member.mtime, member.mtime))
            part.replace(copy)  # readers find the old one or the new one
            found.add(copy)
    return found


def _answer(command: tuple[str, ...], said: Said) -> Answer:
    return Answer(command, said.code, said.output.decode(errors="replace"), said.errors)


def _kept(names: Collection[str]) -> str:
    return variables(kept=" ".join(names))


def variables(**values: object) -> str:
    """Returns lines of shell that set variables."""
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())
