"""Jobs of a few lines of bash on a real Slurm: status, log, list and cancel, and the files that remain."""

import json
import re
import shutil
import subprocess
import time

import pytest
from slurm_shell import Shell, number

pytestmark = [pytest.mark.slurm, pytest.mark.more("a training on Slurm stands for all")]

NOT_AVAILABLE = "Batch job submission failed: Requested node configuration is not available"
AWKWARD = {
    "COMMAS": "mlx5_0,mlx5_1",
    "QUOTES": """it's "quoted" and 'quoted'""",
    "SHELL": "$HOME `id` $(id) \\ * ~ !",
    "LINES": "one\ntwo\n",
    "EMPTY": "",
    "SECRET": "hunter2",
}
SAVES_WHEN_WARNED = """
    [ -e "$TORCHX_OUTCOME_FILE.saved" ] && exit 0
    touch "$TORCHX_OUTCOME_FILE.saved"
    trap 'echo "stopped at step 3, saved x" > "$TORCHX_OUTCOME_FILE"; exit 1' USR1
    while true; do sleep 0.1; done
"""
SHOWS_ITS_ENVIRONMENT = """
import json
from torchx.specs import AppDef, Resource, Role, macros

def show() -> AppDef:
    env = json.loads(open({file!r}).read()) | {{"JOB": macros.app_id, "ME": "replica " + macros.replica_id}}
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    resource = Resource(cpu=1, gpu=0, memMB=100)
    role = Role("shows", image="", entrypoint="python", args=["-c", code], env=env, num_replicas=2, resource=resource)
    return AppDef("shows", roles=[role])
"""


def submit_all(shell):
    """Submits jobs with all sorts of ends at once."""
    once = 'test -e "$TORCHX_OUTCOME_FILE.once" || { touch "$TORCHX_OUTCOME_FILE.once"; exit 5; }'
    commands = {
        "succeeds": ("echo hello; echo oops >&2",),
        "fails": ("exit 3",),
        "killed": ("kill -9 $BASHPID",),
        "starved": ("echo 'slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.' >&2; exit 1",),
        "retried": (once, "--max_retries", "1"),
        "gives up": ("echo try; exit 4", "--max_retries", "1"),
        "sleeps": ("echo awake; sleep 1000", "--num_replicas", "2"),
    }
    handles = {name: shell.shell_job(*command) for name, command in commands.items()}
    handles["warned asleep"] = shell.shell_job(
        '[ -e "$TORCHX_OUTCOME_FILE.once" ] && exit 0; touch "$TORCHX_OUTCOME_FILE.once"; exec sleep 1000',
        *("--max_retries", "3"),
        cfg="time=1,signal_lead=10",  # Slurm looks every 30 s: one of 30 s may come as soon as the job starts
    )
    handles["limited"] = shell.shell_job(SAVES_WHEN_WARNED, cfg="time=1,signal_lead=5")
    handles["waits"] = shell.shell_job("true", cfg="begin=now+1hour")
    return shell, handles


@pytest.fixture(scope="module")
def submitted(accounting, clusters, tmp_path_factory):
    return submit_all(Shell(clusters(accounting), tmp_path_factory.mktemp("jobs")))


def test_pending(submitted):
    shell, handles = submitted
    status = shell.wait(handles["waits"], "PENDING")
    assert re.match(r"waiting: BeginTime, expected to start 20\d\d-", status["msg"])
    assert status["num_restarts"] == 0
    shell.torchx("cancel", handles["waits"])
    assert shell.wait(handles["waits"])["state"] == "CANCELLED"


def test_running_and_cancelled(submitted):
    shell, handles = submitted
    status = shell.wait(handles["sleeps"], "RUNNING")
    log = ""
    while log.count("awake") < 2:
        log = shell.torchx("log", handles["sleeps"])
    status = shell.status(handles["sleeps"])
    replicas = status["roles"][0]["replicas"]
    assert [replica["state"] for replica in replicas] == [3, 3]
    assert len({replica["hostname"] for replica in replicas} & {"n1", "n2", "n3"}) == 2
    assert f"replica 0 on {replicas[0]['hostname']}, 1 on" in status["msg"]
    assert shell.listed()[handles["sleeps"]] == "RUNNING"
    shell.torchx("cancel", handles["sleeps"])
    status = shell.wait(handles["sleeps"])
    assert (status["state"], status["num_restarts"]) == ("CANCELLED", 0)
    shell.torchx("cancel", handles["sleeps"])


