"""Exports that hold what differs from the export before: equal to whole ones, or whole for a reason that is told."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from deltas import STEPS, WIDE, bits, command, copied, export, name_current, predecessor, rewrite, train, wide_config
from exported import ask, parity_of
from object_store import object_store
from raw_columns import columns_config, write_columns

from torchx_recsys.apps.export.delta import WholeExportError, keep_changes
from torchx_recsys.apps.export.load import load, read_changes
from torchx_recsys.apps.export.source import Source
from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.__main__ import main as trainer

pytestmark = pytest.mark.more("test_serve_follow.py serves deltas")

FORMS = {"wide": (), "wide-int8": ("--quantize", "int8"), "rules": ()}
STEPS_OF = {"wide": STEPS, "wide-int8": (STEPS[0], STEPS[-1]), "rules": (STEPS[0], *STEPS[-2:])}
DELTA = ("--delta", "True")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A model with a large table and others beside it; `rules` has lists, managed ids and every other rule."""
    folder = tmp_path_factory.mktemp("delta")
    raw = write_columns(folder / "raw")
    vocabulary((str(raw),), ("listed",), str(folder / "vocabulary"), min_count=8, unseen_rows=3)
    rules = columns_config(raw, folder / "vocabulary/listed.parquet", train__steps=STEPS[-1])
    rules["data"]["sparse"]["hashed"]["rows"] = rules["data"]["sparse"]["terms"]["rows"] = WIDE
    rules["data"]["sparse"]["word"]["rows"] = WIDE
    growing = wide_config(folder, data__global_batch_size=8)
    growing["data"]["sparse"]["s1"] = {"rows": 400, "ids": "managed"}
    trees = {"wide": wide_config(folder), "narrow": wide_config(folder, 2500), "growing": growing, "rules": rules}
    train(folder, trees)
    return folder


@pytest.fixture(scope="module")
def exports(runs):
    """By form of a run, a directory of a whole export and its deltas, and one of whole exports, or of the last."""
    made = {}
    for form, flags in FORMS.items():
        made[form] = runs / "exports" / form / "deltas", runs / "exports" / form / "whole"
        for step in STEPS_OF[form]:
            export(runs / form.partition("-")[0], made[form][0], step, *flags, *DELTA)
            if (form == "wide" and step != STEPS[0]) or step == STEPS[-1]:
                export(runs / form.partition("-")[0], made[form][1], step, *flags)
    return made


@pytest.mark.parametrize("form", FORMS)
def test_each_delta_is_the_whole_export_bit_for_bit(exports, form):
    deltas, whole = exports[form]
    followed = load(deltas / f"step-{STEPS[0]}")
    steps = STEPS_OF[form]
    for before, step in zip((None, *steps), steps, strict=False):
        here, there = deltas / f"step-{step}", whole / f"step-{step}"
        assert predecessor(here) == (before and f"step-{before}")
        assert (here / "model.pt2").exists() == (before is None)
        if before:
            followed.apply(read_changes(here, verify=True))
            assert (here / "changes.bin").stat().st_size < (deltas / "step-5/model.pt2").stat().st_size / 4
        if not there.exists():
            continue
        model, wanted = load(here, verify=True), load(there)
        assert bits(followed) == bits(model) == bits(wanted)
        assert followed.signature == model.signature == wanted.signature
        columns = parity_of(there)["columns"]
        for name, values in wanted(columns).items():
            assert followed(columns)[name].tolist() == model(columns)[name].tolist() == values.tolist()


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize("form", ["wide", "rules"])
def test_torch_alone_is_enough(exports, form):
    deltas, whole = (folder / f"step-{STEPS[-1]}" for folder in exports[form])
    columns = parity_of(whole)["columns"]
    found, wanted = ask((deltas, columns), (whole, columns))
    assert found == wanted


