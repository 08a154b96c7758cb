"""The command of a component in a shell, and arguments that are refused."""

import re
import subprocess

import pytest
from torchx.specs import macros

from components import dlrm, tools

AWKWARD = [
    "a b",
    "it's",
    '"quoted"',
    "$HOME",
    "${USER}",
    "`id`",
    "a;b",
    "*",
    "\\n",
    "",
    "--x=$(id)",
    "$$",
    "$app_id",
    "p$$w",
]


def launched(app, path, app_id="job-1", **env):
    """The arguments that torchrun gets when a scheduler starts replica 0 of `app`."""
    values = macros.Values(img_root="", app_id=app_id, replica_id="0", rank0_env="RANK0_HOST")
    role = values.apply(app.roles[0])
    done = subprocess.run(
        [role.entrypoint, *role.args], env={"PATH": path, **env}, capture_output=True, text=True, check=True
    )
    return done.stdout.removesuffix("\n").split("\n")


def endpoint(argv):
    return argv[argv.index("--rdzv-endpoint") + 1]


def test_trainer_arguments_survive_the_shell(fake_torchrun):
    argv = launched(dlrm.single_node(*AWKWARD, config="my config.toml"), fake_torchrun)
    trainer = argv[argv.index("-m") :]
    assert trainer == ["-m", "trainer", "train", "my config.toml", "--out", "runs/job-1", "--resume", "auto", *AWKWARD]


def test_macros_are_replaced_and_no_other_dollar(fake_torchrun):
    env = {"PRICE": "$$5", "RUN": "${app_id}/$app_id"}
    app = dlrm.single_node("$${app_id}", config="c.toml", env=env)
    assert launched(app, fake_torchrun)[-1] == "$job-1"
    values = macros.Values(img_root="", app_id="job-1", replica_id="0", rank0_env="RANK0_HOST")
    for role in (app.roles[0], tools.bench("$$", env=env).roles[0]):
        applied = values.apply(role)
        assert {name: applied.env[name] for name in env} == {"PRICE": "$$5", "RUN": "job-1/$app_id"}
    assert applied.args[-1] == "$$"


def test_one_node_meets_at_a_free_port(fake_torchrun):
    argv = launched(dlrm.single_node(config="c.toml", nproc=4), fake_torchrun)
    assert endpoint(argv) == "localhost:0"
    assert argv[argv.index("--nproc-per-node") + 1] == "4"


def test_nodes_meet_at_replica_0_and_jobs_at_different_ports(fake_torchrun):
    app = dlrm.multi_node(config="c.toml", j="2x1")
    endpoints = [
        endpoint(launched(app, fake_torchrun, app_id, RANK0_HOST="node-7")) for app_id in ("dlrm-a", "dlrm-b", "dlrm-a")
    ]
    assert all(re.fullmatch(r"node-7:2\d{4}", each) for each in endpoints)
    assert endpoints[0] == endpoints[2] != endpoints[1]


def test_jobs_of_slurm_do_not_share_a_port(fake_torchrun):
    """6 and 384 have checksums that differ by a multiple of the number of ports."""
    app = dlrm.multi_node(config="c.toml", j="2x1")
    ports = [endpoint(launched(app, fake_torchrun, number, RANK0_HOST="n")) for number in ("6", "384", "10006")]
    assert ports == ["n:20006", "n:20384", "n:20006"]


def test_nodes_meet_at_the_port_that_the_scheduler_found_free(fake_torchrun):
    app = dlrm.multi_node(config="c.toml", j="2x1")
    assert endpoint(launched(app, fake_torchrun, "6", RANK0_HOST="n", TORCHX_RANK0_PORT="23456")) == "n:23456"


def test_nodes_do_not_start_without_the_host_of_replica_0(fake_torchrun):
    with pytest.raises(subprocess.CalledProcessError) as error:
        launched(dlrm.multi_node(config="c.toml", j="2x1"), fake_torchrun)
    assert "RANK0_HOST: names the host of replica 0 and is not set" in error.value.stderr


def test_signals_reach_torchrun_and_not_a_shell(fake_torchrun, tmp_path):
    role = dlrm.single_node(config="c.toml").roles[0]
    (tmp_path / "python").write_text("#!/bin/sh\necho $$\n")
    (tmp_path / "python").chmod(0o755)
    with subprocess.Popen(
        [role.entrypoint, *role.args], env={"PATH": f"{tmp_path}:{fake_torchrun}"}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert int(process.communicate()[0]) == process.pid


@pytest.mark.parametrize(("cpu", "j", "threads"), [(8, "1x2", "4"), (2, "1x4", "1")])
def test_threads_share_the_cores(cpu, j, threads):
    assert dlrm.multi_node(config="c.toml", cpu=cpu, j=j).roles[0].env["OMP_NUM_THREADS"] == threads


def test_environment_of_the_caller_wins_and_is_left_alone():
    env = {"OMP_NUM_THREADS": "3"}
    assert dlrm.multi_node(config="c.toml", env=env).roles[0].env["OMP_NUM_THREADS"] == "3"
    assert env == {"OMP_NUM_THREADS": "3"}


@pytest.mark.parametrize("j", ["", "2", "0x2", "2x0", "3:2x2", "0:2x2", "2x2x2", "2X2", "-1x2", "2x2 "])
def test_wrong_j_is_named(j):
    with pytest.raises(ValueError, match=re.escape(f"-j {j}: must be NODESxPROCS or MIN:NODESxPROCS")):
        dlrm.multi_node(config="c.toml", j=j)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"resume": "yes"}, "--resume yes: must be auto, never, must"),
        ({"nproc": 0}, "--nproc 0: must be a number of processes from 1 up"),
        ({"h": "nonesuch"}, "-h nonesuch: must be the name of a registered resource"),
        ({"name": "it's"}, "--name it's: must be a letter"),
        (
            {"name": "a" * 101},
            f"--name {'a' * 101}: must be a letter, then letters, digits, '.', '_' or '-', 100 at most",
        ),
        ({"mounts": ["src=/a"]}, "--mounts src=/a: must be type="),
    ],
)
def test_wrong_argument_is_named(argument, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        dlrm.single_node(config="c.toml", **argument)