@pytest.mark.parametrize(
    ("job", "state", "restarts", "message"),
    [
        ("succeeds", "SUCCEEDED", 0, "succeeded; replica 0 on n"),
        ("fails", "FAILED", 0, r"failed: replica 0 on n\d: Exited with exit code 3; replica 0 on n"),
        (
            "killed",
            "FAILED",
            0,
            r"failed: replica 0 on n\d: (Killed|Exited with exit code 137 \(SIGKILL\)); replica 0 on n",
        ),
        ("starved", "FAILED", 0, r"failed: out of memory \(replica 0 on n\d: Exited with exit code 1\); replica 0"),
        ("retried", "SUCCEEDED", 1, "succeeded; replica 0 on n"),
        ("gives up", "FAILED", 1, r"failed: replica 0 on n\d: Exited with exit code 4; replica 0 on n"),
    ],
)
def test_ends(submitted, job, state, restarts, message):
    shell, handles = submitted
    status = shell.wait(handles[job])
    assert (status["state"], status["num_restarts"]) == (state, restarts), shell.batch_log(handles[job])
    assert re.match(message, status["msg"])
    assert shell.listed()[handles[job]] == state
    if state == "FAILED":
        assert f"see {shell.job_dir(handles[job])}/slurm-" in status["msg"]


def test_failed_replica_is_shown_with_its_host_and_exit_code(submitted):
    shell, handles = submitted
    shell.wait(handles["fails"])
    shown = shell.torchx("status", handles["fails"])
    assert re.search(
        r"\*sh\[0\]:FAILED \(exitcode: 3\)\n.*\n +hostname: n\d\n +error_msg: Exited with exit code 3", shown
    )


def test_logs_of_both_streams_from_any_directory(submitted, tmp_path):
    shell, handles = submitted
    shell.wait(handles["succeeds"])
    assert shell.torchx("log", handles["succeeds"], cwd=tmp_path).splitlines() == ["sh/0 hello", "sh/0 oops"]
    assert shell.torchx("log", "--streams", "stdout", f"{handles['succeeds']}/sh/0") == "sh/0 hello\n"
    assert shell.torchx("log", "--streams", "stderr", handles["succeeds"]) == "sh/0 oops\n"
    assert shell.torchx("log", "--regex", "^h.l+o$", handles["succeeds"]) == "sh/0 hello\n"
    shell.wait(handles["gives up"])
    assert shell.torchx("log", handles["gives up"]) == "sh/0 try\n" * 2


def test_log_follows_to_the_end(shell):
    handle = shell.shell_job("for i in 1 2 3; do echo line $i; sleep 1; done", "--num_replicas", "2")
    lines = shell.torchx("log", "--tail", handle).splitlines()
    assert sorted(lines) == sorted(f"sh/{replica} line {i}" for replica in range(2) for i in (1, 2, 3))
    assert shell.status(handle)["state"] in ("RUNNING", "SUCCEEDED")


def test_no_such_replica_is_said_in_one_line(submitted):
    shell, handles = submitted
    done = shell.try_torchx("log", f"{handles['succeeds']}/sh/7")
    assert done.returncode != 0
    assert f"sh/7: job {number(handles['succeeds'])} has sh/0 to sh/0" in done.stderr


def test_unknown_job(shell):
    done = shell.try_torchx("status", "slurm://torchx/4999999")
    assert done.returncode == 1
    assert "does not exist" in done.stderr
    assert shell.listed() == {}


def test_environment_arrives_as_given_and_stays_secret(shell):
    (shell.folder / "env.json").write_text(json.dumps(AWKWARD))
    file = shell.folder / "component.py"
    file.write_text(SHOWS_ITS_ENVIRONMENT.format(file=str(shell.folder / "env.json")))
    handle = shell.submit(f"{file}:show")
    public = shell.cluster.run("scontrol", "show", "job", number(handle))
    shell.wait(handle)
    for replica in range(2):
        got = json.loads(shell.torchx("log", f"{handle}/shows/{replica}").partition(" ")[2])
        assert {name: got[name] for name in AWKWARD} == AWKWARD
        assert (got["JOB"], got["ME"]) == (number(handle), f"replica {replica}")
        assert got["TORCHX_JOB_ID"] == handle
    job_dir = shell.job_dir(handle)
    assert (job_dir / "torchx-job.env").stat().st_mode & 0o777 == 0o600
    rest = [path for path in job_dir.rglob("*") if path.is_file() and path.suffix not in (".env", ".out")]
    assert [path for path in rest if "hunter2" in path.read_text()] == []
    assert "hunter2" not in public


