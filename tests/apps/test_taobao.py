"""Taobao's log of displayed ads, converted: beside a loop over random files in its form; the presets train on them."""

import csv
import json
import random
from collections import defaultdict
from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest
from jobs import launch

from tests.support.command import run_trainer
from torchx_recsys.apps.datasets import taobao as taobao_module
from torchx_recsys.apps.datasets.taobao import ACTIONS, taobao
from trainer.config.root import load_config
from trainer.core.errors import InputError

pytestmark = pytest.mark.slow
START = 1494000000  # the first second of the published samples, at midnight in China
DAY, HOUR = 86_400, 3_600
PROFILE = ("cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level")
PROFILE = (*PROFILE, "occupation", "new_user_class_level")


def random_files(folder, users=30, ads=20, samples=600, events=900, days=4):
    """Files in the published form: some ads without a brand, some users without a profile, many at the same second."""
    draw = random.Random(5)
    second = lambda first: START + draw.randrange(first * DAY, days * DAY, HOUR // 2)  # noqa: E731
    brand = lambda: draw.choice(["NULL", 1, 2, 3])  # noqa: E731
    tables = {
        "raw_sample": [
            (
                draw.randrange(users),
                second(0),
                draw.randrange(ads),
                draw.choice(["430539_1007", "430548_1007"]),
                1 - c,
                c,
            )
            for c in (int(draw.random() < 0.4) for _ in range(samples))
        ],
        "ad_feature": [(ad, ad % 4, ad % 9, ad % 6, brand(), f"{ad}.5") for ad in range(ads - 1)],
        "user_profile": [
            (user, *("" if draw.random() < 0.2 else user % 4 for _ in PROFILE)) for user in range(users - 3)
        ],
        "behavior_log": [
            (draw.randrange(users + 5), second(-2), draw.choice([*ACTIONS, "pv", "buy"]), draw.randrange(4), brand())
            for _ in range(events)
        ],
    }
    headers = {
        "raw_sample": ["user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk"],
        "ad_feature": ["adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price"],
        "user_profile": ["userid", *PROFILE[:-1], "new_user_class_level "],
        "behavior_log": ["user", "time_stamp", "btag", "cate", "brand"],
    }
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([headers[name], *rows])
    return tables


def slow_rows(tables, history, buy_hours):
    """The rows by a loop, in the order of time and place in the file."""
    ads = {row[0]: row[1:] for row in tables["ad_feature"]}
    profiles = {row[0]: row[1:] for row in tables["user_profile"]}
    past = defaultdict(list)
    for event in tables["behavior_log"]:
        past[event[0]].append(event)
    number = lambda value: None if value in ("", "NULL") else int(value)  # noqa: E731
    rows = []
    for user, time, ad, pid, _, clicked in sorted(tables["raw_sample"], key=lambda row: row[1]):
        moment = datetime.fromtimestamp(time + 8 * HOUR, UTC)
        cate, campaign, customer, brand, price = ads.get(ad, (None, None, None, "NULL", None))
        before = sorted((event for event in past[user] if event[1] < time), key=lambda event: event[1])[-history:]
        bought = any(
            event[2] == "buy"
            and event[3] == cate
            and event[4] == brand != "NULL"
            and 0 < event[1] - time <= buy_hours * HOUR
            for event in past[user]
        )
        rows.append(
            {
                **{"clk": float(clicked), "buy": float(clicked and bought), "user_id": user, "adgroup_id": ad},
                **{"cate_id": cate, "campaign_id": campaign, "customer": customer, "brand": number(brand)},
                **{"price": None if price is None else float(price)},
                **dict(zip(PROFILE, map(number, profiles.get(user, [""] * 8)), strict=True)),
                **{"timestamp": time, "hour": moment.hour, "weekday": moment.weekday(), "pid": pid},
                "tag_category_list": [event[3] for event in before],
                "tag_brand_list": [number(event[4]) or 0 for event in before],
                "tag_action_list": [ACTIONS.index(event[2]) for event in before],
                "tag_time_list": [event[1] for event in before],
            }
        )
    return rows


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Random files, and their data set."""
    folder = tmp_path_factory.mktemp("taobao")
    tables = random_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taobao_module, "EVENTS_AT_ONCE", 100)  # so that users come in many ranges
        taobao(str(folder), str(folder / "out"), history=7, buy_hours=10)
    return tables, folder / "out"


def test_equals_a_loop_over_the_files(converted):
    tables, out = converted
    found = [
        (split, row)
        for split in ("train", "validation", "test")
        for file in sorted((out / split).glob("*.parquet"))
        for row in pq.read_table(file).to_pylist()
    ]
    expected = slow_rows(tables, 7, 10)
    assert [row for _, row in found] == expected
    assert {(split, (row["timestamp"] - START) // DAY) for split, row in found} == {
        *(("train", 0), ("train", 1), ("validation", 2), ("test", 3))
    }
    assert [file.stem for file in sorted((out / "train").iterdir())] == ["20170506", "20170507"]
    assert 0.01 < sum(row["buy"] for row in expected) / len(expected) < 0.3
    summary = json.loads((out / "summary.json").read_text())
    clicked = [row["clk"] for split, row in found if split == "test"]
    assert summary["splits"]["test"]["label_rate"] == sum(clicked) / len(clicked)


def test_the_catalogue_has_every_ad_with_its_rows_in_train(converted):
    tables, out = converted
    rows = pq.read_table(out / "items.parquet").to_pylist()
    train = [row[2] for row in tables["raw_sample"] if row[1] < START + 2 * DAY]
    assert [(row["adgroup_id"], row["train_rows"]) for row in rows] == [(ad, train.count(ad)) for ad in range(19)]


@pytest.mark.parametrize("name", ["taobao", "taobao_mmoe", "taobao_two_tower"])
def test_the_presets_train_on_it(converted, tmp_path, name):
    _, out = converted
    tree = load_config(name).model_dump(exclude_unset=True)
    tree["data"] |= {split: [str(out / split)] for split in ("train", "validation", "test")}
    tree["data"]["global_batch_size"] = 32
    for feature in tree["data"]["sparse"].values():
        feature["rows"] = min(feature["rows"], 100)
    if "catalogue" in tree["data"]:
        tree["data"]["catalogue"] |= {"items": [str(out / "items.parquet")], "negatives": 4}
    tree["train"] = {"steps": 2}
    launch([{"config": tree, "out": str(tmp_path / "out")}], 2, tmp_path)
    evaluated = [json.loads(line) for line in (tmp_path / "out/evaluations.jsonl").read_text().splitlines()]
    assert {line["split"] for line in evaluated} == {"validation", "test"}


def changed(folder, name, change):
    random_files(folder)
    file = folder / f"{name}.csv"
    lines = change(file.read_text().splitlines())
    if lines is None:
        file.unlink()
    else:
        file.write_text("\n".join(lines) + "\n")
    return str(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("user_profile", lambda lines: None, "which has no user_profile.csv; name the directory of the unpacked files"),
        ("ad_feature", lambda lines: [lines[0].replace("brand", "brnd"), *lines[1:]], "has no column 'brand'; it has"),
        ("behavior_log", lambda lines: lines[:1], "behavior_log.csv cannot be read: Empty CSV file"),
        ("behavior_log", lambda lines: [*lines, "1,1494000000,look,1,1"], "has the btag 'look'; known are pv, cart"),
        ("raw_sample", lambda lines: [*lines, "one,1494000000,1,x,0,1"], "raw_sample.csv cannot be read: .*one"),
        ("raw_sample", lambda lines: [*lines, "1,,1,x,0,1"], "raw_sample.csv has rows without 'time_stamp'"),
        ("raw_sample", lambda lines: [*lines, "1,1494000000"], "raw_sample.csv cannot be read: .*Expected 6 columns"),
        (
            "raw_sample",
            lambda lines: [line for line in lines if line[0] == "u" or "14940" in line][:9],
            "has . days?; it",
        ),
    ],
)
def test_wrong_files(tmp_path, name, change, message):
    with pytest.raises(InputError, match=message) as raised:
        taobao(changed(tmp_path, name, change), str(tmp_path / "out"))
    assert "\n" not in str(raised.value)


def test_a_directory_of_something_else_is_refused(tmp_path):
    random_files(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/summary.json").write_text("precious")
    with pytest.raises(InputError, match=r"holds files but no settings\.json"):
        taobao(str(tmp_path), str(tmp_path / "out"))
    assert [(file.name, file.read_text()) for file in (tmp_path / "out").iterdir()] == [("summary.json", "precious")]


@pytest.mark.parametrize("flags", ["--history 0", "--buy-hours 0", "--memory-mib 1", "--source nowhere"])
def test_wrong_flags(tmp_path, flags):
    result = run_trainer("taobao", *f"--source {tmp_path} --out {tmp_path / 'out'} {flags}".split())
    assert result.returncode == 2
    assert result.stderr.strip().startswith(f"error: {flags.split()[0]} is ")
    assert result.stderr.count("\n") == 1
