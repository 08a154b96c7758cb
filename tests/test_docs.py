"""The documentation is true: its generated parts are current, its links lead somewhere, and its commands run."""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from shell import typed
from torchx.cli.main import create_parser, get_sub_cmds
from torchx.cli.main import main as torchx
from torchx.specs.builders import materialize_appdef
from torchx.specs.finder import get_component

from docs.generate import WIDTH, render
from torchx_recsys.pipelines.file import FileSection
from torchx_recsys.sweeps.file import SweepSection
from trainer.__main__ import main as trainer
from trainer.commands import COMMANDS, read_command
from trainer.config.root import READY_MADE, Config, load_config, to_toml

ROOT = Path(__file__).parent.parent
NAV = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
DOCS = [ROOT / "docs" / page for page in NAV if (ROOT / "docs" / page).exists()]
PAGES = [ROOT / "README.md", *DOCS, ROOT / "CONTRIBUTING.md"]  # in the order in which they are read

SKIPPED = ("git clone ", "cd ", "source ", "cp ")  # for the reader's shell
CHECKER = "python -m mlperf_logging"  # of a run that nobody has made here; test_mlperf_log.py has one checked
DRY_RUN = (None, "local_cwd", "slurm", "jobset")  # a dry run on the others needs a cluster


def blocks(language: str) -> list[str]:
    fence = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [block for page in PAGES for block in fence.findall(page.read_text())]


def shown(*programs: str) -> list[str]:
    lines = [line for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines()]
    return list(dict.fromkeys(line for line in lines if line.startswith(programs)))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A directory as the reader's, with the files that the documentation asks to save."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("trainer", "components", "torchx_recsys", ".torchxconfig"):
        (folder / name).symlink_to(ROOT / name)
    for block in [*blocks("python"), *blocks("toml")]:
        if name := re.match(r"# (\w+\.\w+)\n", block):
            (folder / name[1]).write_text(block)
    return folder


@pytest.fixture
def reader(workspace, monkeypatch):
    """The same, as the current directory, with the configurations of runs that the documentation takes as done."""
    for name in ("movielens", "synthetic", "dlrmv4_small"):
        run = workspace / "runs" / name
        run.mkdir(parents=True, exist_ok=True)
        (run / "config.toml").write_text(to_toml(load_config(name)))
    monkeypatch.chdir(workspace)
    return workspace


@pytest.fixture(scope="module")
def runs(workspace, path):
    """The directory of runs, after all commands for a shell without TorchX."""
    for command in shown("python ", "torchrun "):
        if command.startswith(CHECKER):
            continue
        typed(command, workspace, PATH=path)
    return workspace / "runs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_generated_parts_are_current(page):
    assert page.read_text() == render(page.read_text()), "run `make docs`"


def test_every_command_and_every_ready_made_configuration_is_documented():
    commands = (ROOT / "docs/reference/commands.md").read_text()
    assert [name for name in COMMANDS if f"\n| `python -m trainer {name} " not in commands] == []
    presets = (ROOT / "docs/reference/ready_made.md").read_text()
    assert [file.stem for file in READY_MADE.glob("*.toml") if f"\n| `{file.stem}` | " not in presets] == []


def test_options_of_a_scheduler_are_a_table():
    page = render("<!-- generated: scheduler-options local_cwd -->\n<!-- end -->")
    assert "| `log_dir` | string | unset | Directory" in page
    assert "| `prepend_cwd` | boolean | `False` | " in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_first_commands_of_a_page_are_not_cut_off(page):
    for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)[:1]:
        assert [line for line in block.splitlines() if len(line.removesuffix(" \\")) > WIDTH] == [], "break them: \\"


def test_all_commands_are_checked():
    checked = ("make ", "torchx ", "python ", "torchrun ")
    lines = shown("")
    assert [line for line in lines if not line.startswith((*SKIPPED, *checked)) and line] == []
    assert "make demo" in lines
    assert "make test" in lines


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize("command", shown("make "))
def test_make_targets_exist(command):
    done = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", sorted(set(shown("torchx ")) - set(shown("torchx run "))))
def test_other_torchx_commands_are_understood(command):
    create_parser(get_sub_cmds()).parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("command", shown("torchx pipeline run ", "torchx sweep run "))
def test_pipelines_and_sweeps_are_right(command, reader):
    torchx([*shlex.split(command.replace(" --wait", "").replace(" --dryrun", ""))[1:], "--dryrun"])


