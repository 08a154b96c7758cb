"""Code as an archive: a real server of S3's protocol, and pods of the stand-in for a cluster that unpack it."""

import re

import pytest
from object_store import object_store
from pipelines_of_shell import write_pipeline
from schemas import validate_pod

VOLCANO = ("-s", "kubernetes", "-cfg", "queue=q,validate_spec=False,code=")
JOBSET = ("-s", "jobset", "-cfg", "code=")


@pytest.fixture(scope="module")
def server():
    with object_store() as server:
        server.fs.mkdir("bucket")
        yield server


@pytest.fixture
def store(server, monkeypatch):
    """The server, for the user; pods get what they need by `--env`."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def on(scheduler, url, server, *words):
    """The words behind `torchx run`."""
    *before, option = scheduler
    env = ",".join(f"{name}={value}" for name, value in server.environment.items())
    return (*before, option + url, "utils.sh", "--image", "trainer:1", "--env", env, *(words or ("sh", "job.sh")))


@pytest.mark.few(1, "test_layer.py has both schedulers")
@pytest.mark.parametrize("scheduler", [JOBSET, VOLCANO], ids=["jobset", "kubernetes"])
def test_changed_code_runs_and_is_uploaded_once(store, workspace, quick, finished, said, scheduler, request):
    folder = f"s3://bucket/{request.node.callspec.id}"
    (workspace / "large").symlink_to("/usr")
    for word in ("first", "first", "second"):
        (workspace / "mine.py").write_text(f"WORD = '{word}'\n")
        handle = finished(*on(scheduler, folder, store))
        assert re.search(rf"/torchx-code/mine.py {word}\n", quick("log", handle))
        assert "State: SUCCEEDED" in quick("status", handle)
    first, again, changed = [line for line in said() if "travel as links" not in line]
    assert "links to directories travel as links, without what is in them: large" in said()
    assert f" uploaded to {folder}/" in first
    assert " is already in " in again
    assert " uploaded to " in changed
    assert len(store.fs.ls(folder)) == 2
    assert re.search(r"code (\w+) ", changed)[1] in quick("status", handle)


def test_a_dry_run_uploads_nothing_and_says_what_it_would(store, workspace, quick, capsys):
    quick("run", "--dryrun", *on(JOBSET, "s3://bucket/dry", store))
    assert not store.fs.exists("bucket/dry")
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r"torchx run: code (\w{12}) \(3 files, 0.\d kB\) would be uploaded to s3://.*/\1\w+.tar.gz", line
    )


def test_the_init_container_has_what_the_job_has(store, workspace, quick, cluster):
    """A quota asks every container for its limits, and `restricted` for its security context."""
    options = ",restricted=True,run_as_user=1000,env_secrets=aws,secrets=s3:/etc/s3"
    quick("run", *on(JOBSET, f"s3://bucket/dry{options}", store))
    pod = cluster.all("JobSet")[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    validate_pod(pod)
    (unpacker,), (job,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    for key in ("image", "envFrom", "resources", "volumeMounts", "securityContext"):
        assert unpacker[key] == job[key]
    assert job["workingDir"] == "/torchx-code"
    assert {"name": "torchx-code", "emptyDir": {}} in pod["spec"]["volumes"]
    assert {"name": "PYTHONPATH", "value": "/torchx-code"} in job["env"]
    assert not [one for one in unpacker["env"] if one["name"] == "PYTHONPATH"]


def test_the_users_own_path_comes_after_the_code(store, workspace, quick, cluster):
    words = on(JOBSET, "s3://bucket/path", store)
    place = words.index("--env") + 1
    quick("run", *words[:place], f"{words[place]},PYTHONPATH=/mine", *words[place + 1 :])
    pod = cluster.all("JobSet")[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert {"name": "PYTHONPATH", "value": "/torchx-code:/mine"} in pod["spec"]["containers"][0]["env"]


@pytest.mark.few(1, "the first shows that such an error reaches the status")
@pytest.mark.parametrize(
    ("scheduler", "content", "line"),
    [
        (JOBSET, None, "code: there is no s3://bucket/broken-0/"),
        (JOBSET, b"something else", "cannot be unpacked into"),
        (VOLCANO, None, "FAILED"),  # of an init container, this one's status says no more
    ],
)
def test_an_archive_that_a_pod_cannot_use_ends_the_job_with_a_line(
    store, workspace, quick, cluster, finished, scheduler, content, line, request
):
    folder = f"bucket/broken-{request.node.callspec.indices['line']}"
    post = cluster.post

    def after_the_upload(kind, *rest):
        for path in store.fs.ls(folder) if kind == "Pod" and store.fs.exists(folder) else ():
            store.fs.rm(path) if content is None else store.fs.pipe(path, content)
        return post(kind, *rest)

    cluster.post = after_the_upload
    handle = finished(*on(scheduler, f"s3://{folder}", store, "true"))
    said = quick("status", handle)
    assert "State: FAILED" in said
    assert line in said


@pytest.mark.more("pipelines are tested on local_cwd")
def test_the_steps_of_a_pipeline_run_the_code(store, workspace, quick, cluster, said):
    cluster.why_unschedulable = "no nodes"
    (workspace / ".torchxignore").open("a").write("out\n")  # the pipeline's record, which changes with each submission
    write_pipeline(workspace / "p.toml", a=("true",), b=("true", "a"))
    quick("pipeline", "run", "-s", "jobset", "-cfg", "code=s3://bucket/steps", "p.toml")
    names = {one["metadata"]["annotations"]["torchx.pytorch.org/code"] for one in cluster.all("JobSet")}
    assert len(cluster.all("JobSet")) == 2
    assert len(names) == 1
    assert " uploaded to s3://bucket/steps/" in said()[0]


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("bucket/code", "-cfg code=bucket/code: must be a URL that pods can read, such as s3://bucket/code"),
        ("nowhere://x", "-cfg code=nowhere://x: must be a URL of fsspec; it knows no nowhere://"),
        ("s3://key:secret@bucket/x", "-cfg code=s3://***@bucket/x: must be a URL without secrets"),
        ("s3://no-such-bucket/x", "-cfg code=s3://no-such-bucket/x: cannot be written to: "),
        ("file:///proc/code", "-cfg code=file:///proc/code: cannot be written to: "),
    ],
)
def test_urls_that_cannot_work_are_one_line(store, workspace, refused, url, line):
    assert line in refused("run", *on(JOBSET, url, store))
