import pytest
from shells import Shells


@pytest.fixture
def torchx(tmp_path):
    shells = Shells(tmp_path)
    yield shells
    shells.close()
