"""The defaults of a site's administrators, under those of its users."""

import json

import pytest

SITE = """
[cli:run]
scheduler = slurm

[slurm]
partition = batch
account = ads
signal_lead = 60

[component:dlrm.single_node]
config = site.toml
cpu = 3
"""


@pytest.fixture
def site(tmp_path):
    """A file of the site, and the environment that names it."""
    file = tmp_path / "site.ini"
    file.write_text(SITE)
    return file, {"TORCHX_RECSYS_SITE": str(file)}


def dry_run(torchx, *words, **environment):
    done = torchx("run", "--workspace", "", "--dryrun", "--json", *words, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_flags_win_over_users_defaults_and_those_over_the_sites(torchx, site, tmp_path):
    (tmp_path / ".torchxconfig").write_text("[slurm]\naccount = mine\n[component:dlrm.single_node]\ncpu = 5\n")
    found = dry_run(torchx, "-cfg", "qos=low", "dlrm.single_node", "--memMB", "99", **site[1])
    assert found["scheduler"] == "slurm"
    cfg = found["cfg"]
    assert (cfg["qos"], cfg["account"], cfg["partition"], cfg["signal_lead"]) == ("low", "mine", ["batch"], 60)
    assert cfg["ntasks_per_node"] == 1
    (role,) = found["app"]["roles"]
    assert (role["resource"]["memMB"], role["resource"]["cpu"]) == (99, 5)
    assert "train site.toml" in role["args"][1]
    flags = ("-s", "local_cwd", "dlrm.single_node", "--config", "my.toml", "--cpu", "7")
    (role,) = dry_run(torchx, *flags, **site[1])["app"]["roles"]
    assert (role["resource"]["cpu"], "train my.toml" in role["args"][1]) == (7, True)


def test_a_file_that_the_user_names_stands_over_the_sites_too(torchx, site, tmp_path):
    (tmp_path / "profile.ini").write_text("[slurm]\naccount = profile\n")
    found = dry_run(torchx, "dlrm.single_node", TORCHXCONFIG=str(tmp_path / "profile.ini"), **site[1])
    assert (found["cfg"]["account"], found["cfg"]["partition"]) == ("profile", ["batch"])


def test_an_empty_variable_is_for_no_site(torchx):
    found = dry_run(torchx, "dlrm.single_node", "--config", "c.toml", TORCHX_RECSYS_SITE="")
    assert found["scheduler"] == "local_cwd"


@pytest.mark.few(3, "three stand for all")
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("[slrum]\nqos = low", "[slrum]: must be a scheduler (jobset, kubernetes, local_cwd, local_docker, slurm"),
        (
            "[cli:run]\nscheduler = slrum",
            "[cli:run] scheduler = slrum: must be one of jobset, kubernetes, local_cwd, local_docker, slurm",
        ),
        ("[cli:run]\nsheduler = slurm", "[cli:run] sheduler: must be one of component, scheduler, workspace"),
        (
            "[local_cwd]\ndetatch = True",
            "[local_cwd] detatch: must be one of after, after_any, auto_set_cuda_visible_devices,",
        ),
        ("[local_cwd]\ngrace_seconds = long", "[local_cwd] grace_seconds = long: must be of type int"),
        ("[component:utils.echo]\nmesage = hi", "[component:utils.echo] mesage: must be one of image, msg, num_repl"),
        (
            "[component:utils.echo]\nnum_replicas = two",
            "[component:utils.echo] num_replicas = two: must be of type int",
        ),
        ("local_cwd]", "cannot be read as a file with defaults: File contains no section headers."),
        ("[local_cwd]\nlog_dir = 100%", "cannot be read as a file with defaults: '%' must be followed by"),
    ],
)
def test_what_is_wrong_in_the_sites_file_is_one_line_with_file_and_key(torchx, site, lines, message):
    file, environment = site
    file.write_text(f"{lines}\n")
    done = torchx("run", "-s", "local_cwd", "--dryrun", "utils.echo", **environment)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    program = "torchx" if message.startswith("cannot") else "torchx run"
    assert line.startswith(f"{program}: error: {file}: {message}")


@pytest.mark.parametrize(
    ("lines", "flag", "message"),
    [
        (
            "[local_cwd]\nmax_free_restarts = -1",
            ("-cfg", "max_free_restarts=-2"),
            "-cfg max_free_restarts=-{}: must be 0",
        ),
        ("[component:dlrm.single_node]\nnproc = -1", ("--nproc=-2",), "--nproc -{}: must be a number of processes"),
    ],
)
def test_a_value_that_a_scheduler_or_component_refuses_is_named_with_its_file(torchx, site, lines, flag, message):
    file, environment = site
    file.write_text(f"{lines}\n")
    words = ["run", "-s", "local_cwd", "--dryrun", "dlrm.single_node", "--config", "c.toml"]
    refused = torchx(*words, **environment).stderr.splitlines()[-1]
    section = lines.partition("\n")[0]
    assert refused.startswith(f"torchx run: error: {file}: {section} {message.format(1)}")
    words[3:3] = flag if flag[0] == "-cfg" else ()
    words += () if flag[0] == "-cfg" else flag
    refused = torchx(*words, **environment).stderr.splitlines()[-1]
    assert refused.startswith(f"torchx run: error: {message.format(2)}")


def test_a_wrong_value_of_a_users_is_one_line_too(torchx, tmp_path):
    (tmp_path / ".torchxconfig").write_text("[jobset]\nttl_seconds = soon\n")
    done = torchx("list", "-s", "jobset")
    assert done.returncode == 2
    file = tmp_path / ".torchxconfig"
    assert done.stderr == f"torchx list: error: {file}: [jobset] ttl_seconds = soon: must be of type int\n"


def test_a_site_that_is_not_there_is_one_line(torchx):
    done = torchx("run", "utils.echo", TORCHX_RECSYS_SITE="/nowhere.ini")
    assert done.returncode == 2
    assert done.stderr.startswith("torchx: error: /nowhere.ini: cannot be read as a file with defaults: [Errno 2]")
