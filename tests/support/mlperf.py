"""MLCommons' checker of log lines, and what only a run on the published data can tell."""

import re
import subprocess
import sys
from pathlib import Path

OF_DATA = {"train_samples": 2_290_835_423, "eval_samples": 2_058_204, "eval_every_data_pct": 0.001}


def complaints(file: Path) -> tuple[set[str], bool]:
    """Returns the keys that the checker has something against, and whether it accepts the log."""
    words = ("-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "6.1.0", file.name)
    done = subprocess.run([sys.executable, *words], cwd=file.parent, capture_output=True, text=True)
    assert "SUCCESS" in done.stderr or "FAILED" in done.stderr, done.stderr
    found = re.findall(r"(?:CHECK for|occurrence of|checks for) '?(\w+)", done.stderr)
    return {*found}, done.returncode == 0