def test_what_slurm_refuses_is_said_in_its_words_and_leaves_nothing(shell):
    done = shell.try_torchx("run", "-s", "slurm", "-cfg", "partition=nope", "utils.echo")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "torchx run: error: sbatch: invalid partition specified: nope; "
        "Batch job submission failed: Invalid partition name specified"
    )
    assert "Traceback" not in done.stderr
    assert not (shell.folder / "slurm-jobs").exists()
    assert not any(shell.folder.rglob("*.*"))


def test_options_count_more_than_the_users_variables(shell):
    """To sbatch, SBATCH_* count more than the lines of a script."""
    variables = {"PARTITION": "nope", "TIMELIMIT": "7", "OUTPUT": "/nowhere", "NO_REQUEUE": "1", "ARRAY_INX": "1-3"}
    shell.env |= {f"SBATCH_{name}": value for name, value in variables.items()}
    shell.env["SBATCH_CONSTRAINT"] = "fast"
    handle = shell.shell_job("true", cfg="partition=main,time=9,begin=now+1hour")
    asked = shell.cluster.run("scontrol", "show", "job", number(handle))
    for word in ("Partition=main", "TimeLimit=00:09:00", "Requeue=1", "Features=fast"):
        assert f"{word} " in asked, word
    assert "ArrayTaskId" not in asked
    assert f"StdOut={shell.job_dir(handle)}/" in asked
    shell.torchx("cancel", handle)


def test_variables_of_slurms_commands_change_nothing(clusters, tmp_path):
    """Filters would hide a job that runs: without accounting it would be FAILED, and `cancel` would do nothing."""
    shell = Shell(clusters(False), tmp_path)
    names = ("SQUEUE_PARTITION", "SQUEUE_ACCOUNT", "SQUEUE_NAMES", "SQUEUE_QOS", "SCANCEL_PARTITION", "SCANCEL_NAME")
    own = {
        **dict.fromkeys(names, "nonesuch"),
        **{"SQUEUE_STATES": "completed", "SQUEUE_USERS": "games", "SCANCEL_STATE": "PENDING"},
        **{"SLURM_TIME_FORMAT": "relative", "SINFO_PARTITION": "nonesuch"},
    }
    shell.env |= own
    handle = shell.shell_job("env | grep -E '^(SQUEUE|SCANCEL|SINFO)_'; echo ready; sleep 1000")
    while "ready" not in shell.torchx("log", handle):
        time.sleep(0.5)
    assert shell.torchx("log", handle) == "sh/0 ready\n"
    assert shell.listed()[handle] == "RUNNING"
    shell.torchx("cancel", handle)
    assert shell.wait(handle)["state"] == "CANCELLED"


def test_every_command_of_slurm_gets_the_users_token(clusters, tmp_path):
    shell = Shell(clusters(False), tmp_path)
    wrappers = tmp_path / "bin"
    wrappers.mkdir()
    for name in ("sbatch", "scancel", "scontrol", "sinfo", "squeue"):
        real = shutil.which(name, path=shell.env["PATH"])
        lines = f'[ "$SLURM_JWT" = token ] || exit 9; unset SLURM_JWT; exec {real} "$@"'
        (wrappers / name).write_text(f"#!/bin/bash\n{lines}\n")
        (wrappers / name).chmod(0o755)
    shell.env |= {"PATH": f"{wrappers}:{shell.env['PATH']}", "SLURM_JWT": "token"}
    handle = shell.shell_job("true", cfg="begin=now+1hour")
    assert handle in shell.listed()
    shell.torchx("cancel", handle)


def test_a_job_whose_dependency_failed_does_not_wait_for_ever(clusters, tmp_path):
    shell = Shell(clusters(True), tmp_path)  # without accounting, it may be forgotten, and has noted nothing
    fails = shell.shell_job("exit 3")
    waits = shell.shell_job("true", cfg=f"dependency=afterok:{number(fails)}")
    assert shell.wait(fails)["state"] == "FAILED"
    status = shell.wait(waits)
    assert status["state"] == "CANCELLED"
    assert "a job that it depends on did not end as asked (DependencyNeverSatisfied)" in status["msg"]