def test_the_files_of_a_delta(exports):
    directory = exports["wide"][0] / f"step-{STEPS[-1]}"
    files = {file.name for file in directory.iterdir()}
    assert files == {"changes.bin", "changes.json", "load.py", "manifest.json", "parity.json", "signature.json"}
    assert {*json.loads((directory / "manifest.json").read_text())["files"]} == files - {"manifest.json"}
    entries = json.loads((directory / "changes.json").read_text())["tensors"].values()
    (large,) = (entry for entry in entries if "rows" in entry)
    assert large["shape"] == [WIDE, 16]
    assert 0 < large["rows"] <= 100


def test_managed_ids_that_take_new_rows_are_changes(runs, tmp_path):
    """The list of ids grows inside of a list as long as the table."""
    export(runs / "growing", tmp_path / "to", STEPS[0], *DELTA)
    directory = export(runs / "growing", tmp_path / "to", STEPS[1], *DELTA)
    whole = export(runs / "growing", tmp_path / "whole", STEPS[1])
    assert predecessor(directory) == f"step-{STEPS[0]}"
    model, wanted, columns = load(directory), load(whole), parity_of(whole)["columns"]
    assert bits(model) == bits(wanted)
    assert [values.tolist() for values in model(columns).values()] == [v.tolist() for v in wanted(columns).values()]


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def with_other_graph(file: Path) -> None:
    """Writes a program again, with another graph for the same tensors."""
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content + b" " * name.endswith("models/model.json"))
    rewrite(file, lambda content: content)


def with_signature(**entries: object):
    return lambda to: rewrite(
        to / "step-5/signature.json", lambda text: json.dumps(json.loads(text) | entries).encode()
    )


WHOLE = {
    "nothing before": (lambda to: (to / "current.json").unlink(), "^there is no export before it$"),
    "a damaged whole export": (
        lambda to: flipped(to / "step-5/model.pt2"),
        "step-5/model.pt2 is damaged or missing; copy the directory again$",
    ),
    "no such export": (lambda to: shutil.rmtree(to / "step-5"), "step-5 is no whole export: manifest.json"),
    "another format": (with_signature(format="onnx"), "^'format' in signature.json differs from step-5's$"),
    "another split": (with_signature(split="test"), "^'split' in signature.json differs from step-5's$"),
    "quantized tables": (with_signature(tables="int8"), "^'tables' in signature.json differs from step-5's$"),
    "other columns": (with_signature(columns=[]), "^'columns' in signature.json differs from step-5's$"),
    "shards": (with_signature(shards="tables.json"), "^'shards' in signature.json differs from step-5's$"),
    "other rules of one's own": (
        lambda to: rewrite(to / "step-5/rules/own.py", lambda _: b""),
        "^rules/ differs from step-5's$",
    ),
    "another program": (
        lambda to: with_other_graph(to / "step-5/model.pt2"),
        "^the program differs from step-5's$",
    ),
    "a delta whose whole export is damaged": (
        lambda to: (name_current(to, "step-10"), flipped(to / "step-5/model.pt2")),
        "step-5/model.pt2 is damaged or missing; copy the directory again$",
    ),
    "a damaged delta": (
        lambda to: (name_current(to, "step-10"), flipped(to / "step-10/changes.bin")),
        "step-10/changes.bin is damaged or missing; copy the directory again$",
    ),
    "a chain with a gap": (
        lambda to: (name_current(to, "step-10"), shutil.rmtree(to / "step-5")),
        "step-5 is missing, which .*step-10 changes; copy that export there$",
    ),
    "another export in the chain": (
        lambda to: (name_current(to, "step-10"), rewrite(to / "step-5/parity.json", lambda text: text + b" ")),
        "step-5 is not the export that .*step-10 changes; copy that export there$",
    ),
}


