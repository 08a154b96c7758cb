"""The wheel alone: what the documentation says to type works in an empty directory, outside a checkout."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from from_wheel import ROOT, build_wheel, install_wheel

BENCH = "error: bench is part of the project's checkout, not of the installed package; run it in the root of a checkout"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = ROOT / "docs/reference/versions.md"
SLOW = ("torchx doctor", "torchx run -s local_cwd", "python -m trainer train")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the project."""
    places = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    names = ["pyproject.toml", "README.md", "LICENSE", *places["packages"]]
    return build_wheel(tmp_path_factory.mktemp("built"), names)


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """The programs of an environment that has the wheel."""
    return install_wheel(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """An empty directory, with the files that the documentation asks to save."""
    folder = tmp_path_factory.mktemp("newcomer")
    for page in ("your_data", "your_model"):
        for _, block in FENCE.findall((ROOT / f"docs/tutorials/{page}.md").read_text()):
            if name := re.match(r"# (make_rows\.py|mine\.toml|my_model\.\w+)\n", block):
                (folder / name[1]).write_text(block)
    return folder


def type_in(words, programs, folder):
    """Types a command into a shell that knows nothing of this checkout."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", words], cwd=folder, env=variables | {"PATH": path}, capture_output=True, text=True
    )


def test_what_the_page_says_works(programs, newcomer, request):
    """Commands that compute for seconds are left out without --all: all of them are typed elsewhere, in a checkout."""
    commands = [
        line
        for language, block in FENCE.findall(PAGE.read_text())
        if language == "sh"
        for line in block.replace("\\\n", " ").splitlines()
        if request.config.getoption("all") or not line.startswith(SLOW)
    ]
    for command in commands:
        done = type_in(command, programs, newcomer)
        assert done.returncode == 0, f"$ {command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert "sbatch" in done.stdout + done.stderr
    if request.config.getoption("all"):
        runs = {"first", "mine", "my_model"}
        assert {run.name for run in (newcomer / "runs").iterdir()} == runs
        assert all(json.loads((newcomer / f"runs/{run}/run.json").read_text()) for run in runs)


def test_the_package_is_that_of_the_wheel(programs, newcomer):
    done = type_in("python -c 'import trainer; print(trainer.__file__)'", programs, newcomer)
    assert Path(done.stdout.strip()).is_relative_to(programs.parent), done.stderr


@pytest.mark.sample(0)  # installs from the package index, for minutes
def test_the_wheel_is_installed_as_from_an_index(wheel, tmp_path):
    python = tmp_path / "empty" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True, cwd=tmp_path)
    done = subprocess.run([python.with_name("torchx"), "doctor"], cwd=tmp_path, capture_output=True, text=True)
    assert "jobs can be submitted here, not run" in done.stdout + done.stderr


def test_bench_says_in_one_line_that_it_is_not_installed(programs, tmp_path):
    done = type_in("python -m trainer bench training --out bench", programs, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{BENCH}\n")


def test_bench_says_so_through_torchx(programs, tmp_path):
    done = type_in("torchx run -s local_cwd tools.bench --out bench", programs, tmp_path)
    assert done.returncode != 0
    assert BENCH in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", ["--help", "tarin", "plan --help", "plan no_such_preset", "train --outt x"])
def test_the_console_command_is_python_m_trainer(programs, newcomer, words):
    typed = [type_in(f"{program} {words}", programs, newcomer) for program in ("torchx-recsys", "python -m trainer")]
    assert len({(done.returncode, done.stdout, done.stderr) for done in typed}) == 1


@pytest.mark.more("test_own_modules.py has such a directory")
def test_the_console_command_finds_modules_of_the_directory_but_none_of_the_names_of_ours(programs, tmp_path):
    (tmp_path / "trainer.py").write_text("raise RuntimeError('not the project')\n")
    (tmp_path / "rows.csv").write_text("user,label\n" + "".join(f"u{row % 7},{row % 2}\n" for row in range(64)))
    (tmp_path / "mine.py").write_text(
        "from torchx_recsys import Finding\n\n"
        "def check(checked):\n    yield Finding('error', 'mine', 'train', 'user', 'found by mine', 'none')\n"
    )
    words = "torchx-recsys check-data --source rows.csv --reader csv --label label --checks mine:check"
    done = type_in(words, programs, tmp_path)
    assert "found by mine" in done.stdout, done.stderr


@pytest.mark.parametrize("owns", [(), ("apps/mine.py",), ("apps/mine.py", "apps/__init__.py", "apps/export/load.py")])
def test_names_of_the_version_before_are_found_beside_a_users_own(programs, tmp_path, owns):
    """A package `apps` of the user's is as without ours: it hides the old names, which have new ones."""
    for name in owns:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("WHOSE = 'mine'\n")
    old = (
        ""
        if "apps/__init__.py" in owns
        else "import apps.export.load as old, torchx_recsys; old.load is torchx_recsys.load"
    )
    new = "from apps.mine import WHOSE" if owns else ""
    kept = "import apps.export.load as kept; kept.WHOSE" if "apps/export/load.py" in owns else ""
    done = type_in(f"python -W default -c '{old}\n{new}\n{kept}'", programs, tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("DeprecationWarning: apps.export.load is now torchx_recsys" in done.stderr) == bool(old)


NOBODY = "unshare --user --map-user=54321 --map-group=54321 env --unset HOME --unset USER --unset LOGNAME"


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize(
    "command",
    [
        "python -m trainer check-data --source rows.csv --reader csv --label label",
        "torchx run -s local_cwd utils.echo --msg hello",
    ],
)
def test_a_user_without_an_account_and_a_home_needs_two_directories_alone(programs, tmp_path, command):
    if type_in(f"{NOBODY} true", programs, tmp_path).returncode:
        pytest.skip("unshare may make no user namespace here")
    rows = "".join(f"u{row % 7},{row}.5,{row % 2}\n" for row in range(64))
    (tmp_path / "rows.csv").write_text(f"user,price,label\n{rows}")
    directories = f"XDG_STATE_HOME={tmp_path}/state XDG_CACHE_HOME={tmp_path}/cache"
    done = type_in(f"{NOBODY} {directories} {command}", programs, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_compiled_model_needs_no_account(programs, tmp_path):
    if type_in(f"{NOBODY} true", programs, tmp_path).returncode:
        pytest.skip("unshare may make no user namespace here")
    words = "from trainer.core.missing_home import settle; settle(); import getpass; print(getpass.getuser())"
    assert type_in(f'{NOBODY} HOME=/ python -c "{words}"', programs, tmp_path).stdout == "54321\n"
