"""Slurm over SSH: a laptop without Slurm and without the cluster's files, a real sshd, a real Slurm."""

import contextlib
import json
import os
import pty
import random
import re
import shutil
import sys
import threading
from pathlib import Path

import curve
import pytest
import tomli_w
from command import write_config
from jobs import config
from mailbox_servers import mailbox
from pipelines_of_shell import done as done_steps
from pipelines_of_shell import submissions, submitted, write_pipeline
from shells import wait_for
from slurm_shell import number
from small_disk import fill, mounted_disk

from schedulers.contract import ARRAY
from schedulers.slurm.host import reach
from schedulers.slurm.record import SCRIPT, About
from schedulers.slurm.scheduler import create_scheduler

pytestmark = [pytest.mark.slurm]

TWO_RUNS = f"""
from torchx.specs import AppDef, Resource, Role

def both() -> AppDef:
    roles = [Role(name, "", entrypoint="echo", args=[name], resource=Resource(1, 0, 100)) for name in "ab"]
    return AppDef("both", roles=roles, metadata={{"{ARRAY}": "yes"}})
"""
SAYS = "echo hello; echo oops >&2; cat own.txt; pwd"


def test_a_job_from_submission_to_deletion(laptop):
    (laptop.folder / "own.txt").write_text("mine\n")
    (laptop.folder / ".torchxignore").write_text("data\n")
    (laptop.folder / "data").mkdir()
    (laptop.folder / "data" / "large").write_text("")
    handle = laptop.shell_job(f"{SAYS}; ls -A; sleep 1000")
    assert re.fullmatch(r"slurm://torchx/login:\d+", handle)
    status = laptop.wait(handle, "RUNNING")
    code = re.search(r"running; replica 0 on n\d; code (\w{16})$", status["msg"])
    assert code, status
    while "torchxignore" not in (log := laptop.torchx("log", "--streams", "stdout", handle)):
        pass
    where = laptop.host.home / ".torchx-recsys" / "code" / code[1]
    assert log.splitlines()[:3] == ["sh/0 hello", "sh/0 mine", f"sh/0 {where}"]
    assert {*log.split()[6:]} == {"sh/0", ".torchx-complete", ".torchxignore", "own.txt"}
    assert laptop.torchx("log", "--streams", "stderr", handle) == "sh/0 oops\n"
    assert laptop.listed() == {handle: "RUNNING"}
    assert f"{handle} is " in laptop.try_torchx("cancel", handle).stderr
    assert laptop.wait(handle)["state"] == "CANCELLED"
    laptop.torchx("delete", handle)
    assert laptop.listed() == {}


def test_code_is_sent_once_and_again_when_it_changes(laptop):
    file = laptop.folder / "own.txt"
    file.write_text("one\n")
    said = [laptop.try_torchx(*_run("cat own.txt")) for _ in range(2)]
    file.write_text("two\n")
    said.append(laptop.try_torchx(*_run("cat own.txt")))
    assert ["sending 1 files" in done.stderr for done in said] == [True, False, True]
    handles = [done.stdout.strip() for done in said]
    for handle, text in zip(handles, ("one", "one", "two"), strict=True):
        assert laptop.wait(handle)["state"] == "SUCCEEDED"
        assert laptop.torchx("log", handle) == f"sh/0 {text}\n"


def _run(command, cfg=""):
    words = ("utils.sh", "--memMB", "100", "--", "exec", "bash", "-c", command)
    return ("run", "-s", "slurm", *(["-cfg", cfg] if cfg else []), *words)


def test_a_log_is_followed_to_the_end_over_lost_connections(laptop):
    handle = laptop.shell_job("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.5; done; exit 3")
    with _Cutter(laptop.host, seed=1, times=4, pause=(0.3, 1.2)):
        done = laptop.try_torchx("log", "-f", handle)
    assert done.stdout.splitlines() == [f"sh/0 line {i}" for i in range(1, 9)], done.stderr
    status = laptop.wait(handle)
    assert (status["state"], status["msg"].partition(";")[0][:6]) == ("FAILED", "failed")
    assert "its last line: line 8" not in status["msg"]


class _Cutter:
    """Kills parts of the connection at random moments while a block runs."""

    def __init__(self, host, seed, times, pause):
        dice = random.Random(seed)
        self._ended = threading.Event()
        self._cuts = [(dice.uniform(*pause), dice.choice(["session", "client", "master"])) for _ in range(times)]
        self._host = host
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *error):
        self._ended.set()
        self._thread.join()

    def _run(self):
        for pause, part in self._cuts:
            if self._ended.wait(pause):
                return
            self._host.cut(part)


