import json

import pytest

SHELL = ("utils.sh", "--image", "trainer:1")


@pytest.fixture
def submit(quick):
    """Submits a shell script and returns the app handle."""

    def submit(script, *options, cfg="namespace=default", replicas=1):
        where = ("run", "-s", "jobset", "-cfg", cfg, *SHELL, "--num_replicas", str(replicas), *options)
        return quick(*where, "exec", "sh", "-c", script).strip()

    return submit


@pytest.fixture
def status(quick):
    """The status of a job, as JSON."""
    return lambda handle: json.loads(quick("status", "--json", handle))
