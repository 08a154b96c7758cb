"""The top items of users: the lists of float64 arithmetic on any number of ranks, killed and resumed, and filtered."""

import json
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command import run_trainer, start_trainer
from endpoint import Served
from exported import step_directory
from jobs import launch, saved_tensors
from retrieval import ITEMS, ByHand, settings, write_data
from sequences import items_of, retrieval_config, write_histories

from torchx_recsys.apps.recommend.approximate import IndexedItems
from torchx_recsys.apps.recommend.top import NO_SCORE, TopItems
from trainer.__main__ import main as trainer
from trainer.config.root import Config

STEPS, USERS, K = 8, 90, 7
PLANS = {1: "table_wise", 2: "row_wise", 4: "column_wise"}
SMALL = ("--users-per-part", "16", "--batch-size", "32", "--k", str(K))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows of two towers with their users, of whom the newest row is the last, and titles of the items."""
    folder = write_data(tmp_path_factory.mktemp("recommend"))
    for split in ("train", "validation"):
        table = pq.read_table(folder / split / "part.parquet")
        rows = np.arange(len(table))
        columns = {
            "user": pa.array(rows * 7 % USERS),
            "when": pa.array(-rows),
        }
        for name, column in columns.items():
            table = table.append_column(name, column)
        pq.write_table(table, folder / split / "part.parquet", row_group_size=64)
    items = pq.read_table(folder / "items.parquet")
    titles = [f"the {number}th" for number in items["s1"].to_pylist()]
    pq.write_table(items.append_column("title", pa.array(titles)), folder / "items.parquet", row_group_size=40)
    return folder


@pytest.fixture(scope="module")
def tree(data):
    """The configuration of two towers."""
    tree = settings(data, losses=("sampled",), train__steps=STEPS)
    tree["data"]["groups"] = ["s1", "user"]
    return tree


@pytest.fixture(scope="module")
def run(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    launch([{"config": tree, "out": str(folder / "run")}], 1, folder)
    return folder / "run"


@pytest.fixture
def recommend(run, tmp_path, capfd):
    """Lists items in this process, into a new directory, and returns the directory and what was printed."""

    def recommend(*flags, to=tmp_path / "lists", out=run, code=0):
        words = ["recommend", out / "config.toml", "--out", out, *(["--to", to] if to else []), *flags]
        assert trainer([str(word) for word in words]) == code
        said = capfd.readouterr()
        return to, said.err if code else said.out

    return recommend


@pytest.fixture(scope="module")
def by_hand(data, tree, run):
    """Scores of all items in float64, unsharded, by user, the row that asks for each, and the items that it has had."""
    reference = ByHand(data, Config.model_validate(tree))
    tensors = saved_tensors(run, STEPS)
    model = reference.model
    model.load_state_dict({name: tensors[f"model.model.{name}"].double() for name in model.state_dict()})
    newest = {sample["user"]: sample for sample in reference.samples}
    with torch.no_grad():
        items = torch.stack([reference.item(item) for item in range(ITEMS)])
        queries = torch.stack([reference.query(sample) for sample in newest.values()])
    had = {(user, item) for user, sample in newest.items() for item in sample["avoided"] or []}
    return dict(zip(newest, (queries @ items.T).numpy(), strict=True)), newest, had


def lists_of(table):
    """Returns the items of each user, in the order of the ranks."""
    found = {}
    for row in table.to_pylist():
        found.setdefault(row["user"], []).append(row)
    for user, rows in found.items():
        assert [row["rank"] for row in rows] == [*range(1, len(rows) + 1)], user
    return found


def check(lists, scores, allowed=lambda user, item: True, k=K):
    """Checks lists against all scores in float64; of items whose scores differ by rounding either may come first."""
    for user, rows in lists.items():
        left = [item for item in np.argsort(-scores[user], kind="stable") if allowed(user, item)][:k]
        items = [row["item"] for row in rows]
        assert len({*items}) == len(items) == len(left)
        assert all(allowed(user, item) for item in items)
        np.testing.assert_allclose(scores[user][items], scores[user][left], atol=1e-6)
        np.testing.assert_allclose([row["score"] for row in rows], scores[user][items], atol=1e-6)


def test_lists_are_those_of_float64_for_every_user_once(run, recommend, by_hand, monkeypatch):
    monkeypatch.setattr("torchx_recsys.apps.predict.inference.INTERVAL_SECONDS", 0.0)
    folder, said = recommend(*SMALL)
    found = read_lists(folder)
    assert found.column_names == ["user", "rank", "item", "score", "title"]
    lists = lists_of(found)
    assert len(found) == USERS * K
    assert sorted(lists) == [*range(USERS)]
    check(lists, by_hand[0], lambda user, item: (user, item) not in by_hand[2])
    assert "left out: had\n" in said
    assert all(row["title"] == f"the {row['item']}th" for rows in lists.values() for row in rows)
    assert (
        f"the newest rows of {USERS} users of data.validation ask among {ITEMS} items of data.catalogue.items" in said
    )
    assert "features of the user: d0, s0, had; of the item: price, s1, tags" in said
    assert f"step {STEPS} of " in said
    assert f"{USERS} users in 6 parts, 0 of which are there" in said
    assert "16 of 90 users (18%)  " in said
    first = next(iter(lists))
    assert f"\nuser {first}\n" in said
    assert lists[first][0]["title"] in said
    assert said.splitlines()[-1].startswith("Next: ")
    page = (run / "run.html").read_text()
    assert f"<h2>Recommended, at step {STEPS}</h2>" in page
    assert page.count("<h3>user ") == 3
    assert f"<td>{lists[first][-1]['title']}</td>" in page


def read_lists(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["users"] == USERS
    return pa.concat_tables([pq.read_table(folder / part["file"]) for part in manifest["parts"]])


@pytest.mark.few(1, "two ranks stand for four")
@pytest.mark.parametrize("ranks", [2, 4])
def test_lists_are_the_same_on_any_number_of_ranks(ranks, run, recommend, tmp_path):
    one, _ = recommend(*SMALL)
    flags = ["--to", tmp_path / "more", "--planner.sharding-types", PLANS[ranks], *SMALL]
    assert run_trainer("recommend", run / "config.toml", "--out", run, *flags, ranks=ranks).returncode == 0
    found, expected = read_lists(tmp_path / "more"), read_lists(one)
    if PLANS[ranks] == "row_wise":  # which adds up the embeddings of a list in another order
        np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-5)
        found, expected = found.drop_columns("score"), expected.drop_columns("score")
    assert found.equals(expected)


@pytest.mark.more("test_predict_killed.py kills the writer of both")
def test_killed_and_stopped_and_resumed_it_lists_every_user_once(run, recommend, tmp_path):
    whole, _ = recommend(*SMALL[2:], "--users-per-part", "1", to=tmp_path / "undisturbed")
    folder, words = tmp_path / "disturbed", ["recommend", run / "config.toml", "--out", run]
    tiny = [*words, "--to", folder, *SMALL[2:], "--users-per-part", "1"]
    for number in (signal.SIGKILL, signal.SIGTERM):
        before = len([*folder.glob("*.parquet")])
        job = start_trainer(tiny, tmp_path / "log", tmp_path / "log", 0)
        while job.poll() is None and len([*folder.glob("*.parquet")]) <= before:
            time.sleep(0.002)
        job.send_signal(number)
        assert job.wait() == (75 if number == signal.SIGTERM else -number)
        assert before < len([*folder.glob("*.parquet")]) < USERS
        assert not (folder / "manifest.json").exists()
    assert "The same command continues it." in (tmp_path / "log").read_text()
    done = run_trainer(*tiny, ranks=2)
    assert done.returncode == 0
    assert f"{USERS} users in {USERS} parts, " in done.stdout
    assert read_lists(folder).equals(read_lists(whole))


def test_items_are_filtered_and_seen_ones_left_out(data, recommend, by_hand, tmp_path):
    price = dict(
        zip(*(pq.read_table(data / "items.parquet")[name].to_pylist() for name in ("s1", "price")), strict=True)
    )
    seen = {(row["user"], row["s1"]) for row in pq.read_table(data / "train", columns=["user", "s1"]).to_pylist()}
    seen |= by_hand[2]
    flags = ("--where", "price > 0 AND title LIKE '%th'", "--seen", data / "train", "--show", "price", "tags")
    folder, said = recommend(*SMALL, *flags)
    lists = lists_of(read_lists(folder))
    check(lists, by_hand[0], lambda user, item: price[item] > 0 and (user, item) not in seen)
    assert all(row["price"] == price[row["item"]] for rows in lists.values() for row in rows)
    assert "left out: had, --seen" in said


def test_lists_are_as_long_as_there_are_items(data, recommend, by_hand):
    seen = {(row["user"], row["s1"]) for row in pq.read_table(data / "train", columns=["user", "s1"]).to_pylist()}
    seen |= by_hand[2]
    few = {*range(6)}
    folder, _ = recommend(*SMALL, "--where", "s1 < 6", "--seen", data / "train")
    lists = lists_of(read_lists(folder))
    check(lists, by_hand[0], lambda user, item: item in few and (user, item) not in seen)
    assert {len(rows) for rows in lists.values()} >= {5, 6}


def test_named_users_are_printed_by_their_newest_rows(data, recommend, by_hand, tmp_path):
    _, said = recommend("--users", "42", "7", to=None)
    assert said.count("\nuser ") == 2
    assert said.splitlines()[-1].startswith("Next:  python -m trainer recommend ")
    scores = {user: by_hand[0][user] for user in (42, 7)}
    oldest, _ = recommend("--users", "42", "7", "--k", "3", "--time-column", "when")
    others = lists_of(pa.concat_tables([pq.read_table(path) for path in sorted(oldest.glob("*.parquet"))]))
    assert {*others} == {7, 42}
    with pytest.raises(AssertionError):
        check(others, scores, k=3)


def test_equal_scores_are_in_the_order_of_items_and_bounds_hold():
    random = torch.Generator().manual_seed(0)
    for items, dimension, k in ((1000, 16, 10), (40, 8, 10), (128, 8, 128), (5000, 4, 20), (1, 3, 1)):
        few = torch.randn(max(1, items // 9), dimension, generator=random)  # so that many items have one vector
        vectors = few[torch.randint(len(few), (items,), generator=random)]
        queries = torch.randn(60, dimension, generator=random)
        excluded = torch.randint(60 * items, (300,), generator=random)
        excluded = torch.stack([excluded // items, excluded % items], dim=1)
        places, scores = TopItems(vectors).find(queries, k, excluded)
        expected = (queries.double() @ vectors.double().T).float()
        expected[excluded[:, 0], excluded[:, 1]] = NO_SCORE
        for query in range(len(queries)):
            order = sorted(range(items), key=lambda item: (-expected[query, item].item(), item))[:k]
            there = scores[query] > NO_SCORE
            assert places[query][there].tolist() == [item for item in order if expected[query, item] > NO_SCORE]
            assert torch.equal(scores[query], expected[query, order])


def test_the_closest_of_several_vectors_of_a_query_counts():
    random = torch.Generator().manual_seed(0)
    # Of a few whole numbers, so that many scores are equal, and several vectors find the same items.
    vectors, queries = (torch.randint(-2, 3, size, generator=random).float() for size in ((300, 4), (50, 3, 4)))
    excluded = torch.stack([torch.arange(400) // 8, torch.randint(300, (400,), generator=random)], dim=1)
    expected = (queries @ vectors.T).amax(1)
    expected[excluded[:, 0], excluded[:, 1]] = NO_SCORE
    for k in (1, K, 290):
        places, scores = TopItems(vectors).find(queries, k, excluded)
        for query in range(len(queries)):
            order = sorted(range(300), key=lambda item: (-expected[query, item].item(), item))[:k]
            assert places[query].tolist() == order
            assert torch.equal(scores[query], expected[query, order])
    assert torch.equal(IndexedItems(vectors, "Flat").find(queries, K, excluded)[1], expected.topk(K).values)


def test_an_index_finds_items_by_their_exact_scores():
    random = torch.Generator().manual_seed(0)
    vectors, queries = (torch.randn(number, 16, generator=random) for number in (3_000, 200))
    excluded = torch.stack([torch.arange(400) // 2, torch.randint(3_000, (400,), generator=random)], dim=1)
    places, scores = TopItems(vectors).find(queries, K, excluded)
    for index, least in (("Flat", 1.0), ("HNSW32;efSearch=200", 0.95), ("IVF16,Flat;nprobe=16", 1.0)):
        found, exact = IndexedItems(vectors, index).find(queries, K, excluded)
        same = (found[:, :, None] == places[:, None]).any(2)
        assert same.double().mean() >= least
        assert not (found[excluded[:, 0]] == excluded[:, 1:]).any()
        wide = (queries.double()[:, None] * vectors[found].double()).sum(2)
        assert torch.equal(exact, wide.float())
    assert torch.equal(scores, TopItems(vectors).find(queries, K, excluded)[1])
    few, of_few = IndexedItems(vectors, "IVF1000,Flat;nprobe=1").find(queries, K, excluded)
    assert (of_few == NO_SCORE).any()
    assert ((few >= 0) | (of_few == NO_SCORE)).all()


WRONG = {
    "no index": (["--index", "Flot"], "--index is 'Flot', of which faiss makes no index: could not parse"),
    "no parameter": (["--index", "HNSW32;nproob=3"], "of which faiss makes no index: could not set parameter nproob"),
    "no users and no directory": (["--to", "None"], "--to is not given; name a directory for the lists of all users"),
    "no items at all": (["--k", "0"], "--k is 0"),
    "no such user": (["--users", "7", "900"], "--users has '900', of whom data.validation has no row"),
    "a user of another type": (["--users", "ann"], "--users has 'ann', but the ids of users are of type int64"),
    "no such column of users": (["--user-column", "usr"], "did you mean 'user'?"),
    "a column of users with lists": (["--user-column", "avoided"], "column 'avoided' is of type"),
    "no such time": (["--time-column", "whan"], "--time-column is 'whan', which"),
    "no such column of items": (["--item-column", "s9"], "no column 's9', the items' ids"),
    "no such title": (["--show", "titel"], "--show has 'titel', which"),
    "a title twice": (["--show", "title", "title"], "--show has 'title' twice"),
    "a condition without sense": (["--where", "price >"], "which is no condition on the items: Parser Error"),
    "a condition on what is not there": (["--where", "prize > 1"], "which is no condition on the items: Binder Error"),
    "a condition that reads a file": (["--where", "s1 IN (SELECT 1 FROM read_text('/etc/hosts'))"], "no condition on"),
    "a condition that nothing meets": (["--where", "price > 99"], "which none of the 101 items meets"),
    "no such file": (["--source", "nowhere.parquet"], "--source: no Parquet file at 'nowhere.parquet'"),
    "no such items": (["--items", "nowhere.parquet"], "--items: no Parquet file at 'nowhere.parquet'"),
    "seen items without users": (["--seen", "{items}"], "no column 'user', which --seen needs"),
    "no such task": (
        ["--task", "sampld"],
        "--task is 'sampld', which the model does not have; did you mean 'sampled'?",
    ),
    "no such checkpoint": (["--checkpoint", "5"], "--checkpoint is 5, which is no committed checkpoint"),
    "items twice": (["--items", "{twice}"], "is there twice; an item has one row"),
    "a file in the place of the directory": (["--to", "{items}"], "--to is "),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(case, data, run, tmp_path, capfd):
    flags, message = WRONG[case]
    items = pq.read_table(data / "items.parquet")
    pq.write_table(pa.concat_tables([items, items.slice(3, 1)]), tmp_path / "twice.parquet")
    words = [flag.format(items=data / "items.parquet", twice=tmp_path / "twice.parquet") for flag in flags]
    arguments = ["recommend", run / "config.toml", "--out", run, "--to", tmp_path / "lists", *words]
    assert trainer([str(word) for word in arguments]) == 2
    line = capfd.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert message in line
    assert not (tmp_path / "lists").exists()


@pytest.fixture(scope="module")
def ranker(tree, tmp_path_factory):
    """A run of a model that scores pairs, with a cross of columns of both sides, and a list without the item."""
    folder = tmp_path_factory.mktemp("ranker")
    ours = tree | {"model": {"embedding_dim": 16, "dense_layers": [8], "over_layers": [8]}, "tasks": {}}
    cross = {"columns": ["s0", "s1"], "rows": 50, "ids": "hash"}
    sparse = {name: feature for name, feature in tree["data"]["sparse"].items() if name != "had"}
    past = {"column": "avoided", "rows": 1_000, "without": "s1"}
    ours["data"] = tree["data"] | {"catalogue": {}, "sparse": sparse | {"both": cross, "past": past}}
    launch([{"config": ours, "out": str(folder / "run")}], 1, folder)
    return folder / "run"


@pytest.fixture(scope="module")
def exported_ranker(ranker, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported_ranker")
    words = ["export", ranker / "config.toml", "--out", ranker, "--to", folder]
    assert trainer([str(word) for word in words]) == 0
    return folder


def recommend_from(export, data, to, *flags, code=0):
    """Lists items of an export in this process."""
    given = ["--source", data / "validation", "--user-column", "user", "--items", data / "items.parquet"]
    words = ["recommend", "--export", export, *given, *(["--to", to] if to else []), *flags]
    assert trainer([str(word) for word in words]) == code


@pytest.mark.more("scores every pair; the lists of other models are compared")
def test_a_model_of_pairs_scores_all_of_them(data, ranker, exported_ranker, recommend, tmp_path):
    items = data / "items.parquet"
    flags = ("--user-column", "user", "--items", items, "--item-column", "s1", "--seen", data / "train")
    folder, said = recommend(*SMALL, *flags, out=ranker)
    assert "features of the user: d0, s0; of the item: price, s1, tags, both, past" in said
    newest = {row["user"]: row for row in pq.read_table(data / "validation").to_pylist()}
    pairs = [row | item for row in newest.values() for item in pq.read_table(items).to_pylist()]
    pq.write_table(pa.Table.from_pylist(pairs), tmp_path / "pairs.parquet")
    words = [
        ranker / "config.toml",
        "--out",
        ranker,
        "--source",
        tmp_path / "pairs.parquet",
        "--to",
        tmp_path / "scored",
    ]
    assert trainer(["predict", *map(str, words)]) == 0
    scored = pq.read_table(tmp_path / "scored/part-00000-of-00001.parquet")
    scores = {user: np.zeros(ITEMS) for user in newest}
    for user, item, score in zip(
        *(scored[name].to_pylist() for name in ("user", "s1", "label_probability")), strict=True
    ):
        scores[user][item] = score
    seen = {(row["user"], row["s1"]) for row in pq.read_table(data / "train").to_pylist()}
    lists = lists_of(read_lists(folder))
    check(lists, scores, lambda user, item: (user, item) not in seen)
    assert len({tuple(row["item"] for row in rows) for rows in lists.values()}) > 10
    flags_of_export = (*SMALL, "--item-column", "s1", "--seen", data / "train")
    recommend_from(exported_ranker, data, tmp_path / "of_export", *flags_of_export)
    recommend_from(exported_ranker, data, None, *flags_of_export, "--users", "1", "--index", "Flat", code=2)
    check(lists_of(read_lists(tmp_path / "of_export")), scores, lambda user, item: (user, item) not in seen)
    on_ranks = ["--to", tmp_path / "more", *SMALL, *flags]
    assert run_trainer("recommend", ranker / "config.toml", "--out", ranker, *on_ranks, ranks=2).returncode == 0
    assert read_lists(tmp_path / "more").equals(read_lists(folder))


@pytest.fixture(scope="module")
def served(data, run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    words = ["export", run / "config.toml", "--out", run, "--to", folder / "to"]
    assert trainer([str(word) for word in words]) == 0
    served = Served(
        step_directory(folder / "to"), folder, "--items", data / "items.parquet", "--show", "title", "price"
    )
    served.export = step_directory(folder / "to")
    yield served
    served.process.kill()


def test_lists_over_http_are_those_of_the_run(served, by_hand, recommend, tmp_path):
    newest = [*by_hand[1].values()]
    columns = {name: [row[name] for row in newest] for name in ("d0", "s0", "avoided")}
    exclude = [[row["s1"], 999] for row in newest]
    ((status, content),) = served.ask({"columns": columns, "k": K, "exclude": exclude}, path="/recommend")
    assert status == 200
    lists = content["lists"]
    found = {
        row["user"]: [
            {"item": item, "score": score, "title": title}
            for item, score, title in zip(*(lists[name][place] for name in ("item", "score", "title")), strict=True)
        ]
        for place, row in enumerate(newest)
    }
    own = {row["user"]: row["s1"] for row in newest}
    check(found, by_hand[0], lambda user, item: item != own[user] and (user, item) not in by_hand[2])
    assert all(row["title"] == f"the {row['item']}th" for rows in found.values() for row in rows)
    one = {"columns": {name: values[:1] for name, values in columns.items()}}
    ((_, content),) = served.ask(one, path="/recommend")
    _, said = recommend("--users", newest[0]["user"], to=None)
    assert all(title in said for title in content["lists"]["title"][0])


def test_lists_of_an_export_are_those_of_the_run(served, data, by_hand, tmp_path, capfd):
    seen = {(row["user"], row["s1"]) for row in pq.read_table(data / "train", columns=["user", "s1"]).to_pylist()}
    flags = (*SMALL, "--seen", data / "train", "--where", "price > 0", "--show", "title", "price")
    recommend_from(served.export.parent, data, tmp_path / "one", *flags)
    said, found = capfd.readouterr().out, read_lists(tmp_path / "one")
    assert "columns of the user: d0, s0, avoided; of the item: price, s1, tags" in said
    assert "left out: avoided, --seen" in said
    assert f"step {STEPS}, exported to " in said
    price = {row["s1"]: row["price"] for row in pq.read_table(data / "items.parquet").to_pylist()}
    lists, seen = lists_of(found), seen | by_hand[2]
    assert sorted(lists) == [*range(USERS)]
    check(lists, by_hand[0], lambda user, item: price[item] > 0 and (user, item) not in seen)
    assert all(row["price"] == price[row["item"]] for rows in lists.values() for row in rows)
    given = ["--source", data / "validation", "--user-column", "user", "--items", data / "items.parquet"]
    words = ["recommend", "--export", served.export, *given, "--to", tmp_path / "two", *flags]
    assert run_trainer(*words, ranks=2).returncode == 0
    assert read_lists(tmp_path / "two").equals(found)
    recommend_from(served.export.parent, data, tmp_path / "flat", *flags, "--index", "Flat")
    assert read_lists(tmp_path / "flat").equals(found)
    recommend_from(served.export, data, None, "--users", "5", "--k", "2")
    assert "recommend --export " in capfd.readouterr().out.splitlines()[-1]


WRONG_OF_EXPORT = {
    "no items": (["--items"], "--items is not given, and an export knows no data"),
    "no source": (["--source"], "--source is not given, and an export knows no data"),
    "no users": (["--user-column", "None"], "--user-column is not given"),
    "a run, too": (["--out", "{run}"], "--out is given, too; name a run or an export"),
    "a checkpoint, too": (["--checkpoint", "best"], "--checkpoint is given, too; name a run or an export"),
    "no export": (["--export", "{run}"], "which holds no whole export"),
    "no such task": (["--task", "sampld"], "--task is 'sampld', which the model does not have"),
    "queries without a column": (["--source", "{items}", "--user-column", "s1"], "no column 'd0'"),
    "items without a column": (["--items", "{validation}", "--item-column", "when"], "--items has no column 'tags'"),
    "a column of another type": (["--source", "{texts}"], "is not an integer"),
    "neither run nor export": (["--export", "None"], "CONFIG is missing; name a run, or an --export"),
}


@pytest.mark.parametrize("case", WRONG_OF_EXPORT)
def test_wrong_input_of_an_export_is_one_line(case, served, data, run, tmp_path, capfd):
    flags, message = WRONG_OF_EXPORT[case]
    rows = pq.read_table(data / "validation")
    place = rows.column_names.index("s0")
    pq.write_table(rows.set_column(place, "s0", rows["s0"].cast("string")), tmp_path / "texts.parquet")
    pq.write_table(rows.drop_columns("tags"), tmp_path / "untagged.parquet")
    paths = {"items": data / "items.parquet", "run": run, "texts": tmp_path / "texts.parquet"}
    words = [flag.format(**paths, validation=tmp_path / "untagged.parquet") for flag in flags]
    recommend_from(served.export.parent, data, tmp_path / "lists", *words, code=2)
    line = capfd.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert message in line


def test_an_export_of_vectors_takes_the_columns_of_one_side(served, by_hand):
    signature = json.loads((served.export / "signature.json").read_text())
    assert signature["items"] == {"id": "s1", "columns": ["price", "s1", "tags"], "seen": ["avoided"]}
    row = next(iter(by_hand[1].values()))
    ((status, content),) = served.ask({"columns": {"d0": [row["d0"]], "s0": [row["s0"]], "avoided": [[]]}})
    assert status == 200
    items = {"price": [row["price"]], "s1": [row["s1"]], "tags": [row["tags"]]}
    ((_, of_item),) = served.ask({"columns": items})
    score = np.dot(content["outputs"]["vectors_query"][0], of_item["outputs"]["vectors_item"][0])
    assert score == pytest.approx(by_hand[0][row["user"]][row["s1"]], abs=1e-6)


WRONG_REQUESTS = {
    "no columns": ({}, "the body must be"),
    "another key": ({"columns": {"d0": [0.5], "s0": [1], "avoided": [[]]}, "top": 3}, "the body must be"),
    "a column of the item": (
        {"columns": {"d0": [0.5], "s0": [1], "avoided": [[]], "price": [2.0]}},
        "column 'price' is the item's",
    ),
    "a column too few": ({"columns": {"d0": [0.5], "avoided": [[]]}}, "column 's0' must be a list of values"),
    "an unknown column": ({"columns": {"d0": [0.5], "s0": [1], "avoided": [[]], "d1": [1]}}, "column 'd1' is unknown"),
    "no items": (
        {"columns": {"d0": [0.5], "s0": [1], "avoided": [[]]}, "k": 0},
        "'k' is 0; it must be a whole number from 1 up",
    ),
    "no list to leave out": (
        {"columns": {"d0": [0.5], "s0": [1], "avoided": [[]]}, "exclude": [7]},
        "'exclude' must be a list of ids",
    ),
    "too many lists": (
        {"columns": {"d0": [0.5], "s0": [1], "avoided": [[]]}, "exclude": [[], []]},
        "'exclude' has 2 lists, but there",
    ),
    "too many queries": (
        {"columns": {"d0": [0.5] * 257, "s0": [1] * 257, "avoided": [[]] * 257}},
        "257 queries are more than the 256",
    ),
}


@pytest.mark.parametrize("case", WRONG_REQUESTS)
def test_wrong_requests_are_one_line(served, case):
    body, words = WRONG_REQUESTS[case]
    ((status, content),) = served.ask(body, path="/recommend")
    assert status == 400
    assert words in content["error"]
    assert "\n" not in content["error"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--items", "nowhere.parquet"], "--items: no Parquet file at 'nowhere.parquet'"),
        (["--items", "{items}", "--show", "titel"], "--show has 'titel', which"),
        (["--items", "{items}", "--item-column", "s9"], "no column 's9', the items' ids"),
        (["--items", "{items}", "--output", "vectors_qery"], "did you mean 'vectors_query'?"),
    ],
)
def test_items_that_cannot_be_served_are_one_line(served, data, flags, message, capfd):
    words = [flag.format(items=data / "items.parquet") for flag in flags]
    assert trainer(["serve", "--directory", str(served.export), "--port", "0", *words]) == 2
    line = capfd.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_a_served_model_of_pairs_lists_as_its_run_does(data, ranker, exported_ranker, recommend, tmp_path):
    items = data / "items.parquet"
    flags = ("--items", items, "--item-column", "s1")
    served = Served(step_directory(exported_ranker), tmp_path, *flags)
    try:
        row = pq.read_table(data / "validation").to_pylist()[-1]
        columns = {name: [row[name]] * 2 for name in ("d0", "s0", "avoided")}
        ((status, content),) = served.ask({"columns": columns, "k": 4}, path="/recommend")
        _, said = recommend("--user-column", "user", *flags, "--k", "4", "--users", row["user"], to=None, out=ranker)
    finally:
        served.process.kill()
    assert status == 200, content
    first, second = content["lists"]["item"]
    assert first == second
    listed = [line.split()[1] for line in said.splitlines() if line.strip()[:1] in "1234" and " the " in line]
    assert listed == [str(item) for item in first]


@pytest.mark.few(1, "the trained ones stand for one another")
@pytest.mark.parametrize("model", ["hstu", "sasrec", "recency", "mind"])
def test_a_model_of_next_items_lists_by_its_history(model, recommend, tmp_path):
    histories = write_histories(tmp_path / "data", 300)
    rows = pq.read_table(histories)
    names = pa.array([f"ann-{row % 70}" for row in range(len(rows))])
    pq.write_table(rows.append_column("user", names), histories / "part.parquet", row_group_size=64)
    tree = retrieval_config(histories, model, train__steps=6, data__validation=[str(histories)])
    tree["data"]["groups"] = ["number", "user"]
    launch([{"config": tree, "out": str(tmp_path / "run")}], 1, tmp_path)
    folder, _ = recommend("--k", "10", "--batch-size", "64", out=tmp_path / "run")
    words = [
        "embed",
        tmp_path / "run/config.toml",
        "--out",
        tmp_path / "run",
        "--batch-size",
        "64",
        "--rows-per-part",
        "64",
    ]
    asking = ["--output", "next_query", "--source", histories, "--id-column", "user", "--to", tmp_path / "asked"]
    for flags in (["--output", "next_item", "--to", tmp_path / "items"], asking):
        assert trainer([str(word) for word in [*words, *flags]]) == 0
    items, asked = (
        pa.concat_tables([pq.read_table(part) for part in sorted((tmp_path / name).glob("*.parquet"))])
        for name in ("items", "asked")
    )
    vectors = np.array(items["vector"].to_pylist(), np.float64)
    newest = dict(zip(asked["id"].to_pylist(), asked["vector"].to_pylist(), strict=True))
    # By the closest vector, of which `mind` has several for a user.
    scores = {user: (vectors @ np.atleast_2d(np.array(one, np.float64)).T).max(1) for user, one in newest.items()}
    lists = lists_of(pa.concat_tables([pq.read_table(part) for part in folder.glob("*.parquet")]))
    assert lists.keys() == newest.keys()
    check(lists, scores, k=10)
    if model in ("recency", "mind"):  # of the others, tests/apps/test_export.py
        words = ["export", tmp_path / "run/config.toml", "--out", tmp_path / "run", "--to", tmp_path / "exported"]
        assert trainer([str(word) for word in words]) == 0
        flags = [
            "--source",
            histories,
            "--user-column",
            "user",
            "--items",
            items_of(histories),
            "--to",
            tmp_path / "of",
        ]
        words = ["recommend", "--export", tmp_path / "exported", *flags, "--k", "10"]
        assert trainer([str(word) for word in words]) == 0
        check(lists_of(pq.read_table(tmp_path / "of/part-00000-of-00001.parquet")), scores, k=10)