def _seeds():
    return [pytest.param(seed, marks=[pytest.mark.more("one stands for all")] if seed else []) for seed in range(30)]


@pytest.mark.parametrize("seed", _seeds())
def test_whenever_the_connection_is_cut_a_job_is_submitted_once(laptop, seed):
    before = laptop.jobs()
    with _Cutter(laptop.host, seed, times=3, pause=(0.05, 0.5)):
        done = laptop.try_torchx(*_run(f"echo {seed}"))
    assert done.returncode == 0, done.stderr
    handle = done.stdout.strip()
    assert [job for job in laptop.jobs() if job not in before] == [number(handle)]
    with _Cutter(laptop.host, seed + 100, times=2, pause=(0.05, 0.4)):
        assert laptop.status(handle)["state"] in ("PENDING", "RUNNING", "SUCCEEDED")
        assert handle in laptop.listed()
    assert laptop.wait(handle)["state"] == "SUCCEEDED"
    assert laptop.torchx("log", handle) == f"sh/0 {seed}\n"


TUTORIAL = Path(__file__).parents[3] / "docs/tutorials/to_slurm.md"
GUIDE = Path(__file__).parents[3] / "docs/guides/from_your_laptop.md"
ENVIRONMENT = Path(sys.executable).parents[1]


@pytest.mark.more("the first test stands for it")
def test_nothing_is_kept_on_the_laptop(laptop):
    handle = laptop.shell_job("true")
    laptop.wait(handle)
    shutil.rmtree(laptop.host.laptop / ".local", ignore_errors=True)
    assert laptop.listed()[handle] == "SUCCEEDED"


@pytest.mark.more("the doctor is tested on this machine")
def test_the_doctor_compares_versions(laptop):
    done = laptop.try_torchx("doctor", "--venv", str(ENVIRONMENT))
    assert re.search(r"^ok +SSH +login is \S+, bash", done.stdout, re.MULTILINE)
    assert re.search(r"^ok +Slurm +slurm", done.stdout, re.MULTILINE)
    assert re.search(r"^ok +environment on login +python 3", done.stdout, re.MULTILINE)
    assert not re.search(" on login, .* here", done.stdout)
    done = laptop.try_torchx("doctor", "--host", "bare")
    assert done.returncode == 1
    assert re.search("^WRONG +Slurm +no sinfo on PATH +bare must be a login node", done.stdout, re.MULTILINE)


def test_what_the_command_refuses_on_the_cluster_is_refused(laptop):
    (laptop.folder / "c.toml").write_text("[train]\nsteps = 'many'\n")
    words = ("dlrm.single_node", "--config", "c.toml", "--cpu", "1", "--memMB", "100")
    done = laptop.try_torchx("run", "-s", "slurm", "-cfg", f"venv={ENVIRONMENT}", *words)
    (line,) = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"^torchx run: error: .*train.steps.*; nothing was submitted$", line), line


def test_what_cannot_be_fetched_is_one_line(laptop):
    handle = laptop.shell_job("true")
    assert laptop.wait(handle)["state"] == "SUCCEEDED"
    job = laptop.job_dir(handle) / f"slurm-{number(handle)}"

    def refused(*words):
        done = laptop.try_torchx("fetch", handle, *words)
        (line,) = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (2, "")
        return line.partition("torchx fetch: error: ")[2]

    assert refused().startswith(f"{handle}: no run to fetch: the job has not begun to train, trains nothing")
    progress = {"step": 1, "last_step": 2, "time": 0.0}
    (job / "training.json").write_text(json.dumps(progress | {"run_directory": "s3://bucket/run"}))
    assert refused() == f"{handle}: its run is s3://bucket/run, which is read here as it is"
    run = laptop.host.home / "runs" / "a run"
    (job / "training.json").write_text(json.dumps(progress | {"run_directory": str(run)}))
    assert refused() == f"login: there is no directory {run}"
    assert not (laptop.folder / "runs" / "a run").exists()
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("{}")
    (laptop.folder / "mine").mkdir()
    (laptop.folder / "mine" / "kept").write_text("")
    assert refused("--to", "mine").startswith("--to mine: exists, and is no copy of slurm://torchx/login:")
    said = laptop.torchx("fetch", handle, "--to", "other")
    assert said.startswith(f"{run} is in other, without its checkpoints\nnext:\n")
    assert (laptop.folder / "other" / "metrics.jsonl").read_text() == "{}"
    assert [file.name for file in (laptop.folder / "mine").iterdir()] == ["kept"]
    (run / "large").write_bytes(random.randbytes(1_000_000))
    with mounted_disk(laptop.folder, 2) as disk:
        fill(disk, but=500_000)
        assert "No space left" in refused("--to", "disk/copy")
        (disk / "filler").unlink()
        laptop.torchx("fetch", handle, "--to", "disk/copy")
        assert (disk / "copy" / "large").read_bytes() == (run / "large").read_bytes()


