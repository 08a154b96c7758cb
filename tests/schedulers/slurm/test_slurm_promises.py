"""What TorchX's own suites ask of its scheduler for Slurm, asked of ours, on a real Slurm (`scheduler_promises.py`)."""

import pytest
from scheduler_promises import Promises, Subject, finish

from schedulers.slurm.scheduler import create_scheduler

pytestmark = pytest.mark.slurm

# Tests of `slurm_scheduler_test.py` and `workspace_defaults_test.py` that are answered by another test, or by none.
ELSEWHERE = {
    "test_replica_request*; test_dryrun_comment, _mail, _qos; test_account; test_qos_run_opts": (
        "test_slurm_script.py::test_script_with_every_option_is_as_in_the_golden_file; "
        "test_slurm.py::test_options_reach_slurm"
    ),
    "test_replica_request_nomem; test_dryrun_nomem": "test_slurm_script.py::test_memory",
    "test_no_gpu_resources": "test_slurm_script.py::test_script_is_as_in_the_golden_file",
    "test_run_workspace_job_dir; test_slurm_defaults_to_the_job_dir_builder": (
        "test_slurm.py::test_job_directory_has_a_copy_of_the_workspace_and_runs_again"
    ),
    "test_sbatch; test_sbatch_requeue": "test_slurm.py::test_ends",
    "test_describe_squeue*; test_describe_sacct*; test_list_*": "test_slurm.py, against what the real commands print",
}
NOT_OURS = {
    "test_dryrun_multi_role; test_run_multi_role": (
        "a job has one role, whose replicas are tasks: test_slurm_script.py::test_two_roles_are_refused"
    ),
    "test_should_use_gpus_per_node_*; test_smart_gpu_*; test_dryrun_smart_gpu_*; test_version": (
        "GPUs are asked for in the same way of every version: test_slurm.py::test_gpus"
    ),
    "test_partition_memmb": "a memory of a partition is not asked for: -cfg mem decides",
    "test_log_iter": "its files have other names; without a stream ours yields both, where TorchX yields stderr",
}


@pytest.fixture(scope="module")
def subject(clusters, tmp_path_factory):
    cluster, folder = clusters(True), tmp_path_factory.mktemp("promises")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (cluster.env | {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}).items():
            patch.setenv(name, value)
        patch.chdir(folder)
        yield Subject(create_scheduler("session"), folder)
        (folder / "go").touch()


@pytest.fixture(scope="module")
def done(subject):
    return finish(subject)


class TestSlurm(Promises):
    """On a cluster with accounting."""
