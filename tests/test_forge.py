"""What contributors meet: hooks before a commit, and the jobs of the forge."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}


def test_the_hooks_have_the_versions_of_the_project():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    used = {name for hook in hooks for name in hook.get("additional_dependencies", []) if name.startswith("ruff")}
    assert used == {name for name in PROJECT["optional-dependencies"]["dev"] if name.startswith("ruff")}
    assert {hook["id"] for hook in hooks} >= {"ruff-format", "ruff-check", "pyrefly", "typos", "large-files"}


def test_the_jobs_of_the_forge_run_every_test_once():
    parts = WORKFLOWS["check"]["jobs"]["test"]["strategy"]["matrix"]["tests"]
    assert len(parts) == 3
    named = [name for part in parts for name in part.split()]
    folders = [f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/test_*.py")]
    folders += [f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in (ROOT / "tests").glob("*/*/test_*.py")]
    assert sorted(named) == sorted({*folders, "tests/*.py"})


def test_the_jobs_of_the_forge_call_what_the_makefile_has():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, job in WORKFLOWS["check"]["jobs"].items():
        (run,) = (step["run"] for step in job["steps"] if step.get("run", "").startswith(".ci/"))
        program, *words = run.split()
        assert (ROOT / program).stat().st_mode & 0o111
        assert words[0] in targets if name != "image" else program == ".ci/image"


def test_a_release_has_the_version_of_its_tag():
    (check,) = (step for step in WORKFLOWS["release"]["jobs"]["build"]["steps"] if "tag" in step.get("name", ""))
    assert "tomllib" in check["run"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["version"]
