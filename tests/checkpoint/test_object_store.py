"""Data, run directory and checkpoints on S3, which is slow, fails, and comes back."""

import json
import re
import shutil
import signal
from importlib.util import find_spec

import pytest
from command import run_trainer, write_config
from jobs import config, losses, write_rows
from object_store import KEYS, alibaba_store, azure_store, google_store, object_store
from trainer_process import Training

STEPS = 400
TRIED_ONCE = {"AWS_MAX_ATTEMPTS": "1"}  # so that the library of S3 does not try again by itself for long


@pytest.fixture(scope="module")
def store(rows):
    with object_store() as store:
        store.fs.mkdir("bucket")
        store.fs.put(str(rows), "bucket/rows", recursive=True)
        yield store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("object_store")


@pytest.fixture(scope="module")
def baseline(rows, folder):
    """The losses of a run on local files that nothing disturbs."""
    file = write_config(folder / "local.toml", config(rows, train__steps=STEPS))
    job = Training(file, folder / "out", ranks=0)
    output = job.end()
    assert job.code == 0, output
    return losses(folder / "out")


class Run:
    """A run directory on S3, and the jobs that use it."""

    def __init__(self, store, folder, name):
        self.store, self.url = store, f"s3://bucket/{name}"
        tree = config("s3://bucket/rows", train__steps=1_000_000, data__validation=["s3://bucket/rows/part-00.parquet"])
        tree["model"]["name"] = "custom:unhurried"
        tree["checkpoint"] = {"every_steps": 2, "keep": {"newest": 5}}
        tree["report"] = {"interval_steps": 1}
        self.file = write_config(folder / f"{name}.toml", tree)
        self.outcome = folder / f"{name}-outcome"

    def train(self, *flags, ranks=0, **environment):
        self.outcome.unlink(missing_ok=True)
        always = {"TORCHX_OUTCOME_FILE": str(self.outcome), **self.store.environment}
        return Training(self.file, self.url, *map(str, flags), ranks=ranks, **always, **environment)

    def committed(self):
        found = self.store.fs.glob(f"{self.url}/checkpoints/*/manifest.json")
        return sorted(int(path.split("/")[-2].removeprefix("step-")) for path in found)

    def losses(self):
        lines = [json.loads(line) for line in self.store.fs.cat(f"{self.url}/metrics.jsonl").splitlines()]
        assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
        return [line["loss"] for line in lines]

    def path(self, step, name):
        return f"{self.url}/checkpoints/step-{step:09d}/{name}"


@pytest.fixture(scope="module")
def killed(store, folder, baseline):
    """A run that was killed and resumed on a slow object store, and its jobs' output."""
    run = Run(store, folder, "killed")
    with store.faults({"fault": "slow", "seconds": 0.1}) as count:
        first = run.train("--checkpoint.keep.newest", 2).wait_until(run.committed)
        second = run.train()
        refused = second.end()
        most = 0

        def grown():
            nonlocal most
            most = max(most, len(run.committed()))
            return run.committed()[-1] >= 8

        first.wait_until(grown)
        assert count() > 60
        first.kill()
    last = run.committed()[-1]
    with store.faults(
        {"fault": "503", "method": "GET", "times": 2},
        {"fault": "drop", "method": "GET", "path": "distcp", "times": 2},
        {"fault": "mute", "method": "PUT", "path": "lock.json", "times": 1},
    ) as count:
        third = run.train("--train.steps", last + 10, "--checkpoint.keep.newest", 2)
        resumed = third.end()
        assert count() == 5
    assert third.code == 0, resumed
    return {"run": run, "last": last, "most": most, "refused": (second.code, refused), "resumed": resumed}


def test_a_killed_run_resumes_exactly(killed, baseline):
    run, last = killed["run"], killed["last"]
    assert f"resumed after step {last} from {run.url}/checkpoints/step-{last:09d}" in killed["resumed"]
    assert run.losses() == baseline[: last + 10]
    assert run.outcome.read_text() == f"finished at step {last + 10}\n"


@pytest.mark.more("test_deltas.py resumes on a disk")
def test_a_delta_is_resumed_from(store, folder, baseline):
    run, flags = Run(store, folder, "deltas"), ("--checkpoint.full-every", 9, "--checkpoint.keep.newest", 1)
    run.train(*flags, "--train.steps", 4).end()
    assert run.committed() == [2, 4]  # the second is a delta on the first
    resumed = run.train(*flags, "--train.steps", 8).end()
    assert f"resumed after step 4 from {run.url}/checkpoints/step-000000004" in resumed
    assert f"saved {run.url}/checkpoints/step-000000008 in " in resumed
    assert "what changed since step 6" in resumed
    assert run.losses() == baseline[:8]


@pytest.mark.more("test_saver.py has the rules")
def test_slow_saves_are_kept_and_deleted_by_the_rules(killed):
    assert killed["most"] <= 3  # the third while the oldest is being deleted
    assert killed["run"].committed() == [killed["last"] + 8, killed["last"] + 10]


def test_a_second_job_is_refused(killed):
    code, output = killed["refused"]
    assert code == 2, output
    assert f"error: --out is '{killed['run'].url}', which process " in output.splitlines()[-1]


