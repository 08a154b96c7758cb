import logging

import pytest
from container_registry import HTPASSWD, container_registry, credentials


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """A registry that asks for a password."""
    folder = tmp_path_factory.mktemp("registry")
    (folder / "htpasswd").write_text(HTPASSWD)
    with container_registry(folder, auth={"htpasswd": {"realm": "here", "path": str(folder / "htpasswd")}}) as registry:
        yield registry


@pytest.fixture
def log_in(tmp_path_factory, monkeypatch):
    """Puts a password into Docker's configuration, as `docker login` does."""

    def log_in(host, *password):
        for name, value in credentials(tmp_path_factory.mktemp("docker"), host, *password).items():
            monkeypatch.setenv(name, value)

    return log_in


@pytest.fixture
def logged_in(registry, log_in):
    """The registry, with the user's password in Docker's configuration."""
    log_in(registry.host)
    return registry


@pytest.fixture
def workspace(tmp_path):
    """The directory in which the user works, with a module and what is left behind."""
    (tmp_path / "mine.py").write_text("WORD = 'first'\n")
    (tmp_path / "job.sh").write_text("python -c 'import mine; print(mine.__file__, mine.WORD)'; echo $PYTHONPATH\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/large").write_text("not needed")
    (tmp_path / ".torchxignore").write_text("data\n.docker\n*.yaml\n")
    return tmp_path


@pytest.fixture
def said(caplog):
    """What is said about code while the test runs."""
    caplog.set_level(logging.INFO, "schedulers.code")
    return lambda: [line for name, _, line in caplog.record_tuples if name.startswith("schedulers.code")]


@pytest.fixture
def refused(quick, capsys):
    """Runs a command that is refused, and returns the line with the reason."""

    def refused(*words):
        with pytest.raises(SystemExit) as stop:
            quick(*words)
        assert stop.value.code == 2
        return capsys.readouterr().err.splitlines()[-1].removeprefix("torchx run: error: ")

    return refused


@pytest.fixture
def finished(cluster, quick):
    """Submits a job by `torchx run` with these words; returns its handle once it has ended."""

    def finished(*words):
        handle = quick("run", *words).strip()
        kind, name = "JobSet" if handle.startswith("jobset") else "Job", handle.rpartition(":")[2]
        ended = ("Completed", "Failed")

        def has_ended():
            status = cluster.get(kind, "default", name).get("status", {})
            return status.get("terminalState") or status.get("state", {}).get("phase") in ended

        cluster.wait_for(has_ended)
        return handle

    return finished