@pytest.mark.more("a rare option")
def test_a_job_directory_on_the_host_is_a_copy_of_the_code(laptop):
    (laptop.folder / "own.txt").write_text("mine\n")
    handle = laptop.shell_job("cat own.txt; pwd", cfg="job_dir=mine")
    laptop.wait(handle)
    there = laptop.host.home / ".torchx-recsys" / "mine"
    assert laptop.torchx("log", handle) == f"sh/0 mine\nsh/0 {there}\n"
    done = laptop.try_torchx(*_run("true", "job_dir=mine"))
    assert done.returncode == 2
    assert done.stderr.endswith("error: -cfg job_dir=mine: exists already on login: name a new directory\n")


def test_too_much_to_be_code_is_refused(laptop):
    with (laptop.folder / "data.bin").open("wb") as file:
        file.truncate(300_000_000)
    done = laptop.try_torchx(*_run("true"))
    assert done.returncode == 2
    assert "300,000,000 bytes would be sent as code, of which data.bin has 300,000,000: name in .torch" in done.stderr
    (laptop.folder / "data.bin").unlink()


@pytest.mark.more("old code is rare")
def test_old_code_is_removed_unless_a_job_works_in_it_or_has_left_files(laptop):
    file, codes = laptop.folder / "own.txt", laptop.host.home / ".torchx-recsys" / "code"
    handles = {}
    for name, command in {"done": "true", "left": "touch result", "works": "sleep 1000"}.items():
        file.write_text(name)
        handles[name] = laptop.shell_job(command)
    for name in ("done", "left"):
        assert laptop.wait(handles[name])["state"] == "SUCCEEDED"
    laptop.wait(handles["works"], "RUNNING")
    where = {name: laptop.work_dir(handle) for name, handle in handles.items()}
    for folder in codes.iterdir():
        os.utime(folder, (0, 0))
    file.write_text("new")
    laptop.shell_job("true")
    assert {name: folder.exists() for name, folder in where.items()} == {"done": False, "left": True, "works": True}
    laptop.torchx("cancel", handles["works"])


def test_a_submission_that_comes_late_submits_nothing_once_it_was_given_up(laptop, monkeypatch):
    """The submitter was killed, and its last command is still on its way when another looks for the job."""
    before, job_dir = laptop.jobs(), laptop.host.home / ".torchx-recsys/jobs/late"
    job_dir.mkdir(parents=True)
    About("sh", "sh", 1).write(job_dir)
    (job_dir / SCRIPT).write_text("#!/bin/sh\ntrue\n")
    with monkeypatch.context() as patch:
        for name in ("HOME", "PATH"):
            patch.setenv(name, laptop.env[name])
        assert create_scheduler("torchx").find(f"login:{job_dir / SCRIPT}") is None
        sbatch = ("sbatch", "--parsable", str(job_dir / SCRIPT))
        late = reach("login").call_once(*sbatch, job_dir=job_dir, attempt=1)
    assert (late.returncode, late.stdout) == (0, "")
    assert set(laptop.jobs()) <= set(before)  # fewer, where Slurm has forgotten one meanwhile


@pytest.mark.more("arrays are tested on the cluster itself")
def test_an_array(laptop):
    (laptop.folder / "two.py").write_text(TWO_RUNS)
    handle = laptop.submit("two.py:both")
    assert laptop.wait(handle)["state"] == "SUCCEEDED"
    assert laptop.torchx("log", f"{handle}/b") == "b/0 b\n"
    assert laptop.wait(f"{handle}_1")["state"] == "SUCCEEDED"
    assert laptop.listed()[handle] == "SUCCEEDED"


