import os

import pytest
from jobs import write_rows


def pytest_configure():
    """Gives every process one thread: as many as there are cores, in each of many tests, wait for one another."""
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """A small data set that `jobs.config` describes."""
    return write_rows(tmp_path_factory.mktemp("rows"), [130, 126])


@pytest.fixture(scope="session", autouse=True)
def state_directory(tmp_path_factory):
    """Keeps the records of local jobs out of the user's own state directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
