"""Checkpoints as people see them: listed, verified, and taken elsewhere as one plain file."""

import json
import os
import re
import shutil
import subprocess
import sys
import zlib

import fsspec
import pytest
import torch
from command import run_trainer, write_config
from forked import start_forked
from jobs import config, saved_tensors, write_rows
from safetensors import safe_open

from torchx_recsys.apps.runs.checkpoints import checkpoints

BLOCKED = """
import sys
class Refused:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not to be imported")
sys.meta_path.insert(0, Refused())
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run on 2 ranks with checkpoints after 2, 4 and 6 steps, all evaluated."""
    folder = tmp_path_factory.mktemp("tools")
    data = write_rows(folder / "data", [200, 56])
    keep = {"newest": 2, "best": "log_loss", "every_steps": 2}
    changes = {"data__validation": [str(data)], "evaluate__every_steps": 2, "optimizer__dense__name": "adagrad"}
    tree = config(data, train__steps=6, checkpoint={"every_steps": 2, "keep": keep}, **changes)
    done = run_trainer("train", write_config(folder / "config.toml", tree), "--out", folder / "out", ranks=2)
    assert done.returncode == 0, done.stderr
    return folder / "out"


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def ask(out, *flags):
    return run_trainer("checkpoints", "--out", out, *flags)


def without(blocked, code):
    """Runs Python code in a process that cannot import some packages."""
    command = [sys.executable, "-c", BLOCKED.format(blocked=blocked) + code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tool(out, *flags):
    """Code that runs the tool."""
    arguments = ["checkpoints", "--out", str(out), *map(str, flags)]
    return f"from trainer.__main__ import main\nassert main({arguments!r}) == 0"


def table(text):
    """The rows of the printed table as dicts."""
    header, rule, *rows = text.partition("\n\n")[0].splitlines()
    columns = [slice(found.start(), found.end()) for found in re.finditer("-+", rule)]
    return [{header[column].strip(): row[column].strip() for column in columns} for row in rows]


def harm(out, step):
    file = out / f"checkpoints/step-{step:09d}/__1_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def contents(out):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.rglob("*") if path.is_file()}


def test_the_list_says_what_is_there_and_changes_nothing(finished):
    before = contents(finished)
    done = ask(finished)
    assert done.returncode == 0, done.stderr
    rows = table(done.stdout)
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    assert {row["ranks"] for row in rows} == {"2"}
    assert {row["state"] for row in rows} == {"committed"}
    assert all(re.fullmatch(r"\d+ (s|min)", row["age"]) for row in rows)
    for row in rows:
        size = sum(path.stat().st_size for path in (finished / f"checkpoints/step-{int(row['step']):09d}").iterdir())
        assert row["size"] == f"{size / 1024:,.0f} KiB"
    assert contents(finished) == before


def test_the_list_and_verify_start_fast_for_they_need_no_torch(finished):
    said = without(["torch", "torchrec", "fbgemm_gpu"], tool(finished, "--verify", "True"))
    assert [row["state"] for row in table(said)] == ["ok"] * 3


@pytest.mark.parametrize(("metric", "pick"), [("auc", max), ("normalized_entropy", min), ("log_loss", min)])
def test_the_best_is_marked(finished, metric, pick):
    lines = [json.loads(line) for line in (finished / "evaluations.jsonl").read_text().splitlines()]
    known = {str(line["step"]): line[metric] for line in lines if line["split"] == "validation"}
    best = pick(known, key=lambda step: known[step])
    for row in table(ask(finished).stdout):
        assert row[metric] == f"{known[row['step']]:.5f}" + " *" * (row["step"] == best)


def test_the_list_says_why_a_checkpoint_stays(finished):
    lines = [json.loads(line) for line in (finished / "evaluations.jsonl").read_text().splitlines()]
    best = min((line["log_loss"], line["step"]) for line in lines)[1]
    kept = {int(row["step"]): row["kept as"].split(", ") for row in table(ask(finished).stdout)}
    assert all(("best log_loss" in reasons) == (step == best) for step, reasons in kept.items())
    assert all(("newest 2" in reasons) == (step > 2) for step, reasons in kept.items())
    assert all("every 2 steps" in reasons for reasons in kept.values())


def test_one_without_a_manifest_is_not_committed(copy):
    (copy / "checkpoints/step-000000004/manifest.json").unlink()
    states = {row["step"]: row["state"] for row in table(ask(copy).stdout)}
    assert states == {"2": "committed", "4": "not committed", "6": "committed"}


def test_verify_names_what_is_damaged(copy):
    good = ask(copy, "--verify", "True")
    assert good.returncode == 0, good.stderr
    assert {row["state"] for row in table(good.stdout)} == {"ok"}
    assert "ok: every file has the size and the CRC-32 checksum that its manifest.json names" in good.stdout
    harm(copy, 4)
    file = copy / "checkpoints/step-000000004/__1_0.distcp"
    written = json.loads((file.parent / "manifest.json").read_text())["files"][file.name]
    bad = ask(copy, "--verify", "True")
    assert bad.returncode == 1
    assert bad.stderr == ""
    states = {row["step"]: row["state"] for row in table(bad.stdout)}
    assert states["2"] == states["6"] == "ok"
    found, expected = zlib.crc32(file.read_bytes()), written["crc32"]
    assert states["4"] == f"__1_0.distcp is damaged: its CRC-32 is {found:08x}, and was {expected:08x} when written"
    file.write_bytes(file.read_bytes()[:-100])
    states = {row["step"]: row["state"] for row in table(ask(copy, "--verify", "True").stdout)}
    size = written["bytes"]
    assert states["4"] == f"__1_0.distcp is damaged: it has {size - 100:,} bytes, and {size:,} were written"
    assert ask(copy, "--verify", "True", "--step", "6").returncode == 0


def test_a_converted_checkpoint_needs_neither_torchrec_nor_a_process_group(finished, tmp_path):
    before = contents(finished)
    without(["torchrec", "fbgemm_gpu"], tool(finished, "--convert", tmp_path / "new/plain.pt"))
    read = f"""
import torch
state = torch.load({str(tmp_path / "new/plain.pt")!r}, weights_only=True)
assert not torch.distributed.is_initialized()
print(state["step"], sum(type(value) is torch.Tensor for value in state.values()), len(state))
"""
    plain = torch.load(tmp_path / "new/plain.pt", weights_only=True)
    tensors = saved_tensors(finished, 6)
    assert without(["torchrec", "fbgemm_gpu"], read).split() == ["6", str(len(tensors)), str(len(tensors) + 1)]
    assert plain.pop("step") == 6
    assert plain.keys() == tensors.keys()
    assert {name.partition(".")[0] for name in plain} == {"model", "dense"}
    assert all(torch.equal(value, plain[name]) for name, value in tensors.items())
    assert contents(finished) == before


def test_a_file_of_safetensors_holds_the_same(finished, tmp_path):
    checkpoints(str(finished), convert=str(tmp_path / "plain.safetensors"))
    checkpoints(str(finished), convert="memory://safetensors/plain.safetensors")
    fsspec.filesystem("memory").get_file("safetensors/plain.safetensors", str(tmp_path / "other.safetensors"))
    for file in ("plain", "other"):
        with safe_open(tmp_path / f"{file}.safetensors", "pt") as found:
            tensors = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118 (it is no dict)
            assert found.metadata() == {"step": "6"}
        expected = saved_tensors(finished, 6)
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], value) for name, value in expected.items())
    assert [*tmp_path.glob("*.partial")] == []


