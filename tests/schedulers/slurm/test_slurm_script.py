"""The batch script and the options of the slurm scheduler, as a dry run shows them without any Slurm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from catalog import COMPONENTS, SHAPES
from command import run_torchx
from torchx.runner import get_runner
from torchx.schedulers import get_scheduler_factories

from schedulers import slurm
from schedulers.slurm.app_id import AppId
from schedulers.slurm.record import About, Record
from schedulers.slurm.status import View
from trainer.core.outcome import FINISHED_WORD, OUTCOME_VARIABLE, STOPPED

GOLDEN = Path(__file__).parent / "golden"
COMMON = "# ---- The same for every job from here on."
EVERY_OPTION = {
    "partition": "gpu,spare",
    "account": "ads",
    "qos": "high",
    "time": "8:00:00",
    "signal_lead": "300",
    "requeue": "False",
    "max_free_restarts": "5",
    "ntasks_per_node": "2",
    "clusters": "east,west",
    "constraint": "a100&nvlink",
    "nodelist": "node[01-04]",
    "exclude": "node02,node03",
    "exclusive": "True",
    "reservation": "maintenance",
    "gres": "gpu:a100:8",
    "mem": "64G",
    "nice": "100",
    "dependency": "afterok:1234",
    "begin": "now+1hour",
    "comment": "it's $5",
    "mail-user": "me@example.org",
    "mail-type": "END,FAIL",
    "open_mode": "truncate",
    "container_image": "/images/trainer image.sqsh",
    "container_mounts": "/data:/data:ro",
    "setup": "module load cuda;. ./env.sh",
    "sbatch_args": "--licenses matlab;--switches 1",
    "srun_args": "--mpi none",
    "job_dir": "job",
}


@pytest.fixture
def torchx(tmp_path):
    """Runs torchx on a machine that has no Slurm."""

    def run(*args, **env):
        path = str(Path(sys.executable).parent)
        return run_torchx(*args, cwd=tmp_path, **{"PATH": path, "HOME": str(tmp_path), "COLUMNS": "200"} | env)

    return run


@pytest.fixture
def dry_run(tmp_path, monkeypatch):
    """Returns the script of a component."""
    monkeypatch.chdir(tmp_path)

    def run(component, *args, **options):
        with get_runner() as runner:
            cfg = runner.cfg_from_str("slurm", ",".join(f"{name}={value}" for name, value in options.items()))
            return runner.dryrun_component(component, [*args], "slurm", cfg=cfg).request.script

    return run


def readable(script, folder):
    """The part of the script that differs between jobs, without what differs from run to run."""
    name = script.partition("job_dir=")[2].partition("\n")[0].rpartition("/")[2]
    own = script.partition(COMMON)[0].replace(str(folder), "/here")
    return own.replace(name, "NAME-ID") if name != "job" else own


def sbatch(script):
    lines = script.splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def compare(text, golden):
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), "UPDATE_GOLDEN=1 pytest tests/schedulers/slurm accepts the change"


@pytest.mark.parametrize("component", SHAPES)
def test_script_is_as_in_the_golden_file(dry_run, tmp_path, component):
    script = dry_run(component, *COMPONENTS[component])
    compare(readable(script, tmp_path), GOLDEN / f"{component}.sh")
    assert [*tmp_path.iterdir()] == []


def test_script_with_every_option_is_as_in_the_golden_file(dry_run, tmp_path):
    options = {name for name, _ in get_scheduler_factories()["slurm"]("test").run_opts()}
    # Not in the script, or in that of a job on a host alone: test_slurm_ssh.py.
    assert set(EVERY_OPTION) == options - {"after", "after_any", "notify", "host", "remote_dir", "venv"}
    mounts = "type=bind,src=/host,dst=/job,readonly"
    args = ("--config", "c.toml", "-j", "4x8", "--gpu", "8", "--max_retries", "2", "--mounts", mounts)
    script = dry_run("dlrm.multi_node", *args, **EVERY_OPTION)
    compare(readable(script, tmp_path), GOLDEN / "every_option.sh")
    assert [*tmp_path.iterdir()] == []


def test_the_programs_of_a_virtual_environment_are_found_first(dry_run):
    lines = dry_run("utils.echo", venv="~/my env", setup="module load cuda").splitlines()
    begin = lines.index("setup() {")
    assert [line.strip() for line in lines[begin + 1 : begin + 4]] == [
        """export VIRTUAL_ENV="$HOME"'/my env'""",
        'export PATH="$VIRTUAL_ENV/bin:$PATH"',
        "module load cuda",
    ]


def test_a_dry_run_for_a_host_needs_no_connection(torchx, tmp_path):
    (tmp_path / "mine.py").write_text("")
    done = torchx("run", "-s", "slurm", "--dryrun", "-cfg", "host=login.example", "utils.sh", "true")
    assert (done.returncode, done.stderr.count("error")) == (0, 0)
    (script,) = [
        line for line in done.stdout.splitlines() if line.startswith("# login.example:~/.torchx-recsys/jobs/sh-")
    ]
    assert script.endswith("/torchx-job.sh")
    assert "#SBATCH --chdir='~/.torchx-recsys/code/" in done.stdout


def test_script_is_valid_bash_of_constant_size(dry_run):
    job = ("dlrm.multi_node", "--config", "c.toml", "-j")
    script, small = (dry_run(*job, nodes, job_dir="job") for nodes in ("200x1", "2x1"))
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert script.partition(COMMON)[2] == small.partition(COMMON)[2]
    assert len(script) - len(small) == 6  # three times 200 for 2


def test_script_has_the_contract_of_the_trainer(dry_run):
    lines = dry_run("utils.echo").partition(COMMON)[2].splitlines()
    contract = {f"stopped_code={STOPPED}", f"finished_word={FINISHED_WORD}", f"outcome_variable={OUTCOME_VARIABLE}"}
    assert contract < set(lines)


def test_script_itself_is_shown_and_no_value_of_the_environment(torchx):
    done = torchx("run", "-s", "slurm", "--dryrun", "utils.sh", "--env", "TOKEN=hunter2", "true")
    request = done.stdout.partition("=== SCHEDULER REQUEST ===")[2]
    assert "#SBATCH --nodes=1" in request
    assert "which only you can read, sets TOKEN, " in request
    assert "hunter2" not in request


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ("srun: error: Aborting, io error and missing step on node 1", "n2"),
        ("srun: error: Cannot communicate with node 0.  Aborting job.", "n1"),
        ("srun: error: n2: task 1: Exited with exit code 1", ""),
    ],
)
def test_a_node_that_srun_misses_was_lost(words, lost, tmp_path):
    before = "srun: error: Cannot communicate with node 2.  Aborting job.\n[torchx] 2026-11-22 16:24 running on n1,n2\n"
    (tmp_path / "log").write_text(f"{before}srun: error: n1: task 0: Exited with exit code 1\n{words}\n")
    script = f". '{Path(slurm.__file__).with_name('requeue.sh')}'; log={tmp_path}/log nodes=n1,n2; lost_node"
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.strip() == lost


def test_replicas_share_nodes_if_asked_to(dry_run):
    args = ("--num_replicas", "5", "--cpu", "3", "--gpu", "1", "--memMB", "1000", "true")
    shared = ["--nodes=3", "--ntasks=5", "--ntasks-per-node=2", "--cpus-per-task=3", "--mem=2000", "--gpus-per-task=1"]
    assert sbatch(dry_run("utils.sh", *args, ntasks_per_node=2))[3:9] == shared
    alone = ["--nodes=5", "--ntasks=5", "--ntasks-per-node=1", "--cpus-per-task=3", "--mem=1000", "--gpus-per-node=1"]
    assert sbatch(dry_run("utils.sh", *args))[3:9] == alone


def test_fewer_nodes_than_wanted_will_do_if_allowed(dry_run):
    options = sbatch(dry_run("dlrm.multi_node", "--config", "c.toml", "-j", "1:4x2"))
    assert {"--nodes=1-4", "--mincpus=2"} < set(options)
    assert not any(option.startswith("--ntasks") for option in options)


@pytest.mark.parametrize(("mem", "expected"), [("none", []), ("0", ["--mem=0"]), ("9G", ["--mem=9G"])])
def test_memory(dry_run, mem, expected):
    options = sbatch(dry_run("utils.sh", "true", mem=mem))
    assert [option for option in options if option.startswith("--mem")] == expected


@pytest.mark.parametrize(
    ("cfg", "error"),
    [
        ("time=2,signal_lead=120", "-cfg signal_lead=120: must be less than the time limit (2)"),
        ("time=1:30", "-cfg signal_lead=120: must be less than the time limit (1:30)"),
        ("signal_lead=-1", "-cfg signal_lead=-1: must be 0 or more"),
        ("ntasks_per_node=0", "-cfg ntasks_per_node=0: must be 1 or more"),
        ("open_mode=w", "-cfg open_mode=w: must be append or truncate"),
        ("max_free_restarts=-1", "-cfg max_free_restarts=-1: must be 0 or more"),
        ("sbatch_args=--array 1-9", "-cfg sbatch_args=--array 1-9: cannot be used: submit one job for each"),
        ("sbatch_args=--arr 1-9", "-cfg sbatch_args=--arr 1-9: cannot be used: submit one job for each"),
        ("sbatch_args=-D /x", "-cfg sbatch_args=-D /x: cannot be used: submit it there, or give job_dir"),
        ("sbatch_args=-ox", "-cfg sbatch_args=-ox: cannot be used: torchx log needs the logs in the job directory"),
        ("sbatch_args=--clusters a,b", "-cfg sbatch_args=--clusters a,b: cannot be used: give -cfg clusters"),
        ("sbatch_args=-M a", "-cfg sbatch_args=-M a: cannot be used: give -cfg clusters"),
    ],
)
def test_options_that_cannot_work(torchx, cfg, error):
    done = torchx("run", "-s", "slurm", "-cfg", cfg, "utils.sh", "true")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"torchx run: error: {error}"


def test_a_command_that_no_replica_can_be_given_is_refused(torchx):
    done = torchx("run", "-s", "slurm", "--dryrun", "utils.echo", "--msg", "x" * 119_000)
    assert done.returncode == 0
    done = torchx("run", "-s", "slurm", "utils.sh", "--", "echo", *map(str, range(30_000)))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "torchx run: error: the command of sh has 168,907 bytes: a replica can be given 120,000 at most; put its "
        "arguments into a file"
    )


def test_options_of_sbatch_keep_their_commas(dry_run):
    options = sbatch(dry_run("utils.sh", "true", sbatch_args="--licenses a:1,b:2;--switches 1"))
    assert options[-2:] == ["--licenses a:1,b:2", "--switches 1"]


def test_a_path_with_a_percent_sign_is_not_taken_for_a_pattern(dry_run, tmp_path, monkeypatch):
    folder = tmp_path / "50%j"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (output,) = [option for option in sbatch(dry_run("utils.sh", "true")) if option.startswith("--output")]
    assert output.startswith(f"--output={tmp_path}/50%%j/")
    assert output.endswith("/slurm-%j.log")


def test_a_path_that_sbatch_cannot_take_is_refused(torchx):
    done = torchx("run", "-s", "slurm", "-cfg", "job_dir=back\\slash", "utils.sh", "true")
    assert done.returncode == 2
    assert "sbatch takes no path with a backslash or a line break; rename it" in done.stderr


@pytest.mark.parametrize("time", ["3", "2:01", "0:02:01", "1-0", "0-1:00", "UNLIMITED", "0", "0:00"])
def test_time_limits_that_leave_time_to_save(dry_run, time):
    assert f"--time={time}" in sbatch(dry_run("utils.sh", "true", time=time))


def test_wrong_name_of_a_variable(torchx):
    done = torchx("run", "-s", "slurm", "utils.sh", "--env", "MY-VAR=1", "true")
    assert done.returncode == 2
    assert "--env MY-VAR: must be the name of a variable: letters, digits and _" in done.stderr


def test_two_roles_are_refused(torchx, tmp_path):
    (tmp_path / "two.py").write_text(
        "from torchx.specs import AppDef, Resource, Role\n"
        "def two() -> AppDef:\n"
        "    roles = [Role(name, '', entrypoint='true', resource=Resource(1, 0, 1)) for name in ('a', 'b')]\n"
        "    return AppDef('two', roles=roles)\n"
    )
    done = torchx("run", "-s", "slurm", "two.py:two")
    assert done.returncode == 2
    assert "two has the roles a, b: the slurm scheduler runs one role; submit one job for each" in done.stderr


def test_mounts_without_a_container_are_not_ignored_silently(torchx):
    mounts = ("--mounts", "type=bind,src=/a,dst=/b")
    done = torchx("run", "-s", "slurm", "--dryrun", "dlrm.single_node", "--config", "c.toml", *mounts)
    assert done.returncode == 0
    assert "mounts take effect only in a container: -cfg container_image=" in done.stderr


def test_without_slurm(torchx, tmp_path):
    done = torchx("run", "-s", "slurm", "utils.sh", "true")
    assert done.returncode == 2
    assert "torchx run: error: sinfo is not installed here: run torchx where Slurm's commands work" in done.stderr
    assert not any(tmp_path.rglob("*.sh"))


@pytest.mark.parametrize(
    "command", [("status", "slurm://torchx/1"), ("list", "-s", "slurm"), ("cancel", "slurm://torchx/1")]
)
def test_other_commands_without_slurm(torchx, command):
    done = torchx(*command)
    assert done.returncode == 2
    assert done.stderr == (
        f"torchx {command[0]}: error: scontrol is not installed here: run torchx where Slurm's commands work, or name a"
        " login node with -cfg host\n"
    )


def test_every_option_is_documented(torchx):
    shown = torchx("runopts", "slurm").stdout
    for name, option in get_scheduler_factories()["slurm"]("test").run_opts():
        assert option.help.endswith("."), name
        assert option.help in shown


def test_other_schedulers_are_still_there(torchx):
    shown = torchx("runopts").stdout
    assert all(f"{name}" in shown for name in ("local_cwd", "local_docker", "kubernetes"))


@pytest.mark.parametrize(
    ("ending", "state"),
    [
        ("slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T23:52:19 ***", "CANCELLED"),
        ("slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T23:52:19 DUE TO TIME LIMIT ***", "FAILED"),
        ("", "FAILED"),
    ],
)
def test_a_forgotten_job_that_noted_no_end_was_cancelled_if_slurm_said_so(ending, state, tmp_path):
    """Without accounting, and where Slurm kills the batch script before it can say anything."""
    (tmp_path / "slurm-7").mkdir()
    (tmp_path / "slurm-7" / "state").write_text("running on n1,n2\n")
    again = (
        "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-24T23:40:00 ***\n[torchx] 1 2 running on n1,n2\n"
    )
    (tmp_path / "slurm-7.log").write_text(f"[torchx] 1 1 running on n1,n2\n{again}{ending}\n")
    assert View(None, Record(tmp_path, AppId("7"))).state.name == state


def test_a_forgotten_job_that_left_nothing_ran_where_it_could_not_write_unless_it_was_cancelled(tmp_path):
    About("sh", "sh", 1).write(tmp_path)
    record = Record(tmp_path, AppId("7"))
    status = View(None, record).describe("7")
    assert status.state.name == "FAILED"
    assert "the job directory must be on storage that all nodes share" in status.msg
    record.note_cancelled()
    assert View(None, record).describe("7").state.name == "CANCELLED"