def test_options_reach_slurm(shell):
    options = {
        "begin": ("now+1hour", "EligibleTime=20"),
        "comment": ("""it's "my" job #1""", """Comment=it's "my" job #1"""),
        "constraint": ("fast&new", "Features=fast&new"),
        "exclude": ("n[2-3]", "ExcNodeList=n[2-3]"),
        "nodelist": ("n1", "ReqNodeList=n1"),
        "exclusive": ("True", "OverSubscribe=NO"),
        "gres": ("gpu:2", "gpu:2"),
        "mem": ("200M", "MinMemoryNode=200M"),
        "nice": ("7", "Nice=7"),
        "partition": ("main,high", "Partition=main,high"),
        "requeue": ("False", "Requeue=0"),
        "time": ("1-2:03", "TimeLimit=1-02:03:00"),
        "mail-user": ("me@example.org", "MailUser=me@example.org"),
        "mail-type": ("END,FAIL", "MailType=END,FAIL"),
        "sbatch_args": ("--job-name mine;--hold", "JobName=mine"),
    }
    handle = shell.shell_job("true", cfg=",".join(f"{name}={value}" for name, (value, _) in options.items()))
    shown = shell.cluster.run("scontrol", "show", "job", number(handle))
    assert [wanted for _, wanted in options.values() if wanted not in shown] == []
    later = shell.shell_job("true", cfg=f"dependency=afterany:{number(handle)}")
    assert "waiting: Dependency" in shell.wait(later, "PENDING")["msg"]
    for job in (handle, later):
        shell.torchx("cancel", job)


def test_gpus(shell):
    show = 'echo "$SLURM_PROCID: $CUDA_VISIBLE_DEVICES"'
    own = shell.shell_job(show, "--num_replicas", "2", "--gpu", "2")
    shared = shell.shell_job(show, "--num_replicas", "2", "--gpu", "1", cfg="ntasks_per_node=2")
    shell.wait(own)
    assert sorted(shell.torchx("log", own).splitlines()) == ["sh/0 0: 0,1", "sh/1 1: 0,1"]
    shell.wait(shared)
    assert {line.partition(": ")[2] for line in shell.torchx("log", shared).splitlines()} == {"0", "1"}


def test_200_replicas_run_from_one_script_of_constant_size(shell):
    handle = shell.shell_job("echo $SLURM_PROCID", "--num_replicas", "200", "--memMB", "1", cfg="ntasks_per_node=67")
    assert shell.wait(handle)["state"] == "SUCCEEDED", shell.batch_log(handle)
    lines = [line.split() for line in shell.torchx("log", handle).splitlines()]
    assert sorted((who, int(task)) for who, task in lines) == sorted((f"sh/{i}", i) for i in range(200))
    status = shell.status(handle)
    hosts = [replica["hostname"] for replica in status["roles"][0]["replicas"]]
    assert {hosts.count(node) for node in ("n1", "n2", "n3")} == {66, 67}
    assert status["msg"].endswith(" and 192 more")
    small = shell.shell_job("echo $SLURM_PROCID", "--num_replicas", "2", "--memMB", "1")
    sizes = [(shell.job_dir(job) / "torchx-job.sh").stat().st_size for job in (handle, small)]
    assert abs(sizes[0] - sizes[1]) < 20


def test_more_replicas_than_there_are_nodes_wait_or_are_refused(shell):
    done = shell.try_torchx("run", "-s", "slurm", "utils.sh", "--num_replicas", "200", "true")
    if done.returncode:  # 22.05 lets such a job wait, 24.11 refuses it
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"torchx run: error: sbatch: {NOT_AVAILABLE}")
        return
    handle = done.stdout.strip()
    assert re.search("(waiting|waits for ever): Partition", shell.wait(handle, "PENDING")["msg"])
    assert len(shell.status(handle)["roles"][0]["replicas"]) == 200
    shell.torchx("cancel", handle)


def test_what_no_node_has_is_refused(shell):
    done = shell.try_torchx("run", "-s", "slurm", "utils.sh", "--memMB", "9999999", "true")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(NOT_AVAILABLE)