def test_the_newest_good_one_is_converted_or_the_one_asked_for(copy, tmp_path):
    harm(copy, 6)
    assert ask(copy, "--convert", tmp_path / "newest.pt").returncode == 0
    assert torch.load(tmp_path / "newest.pt", weights_only=True)["step"] == 4
    assert ask(copy, "--convert", tmp_path / "asked.pt", "--step", "2").returncode == 0
    assert torch.load(tmp_path / "asked.pt", weights_only=True)["step"] == 2


def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(finished, tmp_path):
    to, errors = tmp_path / "to", tmp_path / "errors"
    to.mkdir()
    code = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    code += tool(finished, "--convert", to / "plain.pt").replace("== 0", "== 2")
    process = start_forked(exec, code, environment=dict(os.environ), output=tmp_path / "output", errors=errors)
    assert process.wait() == 0, errors.read_text()
    expected = r"error: --convert is .*plain.pt', which cannot be used: .*File too large.*\n"
    assert re.fullmatch(expected, errors.read_text())
    assert list(to.iterdir()) == []


def test_any_storage_will_do(finished, capsys):
    memory = fsspec.filesystem("memory")
    memory.put(str(finished), "/tools/run", recursive=True)
    checkpoints("memory://tools/run", verify=True)
    assert [row["state"] for row in table(capsys.readouterr().out)] == ["ok"] * 3
    checkpoints("memory://tools/run", convert="memory://tools/plain.pt", step=4)
    with memory.open("/tools/plain.pt") as file:
        plain = torch.load(file, weights_only=True)
    assert all(torch.equal(value, plain[name]) for name, value in saved_tensors(finished, 4).items())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--step", "3"], "--out is '{out}', where there is no checkpoint of step 3; there are those of 2, 4, 6"),
        (["--convert", "x.pt", "--step", "3"], "where there is no checkpoint of step 3; there are those of 2, 4, 6"),
        (["--convert", "x.pt", "--step", "4"], "--step is 4, whose checkpoint cannot be used: __1_0.distcp is damaged"),
        (["--convert", "no-such-protocol://x"], "--convert is 'no-such-protocol://x', which cannot be used"),
        (["--convert", "{out}/run.json/x"], "--convert is '{out}/run.json/x', which cannot be used"),
    ],
)
def test_wrong_input_is_said_in_one_line(copy, flags, message):
    harm(copy, 4)
    done = ask(copy, *(flag.format(out=copy) for flag in flags))
    assert done.returncode == 2
    assert message.format(out=copy) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_checkpoint_is_said_so(tmp_path):
    done = ask(tmp_path / "nowhere")
    assert done.returncode == 2
    assert done.stderr == f"error: --out is '{tmp_path}/nowhere', where there is no checkpoint\n"
    assert not (tmp_path / "nowhere").exists()
