"""`torchx run` as this project replaces it."""

import json

import pytest

from components.cli.run import next_commands


def test_handle_alone_is_on_stdout_and_the_hint_on_stderr(torchx, fake_torchrun):
    done = torchx("run", "-s", "local_cwd", "dlrm.single_node", "--config", "c.toml", PATH=fake_torchrun)
    assert done.returncode == 0, done.stderr
    (handle,) = done.stdout.splitlines()
    assert handle.startswith("local_cwd://torchx/dlrm-")
    assert next_commands(handle) in done.stderr


def test_json_output_is_one_object(torchx, fake_torchrun):
    done = torchx("run", "-s", "local_cwd", "--json", "dlrm.single_node", "--config", "c.toml", PATH=fake_torchrun)
    assert json.loads(done.stdout)["state"] == "SUCCEEDED"
    assert "next:" not in done.stderr


def test_next_commands_name_the_handle():
    assert next_commands("slurm://torchx/42").splitlines() == [
        "next:",
        "  torchx status slurm://torchx/42",
        "  torchx log -f slurm://torchx/42",
        "  torchx cancel slurm://torchx/42",
    ]


def test_wrong_argument_is_one_line_and_exit_code_2(torchx):
    done = torchx("run", "-s", "local_cwd", "dlrm.multi_node", "--config", "c.toml", "-j", "2")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("torchx run: error: -j 2: must be")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["detach=maybe", "grace_seconds=soon", "no_such_option=1", "detach"])
def test_wrong_scheduler_option_is_one_line_and_exit_code_2(torchx, option):
    done = torchx("run", "-s", "local_cwd", "-cfg", option, "dlrm.single_node", "--config", "c.toml")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"torchx run: error: -cfg {option}: must be KEY=VALUE,... as `torchx runopts local_cwd`")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("dlrm.single_node --config movielens --dryrun", "write it before the component: torchx run --dryrun ..."),
        ("dlrm.single_node --config movielens -s slurm", "write it before the component: torchx run -s slurm ..."),
        (
            "dlrm.single_node --config movielens --train.steps 5",
            "write it last, behind --: torchx run dlrm.single_node ... -- --train.steps 5",
        ),
        ("--train.steps 5 dlrm.single_node --config movielens", "keys of the configuration last, behind --"),
        ("dlrm.single_node --confg movielens", "has no flag --confg; did you mean --config?"),
        ("data.movielens --unheard-of", "has no flag --unheard-of; see torchx run data.movielens --help"),
        ("dlrm.single_node --config movielens --out", "--out has no value; write --out VALUE"),
        ("tools.compare --page --runs a", "--page has no value"),
    ],
)
def test_a_flag_in_the_wrong_place_is_one_line_with_the_right_place(torchx, words, line):
    done = torchx("run", *words.split())
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.startswith("torchx run: error: ")
    assert done.stderr.count("\n") == 1


def test_what_argparse_understands_stays_right(torchx):
    for words in (
        "dlrm.multi_node --config movielens -j1x2 --conf movielens -- --train.steps 5",
        "tools.compare --runs a,b --overwrite",
        "utils.python -m module -- --flag -s x",
    ):
        done = torchx("run", "--dryrun", *words.split())
        assert done.returncode == 0, done.stderr
    assert "--overwrite" in torchx("run", "--dryrun", "tools.compare", "--runs", "a", "--overwrite").stdout


def test_jobs_stay_on_this_machine_unless_told_otherwise(torchx, tmp_path):
    dry_run = ("run", "--dryrun", "--json", "utils.echo")
    assert json.loads(torchx(*dry_run).stdout)["scheduler"] == "local_cwd"
    assert torchx("list").stderr == ""
    (tmp_path / ".torchxconfig").write_text("[cli:run]\nscheduler = jobset\n")
    assert json.loads(torchx(*dry_run).stdout)["scheduler"] == "jobset"


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("scheduler", ["local_cwd", "jobset"])
def test_a_dry_run_prints_no_credentials(torchx, scheduler, form):
    env = "HF_TOKEN=hunter2,aws_secret_access_key=hunter2,DB=postgres://me:hunter2@host/db,COLOR=red"
    component = ("dlrm.single_node", "--config", "s3://me:hunter2@host/c.toml", "--env", env)
    done = torchx("run", "-s", scheduler, "--workspace", "", "--dryrun", *form, *component)
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert all(shown in done.stdout for shown in ("HF_TOKEN", "postgres://***@host/db", "s3://***@host/c.toml", "red"))
