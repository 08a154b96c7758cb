"""Code as a layer: a real registry, and pods of the stand-in for a cluster that pull it."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import requests
from container_registry import DOCKER, OCI, PASSWORD, USER, container_registry
from token_server import token_server

PAGE = Path(__file__).parents[3] / "docs/schedulers/kubernetes.md"
VOLCANO = ("-s", "kubernetes", "-cfg", "queue=q,validate_spec=False,")
JOBSET = ("-s", "jobset", "-cfg", "")
SHELL = ("utils.sh", "--image")


def on(scheduler, option, base, *words):
    """The words behind `torchx run`."""
    *before, options = scheduler
    return (*before, options + option, *SHELL, base, *(words or ("sh", "job.sh")))


@pytest.fixture
def base(logged_in):
    """The name of an image in the registry."""
    logged_in.push_base("team/trainer")
    return f"{logged_in.host}/team/trainer:1"


@pytest.fixture
def repo(logged_in, request):
    """The option with a repository of the test's own, which is empty."""
    name = re.sub(r"\W+", "-", request.node.name.lower()).strip("-")
    return f"image_repo={logged_in.host}/code/{name}"


def read(image, kind="manifests", digest=None, media=OCI):
    """A manifest of an image, or one of its blobs."""
    name, own = image.split("@")
    host, path = name.split("/", 1)
    url = f"http://{host}/v2/{path}/{kind}/{digest or own}"
    return requests.get(url, auth=(USER, PASSWORD), headers={"Accept": f"{media}.manifest.v1+json"}).json()


def image_of(printed):
    return re.search(r"image: (\S+@sha256:\w+)", printed)[1]


@pytest.mark.parametrize("scheduler", [JOBSET, VOLCANO], ids=["jobset", "kubernetes"])
def test_changed_code_runs_and_only_the_code_is_pushed(
    logged_in, base, repo, workspace, quick, finished, said, scheduler
):
    log = quick("log", handle := finished(*on(scheduler, repo, base)))
    assert re.search(r"/torchx-code/mine.py first\n", log)
    assert "/torchx-code:/base" in re.sub(r"/\S*(?=/torchx-code)", "", log)  # the image's own PYTHONPATH comes after
    before = logged_in.uploads()
    finished(*on(scheduler, repo, base))
    assert logged_in.uploads() == before  # equal code, nothing to push
    (workspace / "mine.py").write_text("WORD = 'second'\n")
    log = quick("log", handle := finished(*on(scheduler, repo, base)))
    assert re.search(r"/torchx-code/mine.py second\n", log)
    assert logged_in.uploads() == before + 3  # the layer, the configuration and the manifest
    first, again, changed = said()
    assert " pushed to " in first
    assert " is already in " in again
    assert re.search(r"code (\w+) ", changed)[1] in quick("status", handle)


def test_a_dry_run_pushes_nothing_and_says_what_it_would(logged_in, base, repo, workspace, quick, capsys):
    before = logged_in.uploads()
    printed = quick("run", "--dryrun", *on(JOBSET, repo, base))
    assert logged_in.uploads() == before
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        rf"torchx run: code \w{{12}} \(3 files, 0.\d kB\) would be pushed to {image_of(printed)}, as a layer on .*",
        line,
    )


