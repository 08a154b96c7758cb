"""The project as a wheel, in an environment that has the packages of this one but not the project's checkout."""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path, names: list[str]) -> Path:
    """Builds the wheel of these files and directories of the project, copied into a folder; returns its path."""
    for name in names:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next((folder / "dist").glob("*.whl"))


def install_wheel(wheel: Path, folder: Path) -> Path:
    """Makes an environment that has a wheel, and returns the directory of its programs."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
    (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # whose own .pth files are not read
    programs = folder / "bin"
    own = [point for found in distributions(path=[str(site)]) for point in found.entry_points]
    scripts = {point.name: point.module for point in own if point.group == "console_scripts"}
    for name, module in (scripts | {"torchx": "torchx.cli.main", "torchrun": "torch.distributed.run"}).items():
        (programs / name).write_text(f"#!{programs / 'python'}\nfrom {module} import main\nmain()\n")
        (programs / name).chmod(0o755)
    return programs
