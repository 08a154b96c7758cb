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
    job = WORKFLOWS["check"]["jobs"]["test"]
    assert job["steps"][-1]["run"] == ".ci/run ${{ matrix.target }}"
    assert job["strategy"]["matrix"]["target"] == ["test", "test-more"]
    chosen = re.findall(r"^\tpytest \$\(SPREAD\) -m (.*) \$\(TESTS\)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert chosen == ['"not more"', "more"]


def test_the_jobs_of_the_forge_call_what_the_makefile_has():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, job in WORKFLOWS["check"]["jobs"].items():
        (run,) = (step["run"] for step in job["steps"] if step.get("run", "").startswith(".ci/"))
        run = run.replace("${{ matrix.target }}", "test")
        program, *words = run.split()
        assert (ROOT / program).stat().st_mode & 0o111
        assert words[0] in targets if name != "image" else program == ".ci/image"


def test_a_release_has_the_version_of_its_tag():
    (check,) = (step for step in WORKFLOWS["release"]["jobs"]["build"]["steps"] if "tag" in step.get("name", ""))
    assert "tomllib" in check["run"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["version"]
