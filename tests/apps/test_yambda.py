import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from tests.support.command import run_trainer
from torchx_recsys.apps.datasets.synthetic import ranking_auc
from torchx_recsys.apps.datasets.yambda import yambda
from torchx_recsys.apps.datasets.yambda_generated import Generator, Planted
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.row_groups import RowGroupReader
from trainer.rules.plain_types import plain_array

pytestmark = pytest.mark.slow
DAY, SHIFT = 86_400, 166 * 7 * 86_400
RULE = {"min_history": 5, "among": 12, "per_kind": 3, "train_days": 6}
KINDS = {"like": 2, "dislike": 0, "unlike": 0, "undislike": 0}
CROSSES = {
    "user_artist": ("uid artist_id", 100_000_000),
    "user_album": ("uid album_id", 40_000_000),
    "user_hour": ("uid hour", 24_000_000),
    "item_hour": ("item_id hour", 40_000_000),
    "artist_hour": ("artist_id hour", 32_000_000),
    "user_organic": ("uid is_organic", 2_000_000),
    "user_artist_hour": ("uid artist_id hour", 40_000_000),
}
LISTS = {"items": "item_id", "artists": "artist_id", "albums": "album_id", "actions": "action", "times": "timestamp"}


def random_log(rows=1500, users=9, days=8):
    """Events of a few days in no order, many at the same time, some with a ratio above 100."""
    random = np.random.default_rng(3)
    kind = random.choice(["listen", *KINDS], rows, p=[0.8, 0.08, 0.06, 0.03, 0.03])
    is_listen = kind == "listen"
    return pa.table(
        {
            "uid": pa.array(random.integers(1, users + 1, rows), pa.uint32()),
            "timestamp": pa.array(random.integers(0, days * 4, rows) * (DAY // 4) // 5 * 5, pa.uint32()),
            "item_id": pa.array(random.integers(1, 31, rows), pa.uint32()),
            "is_organic": pa.array(random.integers(0, 2, rows), pa.uint8()),
            "event_type": pa.array(kind).dictionary_encode(),
            "played_ratio_pct": pa.array(random.choice([0, 49, 50, 100, 130], rows), pa.uint16(), mask=~is_listen),
            "track_length_seconds": pa.array(random.integers(9, 400, rows), pa.uint32(), mask=~is_listen),
        }
    )


def write_source(folder, log, size="50m"):
    (folder / "flat" / size).mkdir(parents=True)
    pq.write_table(log, folder / "flat" / size / "multi_event.parquet", row_group_size=400)
    # Items 29 and 30 have no artist, item 5 has two rows of which the last counts, and item 40 is in no event.
    items = [5, *range(1, 29), 40]
    for name, step in (("artist", 7), ("album", 3)):
        ids = {f"{name}_id": pa.array([one * step % 11 + 1 for one in range(len(items))], pa.uint32())}
        table = pa.table({**ids, "item_id": pa.array(items, pa.uint32())})
        pq.write_table(table, folder / f"{name}_item_mapping.parquet")
    return str(folder)


def slow_samples(source, log):
    """The samples by a loop, in the order of user, time and row, each with its history."""
    maps = {}
    for name in ("artist", "album"):
        rows = pq.read_table(Path(source, f"{name}_item_mapping.parquet")).to_pylist()
        maps[name] = {row["item_id"]: row[f"{name}_id"] for row in rows}
    events = log.to_pylist()
    stop = max(event["timestamp"] for event in events) - DAY - 1800
    by_user = defaultdict(list)
    for place, event in enumerate(events):
        if stop - RULE["train_days"] * DAY <= event["timestamp"] < stop:
            ratio = event["played_ratio_pct"] or 0
            action = (1 if ratio >= 50 else 4) if event["event_type"] == "listen" else KINDS[event["event_type"]]
            artist, album = (maps[name].get(event["item_id"], 0) for name in ("artist", "album"))
            more = {"artist_id": artist, "album_id": album, "action": action, "place": place}
            by_user[event["uid"]].append({**event, **more})
    samples = []
    for uid in sorted(by_user):
        own = sorted(by_user[uid], key=lambda event: (event["timestamp"], event["place"]))
        for place, event in enumerate(own):
            if event["action"] in (1, 4) and place >= RULE["min_history"]:
                samples.append(slow_sample(event, [one for one in own if one["timestamp"] < event["timestamp"]]))
    return samples


def slow_sample(event, before):
    history = []
    for kind in (1, 2, 4):
        history += [one for one in before[-RULE["among"] :] if one["action"] == kind][-RULE["per_kind"] :]
    history.sort(key=lambda one: (one["timestamp"], one["place"]))
    counted = [one["timestamp"] for one in before if one["action"]]
    ids = {name: event[name] for name in ("uid", "item_id", "artist_id", "album_id", "is_organic")}
    hour = {"hour": event["timestamp"] // 3600 % 24}
    sample = {"label": float(event["action"] == 1), **ids, "timestamp": event["timestamp"] + SHIFT}
    sample["query_time"] = (counted[-1] if counted else event["timestamp"]) + SHIFT
    for name, (of, rows) in CROSSES.items():
        raw = b"".join((ids | hour)[one].to_bytes(8, "little") for one in of.split())
        sample[name] = xxhash.xxh64_intdigest(raw, seed=0) % rows
    for name, column in LISTS.items():
        sample[f"{name}_before"] = [one[column] + SHIFT * (name == "times") for one in history]
    return sample


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder, log = tmp_path_factory.mktemp("yambda"), random_log()
    source, out = write_source(folder / "published", log), folder / "out"
    summary = yambda(str(out), source, "50m", "written", **RULE, other_users=0.3)
    return out, summary, slow_samples(source, log), source


def rows_of(*files):
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_samples_and_written_histories_equal_a_slow_loop(converted):
    out, summary, slow, _ = converted
    found = sorted((out / "train").glob("*.parquet")) + sorted((out / "validation").glob("*.parquet"))
    others = {row["uid"] for row in rows_of(out / "test/000.parquet")}
    first = min(row["timestamp"] for row in slow)
    windows = defaultdict(list)
    for row in slow:
        if row["uid"] not in others:
            windows[(row["timestamp"] - first) // DAY].append(row)
    assert [file.stem for file in found] == [f"{window:03d}" for window in sorted(windows)]
    assert rows_of(*found) == [row for window in sorted(windows) for row in windows[window]]
    assert rows_of(out / "test/000.parquet") == [row for row in slow if row["uid"] in others]
    assert 0 < len(others) < 9
    assert [values["rows"] for values in summary["splits"].values()] == [
        sum(len(rows) for window, rows in windows.items() if window < max(windows)),
        len(windows[max(windows)]),
        len(rows_of(out / "test/000.parquet")),
    ]
    assert {3, 4, 5} < {len(row["actions_before"]) for row in slow}


def test_histories_gathered_from_the_log_are_those_that_are_written(converted, tmp_path):
    out, source = converted[0], converted[3]
    summary = yambda(str(tmp_path), source, "50m", "log", **RULE, other_users=0.3)
    assert {key: summary[key] for key in ("events", "users", "splits")} == {
        key: converted[1][key] for key in ("events", "users", "splits")
    }
    lists = {f"{name}_before": column for name, column in LISTS.items()}
    history = {"log": f"{tmp_path}/log", "user": "uid", "time": "timestamp", "columns": lists}
    history |= {"length": RULE["per_kind"], "among": RULE["among"], "each": "action", "where": [["action", ">", 0]]}
    gathered, written = (
        lists_of([f"{folder}/train", f"{folder}/test"], lists, of) for folder, of in ((tmp_path, history), (out, {}))
    )
    assert gathered == written
    assert json.loads((tmp_path / "log/log.json").read_text())["source"] == source
    assert "items_before" not in rows_of(tmp_path / "test/000.parquet")[0]


def lists_of(files, lists, history):
    """The lists of all samples as training reads them."""
    features = {name: {"rows": 2**31 - 1, "pooling": "raw", "max_ids": 99} for name in lists}
    config = DataConfig.model_validate({"train": files, "sparse": features, "history": history})
    found = find_files("data.train", config.train, config)
    reader = RowGroupReader(found, config)
    groups = [reader.read(group) for group in found.row_groups]
    return {name: [row for column in groups for row in plain_array(column(name)).to_pylist()] for name in lists}


def test_times_that_are_seconds_since_1970_stay(converted, tmp_path):
    log = random_log()
    later = pa.array(log["timestamp"].to_numpy().astype(np.int64) + 1_700_000_000)
    source = write_source(tmp_path / "published", log.set_column(1, "timestamp", later))
    yambda(str(tmp_path / "out"), source, "50m", **RULE)
    first = rows_of(tmp_path / "out/train/000.parquet")[0]
    assert first["timestamp"] > 1_700_000_000
    assert "items_before" not in first


SMALL = {"users": 60, "events": 60, "days": 12, "items": 50, "min_history": 20, "among": 16, "per_kind": 16}


def test_a_generated_log_has_the_planted_truth(tmp_path):
    settings = {"users": 400, "events": 60, "items": 50, "artists": 8, "genres": 8, "days": 5, "seed": 1}
    planted = Planted(**settings, zipf=1.0, beta=1.0, gamma=0.7, drift=0.0, spread=0.0)
    generator = Generator(planted)
    table = pa.concat_tables(generator.days())
    listens = table.filter(pa.compute.equal(table["event_type"], "listen"))
    user, item = (listens[name].to_numpy().astype(np.int64) - 1 for name in ("uid", "item_id"))
    label = listens["played_ratio_pct"].to_numpy() >= 50
    odds = generator.taste[user, generator.genre[item]] + 0.7 * generator.sign[item]
    assert ranking_auc(odds, label) == pytest.approx(planted.limits()["best_auc"], abs=0.01)
    of_item = ranking_auc(generator.sign[item], label)
    assert of_item == pytest.approx(planted.limits()["item_auc"], abs=0.01)
    assert (generator.taste.sum(axis=1) == 0).all()
    counts = -np.sort(-np.bincount(item))
    assert counts[0] / counts[7] == pytest.approx(8, rel=0.25)
    assert set(np.unique(table["timestamp"].to_numpy() % 5)) == {0}


def test_drift_turns_tastes_at_its_rate():
    planted = dict.fromkeys(("users", "events", "items", "artists"), 500) | {"genres": 40, "days": 9, "seed": 2}
    generator = Generator(Planted(**planted | {"events": 1}, zipf=0, beta=1, gamma=0, drift=0.05, spread=0))
    before = generator.taste.copy()
    for _ in generator.days():
        pass
    assert (generator.taste == before).mean() == pytest.approx((1 + np.exp(-2 * 0.05 * 10)) / 2, abs=0.01)


def test_the_same_seed_gives_the_same_files_with_any_memory_and_threads(tmp_path):
    for name, other in {"a": {"threads": 1}, "b": {"threads": 2, "memory_mib": 512}, "c": {"seed": 1}}.items():
        yambda(str(tmp_path / name), histories="written", **SMALL | other)
    files = {
        name: [path.read_bytes() for path in sorted((tmp_path / name).rglob("*.parquet"))] for name in ("a", "b", "c")
    }
    assert files["a"] == files["b"]
    assert files["a"] != files["c"]
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["best_auc"] == pytest.approx(0.9, abs=1e-4)
    assert summary["splits"]["test"]["rows"] > 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--source PLACE/nowhere", "--source is 'PLACE/nowhere', which is not there"),
        ("--source PLACE/published --size 500m", "has no flat/500m/multi_event.parquet"),
        ("--source PLACE/lacking --size 50m", "has no column 'is_organic'"),
        ("--source PLACE/unmapped --size 50m", "has no album_item_mapping.parquet"),
        ("--source PLACE/strange --size 50m", "has the event_type 'shuffle'"),
        ("--source PLACE/damaged --size 50m", "cannot be read"),
        ("--source PLACE/published --size 50m", "--min-history is 4086, after which samples are of 0 windows"),
        ("--min-history -1", "--min-history is -1; it must be 0 or more"),
        ("--other-users 1", "--other-users is 1.0; it must be a share from 0 to below 1"),
        ("--genres 7", "--genres is 7; it must be even"),
        ("--artists 4", "--artists is 4, fewer than --genres 8"),
        ("--users 0", "--users is 0; it must be 1 or more"),
        ("--memory-mib 1", "--memory-mib is 1; it must be at least 256"),
        ("--histories both", "--histories"),
    ],
)
def test_wrong_input_is_one_line(flags, says, sources, tmp_path):
    done = run_trainer("yambda", "--out", str(tmp_path / "out"), *flags.replace("PLACE", sources).split())
    assert done.returncode == 2
    assert says.replace("PLACE", sources) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder, log = tmp_path_factory.mktemp("sources"), random_log(40)
    write_source(folder / "published", log)
    write_source(folder / "lacking", log.drop_columns("is_organic"))
    write_source(folder / "unmapped", log)
    (folder / "unmapped/album_item_mapping.parquet").unlink()
    write_source(folder / "strange", log.set_column(4, "event_type", pa.array(["shuffle"] * 40)))
    write_source(folder / "damaged", log)
    (folder / "damaged/flat/50m/multi_event.parquet").write_bytes(b"PAR1 is not all")
    return str(folder)


def test_another_call_with_other_arguments_is_refused(converted):
    with pytest.raises(InputError, match="min_history = 5, and now it is 6"):
        yambda(str(converted[0]), converted[3], "50m", "written", **RULE | {"min_history": 6}, other_users=0.3)
