"""The code that travels to a host: its files, links to directories as links, and a digest of all of that."""

import io
import tarfile

import pytest
from torchx.specs import Workspace

from schedulers.errors import SchedulerError
from schedulers.slurm.code import COMPLETE, Code


@pytest.fixture
def workspace(tmp_path):
    """A directory with a file, a link to a file, and a link to a directory that is not sent."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "large").write_text("data")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "own.py").write_text("x = 1\n")
    (tmp_path / "work" / "same.py").symlink_to("own.py")
    (tmp_path / "work" / "data").symlink_to(tmp_path / "shared")
    return tmp_path / "work"


def code_of(folder):
    return Code.of(Workspace(projects={str(folder): ""}))


def test_a_link_to_a_directory_travels_as_a_link_and_says_so(workspace, tmp_path, caplog):
    with caplog.at_level("INFO"):
        code = code_of(workspace)
    assert "without what is in them: data" in caplog.text
    there = tmp_path / "there"
    with tarfile.open(fileobj=io.BytesIO(code.archive())) as archive:
        archive.extractall(there)
    assert {file.name for file in there.iterdir()} == {"own.py", "same.py", "data", COMPLETE}
    assert (there / "data").readlink() == tmp_path / "shared"
    assert (there / "same.py").read_text() == (there / "own.py").read_text() == "x = 1\n"
    assert not (there / "same.py").is_symlink()


def test_the_digest_is_that_of_the_files_and_links(workspace, tmp_path):
    before = code_of(workspace).digest
    assert code_of(workspace).digest == before
    (workspace / "data").unlink()
    (workspace / "data").symlink_to(tmp_path)
    assert code_of(workspace).digest != before


def test_a_link_to_nothing_is_one_line(workspace):
    (workspace / "gone").symlink_to("nowhere")
    with pytest.raises(SchedulerError, match=r"gone: cannot be read, to be sent to the host: No such file"):
        code_of(workspace)