@pytest.mark.parametrize("media", [OCI, DOCKER], ids=["oci", "docker"])
def test_the_image_is_the_base_with_one_layer_more(logged_in, repo, workspace, quick, cluster, media):
    digest = logged_in.push_base("team/two", media, (b"one", b"two"))
    quick("run", *on(JOBSET, repo, f"{logged_in.host}/team/two@{digest}"))
    image = cluster.all("JobSet")[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    image = image["containers"][0]["image"]
    manifest = read(image, media=media)
    base = read(f"{logged_in.host}/team/two@{digest}", media=media)
    assert manifest["layers"][:-1] == base["layers"]
    assert manifest["layers"][-1]["mediaType"] == base["layers"][0]["mediaType"]
    config = read(image, "blobs", manifest["config"]["digest"])
    assert config["config"]["WorkingDir"] == "/torchx-code"
    assert config["config"]["User"] == "1000"
    assert config["config"]["Env"] == ["PATH=/usr/bin:/bin", "PYTHONPATH=/torchx-code:/base"]
    assert config["config"]["Labels"]["org.opencontainers.image.base.digest"] == digest
    assert len(config["rootfs"]["diff_ids"]) == 3


@pytest.mark.parametrize(("labels", "chosen"), [("", "amd64"), (",node_selector=kubernetes.io/arch:arm64", "arm64")])
def test_of_several_platforms_that_of_the_nodes_is_taken(logged_in, repo, workspace, quick, labels, chosen):
    digests = {name: logged_in.push_base("team/many", layers=(name.encode(),)) for name in ("arm64", "amd64")}
    entries = [
        {
            "mediaType": f"{OCI}.manifest.v1+json",
            "digest": digest,
            "size": 1,
            "platform": {"os": "linux", "architecture": name},
        }
        for name, digest in digests.items()
    ]
    logged_in.put_manifest(
        "team/many", "all", {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": entries}
    )
    handle = quick("run", *on(JOBSET, repo + labels, f"{logged_in.host}/team/many:all"))
    described = quick("run", "--dryrun", *on(JOBSET, repo + labels, f"{logged_in.host}/team/many:all"))
    manifest = read(image_of(described))
    assert manifest["annotations"]["org.opencontainers.image.base.digest"] == digests[chosen], handle


def test_a_base_of_another_registry_is_copied_once_with_a_line(
    logged_in, repo, workspace, quick, tmp_path_factory, said
):
    with container_registry(tmp_path_factory.mktemp("other")) as other:
        other.push_base("their/base", layers=(b"x" * 2000, b"two"))
        for _ in range(2):
            (workspace / "mine.py").open("a").write("# more\n")
            quick("run", *on(JOBSET, repo, f"{other.host}/their/base:1"))
    copied, pushed, again = said()
    assert re.match(r"copies 2 layers of the base, 0.\d kB, from 127.*/their/base to .*, once$", copied)
    assert " pushed to " in pushed
    assert " pushed to " in again


def test_a_registry_that_gives_out_tokens(tmp_path_factory, tmp_path, workspace, quick, refused, log_in, said):
    """As Docker Hub, GitHub, GitLab and others do: the first answer names the server to ask."""
    folder = tmp_path_factory.mktemp("tokens")
    with container_registry(folder) as plain:
        plain.push_base("team/trainer")
    with token_server(folder) as (auth, asked), container_registry(folder, auth=auth) as registry:
        words = on(JOBSET, f"image_repo={registry.host}/team/code", f"{registry.host}/team/trainer:1")
        reason = "has no credentials from docker login; try `docker login"
        assert f"-cfg image_repo={registry.host}/team/code: {registry.host} {reason}" in refused("run", *words)
        log_in(registry.host)
        quick("run", *words)
        assert any("repository:team/code:pull,push" in scopes for scopes in asked)
        assert " pushed to " in said()[-1]
        log_in(registry.host, "wrong")
        assert "refuses the credentials of docker login; try" in refused("run", *words)


def test_a_password_from_a_credential_helper(
    registry, base, repo, workspace, quick, monkeypatch, tmp_path_factory, said
):
    folder = tmp_path_factory.mktemp("helper")
    helper = folder / "docker-credential-ours"
    answer = json.dumps({"Username": USER, "Secret": PASSWORD, "ServerURL": registry.host})
    helper.write_text(f"#!/bin/sh\ncat > /dev/null\necho '{answer}'\n")
    helper.chmod(0o755)
    (folder / "config.json").write_text(json.dumps({"credHelpers": {registry.host: "ours"}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    quick("run", *on(JOBSET, repo, base))
    assert " pushed to " in said()[-1]


@pytest.fixture(scope="session")
def read_only(registry, tmp_path_factory):
    """The same images in a registry that takes no uploads."""
    folder = tmp_path_factory.mktemp("read-only")
    auth = {"htpasswd": {"realm": "here", "path": str(registry.folder.parent / "htpasswd")}}
    storage = {"maintenance": {"readonly": {"enabled": True}}}
    with container_registry(folder, registry.folder, auth=auth, storage=storage) as read_only:
        yield read_only


def test_what_registries_refuse_is_one_line(registry, read_only, base, workspace, refused, log_in):
    host = registry.host
    log_in(host, "wrong")
    assert refused("run", *on(JOBSET, f"image_repo={host}/team/x", base)) == (
        f"--image {base}: {host} refuses the credentials of docker login; try `docker login {host}`"
    )
    log_in(read_only.host)
    only = f"{read_only.host}/team"
    assert refused("run", *on(JOBSET, f"image_repo={only}/code", f"{only}/trainer:1")) == (
        f"-cfg image_repo={only}/code: {read_only.host} is read-only: it takes no uploads"
    )
    assert refused("run", *on(JOBSET, f"image_repo={only}/code", f"{only}/trainer:2")) == (
        f"--image {only}/trainer:2: there is no such image in {read_only.host}"
    )
    said = refused("run", *on(JOBSET, f"image_repo={only}/code", "127.0.0.1:1/team/trainer:1"))
    assert said.startswith("--image 127.0.0.1:1/team/trainer:1: 127.0.0.1:1 cannot be reached: ")


@pytest.mark.parametrize(
    ("option", "image", "line"),
    [
        ("image_repo=HOST/Team/x", "HOST/team/trainer:1", "-cfg image_repo=HOST/Team/x: must be an image as "),
        (
            "image_repo=HOST/team/x:1",
            "HOST/team/trainer:1",
            "-cfg image_repo=HOST/team/x:1: must be a repository, with",
        ),
        ("image_repo=HOST/team/x", "https://HOST/team/y", "--image https://HOST/team/y: must be an image as "),
        ("image_repo=HOST/x,code=s3://a/b", "HOST/team/trainer:1", "-cfg code=s3://a/b: must not come with image_repo"),
        (
            "image_repo=HOST/x,node_selector=kubernetes.io/arch:s390x",
            "HOST/team/index:1",
            "must have linux/s390x, and has",
        ),
    ],
)
def test_options_that_cannot_work_are_one_line(logged_in, base, workspace, refused, option, image, line):
    entry = {"mediaType": "x", "digest": "sha256:0", "size": 1, "platform": {"os": "linux", "architecture": "amd64"}}
    index = {"schemaVersion": 2, "mediaType": f"{DOCKER}.distribution.manifest.list.v2+json", "manifests": []}
    if "index" in image:
        entry["digest"], entry["mediaType"] = logged_in.push_base("team/index", tag="0"), f"{OCI}.manifest.v1+json"
        logged_in.put_manifest("team/index", "1", index | {"manifests": [entry]})
    place = [text.replace("HOST", logged_in.host) for text in (option, image, line)]
    assert place[2] in refused("run", *on(JOBSET, place[0], place[1]))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda folder: (folder / "trainer.py").touch(), "its package trainer would replace the one that the job runs"),
        (lambda folder: (folder / "link").symlink_to("nothing"), "link is no file (a link to nothing, a socket or"),
        (lambda folder: (folder / "Dockerfile.torchx").touch(), "has a Dockerfile.torchx, which only Docker runs"),
        (lambda folder: subprocess.run(["truncate", "-s", "2G", folder / "big"]), "and has 2.1 GB: big (2.1 GB), "),
        (
            lambda folder: (folder / ".torchxignore").write_text("*"),
            "has no files; --workspace '' takes the image as it",
        ),
    ],
)
def test_workspaces_that_cannot_be_shipped_are_one_line(logged_in, base, repo, workspace, refused, change, line):
    change(workspace)
    assert line in refused("run", *on(JOBSET, repo, base))


def test_a_workspace_that_nothing_ships_is_left_out_with_a_line(workspace, base, quick, refused, capsys):
    quick("run", "--dryrun", *on(JOBSET, "", base))
    assert (
        "is not built into the image, which is taken as it is: neither -cfg image_repo nor" in capsys.readouterr().err
    )
    assert "--workspace /usr: must be a directory that can come into the image; neither" in refused(
        *("run", "-s", "jobset", "--workspace", "/usr", *SHELL, base, "true")
    )


def test_the_commands_of_the_page_submit_jobs_with_the_code(cluster, logged_in, base, workspace, quick):
    """Pods stay pending: what their images do is shown by other tests."""
    cluster.why_unschedulable = "no nodes"
    section = PAGE.read_text().partition("## Code without an image build")[2]
    commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1].replace("\\\n", " ").splitlines()
    assert len(commands) == 3
    for command in commands:
        words = command.replace("registry/", f"{logged_in.host}/").replace(
            "code=s3://bucket", f"code=file://{workspace}/data"
        )
        handle = quick(*shlex.split(words)[1:]).strip()
        assert re.search(r"code \w{12}", quick("status", handle))