def test_job_directory_has_a_copy_of_the_workspace_and_runs_again(shell):
    project = shell.folder / "project"
    (project / "data").mkdir(parents=True)
    (project / "package").mkdir()
    (project / ".torchxignore").write_text("data\n*.tmp\n")
    for name in ("data/big", "a.tmp", "package/module"):
        (project / name).touch()
    (project / "run.sh").write_text("echo here is $(pwd)\n")
    (project / "run.sh").chmod(0o755)
    args = ("-s", "slurm", "-cfg", "job_dir=jobs/first", "utils.sh", "--memMB", "100", "./run.sh")
    shell.torchx("run", "--dryrun", *args, cwd=project)
    assert not (project / "jobs").exists()
    handle = shell.torchx("run", *args, cwd=project).strip()
    assert shell.wait(handle)["state"] == "SUCCEEDED", shell.batch_log(handle)
    job_dir = project / "jobs" / "first"
    assert shell.torchx("log", handle) == f"sh/0 here is {job_dir}\n"
    copied = {str(path.relative_to(job_dir)) for path in job_dir.rglob("*") if path.is_file()}
    assert {path for path in copied if not re.match(r"slurm-\d|torchx-job", path)} == {
        *(".torchxignore", "package/module", "run.sh")
    }
    done = shell.try_torchx("run", *args, cwd=project)
    assert done.returncode == 2
    assert f"exists already: name a new directory, or submit it again: sbatch {job_dir}" in done.stderr
    again = subprocess.run(["sbatch", "--parsable", job_dir / "torchx-job.sh"], env=shell.env, capture_output=True)
    handle = f"slurm://torchx/{again.stdout.decode().strip()}"
    assert shell.wait(handle)["state"] == "SUCCEEDED"
    assert shell.torchx("log", handle) == f"sh/0 here is {job_dir}\n"
    assert len(shell.listed()) == 2


def test_setup_runs_before_the_job(shell):
    (shell.folder / "env.sh").write_text("export FROM_SETUP=yes\n")
    handle = shell.shell_job("echo $FROM_SETUP", cfg="setup=echo preparing;. ./env.sh")
    shell.wait(handle)
    assert shell.torchx("log", handle) == "sh/0 yes\n"
    assert "preparing" in shell.batch_log(handle)


def test_wrong_input_is_never_tried_again_and_said_in_the_status(shell):
    leaves = 'echo "wrong input: data.train is []; name a file" > "$TORCHX_OUTCOME_FILE"; exit 1'
    status = shell.wait(shell.shell_job(leaves, "--max_retries", "3"))
    assert (status["state"], status["num_restarts"]) == ("FAILED", 0)
    assert status["msg"].startswith("failed: wrong input: data.train is []; name a file; ")


def test_a_finished_run_is_never_started_again(clusters, tmp_path):
    shell = Shell(clusters(True), tmp_path)  # without accounting, it may be forgotten before it can be requeued
    leaves = 'echo once; echo "finished at step 7" > "$TORCHX_OUTCOME_FILE"; exit 1'
    handle = shell.shell_job(leaves, "--max_retries", "3")
    status = shell.wait(handle)
    assert (status["state"], status["num_restarts"]) == ("SUCCEEDED", 0)
    assert status["msg"].startswith("succeeded: finished at step 7; ")
    shell.cluster.run("scontrol", "requeue", number(handle))
    while not shell.status(handle)["num_restarts"]:
        time.sleep(0.2)
    assert shell.wait(handle)["state"] == "SUCCEEDED"
    assert shell.torchx("log", handle) == "sh/0 once\n"


def test_cancelled_while_it_saves_is_not_requeued(shell):
    saves = """
        trap 'echo "stopped at step 3, saved x" > "$TORCHX_OUTCOME_FILE"; exit 1' TERM
        echo ready; while true; do sleep 0.1; done
    """
    handle = shell.shell_job(saves)
    while "ready" not in shell.torchx("log", handle):
        pass
    shell.torchx("cancel", handle)
    status = shell.wait(handle)
    assert (status["state"], status["num_restarts"]) == ("CANCELLED", 0)
    assert status["msg"].startswith("cancelled: stopped at step 3, saved x")


def test_what_was_saved_does_not_use_up_retries(shell):
    """Two warnings that lead to a save, then a failure: it is the first that counts."""
    works = """
        count=$(cat count 2> /dev/null || echo 0); echo $((count + 1)) > count
        trap 'echo "stopped at step $count, saved" > "$TORCHX_OUTCOME_FILE"; exit 1' USR1
        [ $count = 2 ] && exit 9
        [ $count = 3 ] && exit 0
        echo ready; while true; do sleep 0.1; done
    """
    handle = shell.shell_job(works, "--max_retries", "1")
    for attempt in (1, 2):
        while shell.torchx("log", handle).count("ready") < attempt:
            pass
        shell.cluster.run("scancel", "--signal=USR1", "--batch", number(handle))
        shell.wait(handle, "PENDING")
    status = shell.wait(handle)
    assert (status["state"], status["num_restarts"]) == ("SUCCEEDED", 3), shell.batch_log(handle)