@pytest.mark.parametrize("command", shown("torchx run "))
def test_torchx_commands_are_understood(command, reader):
    words = shlex.split(command)[2:]
    place = next(i for i, word in enumerate(words) if re.fullmatch(r"(dlrm|data|tools)\.\w+", word))
    scheduler = words[words.index("-s") + 1] if "-s" in words[:place] else None
    if scheduler in DRY_RUN and "image_repo=" not in command:  # which asks a registry: tests/schedulers/code types it
        torchx(["run", "--dryrun", *words])
    role = materialize_appdef(get_component(words[place]).fn, words[place + 1 :]).roles[0]
    command_line = shlex.split(role.args[1]) if role.entrypoint == "bash" else role.args
    if "trainer" in command_line:
        assert callable(read_command(command_line[command_line.index("trainer") + 1 :]))


@pytest.mark.parametrize("block", blocks("toml"))
def test_configurations_are_valid(block):
    tree = tomllib.loads(block)
    if section := {"steps": FileSection, "space": SweepSection}.get(next(iter(tree.keys() & {"steps", "space"}), "")):
        section.model_validate(tree)
        return
    tree.pop("base", None)  # of one that a command trains
    Config.model_validate(tree)


@pytest.mark.more("a minute of commands; those of the first tutorials are in test_half_hour.py")
def test_error_messages_are_as_shown(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs.parent)
    wrong = Path("mine.toml").read_text()
    with contextlib.ExitStack() as restore:
        restore.callback(Path("mine.toml").write_text, wrong)
        for right, typo in (("global_batch_size", "glob_batch_size"), ("price =", "prize =")):
            Path("mine.toml").write_text(wrong.replace(right, typo))
            assert trainer(["train", "mine.toml", "--out", "runs/wrong"]) == 2
    said = capsys.readouterr().err.replace(str(runs.parent), "/home/you").splitlines()
    shown_errors = [line for block in blocks("text") for line in block.splitlines() if line.startswith("error: ")]
    assert sorted(said) == sorted(shown_errors)


@pytest.mark.more("trains runs of every kind")
@pytest.mark.parametrize("name", ["mine", "my_model", "planned", "flags"])
def test_files_and_keys_of_a_run_are_documented(name, runs):
    page = (ROOT / "docs/reference/run_directory.md").read_text()
    run = runs / name
    found = {path.name for path in run.iterdir()}
    for step in (run / "checkpoints").iterdir():
        found |= {path.name for path in step.iterdir() if path.suffix != ".distcp"}
        found |= set(json.loads((step / "state.json").read_text()))
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        found |= {key.partition("/")[0] for line in (run / file).read_text().splitlines() for key in json.loads(line)}
    found |= set(json.loads((run / "run.json").read_text()))
    assert {name for name in found if name not in page} == set()


def test_environment_variables_are_documented():
    page = (ROOT / "docs/reference/environment.md").read_text()
    files = [
        file
        for place in ("torchx_recsys", "trainer")
        for file in (ROOT / place).rglob("*.py")
        if "environ" in file.read_text()
    ]
    assert files
    for file in files:
        names = re.findall(r"\"([A-Z]+(?:_[A-Z]+)*)\"", file.read_text())
        assert [name for name in names if name not in page and name not in ("ERROR", "WARNING")] == [], file


def test_pages_that_the_code_names_are_there():
    places = ("benchmarks", "components", "docs", "schedulers", "tests", "torchx_recsys", "trainer")
    files = [file for place in places for file in (ROOT / place).rglob("*") if file.suffix in (".py", ".toml")]
    named = {page for file in [ROOT / "Makefile", *files] for page in re.findall(r"docs/[\w/]+\.md", file.read_text())}
    assert len(named) > 20
    assert [page for page in named if not (ROOT / page).exists()] == []


def test_files_of_code_that_pages_name_are_there():
    """A page names a file by its path from the project's root, or from the trainer's."""
    pages = [page for page in PAGES if page.name != "data_findings.md"]  # which has a file of a user
    named = {file for page in pages for file in re.findall(r"`((?:\w+/)+\w+\.(?:py|sh))`", page.read_text())}
    assert len(named) > 30
    assert [file for file in named if not (ROOT / file).exists() and not (ROOT / "trainer" / file).exists()] == []


def test_every_picture_is_shown_and_loads_at_once():
    shown = {Path(name).name for page in PAGES for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())}
    pictures = list((ROOT / "docs/pictures").iterdir())
    assert {file.name for file in pictures} <= shown
    assert [file.name for file in pictures if file.stat().st_size > 150_000] == []


def test_every_page_is_in_the_navigation_of_the_site():
    """`make lint` builds the site, where a dead link is an error, but a page that nothing leads to is none."""
    files = [str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")]
    assert sorted(NAV) == sorted([*files, "index.md", "contributing.md", "changelog.md"])