@pytest.mark.parametrize(("change", "why"), WHOLE.values(), ids=WHOLE)
def test_an_export_stays_whole_where_changes_would_not_do(exports, tmp_path, change, why):
    to = copied(exports["wide"][0], tmp_path / "to", 10, 5)
    change(to)
    shutil.copytree(exports["wide"][1] / "step-15", tmp_path / "new/step-15")
    (tmp_path / "new/step-15/manifest.json").unlink()
    before = {file: file.read_bytes() for file in (tmp_path / "new/step-15").iterdir()}
    with pytest.raises(WholeExportError, match=why):
        keep_changes(tmp_path / "new/step-15", str(to))
    assert {file: file.read_bytes() for file in (tmp_path / "new/step-15").iterdir()} == before


def test_a_whole_export_says_why(runs, exports, tmp_path, capfd):
    to = copied(exports["wide"][0], tmp_path / "to", 5)
    directory = export(runs / "wide", to, 10, *DELTA, "--quantize", "int8")
    line = "--delta is True, but the export is whole: 'tables' in signature.json differs from step-5's"
    assert line in capfd.readouterr().out.splitlines()
    assert predecessor(directory) is None
    load(directory, verify=True)


def test_changes_add_up_to_half_of_a_whole_export(runs, tmp_path, capfd):
    to = tmp_path / "to"
    assert predecessor(export(runs / "narrow", to, 5, *DELTA)) is None
    assert predecessor(export(runs / "narrow", to, 10, *DELTA)) == "step-5"
    capfd.readouterr()
    directory = export(runs / "narrow", to, 15, *DELTA)
    assert predecessor(directory) is None
    assert "whole: 0.2 MiB would have changed since step-5, more than half of that export" in capfd.readouterr().out
    assert not (directory / "changes.json").exists()


LINKS = {
    "a missing link": (lambda to: shutil.rmtree(to / "step-10"), "step-10 is missing, which .*step-15 changes; copy"),
    "an uncommitted link": (lambda to: (to / "step-10/manifest.json").unlink(), "step-10 is missing, which "),
    "a link of that name": (
        lambda to: rewrite(to / "step-10/parity.json", lambda text: text + b" "),
        "step-10 is not the export that .*step-15 changes; copy that export there",
    ),
    "a truncated link": (
        lambda to: (to / "step-10/changes.bin").write_bytes(b""),
        r"step-10/changes.bin is damaged or missing; copy the directory again",
    ),
    "a bit of the whole export": (
        lambda to: flipped(to / "step-5/model.pt2"),
        r"step-5/model.pt2 is damaged or missing; copy the directory again",
    ),
}


@pytest.mark.parametrize(("harm", "words"), LINKS.values(), ids=LINKS)
def test_a_chain_that_is_not_whole_is_not_loaded(runs, exports, tmp_path, capfd, harm, words):
    to = copied(exports["wide"][0], tmp_path / "to", 5, 10, 15, 20)
    load(to / "step-20", verify=True)
    harm(to)
    with pytest.raises(ValueError, match=f"^[^\n]*{words}[^\n]*$"):
        load(to / "step-20", verify=True)
    assert trainer(command(runs / "wide", to, 20)) == 2
    assert "which holds step-20 already: " in capfd.readouterr().err


def test_changes_are_of_one_model(exports, tmp_path):
    deltas = exports["wide"][0]
    model = load(deltas / "step-5")
    before = bits(model)
    with pytest.raises(ValueError, match=r"step-15 does not change the model of .*step-5"):
        model.apply(read_changes(deltas / "step-15"))
    assert bits(model) == before
    with pytest.raises(ValueError, match="step-5 is a whole export; load it"):
        read_changes(deltas / "step-5")


def test_a_delta_is_the_same_export_as_a_whole_one(runs, exports, tmp_path, capfd):
    to = copied(exports["wide"][0], tmp_path / "to", 5, 10)
    for flags in ((), DELTA):
        name_current(to, "step-5")
        assert export(runs / "wide", to, 10, *flags) == to / "step-10"
        assert "step 10 is in" in capfd.readouterr().out
    assert predecessor(to / "step-10") == "step-5"
    to = copied(exports["wide"][1], tmp_path / "whole", 10)
    assert predecessor(export(runs / "wide", to, 10, *DELTA)) is None
    assert "step 10 is in" in capfd.readouterr().out


