"""New job directories: on this machine, or on a host, to which the code of the working directory is sent as well."""

import contextlib
import logging
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from torchx.schedulers.ids import make_unique
from torchx.specs import Workspace

from schedulers.errors import MaybeSubmitted, SchedulerError
from schedulers.slurm.code import COMPLETE, Code, archive_of, files_of
from schedulers.slurm.host import Host, variables
from schedulers.slurm.script import ENVIRONMENT, SlurmRequest
from schedulers.slurm.transport import HostAway

log = logging.getLogger(__name__)

CODE_DAYS = 30  # that code is kept on a host after the last job was submitted with it
ABSENT, EXISTS = 4, 5
ASK_FOR_CODE = f"""\
mkdir -p "${{code%/*}}" || exit 1
[[ -d $code ]] || exit {ABSENT}
touch "$code"
"""
# Unpacks what is on stdin, whole or not at all, into the new directory $1.
UNPACK = f"""\
unpack() {{
    rm -rf "$1" && mkdir -p "$1" && tar -xzf - -C "$1" && [[ -e $1/{COMPLETE} ]] && return
    rm -rf "$1"
    exit 1
}}
"""
SEND_CODE = f"""\
{UNPACK}
unpack "$code.part-$token"
mv -T "$code.part-$token" "$code" 2> /dev/null || rm -rf "$code.part-$token"  # another was quicker
[[ -d $code ]]
"""
# Removes code that no job has used for long, unless a job works in it, or has left files there.
CLEAN = f"""\
used=$(run squeue --me --noheader --format=%Z) || exit 0
find "${{code%/*}}" -mindepth 1 -maxdepth 1 -type d -mtime "+$days" | while IFS= read -r old; do
    grep -qxF "$old" <<< "$used" && continue
    if [[ $old != *.part-* ]]; then
        [[ -e $old/{COMPLETE} ]] || continue
        [[ $(find "$old" -newercc "$old/{COMPLETE}" -type f ! -path '*/__pycache__/*' | head -n 1) ]] && continue
    fi
    rm -rf "$old"
done
"""
SEND_JOB = f"""\
{UNPACK}
[[ -e $job_dir && $(cat "$job_dir/.torchx-token" 2> /dev/null) == "$token" ]] && exit  # whose answer was lost
[[ -e $job_dir ]] && exit {EXISTS}
part=$job_dir.part-$token
unpack "$part"
[[ ! $copied ]] || cp -a "$code/." "$part/" || {{ rm -rf "$part"; exit 1; }}
rm -f "$part/{COMPLETE}"
echo "$token" > "$part/.torchx-token"
mv -T "$part" "$job_dir" || {{ rm -rf "$part"; exit 1; }}
"""


@contextlib.contextmanager
def new_directory(wanted: SlurmRequest, workspace: Workspace | None) -> Iterator[None]:
    """Makes the job directory on this machine, with a copy of the workspace; removes it if the job is refused.

    Raises:
        SchedulerError: It cannot be written.
    """
    with contextlib.ExitStack() as if_refused:
        try:
            for folder in reversed([*_missing(wanted.job_dir.parent)]):
                folder.mkdir(exist_ok=True)
                if_refused.callback(_remove_if_empty, folder)
            wanted.job_dir.mkdir(parents=True)
            if_refused.callback(shutil.rmtree, wanted.job_dir, ignore_errors=True)
            if workspace:
                _copy(workspace, wanted.job_dir)
            wanted.write()
        except OSError as error:
            raise SchedulerError(
                f"{wanted.job_dir}: the job directory cannot be written: {error.strerror or error}; run torchx in"
                " a directory that can, or give -cfg job_dir"
            ) from error
        try:
            yield
        except MaybeSubmitted:
            if_refused.pop_all()
            raise
        if_refused.pop_all()


def _missing(folder: Path) -> Iterator[Path]:
    """Yields a directory and its parents as far as they do not exist, the innermost first."""
    while not folder.exists():
        yield folder
        folder = folder.parent


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another job is in it by now
        folder.rmdir()


def _copy(workspace: Workspace, target: Path) -> None:
    """Copies the workspace without the files that .torchxignore excludes."""
    # Listed before anything is copied: the target may be below the source.
    for name, file in [*files_of(workspace, besides=target)]:
        into = target / name
        into.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, into)


@contextlib.contextmanager
def new_directory_there(at: Host, wanted: SlurmRequest) -> Iterator[None]:
    """Sends the code, unless it is there, and the job directory to a host; removes the latter if the job is refused.

    Raises:
        SchedulerError: They cannot be written, or the job directory exists.
    """
    assert wanted.code
    code, token = wanted.code_dir, make_unique("job")
    try:
        _send_code(at, wanted.code, code, token)
        _send_job(at, wanted, code, token)
        yield
    except (MaybeSubmitted, HostAway):
        raise
    except SchedulerError:
        with contextlib.suppress(SchedulerError):
            mine = '[[ $(cat "$job_dir/.torchx-token" 2> /dev/null) == "$token" ]] && rm -rf "$job_dir"; true'
            at.done(variables(job_dir=wanted.job_dir, token=token) + mine)
        raise


def _send_code(at: Host, code: Code, target: Path, token: str) -> None:
    named = variables(code=target, token=token, days=CODE_DAYS)
    asked = at.connection.run(named + ASK_FOR_CODE)
    if asked.code == ABSENT:
        archive = code.archive()
        log.info(
            "sending %d files, %d kB, to %s:%s",
            len(code.files) + len(code.links),
            len(archive) // 1000 + 1,
            at.host,
            target,
        )
        asked = at.connection.run(named + SEND_CODE, archive)
        at.call_script(named + CLEAN)
    if asked.code:
        raise _unwritable(at, target, asked.errors)


def _send_job(at: Host, wanted: SlurmRequest, code: Path, token: str) -> None:
    copied = "yes" if wanted.opts.job_dir is not None else ""
    named = variables(job_dir=wanted.job_dir, code=code, token=token, copied=copied)
    files = {name: (text.encode(), mode) for name, (text, mode) in wanted.files.items()}
    said = at.connection.run(named + SEND_JOB, archive_of(files))
    if said.code == EXISTS:
        raise SchedulerError(f"-cfg job_dir={wanted.opts.job_dir}: exists already on {at.host}: name a new directory")
    if said.code:
        raise _unwritable(at, wanted.job_dir, said.errors)


def _unwritable(at: Host, folder: Path, errors: str) -> SchedulerError:
    why = next((line for line in errors.splitlines() if line.strip()), "no message").strip()
    return SchedulerError(
        f"{folder} cannot be written on {at.host}: {why}; give -cfg remote_dir, a directory there that all nodes share"
    )


def run_as_job(at: Host, wanted: SlurmRequest, words: list[str], seconds: int) -> tuple[int, str]:
    """Runs a program on a host as the job would run it; returns its exit code, and what it wrote to stderr."""
    named = variables(job_dir=wanted.job_dir, work_dir=wanted.work_dir)
    lines = ['cd -- "$work_dir" || exit 1', *wanted.opts.before(), f'. "$job_dir/{ENVIRONMENT}"']
    said = at.connection.run(named + "\n".join([*lines, f"timeout {seconds} {shlex.join(words)}"]) + "\n")
    return said.code, said.errors
