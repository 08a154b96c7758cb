"""What TorchX promises of every scheduler, restated as tests, as neither its wheel nor an archive of sources has tests.

In the files that use it, `ELSEWHERE` and `NOT_OURS` name the other tests of TorchX's own suites, with the reason.
"""

import copy
import os
import re
import time
from datetime import datetime

import pytest
from torchx.schedulers.api import Stream
from torchx.specs import AppDef, AppState, Resource, Role, is_terminal, macros

STAYS = "until [ -e go ]; do sleep 0.05; done"


class Subject:
    """A scheduler in this process, and a directory for its jobs, which is the current one."""

    def __init__(self, scheduler, folder, **cfg):
        self.scheduler, self.folder, self.cfg = scheduler, folder, cfg

    def submit(self, script, *args, replicas=1, **env):
        return self.scheduler.submit(self.app(script, *args, replicas=replicas, **env), self.cfg)

    def app(self, script, *args, replicas=1, **env):
        """An app whose replicas run lines of bash."""
        resource = Resource(cpu=1, gpu=0, memMB=100)
        words = ["-c", script, "bash", *args]
        return AppDef(
            "sh", [Role("sh", "", entrypoint="bash", args=words, env=env, num_replicas=replicas, resource=resource)]
        )

    def wait(self, app_id, condition=is_terminal):
        deadline = time.monotonic() + 600
        while not condition((answer := self.scheduler.describe(app_id)).state):
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)
        return answer

    def log(self, app_id, **options):
        return list(self.scheduler.log_iter(app_id, "sh", 0, **options))


def finish(subject):
    """Runs a job of two replicas to its end; returns its id."""
    script = (
        f"echo $1 $FOO $OF_SHELL $OF_BOTH > told-{macros.replica_id}; "
        r"for i in 1 2 3 4; do echo $i; done; printf '\x02\xc5\xd8\n' >&2"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OF_SHELL", "shell")
        patch.setenv("OF_BOTH", "shell")
        app_id = subject.submit(
            script, f"{macros.app_id}-{macros.replica_id}", replicas=2, FOO=macros.app_id, OF_BOTH="role"
        )
        subject.wait(app_id)
    return app_id


class Promises:
    """The tests; the module of a subclass has the fixtures `subject` and `done`, a job that `finish` has run."""

    @pytest.fixture
    def running(self, subject):
        """A job that runs until somebody cancels it: its id."""
        app_id = subject.submit(f"echo begun; {STAYS}")
        subject.wait(app_id, lambda state: state == AppState.RUNNING)
        yield app_id
        subject.scheduler.cancel(app_id)

    def test_a_job_ends_as_its_replicas_do(self, subject, done):
        assert subject.scheduler.describe(done).state == AppState.SUCCEEDED
        failed = subject.submit("exit $(($1 == 1))", macros.replica_id, replicas=2)
        assert subject.wait(failed).state == AppState.FAILED

    def test_macros_are_filled_in_and_variables_of_the_role_come_before_those_of_the_shell(self, subject, done):
        for replica in (0, 1):
            told = (subject.folder / f"told-{replica}").read_text()
            assert re.fullmatch(rf"\S*{done}-{replica} \S*{done} shell role\n", told)

    def test_a_dry_run_writes_nothing_and_changes_nothing(self, subject):
        app = subject.app("true", macros.app_id, PATH="/of/the/role")
        before, files = copy.deepcopy(app), sorted(subject.folder.rglob("*"))
        info = subject.scheduler.submit_dryrun(app, subject.cfg)
        assert "/of/the/role" not in os.environ["PATH"]
        assert "true" in str(info)
        assert info.app is app
        assert app == before
        assert sorted(subject.folder.rglob("*")) == files

    def test_logs_are_whole_lines_of_a_stream_and_a_pattern(self, subject, done):
        assert subject.log(done, streams=Stream.STDOUT) == ["1\n", "2\n", "3\n", "4\n"]
        assert subject.log(done, streams=Stream.STDOUT, regex="[24]") == ["2\n", "4\n"]
        assert subject.log(done, streams=Stream.STDERR) == ["\x02��\n"], "what is no UTF-8 is replaced"
        assert len(subject.log(done)) == 5

    def test_times_are_ignored_with_a_word_where_lines_have_none(self, subject, done):
        with pytest.warns(UserWarning, match="since and until are ignored"):
            found = subject.log(done, streams=Stream.STDOUT, since=datetime.now(), until=datetime.now())
        assert len(found) == 4

    def test_a_log_that_is_not_followed_ends_where_it_ends_while_the_job_runs(self, subject, running):
        deadline = time.monotonic() + 600
        while subject.log(running) != ["begun\n"]:
            assert time.monotonic() < deadline

    def test_an_unknown_job_has_no_status_and_is_not_cancelled(self, subject):
        assert subject.scheduler.describe("999999") is None
        assert not subject.scheduler.exists("999999")
        subject.scheduler.cancel("999999")

    def test_a_job_that_is_being_cancelled_never_runs_without_a_word(self, subject, running):
        assert subject.scheduler.exists(running)
        subject.scheduler.cancel(running)
        answer = subject.scheduler.describe(running)
        assert answer.state == AppState.CANCELLED or "being cancelled" in answer.msg
        assert subject.wait(running).state == AppState.CANCELLED
        assert subject.scheduler.exists(running)

    def test_jobs_are_listed_with_their_names_and_states(self, subject, done):
        listed = {job.app_id: (job.name, job.state) for job in subject.scheduler.list()}
        assert listed[done] == ("sh", AppState.SUCCEEDED)

    def test_a_scheduler_is_closed_twice_without_harm(self, subject, done):
        subject.scheduler.close()
        subject.scheduler.close()
        assert subject.scheduler.describe(done).state == AppState.SUCCEEDED
