"""Training with ids of a vocabulary: their rows, wrong files, and a resume with another one."""

import shutil
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import write_config
from jobs import config, launch, losses

from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.__main__ import main as trainer
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.rows import NO_ID
from trainer.config.data import DataConfig
from trainer.core.arrays import mix


@pytest.fixture
def listed(tmp_path):
    """Makes a vocabulary of a column; returns its URL."""

    def listed(ids, name="id", **arguments):
        pq.write_table(pa.table({name: ids}), tmp_path / "ids.parquet")
        return vocabulary((str(tmp_path / "ids.parquet"),), (name,), str(tmp_path / "voc"), **arguments)[name]["url"]

    return listed


def rows_of(ids, url, rows=10):
    table = pa.table({"id": ids, "label": pa.array([0.0] * len(ids))})
    features = {"id": {"rows": rows, "ids": "vocabulary", "vocabulary": url}}
    return decode(Chunk(table.column, range(len(ids))), DataConfig(sparse=features), []).ids[0].tolist()


@pytest.mark.parametrize("kind", [lambda n: n * 10**15, lambda n: f"id {n}"])
def test_rows_of_seen_and_unseen_ids(listed, kind):
    url = listed(pa.array([kind(n) for n in (7, 7, 7, 3, 3, -1, 5, 5)]), unseen_rows=3, min_count=2)
    found = rows_of(pa.array([kind(7), kind(5), None, kind(3), kind(-1), kind(99)]), url)
    assert found[:4] == [3, 5, NO_ID, 4]
    assert set(found[4:]) <= {0, 1, 2}
    if kind(0) == 0:
        assert found[4:] == (mix(np.array([kind(-1), kind(99)])) % np.uint64(3)).tolist()


def test_the_same_losses_as_of_rows_set_by_hand(rows, tmp_path):
    # Ids of s0 in the order of the vocabulary are rows 1, 2, ...: data with these rows as ids trains the same model.
    url = vocabulary((str(rows),), ("s0",), str(tmp_path / "voc"))["s0"]["url"]
    order = {id_: row for row, id_ in enumerate(pq.read_table(url)["id"].to_pylist(), 1)}
    byhand = tmp_path / "byhand"
    byhand.mkdir()
    for file in rows.glob("*.parquet"):
        table = pq.read_table(file)
        place = table.schema.get_field_index("s0")
        ids = pa.array([order[id_] for id_ in table["s0"].to_pylist()], pa.int32())
        pq.write_table(table.set_column(place, "s0", ids), byhand / file.name, row_group_size=64)
    feature = {"rows": 101, "ids": "vocabulary", "vocabulary": url}
    listed = config(rows, train__steps=4, checkpoint__every_steps=2, data__sparse__s0=feature)
    jobs = [
        {"config": listed, "out": str(tmp_path / "listed")},
        {"config": config(byhand, train__steps=4, data__sparse__s0={"rows": 101}), "out": str(tmp_path / "hand")},
    ]
    launch(jobs, 2, tmp_path)
    assert losses(tmp_path / "listed") == losses(tmp_path / "hand")


def test_a_resume_needs_the_same_vocabulary(rows, tmp_path, capfd):
    first = vocabulary((str(rows),), ("s0",), str(tmp_path / "a"))["s0"]["url"]
    other = vocabulary((str(rows),), ("s0",), str(tmp_path / "b"), min_count=2)["s0"]["url"]
    out = tmp_path / "out"
    feature = {"rows": 101, "ids": "vocabulary", "vocabulary": first}
    started = config(rows, train__steps=2, data__sparse__s0=feature)
    launch([{"config": started, "out": str(out)}], 1, tmp_path)
    file = write_config(
        tmp_path / "c.toml", config(rows, train__steps=3, data__sparse__s0=feature | {"vocabulary": other})
    )
    for command in ("train", "evaluate"):
        extra = ["--split", "validation", "--data.validation", str(rows)] if command == "evaluate" else []
        assert trainer([command, str(file), "--out", str(out), *extra]) == 2
        line = capfd.readouterr().err
        assert line.startswith(f"error: data.sparse.s0.vocabulary is '{other}', whose ids have other rows than in the")
        assert line.count("\n") == 1
    moved = tmp_path / "moved.parquet"
    shutil.copy(first, moved)
    file = write_config(
        tmp_path / "c.toml", config(rows, train__steps=3, data__sparse__s0=feature | {"vocabulary": str(moved)})
    )
    assert trainer(["train", str(file), "--out", str(out)]) == 0