def test_what_an_interrupted_export_left_is_replaced(runs, exports, tmp_path):
    to = copied(exports["wide"][0], tmp_path / "to", 5)
    for file in ("model.pt2", "changes.bin", "tables/s0-00000-of-00001.bin"):
        (to / "step-10" / file).parent.mkdir(parents=True, exist_ok=True)
        (to / "step-10" / file).write_bytes(b"half")
    assert json.loads((to / "current.json").read_text()) == {"directory": "step-5"}
    directory = export(runs / "wide", to, 10, *DELTA)
    assert predecessor(directory) == "step-5"
    assert not (directory / "model.pt2").exists()
    assert not [*directory.glob("tables/*")]
    assert bits(load(directory, verify=True)) == bits(load(exports["wide"][1] / "step-10"))


def test_back_and_on(runs, exports, tmp_path, capfd):
    """After a rollback, the next delta changes the export that is current then."""
    to = copied(exports["wide"][0], tmp_path / "to", 5, 10, 15)
    assert trainer(["rollback", "--to", str(to)]) == 0
    directory = export(runs / "wide", to, 20, *DELTA)
    assert predecessor(directory) == "step-10"
    assert bits(load(directory, verify=True)) == bits(load(exports["wide"][1] / "step-20"))
    assert trainer(["rollback", "--to", str(to)]) == 0
    assert "names step-15, before it was step-20" in capfd.readouterr().out
    load(to / "step-15", verify=True)
    name_current(to, "step-20")
    shutil.rmtree(to / "step-10")  # which step-15 changes as well
    assert trainer(["rollback", "--to", str(to)]) == 0
    assert "names step-5, before it was step-20" in capfd.readouterr().out


@pytest.mark.more("a disk stands for it")
def test_to_an_object_store(runs, exports, tmp_path, monkeypatch, capfd):
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.fs.mkdir("bucket")
        for step in STEPS[:3]:
            assert trainer(command(runs / "wide", "s3://bucket/to", step, *DELTA)) == 0
        served = Source("s3://bucket/to", compiled=False)
        assert bits(served.first(follow=True)) == bits(load(exports["wide"][1] / "step-15"))
        single = Source("s3://bucket/to/step-10", compiled=False)
        assert bits(single.first(follow=False)) == bits(load(exports["wide"][1] / "step-10"))
        store.fs.get("bucket/to", str(tmp_path), recursive=True)
        store.fs.rm("bucket/to/step-5/model.pt2")
        assert trainer(command(runs / "wide", "s3://bucket/to", 20, *DELTA)) == 0
        assert "the export is whole: " in capfd.readouterr().out
        assert bits(served.first(follow=True)) == bits(load(exports["wide"][1] / "step-20"))
    assert [predecessor(tmp_path / f"to/step-{step}") for step in STEPS[:3]] == [None, "step-5", "step-10"]
    assert bits(load(tmp_path / "to/step-15", verify=True)) == bits(load(exports["wide"][1] / "step-15"))


WRONG = {
    "compiled": (("--compile", "True"), "--delta is True, and --compile is True; leave one of them out"),
    "for another program": (("--format", "onnx"), "--delta is True, and --format is onnx; leave one of them out"),
    "in shards": (("--shard-bytes", "999"), "--delta is True, and --shard-bytes is 999; leave one of them out"),
    "no word": (("--delta", "always"), "--delta is 'always'"),
}


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
def test_wrong_flags(runs, tmp_path, capfd, flags, words):
    more = () if "--delta" in flags else DELTA
    assert trainer(command(runs / "wide", tmp_path / "to", 5, *more, *flags)) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert words in line
    assert not (tmp_path / "to").exists()
