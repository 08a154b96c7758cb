"""`torchx tracker` without a line of configuration: the jobs submitted here, and what their run directories hold."""

import json
from base64 import b32encode

import pytest
from command import run_torchx, write_config
from simple_rows import config_of, write_splits


def handle_of(done):
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def rows_of(done):
    """Returns the lines of a table without its headers, each split at columns."""
    assert done.returncode == 0, done.stderr
    return [line.split(None, 1) for line in done.stdout.splitlines()[2:]]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def torchx(home):
    def run(*words, **env):
        return run_torchx(*words, cwd=home, **{"HOME": str(home), "XDG_STATE_HOME": str(home), "COLUMNS": "200"} | env)

    return run


@pytest.fixture(scope="module")
def jobs(home, torchx, tmp_path_factory):
    """The handles of a training, of an export of it that only prints its command, and of a training that follows."""
    tree = config_of(write_splits(home / "data"), evaluate={"metrics": ["auc", "log_loss"]})
    write_config(home / "mine.toml", tree)
    write_config(home / "next.toml", {"base": "mine.toml", "finetune": {"checkpoint": "runs/mine"}})
    programs = tmp_path_factory.mktemp("programs")
    (programs / "python").write_text("#!/bin/sh\n")
    (programs / "python").chmod(0o755)
    idle = {"PATH": f"{programs}:/usr/bin:/bin"}
    first = handle_of(torchx("run", "dlrm.single_node", "--config", "mine.toml", "--out", "runs/mine", "--nproc", "1"))
    export = ("tools.export", "--config", "mine.toml", "--out", "runs/mine", "--to", "exports/mine")
    exported = handle_of(torchx("run", *export, **idle))
    second = ("dlrm.single_node", "--config", "next.toml", "--out", "runs/${app_id}", "--nproc", "1")
    return first, exported, handle_of(torchx("run", "--parent_run_id", first, *second, **idle))


def test_all_jobs_are_listed_in_the_order_in_which_they_were_submitted(torchx, jobs):
    assert [row[0] for row in rows_of(torchx("tracker", "list", "jobs"))] == [*jobs]
    # The export reads the run of the first, and the last names it as its parent.
    of_parent = rows_of(torchx("tracker", "list", "jobs", "--parent-run-id", jobs[0]))
    assert [row[0] for row in of_parent] == [*jobs[1:]]


def test_metadata_has_the_configuration_and_the_last_metrics(torchx, jobs, home):
    found = dict(rows_of(torchx("tracker", "list", "metadata", jobs[0])))
    assert " train mine.toml --out runs/mine " in found["command"]
    assert found["config"].strip() == "mine.toml"
    assert found["state"].strip() == "finished"
    assert found["data.global_batch_size"] == "96"
    lines = [json.loads(line) for line in (home / "runs/mine/evaluations.jsonl").read_text().splitlines()]
    wanted = {f"{line['split']} {name}": line[name] for line in lines for name in ("auc", "log_loss")}
    table = torchx("tracker", "list", "metadata", jobs[0]).stdout
    for name, value in wanted.items():
        (line,) = [line for line in table.splitlines() if line.startswith(f"{name} ")]
        assert float(line.split()[-1]) == value


def test_artifacts_are_the_run_directory_its_newest_checkpoint_and_its_exports(torchx, jobs, home):
    found = dict(rows_of(torchx("tracker", "list", "artifacts", jobs[0])))
    assert {name: path.strip() for name, path in found.items()} == {
        "run_directory": str(home / "runs/mine"),
        "checkpoint": str(home / "runs/mine/checkpoints/step-000000010"),
        "export": str(home / "exports/mine"),
    }
    app_id = jobs[2].rpartition("/")[2]
    assert rows_of(torchx("tracker", "list", "artifacts", jobs[2])) == [["run_directory", str(home / "runs" / app_id)]]


def test_lineage_names_what_a_job_comes_from_and_what_comes_from_it(torchx, jobs):
    lineage = torchx("tracker", "list", "lineage", jobs[0]).stdout.split()
    assert lineage[-4:] == ["to", jobs[1], "to", jobs[2]]
    assert torchx("tracker", "list", "lineage", jobs[1]).stdout.split()[-3:] == ["from", jobs[0], "run_directory"]
    assert torchx("tracker", "list", "lineage", jobs[2]).stdout.split()[-2:] == ["from", jobs[0]]


@pytest.mark.parametrize("what", ["metadata", "artifacts", "lineage"])
def test_an_unknown_run_is_one_line(torchx, what):
    done = torchx("tracker", "list", what, "local_cwd://torchx/none")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "torchx tracker: error: no such run: local_cwd://torchx/none; `torchx tracker list jobs` lists them"
    )


def test_a_record_that_cannot_be_kept_is_one_line_and_the_job_runs(torchx, home):
    (home / "full").mkdir()
    (home / "full/torchx-recsys").mkdir()
    (home / "full/torchx-recsys/tracker").write_text("a file, where a directory has to be")
    done = torchx("run", "utils.echo", "--msg", "here", XDG_STATE_HOME=str(home / "full"))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("torchx tracker will not know local_cwd://")]


def test_lines_for_the_tracker_of_fsspec_still_choose_it(torchx, home, tmp_path):
    (tmp_path / "tracked" / b32encode(b"local_cwd://torchx/job").decode()).mkdir(parents=True)
    (tmp_path / "fsspec.conf").write_text(f"protocol=file\nroot_path={tmp_path / 'tracked'}\n")
    trackers = {"TORCHX_TRACKERS": "fsspec", "TORCHX_TRACKER_FSSPEC_CONFIG": str(tmp_path / "fsspec.conf")}
    done = torchx("tracker", "list", "jobs", **trackers)
    assert rows_of(done) == [["local_cwd://torchx/job"]], done.stderr