def test_list_while_jobs_come_and_go(shell):
    handles = [shell.shell_job("true") for _ in range(2)]
    for handle in handles:
        shell.wait(handle)
    assert list(shell.listed()) == handles[::-1]


def test_a_deleted_job_is_ended_and_leaves_the_list(shell):
    handle = shell.shell_job("sleep 1000")
    job_dir = shell.job_dir(handle)
    done = shell.try_torchx("delete", handle)
    assert done.returncode == 0
    assert f"job {number(handle)} is not listed any more; its files are still in {job_dir}" in done.stderr
    assert shell.listed() == {}
    assert number(handle) not in shell.cluster.run("squeue", "-h", "--states=R,PD", "-o", "%A").split()


def test_a_deleted_job_that_begins_all_the_same_stays_off_the_list(shell):
    """Slurm's signal may reach a job after its first lines, on a machine that is busy."""
    handle = shell.shell_job("true", cfg="sbatch_args=--hold")
    job_dir = shell.job_dir(handle)
    late = shell.folder / "scancel"
    late.write_text("#!/bin/sh\n")
    late.chmod(0o755)
    path = shell.env["PATH"]
    shell.env["PATH"] = f"{shell.folder}:{path}"
    shell.torchx("delete", handle)
    shell.env["PATH"] = path
    shell.cluster.run("scontrol", "release", number(handle))
    while not (job_dir / f"slurm-{number(handle)}/state").exists():
        time.sleep(0.1)
    assert shell.listed() == {}


def test_time_limit_comes_with_a_warning(submitted):
    shell, handles = submitted
    status = shell.wait(handles["limited"], seconds=600)
    assert (status["state"], status["num_restarts"]) == ("SUCCEEDED", 1), shell.batch_log(handles["limited"])
    assert "requeued: stopped at step 3, saved x" in shell.batch_log(handles["limited"])
    status = shell.wait(handles["warned asleep"])
    assert (status["state"], status["num_restarts"]) == ("SUCCEEDED", 1), shell.batch_log(handles["warned asleep"])
    assert "requeued: stop requested before anything was saved" in shell.batch_log(handles["warned asleep"])


# After the time limits, of which a controller that is away warns nobody.
def test_a_job_that_saved_while_the_controller_was_away_goes_on(shell):
    saves = 'sleep 6; [ -e saved ] && exit 0; touch saved; echo "stopped at step 3" > "$TORCHX_OUTCOME_FILE"; exit 1'
    handle = shell.shell_job(saves)
    shell.wait(handle, "RUNNING")
    with shell.cluster.controller_away():
        time.sleep(20)
    status = shell.wait(handle)
    assert (status["state"], status["num_restarts"]) == ("SUCCEEDED", 1), shell.batch_log(handle)


def test_without_accounting_the_status_survives_slurms_memory(clusters, tmp_path):
    """Slurm forgets a job some time after its end."""
    shell = Shell(clusters(False), tmp_path)
    handles = {
        "waits": shell.shell_job("true", cfg="begin=now+1hour"),
        "sleeps": shell.shell_job("sleep 1000"),
        "succeeds": shell.shell_job("echo hello"),
        "fails": shell.shell_job("exit 3"),
    }
    shell.wait(handles["sleeps"], "RUNNING")
    for job in ("waits", "sleeps"):
        shell.torchx("cancel", handles[job])
    finals = {"waits": "CANCELLED", "sleeps": "CANCELLED", "succeeds": "SUCCEEDED", "fails": "FAILED"}
    assert {job: shell.wait(handle)["state"] for job, handle in handles.items()} == finals
    while any(shell.cluster.run("scontrol", "show", "job", number(handles[job]), check=False) for job in finals):
        time.sleep(1)
    assert {job: shell.status(handles[job])["state"] for job in finals} == finals
    assert {job: shell.listed()[handles[job]] for job in finals} == finals
    assert shell.status(handles["fails"])["msg"].startswith("failed: replica 0 on n")
    assert "sh/0 hello" in shell.torchx("log", handles["succeeds"])