def test_fine_tuning_takes_a_table_of_the_same_vocabulary_only(rows, tmp_path, capfd):
    first = vocabulary((str(rows),), ("s0",), str(tmp_path / "a"))["s0"]["url"]
    other = vocabulary((str(rows),), ("s0",), str(tmp_path / "b"), min_count=2)["s0"]["url"]

    def tree(feature, **finetune):
        feature = {"rows": 101} | feature
        return config(rows, train__steps=1, data__sparse__s0=feature, **({"finetune": finetune} if finetune else {}))

    listed = {"ids": "vocabulary", "vocabulary": first}
    jobs = [{"config": tree(one), "out": str(tmp_path / name)} for name, one in (("listed", listed), ("numbered", {}))]
    launch(jobs, 1, tmp_path)

    def tuned(out, source, url, **finetune):
        settings = tree(listed | {"vocabulary": url}, checkpoint=str(tmp_path / source), **finetune)
        return trainer(["train", str(write_config(tmp_path / "c.toml", settings)), "--out", str(tmp_path / out)])

    for source, url in (("listed", other), ("numbered", first)):
        assert tuned("refused", source, url) == 2
        (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
        assert f"data.sparse.s0.vocabulary is '{url}', whose ids have other rows than in finetune.checkpoint" in line
        assert line.endswith("or list 's0' in finetune.exclude")
    assert tuned("same", "listed", first) == 0
    assert tuned("excluded", "listed", other, exclude=["s0"]) == 0


WRONG = [
    ({"ids": "vocabulary"}, "data.sparse.s0.ids is 'vocabulary' and data.sparse.s0.vocabulary is unset"),
    ({"vocabulary": "a"}, "data.sparse.s0.ids is 'error' and data.sparse.s0.vocabulary is set"),
    ({"ids": "vocabulary", "vocabulary": "gone.parquet"}, "data.sparse.s0.vocabulary is 'gone.parquet' ("),
    ({"ids": "vocabulary", "vocabulary": "{rows}/part-00.parquet"}, "which is not a vocabulary; make one by"),
    ({"ids": "vocabulary", "vocabulary": "{rows}/../ints/id.parquet", "rows": 3}, "needs 4; set rows to at least that"),
    ({"ids": "vocabulary", "vocabulary": "{rows}/../text/id.parquet"}, "has ids of type int32, but"),
    ({"ids": "vocabulary", "vocabulary": "{rows}/../days/id.parquet"}, "is one of dates; name one of integers"),
    ({"ids": "vocabulary", "vocabulary": "x", "table": "s1", "rows": 101}, "data.sparse.s1.ids is error, but"),
]


@pytest.mark.parametrize(("feature", "message"), WRONG)
def test_wrong_vocabularies(rows, refusal, feature, message):
    for name, ids in (("ints", [1, 2, 3]), ("text", ["a"]), ("days", [date(2026, 1, 31)])):
        folder = rows.parent / name
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": ids}), folder / "ids.parquet")
        vocabulary((str(folder / "ids.parquet"),), ("id",), str(folder), overwrite=True)
    feature = {key: str(value).format(rows=rows) if key == "vocabulary" else value for key, value in feature.items()}
    assert message in refusal({"data__sparse__s0": {"rows": 100} | feature})
