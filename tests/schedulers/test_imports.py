"""Components and schedulers import without torch, and spell in one place what they agree on with the trainer."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from torchx import plugins

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file
    for room in ("components", "schedulers", "torchx_recsys/pipelines", "torchx_recsys/sweeps")
    for file in (ROOT / room).rglob("*.py")
)
MODULES = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in FILES]
CONTRACT = re.compile(
    r"\b75\b|TORCHX_OUTCOME_FILE|TORCHX_PROGRESS_FILE|TORCHX_RANK0_HOST|['\"]?\b(finished|stopped)\b['\"*]"
)


def test_everything_imports_without_torch():
    code = f"import sys, importlib\nsys.modules |= dict.fromkeys(('torch', 'torchrec'))\nfor name in {MODULES}:\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}    importlib.import_module(name)"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(MODULES) > 30


def test_torchx_finds_the_plugins_in_one_way_and_without_an_error():
    registry = plugins.registry()
    ours = {one.name for one in entry_points(group="torchx.schedulers") if one.value.startswith("schedulers.")}
    assert ours == {one["name"] for one in registry.to_dict()["scheduler"]} >= {"jobset", "local_cwd", "slurm"}
    assert registry.errors == []


def test_the_contract_is_spelled_in_one_place():
    files = [file for file in (ROOT / "schedulers").rglob("*") if file.suffix in (".py", ".sh")]
    spelled = {
        f"{file.relative_to(ROOT)}: {line}"
        for file in files
        for line in file.read_text().splitlines()
        if CONTRACT.search(line) and not line.lstrip().startswith("#")
    }
    assert spelled == {'schedulers/contract.py: RANK0_HOST = "TORCHX_RANK0_HOST"'}
