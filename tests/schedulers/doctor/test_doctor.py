"""The command `torchx doctor`."""

import json
import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

BIN = Path(shutil.which("torchx")).parent
LIGHT = ("torch", "torchrec", "fbgemm_gpu")
NO_GPU = """
from types import SimpleNamespace

cuda, version = SimpleNamespace(device_count=lambda: 0), SimpleNamespace(cuda=None)
"""
LEVELS = ("ok", "note", "not here", "WRONG")


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """A directory with modules in place of the triple, which takes three processor seconds to load."""
    folder = tmp_path_factory.mktemp("light")
    for name in LIGHT:
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
    (folder / "torch/__init__.py").write_text(NO_GPU)
    (folder / "torchrec/distributed.py").touch()
    return str(folder)


@pytest.fixture
def doctor(tmp_path, light):
    """Runs the doctor with no Slurm on PATH and no cluster in the home directory; returns its exit code and lines.

    Modules in `PYTHONPATH` come before those of the light triple; `real` takes the one that is installed.
    """

    def run(*arguments, real=False, **environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "SLURM"))}
        path = {"PATH": str(BIN), "HOME": str(tmp_path), "COLUMNS": "200"}
        modules = [environment.pop("PYTHONPATH", ""), os.environ["PYTHONPATH"], *([] if real else [light])]
        path["PYTHONPATH"] = os.pathsep.join(filter(None, modules))
        command = [BIN / "torchx", "doctor", *map(str, arguments)]
        done = subprocess.run(command, env=clean | path | environment, capture_output=True, text=True, timeout=600)
        assert "Traceback" not in done.stderr
        return done.returncode, lines(done.stdout)

    return run


def lines(table):
    """The table by its second column: level, finding and remedy."""
    _head, ruler, *rows = table.splitlines()
    ends = [len(ruler[:place].rstrip()) for place, sign in enumerate(ruler) if sign == " " and ruler[place - 1] == "-"]
    found = {}
    check = None
    for row in rows:
        level, name, *rest = (row[start:end].strip() for start, end in zip([0, *ends], [*ends, None], strict=True))
        check = name or check
        before = found.get(check, ("", "", ""))
        found[check] = (
            level or before[0],
            *(f"{old} {new}".strip() for old, new in zip(before[1:], rest, strict=True)),
        )
    assert {level for level, *_ in found.values()} <= set(LEVELS)
    return found


def installed(folder, name, number, entry_points=""):
    """Makes a distribution that Python takes for installed if `folder` is on its path."""
    about = folder / f"{name.replace('-', '_')}-{number}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    (about / "entry_points.txt").write_text(entry_points)
    return str(folder)


def test_a_machine_without_clusters_is_well(doctor, tmp_path):
    code, found = doctor("--out", tmp_path / "runs/new", "--storage", tmp_path, real=True)
    assert code == 0
    assert {check for check, (level, *_) in found.items() if level == "ok"} >= {"Python", "TorchX", "plugins", "torch"}
    assert found["Slurm"] == ("not here", "no sinfo on PATH", "")
    assert found["Kubernetes"][0] == "not here"
    assert (found["--out"][0], found["--storage"][0]) == ("ok", "ok")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.few(1, "one stands for all")
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("asked", "check", "remedy"),
    [
        (
            ("-s", "slurm"),
            "Slurm",
            "submit from a login node, put Slurm's commands on PATH, or name a login node with --host",
        ),
        (("-s", "jobset"), "Kubernetes", "set KUBECONFIG to the file that your cluster's owner gave you"),
        (("--out", "/proc/no/run"), "--out", "choose a directory or bucket that you may write to"),
        (("--storage", "memory://nothing"), "--storage", "check the name, the network and the credentials"),
        (("--storage", "http://127.0.0.1:9/x"), "--storage", None),
        (("--storage", "no-such-protocol://x"), "--storage", "check the name, the network and the credentials"),
    ],
)
def test_what_is_asked_for_must_be_there(doctor, asked, check, remedy):
    code, found = doctor(*asked)
    assert code == 1
    level, _, todo = found[check]
    assert level == "WRONG"
    assert todo == remedy if remedy else todo


def test_the_library_that_a_url_needs_is_named(doctor, tmp_path):
    (tmp_path / "s3fs.py").write_text("raise ImportError")
    code, found = doctor("--storage", "s3://bucket/data", PYTHONPATH=str(tmp_path))
    assert (code, found["--storage"][2]) == (1, "pip install s3fs")


@pytest.mark.more("a detail")
def test_two_distributions_of_torchx_are_wrong(doctor, tmp_path):
    code, found = doctor(PYTHONPATH=installed(tmp_path, "torchx", "0.7.0"))
    assert code == 1
    assert found["TorchX"][0] == "WRONG"
    assert found["TorchX"][2].startswith("pip uninstall -y torchx torchx-nightly && pip install torchx-nightly==2026")


@pytest.mark.more("a detail")
def test_a_plugin_of_the_same_name_from_elsewhere_is_wrong(doctor, tmp_path):
    entry = "[torchx.schedulers]\nlocal_cwd = somewhere:create_scheduler\n"
    code, found = doctor(PYTHONPATH=installed(tmp_path, "another-torchx-plugin", "1.0", entry))
    assert code == 1
    assert found["plugins"][:2] == ("WRONG", "local_cwd is registered by two packages")


def test_versions_that_do_not_match_are_wrong(doctor, tmp_path):
    code, found = doctor(PYTHONPATH=installed(tmp_path, "torchrec", "1.7.0"))
    assert code == 1
    assert "torchrec <1.10,>=1.8 wanted" in found["torch"][1]
    assert found["torch"][2].startswith("install a triple: pip install 'torchx-recsys[cpu]'")


