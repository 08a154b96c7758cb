"""What a scheduler is asked to run is what the component says, for every component and every scheduler."""

import shlex

import pytest
from catalog import COMPONENTS
from torchx.runner import get_runner
from torchx.specs import macros

from schedulers.contract import RANK0_HOST

OPTIONS = {
    "local_cwd": {},
    "slurm": {},
    "jobset": {},
    "kubernetes": {"queue": "default", "validate_spec": False},
}


def local(request):
    """The words that replica 0 is started with, and the id of the job."""
    (replica, *_) = request.role_params.values()
    return replica[0].args, request.app_id


def slurm(request):
    """The words of the line that replaces the shell of a replica."""
    (line,) = [line for line in request.script.splitlines() if line.startswith("    exec ")]
    return shlex.split(line)[1:], "$SLURM_JOB_ID"


def jobset(request):
    resource = request.resource
    (job,) = resource["spec"]["replicatedJobs"]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    return [word.replace("$$(", "$(") for word in container["args"]], resource["metadata"]["name"]


def kubernetes(request):
    resource = request.resource
    (container,) = resource["spec"]["tasks"][0]["template"]["spec"]["containers"]
    return container["command"], resource["metadata"]["name"]


@pytest.mark.parametrize("scheduler", OPTIONS)
@pytest.mark.parametrize("component", COMPONENTS)
def test_the_words_of_a_component_survive_the_scheduler(scheduler, component, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with get_runner() as runner:
        args = ["--image", "trainer:1", *COMPONENTS[component]]
        dry_run = runner.dryrun_component(component, args, scheduler, cfg=OPTIONS[scheduler])
    words, app_id = globals()[scheduler.removesuffix("_cwd")](dry_run.request)
    role = dry_run.app.roles[0]
    expected = macros.Values(img_root="", app_id=app_id, replica_id="0", rank0_env=RANK0_HOST).apply(role)
    assert words == [expected.entrypoint, *expected.args]
    assert [*tmp_path.iterdir()] == []
