import pytest
from jobs import write_rows


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """A small data set that `jobs.config` describes."""
    return write_rows(tmp_path_factory.mktemp("rows"), [130, 126])