@pytest.mark.more("a detail")
def test_versions_that_are_allowed_but_no_triple_are_wrong(doctor, tmp_path):
    code, found = doctor(PYTHONPATH=installed(tmp_path, "torchrec", "1.9.2"))
    assert code == 1
    assert "goes with torchrec 1.8 and fbgemm-gpu-cpu 1.8" in found["torch"][1]


@pytest.mark.more("a detail")
def test_both_packages_of_fbgemm_are_wrong(doctor, tmp_path):
    code, found = doctor(PYTHONPATH=installed(tmp_path, "fbgemm-gpu", "1.8.0"))
    assert code == 1
    assert "overwrite each other's files" in found["torch"][1]


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize(
    ("module", "message"),
    [("raise OSError('libcuda is broken')", "libcuda is broken"), ("import os; os.abort()", "died of SIGABRT")],
)
def test_a_triple_that_does_not_load_is_wrong(doctor, tmp_path, module, message):
    (tmp_path / "torchrec.py").write_text(module)
    code, found = doctor(PYTHONPATH=str(tmp_path))
    assert code == 1
    assert found["torch"][0] == "WRONG"
    assert message in found["torch"][1]


@pytest.fixture
def cluster(tmp_path):
    """An API server that answers the calls of the doctor, with JobSet and Kueue installed, and a KUBECONFIG for it."""
    groups = ["batch", "jobset.x-k8s.io", "kueue.x-k8s.io"]
    answers = {
        "/version/": {"gitVersion": "v1.34.1", "major": "1", "minor": "34"},
        "/apis/": {"groups": [{"name": name, "versions": []} for name in groups]},
        "/openapi/v3/apis/jobset.x-k8s.io/v1alpha2": {"schema": "onJobFailureMessagePatterns"},
    }

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(FULL | answers[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    fields = ("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion", "platform")
    FULL = dict.fromkeys(fields, "x")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    file = tmp_path / "kubeconfig"
    context = {"name": "it", "context": {"cluster": "it", "user": "me"}}
    address = {"name": "it", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    users = [{"name": "me", "user": {}}]
    file.write_text(json.dumps({"current-context": "it", "contexts": [context], "clusters": [address], "users": users}))
    yield server, file, answers
    server.shutdown()
    server.server_close()


def test_what_is_installed_on_a_cluster(doctor, cluster):
    pytest.importorskip("kubernetes", reason="pip install 'torchx-recsys[kubernetes]'")
    server, file, _ = cluster
    code, found = doctor("-s", "jobset", KUBECONFIG=str(file))
    assert code == 0, found
    assert found["Kubernetes"] == ("ok", f"v1.34.1 at http://127.0.0.1:{server.server_port}", "")
    assert [found[name][0] for name in ("JobSet", "Kueue", "Volcano")] == ["ok", "ok", "not here"]
    code, found = doctor("-s", "kubernetes", KUBECONFIG=str(file))
    assert (code, found["Volcano"][0]) == (1, "WRONG")
    assert found["Volcano"][2].startswith("have it installed: https://volcano.sh/")


@pytest.mark.more("a detail")
def test_a_jobset_that_is_too_old_is_wrong_only_if_it_is_asked_for(doctor, cluster):
    pytest.importorskip("kubernetes", reason="pip install 'torchx-recsys[kubernetes]'")
    _, file, answers = cluster
    answers["/openapi/v3/apis/jobset.x-k8s.io/v1alpha2"] = {"schema": "onJobFailureReasons"}
    code, found = doctor("-s", "jobset", KUBECONFIG=str(file))
    assert (code, found["JobSet"][0]) == (1, "WRONG")
    assert "older than 0.10.1" in found["JobSet"][1]
    assert found["JobSet"][2].startswith("have it upgraded: https://jobset.sigs.k8s.io/")
    code, found = doctor(KUBECONFIG=str(file))
    assert (code, found["JobSet"][0]) == (0, "note")


@pytest.mark.more("waits")
def test_a_cluster_that_does_not_answer(doctor, cluster):
    pytest.importorskip("kubernetes", reason="pip install 'torchx-recsys[kubernetes]'")
    server, file, _ = cluster
    server.shutdown()
    server.server_close()
    code, found = doctor(KUBECONFIG=str(file))
    assert (code, found["Kubernetes"][0]) == (0, "note")
    code, found = doctor("-s", "jobset", KUBECONFIG=str(file))
    assert (code, found["Kubernetes"][0]) == (1, "WRONG")
    assert found["Kubernetes"][2] == "check the network, and the current context of KUBECONFIG"


def test_slurm_that_does_not_answer_in_order_is_only_wrong_if_asked_for(doctor, tmp_path):
    """The commands are there, the cluster is not."""
    if not (sinfo := shutil.which("sinfo")):
        pytest.skip("Slurm's commands are not here; apt-get install slurm-client")
    (tmp_path / "slurm.conf").write_text("ClusterName=gone\nSlurmctldHost=localhost\nSlurmctldPort=9\n")
    where = {"PATH": f"{BIN}:{Path(sinfo).parent}", "SLURM_CONF": str(tmp_path / "slurm.conf")}
    code, found = doctor(**where)
    assert (code, found["Slurm"][0]) == (0, "note")
    code, found = doctor("-s", "slurm", **where)
    assert (code, found["Slurm"][0]) == (1, "WRONG")
    assert found["Slurm"][2] == "start slurmctld, or see `scontrol ping` and SLURM_CONF"
