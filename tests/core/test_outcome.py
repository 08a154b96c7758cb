"""The line in which a job tells its scheduler what became of it."""

import subprocess
import sys

import pytest

WRITE = (
    "from trainer.core.outcome import write_outcome; write_outcome('saved step-000000006'); write_outcome('finished')"
)


def test_a_file_that_is_mounted_alone_takes_the_line(tmp_path):
    """The kubelet mounts the file of a container's last words, which cannot be replaced."""
    outcome, mounted = tmp_path / "termination-log", tmp_path / "of-the-node"
    outcome.touch()
    mounted.touch()
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    mount = f"mount --bind {mounted} {outcome}"
    if subprocess.run([*alone, mount], capture_output=True).returncode:
        pytest.skip("unshare may make no namespaces here")
    script = f'{mount}; exec env TORCHX_OUTCOME_FILE={outcome} {sys.executable} -c "{WRITE}"'
    done = subprocess.run([*alone, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert mounted.read_text() == "finished\n"
    assert sorted(tmp_path.iterdir()) == [mounted, outcome]