def test_nothing_but_the_run_is_left(killed):
    store, url = killed["run"].store, killed["run"].url
    names = {path.removeprefix(url.removeprefix("s3://") + "/").split("/")[0] for path in store.fs.find(url)}
    small = {
        "config.toml",
        "run.json",
        "plan.json",
        "metrics.jsonl",
        "evaluations.jsonl",
        "run.html",
        "calibration.json",
    }
    assert names == {*small, "checkpoints", "tensorboard"}
    assert store.fs.ls("", detail=False) == ["bucket"]


def test_the_tools_read_it(killed, folder):
    run = killed["run"]
    flags = ["--out", run.url, "--verify", "True", "--convert", "s3://bucket/plain/plain.pt"]
    done = run_trainer("checkpoints", *flags, **run.store.environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" ok ") == 2
    assert run.store.fs.ls("bucket/plain", detail=False) == ["bucket/plain/plain.pt"]
    flags = ["--out", run.url, "--split", "validation"]
    done = run_trainer("evaluate", f"{run.url}/config.toml", *flags, **run.store.environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(run.store.fs.cat(f"{run.url}/evaluation-validation.json"))["step"] == killed["last"] + 10


@pytest.mark.more("test_finetune.py does so on a disk")
def test_another_run_fine_tunes_from_it(killed, folder):
    run = killed["run"]
    flags = ["--out", folder / "tuned", "--train.steps", "1", "--finetune.checkpoint", run.url]
    done = run_trainer("train", run.file, *flags, **run.store.environment)
    assert done.returncode == 0, done.stderr
    assert f"fine-tuning from step {killed['last'] + 10}, {run.url}" in done.stdout


@pytest.mark.more("test_rewind.py goes back on a disk")
def test_a_run_over_segments_goes_back(store, folder):
    for seed, day in enumerate("abc"):
        store.fs.put(str(write_rows(folder / "days" / day, [64], seed)), f"bucket/days/{day}", recursive=True)
    tree = config("", data__segments={"path": "s3://bucket/days/{segment}"}, checkpoint__keep={"segments": 3})
    del tree["data"]["train"], tree["train"]["steps"]
    file = write_config(folder / "days.toml", tree)

    def run(*words):
        done = run_trainer(*words, **store.environment)
        assert done.returncode == 0, done.stderr

    run("train", file, "--out", "s3://bucket/of-days")
    run("rewind", "--out", "s3://bucket/of-days", "--segment", "a", "--to", "s3://bucket/mended")
    run("train", file, "--out", "s3://bucket/mended")
    for name in ("segments.jsonl", "evaluations.jsonl"):
        assert store.fs.cat(f"bucket/mended/{name}") == store.fs.cat(f"bucket/of-days/{name}")
    assert store.fs.exists("bucket/mended/rewind.json")


@pytest.fixture(scope="module")
def disturbed(store, folder):
    """A run on 2 ranks whose saves failed for a while and then no more; and its job's output."""
    run = Run(store, folder, "disturbed")
    job = run.train(ranks=2, **TRIED_ONCE).wait_until(run.committed)
    with store.faults(
        {"fault": "500", "method": "PUT", "path": "state.json", "times": 1},
        {"fault": "drop", "method": "PUT", "path": "distcp", "times": 1},
        {"fault": "mute", "method": "PUT", "path": "manifest.json", "times": 1},
    ) as count:
        job.wait_until(lambda: count() == 3)
    with store.faults({"fault": "403", "method": "PUT", "path": "checkpoints/"}):
        before = run.committed()
        job.wait_until(lambda: job.output().count("NOT SAVED") >= 3)
        assert run.committed()[-1] <= before[-1] + 2
        now = int(job.output().rpartition("  NOT SAVED")[0].rpartition("step ")[2].replace(",", ""))
    job.wait_until(lambda: run.committed()[-1] > now and len(run.committed()) >= 5)  # as many as the last test damages
    output = job.output()
    job.signal(signal.SIGTERM).end()
    return {"run": run, "output": output}


@pytest.mark.more("waits")
def test_a_save_that_fails_briefly_is_retried(disturbed):
    assert "saving is tried again in 1 s: [Errno 121] InternalError was asked for" in disturbed["output"]


@pytest.mark.more("rare")
def test_denied_permission_loses_checkpoints_but_no_step(disturbed, baseline):
    output = disturbed["output"]
    assert re.search(r"NOT SAVED: rank \d: AccessDenied .*; training continues, and the next save is tried\n", output)
    assert "Traceback" not in output
    alone = disturbed["run"].losses()
    assert len(alone) >= 8
    assert alone == pytest.approx(baseline[: len(alone)], rel=1e-5)
    assert disturbed["run"].outcome.read_text().startswith(f"stopped at step {len(alone)}, saved ")


@pytest.mark.more("test_checkpoint.py does so on a disk")
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(disturbed):
    """A job whose last save fails reports that, and no save."""
    run = disturbed["run"]
    best, manifest, missing, cut, flipped = run.committed()
    content = bytearray(run.store.fs.cat(run.path(flipped, "__0_0.distcp")))
    content[len(content) // 2] ^= 1
    run.store.fs.pipe(run.path(flipped, "__0_0.distcp"), bytes(content))
    run.store.fs.pipe(run.path(cut, "__0_0.distcp"), run.store.fs.cat(run.path(cut, "__0_0.distcp"))[:-1])
    run.store.fs.rm_file(run.path(missing, ".metadata"))
    run.store.fs.rm_file(run.path(manifest, "manifest.json"))
    before = run.losses()
    with run.store.faults({"fault": "403", "method": "PUT", "path": "checkpoints/"}):
        job = run.train("--train.steps", best + 1)
        output = job.end()
    assert f"checkpoint step-{flipped:09d} is skipped: __0_0.distcp is damaged" in output
    assert f"checkpoint step-{cut:09d} is skipped: __0_0.distcp is damaged" in output
    assert f"checkpoint step-{missing:09d} is skipped: .metadata cannot be read" in output
    assert f"checkpoint step-{manifest:09d} was never committed; its files are deleted" in output
    assert f"resumed after step {best} " in output
    said = f"step {best + 1} is lost: the newest checkpoint saved is {run.url}/checkpoints/step-{best:09d}; "
    assert f"error: the last step could not be saved; {said}" in output
    assert f"saved {run.url}/checkpoints/step-{best + 1:09d}" not in output
    assert "Traceback" not in output
    assert job.code == 1
    assert not run.outcome.exists()
    assert run.losses() == pytest.approx(before[: best + 1], rel=1e-5)  # now on one rank
    assert best + 1 not in run.committed()


@pytest.mark.parametrize(
    ("fault", "environment", "expected"),
    [
        ({"fault": "403"}, {}, "AccessDenied was asked for: 'bucket/killed"),
        ({"fault": "drop"}, TRIED_ONCE, "Connection was closed|Could not connect to the endpoint URL"),
        (
            {},
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
            "credentials",
        ),
        ({}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", **TRIED_ONCE}, "Could not connect to the endpoint URL"),
    ],
)
def test_unusable_storage_is_reported_in_one_line(store, folder, fault, environment, expected):
    with store.faults(*([fault] if fault else [])):
        done = run_trainer("checkpoints", "--out", "s3://bucket/killed", **store.environment | environment)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert any(word in done.stderr for word in expected.split("|")), done.stderr
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in done.stderr


def test_a_password_in_a_url_is_not_printed():
    done = run_trainer("checkpoints", "--out", "ftp://me:my-password@127.0.0.1:9/run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --out is 'ftp://***@127.0.0.1:9/run', which cannot be used: ")
    assert "my-password" not in done.stdout + done.stderr


def test_a_misspelt_bucket_is_not_created(store, folder):
    run = Run(store, folder, "nowhere")
    run.url = "s3://bukcet/run"
    job = run.train()
    assert job.end().splitlines()[-1].startswith("error: --out is 's3://bukcet/run', which cannot be used: ")
    assert job.code == 2
    assert store.fs.ls("", detail=False) == ["bucket"]


@pytest.mark.more("S3 stands for all")
@pytest.mark.parametrize(
    ("url", "server", "there", "get"),
    [
        ("s3://bucket/run", alibaba_store, (), ""),
        ("gs://bucket/run", google_store, ("gcsfs", "gcp_storage_emulator"), "pip install gcsfs gcp-storage-emulator"),
        ("abfs://bucket/run", azure_store, ("adlfs",), "pip install adlfs; npm install --global azurite"),
    ],
)
def test_other_clouds(rows, folder, baseline, url, server, there, get):
    if not all(map(find_spec, there)) or (server is azure_store and not shutil.which("azurite-blob")):
        pytest.skip(f"{url} needs its file system and a server for it: {get}")
    name = url.partition(":")[0]
    tree = config(rows, train__steps=1_000_000, checkpoint={"every_steps": 2, "keep": {"newest": 3}})
    file = write_config(folder / f"{name}.toml", tree)
    with server() as environment:
        environment["TORCHX_OUTCOME_FILE"] = str(folder / f"{name}-outcome")
        first = Training(file, url, ranks=0, **environment)
        first.wait_until(lambda: first.output().count(f"  saved {url}/checkpoints/") >= 3).kill()
        last = int(re.findall(r"step (\S+)  saved ", first.output())[-1].replace(",", ""))
        second = Training(file, url, "--train.steps", str(last + 6), ranks=0, **environment)
        output = second.end()
        assert second.code == 0, output
        assert "cannot be deleted" not in first.output() + output
        assert re.search(r"resumed after step (\S+) ", output)[1] in {f"{last:,}", f"{last + 2:,}"}
        listed = run_trainer("checkpoints", "--out", url, "--verify", "True", **environment)
        assert listed.stdout.count(" ok ") == 3, listed.stderr
    loss = [float(value) for value in re.findall(r"step .*?  loss (\S+) ", output)]
    assert loss == pytest.approx(baseline[last + 6 - len(loss) : last + 6], abs=6e-6)  # as it is printed
