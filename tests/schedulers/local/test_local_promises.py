"""What TorchX's own suites ask of its local scheduler, asked of ours (`scheduler_promises.py`)."""

import os

import pytest
from scheduler_promises import STAYS, Promises, Subject, finish
from torchx.specs import AppState, Resource, Role

from schedulers.local.scheduler import create_scheduler

# Tests of `local_scheduler_test.py` and `workspace_defaults_test.py` that are answered by another test, or by none.
ELSEWHERE = {
    "test_child_process_env_*; test_to_popen_request_path_idempotent, _substitutes_macros": (
        "test_local.py::test_programs_in_the_current_directory_come_last_or_first"
    ),
    "test_close; test_no_orphan_process_function": "test_local.py::test_an_attached_job_ends_with_its_shell",
    "test_local_cwd_builds_no_workspace": "components/test_workspaces.py",
}
NOT_OURS = {
    "LocalDirImageProviderTest; CWDImageProviderTest": "TorchX's own classes; ours changes nothing in them",
    "JoinPATHTest; test_get_gpu_*; test_auto_set_CUDA_VISIBLE_DEVICES*; test_get_cuda_devices_*": "the same",
    "test_submit_cleanup; test_close_preserves_user_log_dir": "logs stay with the record: other shells read them",
    "test_submit_with_log_dir_stdout": "no file SUCCESS: `torchx status` has the end of a job",
    "test_describe_native, _dropped_on_eviction": "a record has what a job needs, not its request; None is allowed",
    "test_cancel_existing_updates_last_updated; test_evict_*; test_*cache*": "no cache: each job has a record on disk",
    "test_list": "it asks that jobs cannot be listed; ours are",
}


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    folder = tmp_path_factory.mktemp("promises")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.chdir(folder)
        scheduler = create_scheduler("session")
        yield Subject(scheduler, folder)
        (folder / "go").touch()
        scheduler.close()


@pytest.fixture(scope="module")
def done(subject):
    return finish(subject)


class TestLocal(Promises):
    def test_roles_run_side_by_side(self, subject):
        app = subject.app("touch first")
        app.roles.append(Role("other", "", entrypoint="touch", args=["second"], resource=Resource(1, 0, 1)))
        assert subject.wait(subject.scheduler.submit(app, {})).state == AppState.SUCCEEDED
        assert {"first", "second"} <= {*os.listdir(subject.folder)}

    def test_variables_of_torchrun_are_the_roles_if_it_has_them(self, subject):
        own = {"TORCHELASTIC_ERROR_FILE": "own.json", "PET_LOG_DIR": "/own"}
        for given in ({}, own):
            info = subject.scheduler.submit_dryrun(subject.app(STAYS, **given), {})
            (replica,) = info.request.role_params["sh"]
            made = (f"{info.request.role_log_dirs['sh'][0]}/error.json", f"{info.request.log_dir}/torchelastic/sh")
            found = (replica.env["TORCHELASTIC_ERROR_FILE"], replica.env["PET_LOG_DIR"])
            assert found == (tuple(own.values()) if given else made)