@pytest.mark.more("a training on Slurm stands for all")
def test_the_guide_as_it_is_typed(laptop, rows):
    page = GUIDE.read_text()
    (options,) = re.findall(r"^```ini\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (laptop.host.laptop / ".torchxconfig").write_text(options.replace("batch", "main"))
    (laptop.host.home / "envs").mkdir()
    (laptop.host.home / "envs" / "recsys").symlink_to(ENVIRONMENT)
    write_config(laptop.folder / "mine.toml", config(rows, train__steps=20))
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    doctor, run, *rest = "".join(blocks).replace("\\\n", " ").splitlines()
    assert re.search(r"^ok +environment on login.example ", laptop.torchx(*doctor.split()[1:]), re.MULTILINE)
    out = laptop.host.home / "runs" / "mine"
    handle = laptop.torchx(*run.replace("/shared/runs/mine", str(out)).split()[1:]).strip()
    assert handle.startswith("slurm://torchx/login.example:")
    assert laptop.wait(handle)["state"] == "SUCCEEDED", laptop.batch_log(handle)
    assert (out / "metrics.jsonl").exists()
    typed = {line.split()[1]: line.replace("slurm://torchx/login.example:1234", handle).split()[1:] for line in rest}
    assert [*typed] == ["status", "log", "list", "cancel", "delete", "fetch"]
    assert "finished at step 20" in laptop.torchx(*typed["status"])
    assert "step 20/20" in laptop.torchx(*typed["log"])
    assert handle in laptop.torchx(*typed["list"])
    for _ in range(2):
        *_, see, page = laptop.torchx(*typed["fetch"]).splitlines()
        assert (see, page) == (
            "  python -m trainer tensorboard --logdir runs/mine",
            "  open runs/mine/run.html in a browser",
        )
    assert_is_copied(out, laptop.folder / "runs/mine")
    laptop.torchx(*typed["cancel"])
    laptop.torchx(*typed["delete"])


def assert_is_copied(run, copy):
    """All of a run is there, but its checkpoints."""
    there = {str(file.relative_to(run)): file.read_bytes() for file in run.rglob("*") if file.is_file()}
    here = {str(file.relative_to(copy)): file.read_bytes() for file in copy.rglob("*") if file.is_file()}
    assert here.pop(".torchx-fetched")
    assert here == {name: content for name, content in there.items() if not name.startswith("checkpoints/")}
    assert "metrics.jsonl" in here


@pytest.mark.more("the guide is typed, too")
def test_the_tutorial_as_it_is_typed(laptop, rows):
    """To Slurm, where the laptop's own .torchxconfig names the host and the environment there."""
    page = TUTORIAL.read_text()
    (options,) = re.findall(r"^```ini\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (laptop.host.laptop / ".torchxconfig").write_text(f"[slurm]\nhost = login\nvenv = {ENVIRONMENT}\n")
    write_config(laptop.folder / "mine.toml", config(rows, train__steps=600))
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    out = laptop.host.home / "shared/runs/mine"
    text = "".join(blocks).replace("\\\n", " ").replace("/shared/runs/mine", str(out)).replace("=batch", "=main")
    doctor, dry, dry_here, run, status, log, listed, cancel = (line.split()[1:] for line in text.splitlines())
    out.parent.mkdir(parents=True)

    def typed(words, handle):
        return laptop.torchx(*(word.replace("slurm://torchx/1234", handle) for word in words))

    assert "WRONG" not in laptop.torchx(*doctor)
    for words in (dry, dry_here):
        assert "#SBATCH --nodes=2" in laptop.torchx(*words)
    (laptop.folder / ".torchxconfig").write_text(options.replace("= batch", "= main"))
    handle = laptop.torchx(*run).strip()
    wait_for(lambda: (out / "metrics.jsonl").exists())
    assert re.search(r"^ +State: RUNNING", typed(status, handle), re.MULTILINE)
    assert handle in typed(listed, handle)
    typed(cancel, handle)
    assert laptop.wait(handle)["state"] == "CANCELLED"
    handle = laptop.torchx(*run).strip()
    said = typed(log, handle)
    assert "resumed after step" in said
    assert "step 600/600" in said
    laptop.wait(handle)
    assert "finished at step 600" in typed(status, handle)


@pytest.mark.more("of an unknown key alone")
def test_ssh_asks_at_a_terminal(laptop):
    child, terminal = pty.fork()
    if not child:
        os.chdir(laptop.folder)
        command = [str(ENVIRONMENT / "bin" / "torchx"), "list", "-s", "slurm", "-cfg", "host=new"]
        os.execve(command[0], command, laptop.env)
    said = ""
    with contextlib.suppress(OSError):  # the terminal is gone when the process is
        while part := os.read(terminal, 4096):
            said += part.decode()
            if said.rstrip().endswith("(yes/no/[fingerprint])?"):
                os.write(terminal, b"yes\n")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said
    assert "APP HANDLE" in said


@pytest.mark.more("pipelines are tested on local_cwd")
def test_a_pipeline(laptop):
    (laptop.folder / ".torchxignore").write_text("out\ndone\n")
    file = write_pipeline(laptop.folder / "p.toml", a=("true",), b=("true", "a"))
    with _Cutter(laptop.host, seed=3, times=4, pause=(0.3, 1.5)):
        first = submitted(laptop.torchx("pipeline", "run", "-s", "slurm", "p.toml", "--wait"))
    assert {what for what, _ in first.values()} == {"submitted"}
    assert done_steps(file) == ["a", "b"]
    # The submitter of `b` was killed before it noted the handle.
    (note,) = submissions(file, "b")
    (laptop.folder / "out/pipeline/b-1.json").write_text(json.dumps(note | {"handle": "", "ended_as": ""}))
    assert submitted(laptop.torchx("pipeline", "run", "-s", "slurm", "p.toml"))["b"] == ("kept", first["b"][1])


@pytest.mark.more("sweeps are tested on local_cwd")
def test_a_sweep(laptop):
    """Its trials write to a directory that the laptop reaches, too."""
    shutil.copy(curve.__file__, laptop.folder)
    (laptop.folder / ".torchxignore").write_text("out\n")
    space = {"optimizer": {"dense": {"learning_rate": {"range": [0.0001, 1.0]}}}}
    out, asked = str(laptop.folder / "out"), {"config": "movielens", "seconds": 0.1}
    tree = {"out": out, "component": "curve.py:train", "trials": 2, "at_once": 2, "space": space, "arguments": asked}
    (laptop.folder / "s.toml").write_text(tomli_w.dumps(tree))
    said = laptop.torchx("sweep", "run", "s.toml", "-s", "slurm", "-cfg", f"venv={ENVIRONMENT}")
    assert said.count("  done at step 90") == 2, said


@pytest.mark.more("messages are tested on this machine")
def test_the_end_of_a_job_is_told_with_the_handle_of_the_laptop(laptop, tmp_path):
    with mailbox(tmp_path) as box:
        shutil.copy(tmp_path / "apprise.yml", laptop.host.home / ".apprise.yml")
        handle = laptop.shell_job("true", cfg=f"notify=hook,venv={ENVIRONMENT}")
        wait_for(lambda: box.hooked)
        title, text = box.hooked[0]
        assert (title, text.splitlines()[0]) == ("sh SUCCEEDED", handle)
        done = laptop.try_torchx(*_run("true", f"notify=nobody,venv={ENVIRONMENT}"))
    assert done.returncode == 2
    assert "error: login: -cfg notify=nobody: no such tag in the configuration of Apprise" in done.stderr


WRONG = {
    "host=nowhere.invalid": "nowhere.invalid: ssh: Could not resolve hostname nowhere.invalid: .*; no such host: check",
    "host=-Ffile": "-cfg host=-Ffile: must be HOST or USER@HOST; describe anything else",
    "host=ssh://login": "-cfg host=ssh://login: must be HOST or USER@HOST",
    "host=closed": "closed: ssh: connect to host 127.0.0.1 port 9: Connection refused; it does not answer: check",
    "host=stranger": r"stranger: root@127.0.0.1: Permission denied \(publickey\).; it refuses the user or the key: unt",
    "host=unknown": "unknown: Host key verification failed.; its key is not the known one: accept it, or have it",
    "host=changed": "changed: .*IDENTIFICATION HAS CHANGED.*; its key is not the known one",
    "host=bare": "sinfo is not installed on bare: bare must be a login node, with Slurm's commands on the PATH of a",
    "host=ending": "ending: No jobs today; a login shell of bash must run there: see what `ssh ending bash -lc true`",
    "venv=env": "-cfg venv=env: must be an absolute path, or begin with ~",
    "venv=/no/env": "-cfg venv=/no/env: has no bin/python on login: make it there, or leave venv out",
    "remote_dir=/proc/1": "/proc/1/code/.* cannot be written on login: mkdir: .*; give -cfg remote_dir, a directory",
    "partition=nope": "sbatch: invalid partition specified: nope; Batch job submission failed: Invalid partition",
    "after=slurm://torchx/1": "-cfg after=slurm://torchx/1: must be a job on the host login: a job waits only for",
    "after=slurm://torchx/login:4999999": "-cfg after=slurm://torchx/login:4999999: no such job; nothing was",
}


@pytest.mark.few(4, "four stand for all")
@pytest.mark.parametrize("cfg", WRONG)
def test_wrong_input_is_one_line_and_leaves_nothing(laptop, cfg):
    jobs = laptop.host.home / ".torchx-recsys" / "jobs"
    before = [*jobs.glob("*")]
    laptop.host.cut("master")  # of the same address and user, which some of these would share
    done = laptop.try_torchx(*_run("true", cfg))
    (line,) = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(f"torchx run: error: {WRONG[cfg]}", line), line
    assert [*jobs.glob("*")] == before
