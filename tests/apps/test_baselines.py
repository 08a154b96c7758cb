"""Baselines: each against an independent computation, the file that they are kept in, and wrong input."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from scipy.special import expit, log_softmax
from simple_rows import COUNTRIES, ITEMS, USERS, config_of, write_splits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import log_loss, mean_absolute_error, mean_poisson_deviance, mean_squared_error, roc_auc_score

from torchx_recsys.apps.baselines import features
from torchx_recsys.apps.baselines.baselines import baselines
from torchx_recsys.apps.baselines.factors import Ratings, factorize
from torchx_recsys.apps.baselines.rates import Groups
from trainer.config.root import Config
from trainer.core.errors import InputError

TASKS = {
    "clicked": {"metrics": ["auc", "log_loss", "gauc", "accuracy@0.5"], "group": "country"},
    "stars": {"loss": "squared"},
    "kind": {"loss": "softmax"},
}
ALL = {"data": {"labels": ["clicked", "stars", "kind"], "numeric_labels": ["stars", "kind"], "groups": ["country"]}}
ALL |= {"tasks": TASKS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_splits(tmp_path_factory.mktemp("baselines") / "rows")


@pytest.fixture(scope="module")
def rows(folder):
    """The columns of each split as NumPy arrays; tags as a multi-hot matrix."""
    return {split: columns(folder / f"{split}.parquet") for split in ("train", "validation", "test")}


def columns(file):
    table = pq.read_table(file)
    found = {name: table[name].to_numpy() for name in table.column_names if name != "tags"}
    found["tags"] = np.array([[tag in some for tag in range(9)] for some in table["tags"].to_pylist()], float)
    return found


def settings(folder, **sections):
    return Config.model_validate(config_of(folder, **sections))


@pytest.fixture(scope="module")
def found(folder):
    """The file of all baselines of three tasks, also on weighted rows."""
    tree = baselines(settings(folder, **ALL))
    assert json.loads((folder / "baselines.json").read_text()) == tree
    return tree


def hot(part, rows, known):
    """One-hot ids, multi-hot tags and a standardised number."""
    number = (part["number"] - rows["train"]["number"].astype(float).mean()) / rows["train"]["number"].astype(
        float
    ).std()
    ids = [np.eye(size)[part[name]] for name, size in known]
    return np.column_stack([number, *ids, part["tags"]])


IDS = (("user", USERS), ("item", ITEMS), ("country", COUNTRIES))


def test_label_rate(found, rows):
    rate = rows["train"]["clicked"].mean(dtype=float)
    for split in ("validation", "test"):
        measured = {metric: values["label rate"] for metric, values in found[split]["clicked"].items()}
        assert measured["auc"] == 0.5
        assert measured["log_loss"] == pytest.approx(
            log_loss(rows[split]["clicked"], np.full(len(rows[split]["clicked"]), rate)), rel=1e-6
        )


def test_label_rate_by_group(found, rows):
    train, about = rows["train"], found["about"]["baselines"]["clicked"]["label rate by country"]
    prior = float(about["chosen"].split(", ")[1].split()[0])
    rate = train["clicked"].mean(dtype=float)
    sums, counts = (np.bincount(train["country"], weights=values) for values in (train["clicked"], np.ones(900)))
    predicted = ((sums + prior * rate) / (counts + prior))[rows["test"]["country"]]
    measured = {metric: values["label rate by country"] for metric, values in found["test"]["clicked"].items()}
    assert measured["log_loss"] == pytest.approx(log_loss(rows["test"]["clicked"], predicted), rel=1e-6)
    assert measured["auc"] == pytest.approx(roc_auc_score(rows["test"]["clicked"], predicted), rel=1e-6)


def test_logistic_regression(found, rows):
    strength = float(found["about"]["baselines"]["clicked"]["logistic regression"]["chosen"].removeprefix("C = "))
    models = {
        C: LogisticRegression(C=C, max_iter=1000, tol=1e-6).fit(hot(rows["train"], rows, IDS), rows["train"]["clicked"])
        for C in (0.01, 0.1, 1.0, 10.0)
    }
    losses = {
        C: log_loss(rows["validation"]["clicked"], model.predict_proba(hot(rows["validation"], rows, IDS)))
        for C, model in models.items()
    }
    assert strength == min(losses, key=losses.get)
    predicted = models[strength].predict_proba(hot(rows["test"], rows, IDS))[:, 1]
    measured = {metric: values["logistic regression"] for metric, values in found["test"]["clicked"].items()}
    assert measured["log_loss"] == pytest.approx(log_loss(rows["test"]["clicked"], predicted), abs=2e-4)
    assert measured["auc"] == pytest.approx(roc_auc_score(rows["test"]["clicked"], predicted), abs=5e-4)
    assert measured["accuracy@0.5"] == pytest.approx(((predicted >= 0.5) == rows["test"]["clicked"]).mean(), abs=6e-3)


def test_boosted_trees(tmp_path, rows):
    """Without lists, as trees see lists in a form of their own."""
    folder = write_splits(tmp_path / "rows")
    tree = config_of(folder)
    del tree["data"]["sparse"]["tags"]
    file = baselines(Config.model_validate(tree), only=("boosted trees",))
    matrix = {
        split: np.column_stack([*(part[name] for name, _ in IDS), part["number"]]).astype(np.float32)
        for split, part in rows.items()
    }
    model = HistGradientBoostingClassifier(
        max_iter=500, n_iter_no_change=20, early_stopping=True, random_state=0, categorical_features=[0, 1, 2]
    )
    model.fit(
        matrix["train"], rows["train"]["clicked"], X_val=matrix["validation"], y_val=rows["validation"]["clicked"]
    )
    predicted = model.predict_proba(matrix["test"])[:, 1]
    values = {metric: found["boosted trees"] for metric, found in file["test"]["clicked"].items()}
    assert values["auc"] == pytest.approx(roc_auc_score(rows["test"]["clicked"], predicted), abs=1e-6)
    assert values["log_loss"] == pytest.approx(log_loss(rows["test"]["clicked"], predicted), rel=1e-5)


def test_trees_are_the_same_each_time(folder, tmp_path, monkeypatch):
    """Also where ids are encoded by the labels of other rows, which chance divides."""
    monkeypatch.setattr(features, "CATEGORIES", 4)
    names = ("boosted trees", "LightGBM")
    one, other = (baselines(settings(folder), to=str(tmp_path / file), only=names) for file in ("1.json", "2.json"))
    assert one["test"] == other["test"]


def errors(found, name, rows, predicted):
    measured = {metric: values[name] for metric, values in found["test"]["stars"].items()}
    assert measured["rmse"] == pytest.approx(math.sqrt(mean_squared_error(rows["test"]["stars"], predicted)), rel=2e-5)
    assert measured["mae"] == pytest.approx(mean_absolute_error(rows["test"]["stars"], predicted), rel=2e-5)


def test_means_of_users_and_items(found, rows):
    train, test = rows["train"], rows["test"]
    errors(found, "mean", rows, np.full(400, train["stars"].mean(dtype=float)))
    chosen = found["about"]["baselines"]["stars"]["user and item means"]["chosen"]
    assert chosen.endswith("; user, item")
    of_user, of_item = biases(train, float(chosen.split()[0]))
    errors(
        found,
        "user and item means",
        rows,
        train["stars"].mean(dtype=float) + of_user[test["user"]] + of_item[test["item"]],
    )


def biases(train, penalty):
    """Alternating, regularized means, one at a time."""
    mean, of_user, of_item = train["stars"].mean(dtype=float), np.zeros(USERS), np.zeros(ITEMS)
    for _ in range(10):
        for item in range(ITEMS):
            here = train["item"] == item
            of_item[item] = (train["stars"][here] - mean - of_user[train["user"][here]]).sum() / (here.sum() + penalty)
        for user in range(USERS):
            here = train["user"] == user
            of_user[user] = (train["stars"][here] - mean - of_item[train["item"][here]]).sum() / (here.sum() + penalty)
    return of_user, of_item


def test_matrix_factorization_is_where_no_factor_and_no_mean_can_be_better(found, rows):
    """Solved by hand: the factors of each item, given those of the users, with each rating as often as it weighs."""
    train, weights = rows["train"], rows["train"]["weight"].astype(float)
    labels = train["stars"].astype(float)
    ratings = Ratings(Groups(train["user"]), Groups(train["item"]), labels.mean(), labels, weights)
    before, after = (factorize(ratings, 3.0, 6.0, seed=0), factorize(ratings, 3.0, 6.0, seed=0))
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
    of_users, of_items, p, q = after
    assert [of_users[-1], of_items[-1], *p[-1]] == [0] * (2 + p.shape[1])  # of unknown users and items
    predicted = labels.mean() + of_users[train["user"]] + of_items[train["item"]]
    predicted += (p[train["user"]] * q[train["item"]]).sum(1)
    loss = (weights * (predicted - labels) ** 2).sum() + 6 * (p**2).sum() + 6 * (q**2).sum()
    for item in range(ITEMS):
        here = train["item"] == item
        base = labels.mean() + of_users[train["user"]] + of_items[item]
        x, left = p[train["user"][here]], (labels - base)[here]
        best = np.linalg.solve((x.T * weights[here]) @ x + 6 * np.eye(p.shape[1]), x.T @ (weights[here] * left))
        # The means were the last to be solved, so that the factors are as good as one more sweep would make them.
        gain = (weights[here] * (left - x @ q[item]) ** 2).sum() + 6 * (q[item] ** 2).sum()
        gain -= (weights[here] * (left - x @ best) ** 2).sum() + 6 * (best**2).sum()
        assert 0 <= gain < 1e-2 * loss
    assert found["test"]["stars"]["rmse"]["matrix factorization"] < found["test"]["stars"]["rmse"]["mean"]


def test_linear_regression(found, rows):
    penalty = float(found["about"]["baselines"]["stars"]["linear regression"]["chosen"].removeprefix("penalty "))
    model = Ridge(penalty).fit(hot(rows["train"], rows, IDS), rows["train"]["stars"])
    predicted = model.predict(hot(rows["test"], rows, IDS))
    measured = found["test"]["stars"]["rmse"]["linear regression"]
    assert measured == pytest.approx(math.sqrt(mean_squared_error(rows["test"]["stars"], predicted)), abs=2e-4)


def test_counts(folder, rows):
    tasks, data = {"kind": {"loss": "poisson"}}, {"labels": ["kind"], "numeric_labels": ["kind"]}
    found = baselines(settings(folder, data=data, tasks=tasks))
    measured, counts = found["test"]["kind"], rows["test"]["kind"].astype(float)
    deviances = measured["poisson_deviance"]
    assert {*deviances} == {"mean", "Poisson regression", "boosted trees", "LightGBM"}
    mean = np.full(len(counts), rows["train"]["kind"].mean(dtype=float))
    assert deviances["mean"] == pytest.approx(mean_poisson_deviance(counts, mean), rel=1e-5)
    penalty = found["about"]["baselines"]["kind"]["Poisson regression"]["chosen"].removeprefix("penalty ")
    model = PoissonRegressor(alpha=float(penalty), max_iter=200)
    predicted = model.fit(hot(rows["train"], rows, IDS), rows["train"]["kind"]).predict(hot(rows["test"], rows, IDS))
    assert deviances["Poisson regression"] == pytest.approx(mean_poisson_deviance(counts, predicted), abs=2e-4)
    assert max(deviances.values()) == deviances["mean"]
    assert all(0.9 < one < 1.1 for one in measured["calibration"].values())
    wrong = {"tasks": {"stars": {"loss": "poisson"}}, "data": {"labels": ["stars"], "numeric_labels": ["stars"]}}
    with pytest.raises(InputError, match=r"^tasks.stars.label is 'stars', a column with the value -\S+, but the loss"):
        baselines(settings(folder, **wrong), only=("mean",))


def test_classes(found, rows):
    measured = found["test"]["kind"]
    rates = np.bincount(rows["train"]["kind"].astype(int)) / 900
    kind = rows["test"]["kind"].astype(int)
    assert measured["cross_entropy"]["class rates"] == pytest.approx(-np.log(rates[kind]).mean(), rel=1e-5)
    assert measured["accuracy"]["class rates"] == pytest.approx((kind == rates.argmax()).mean())
    strength = float(found["about"]["baselines"]["kind"]["logistic regression"]["chosen"].removeprefix("C = "))
    model = LogisticRegression(C=strength, max_iter=1000, tol=1e-6).fit(
        hot(rows["train"], rows, IDS), rows["train"]["kind"]
    )
    scores = log_softmax(model.decision_function(hot(rows["test"], rows, IDS)), axis=1)
    assert measured["cross_entropy"]["logistic regression"] == pytest.approx(
        -scores[np.arange(400), kind].mean(), abs=2e-3
    )
    assert {*measured["accuracy"]} == {"class rates", "logistic regression", "boosted trees", "LightGBM"}


def test_weights_and_a_subspace_count_as_for_a_model(folder, rows, tmp_path):
    """The weighted rate of the rows inside, measured by weight inside."""
    data = {"labels": ["clicked", "kind"], "numeric_labels": ["kind"], "weight": "weight"}
    tasks = {"clicked": {"metrics": ["log_loss", "label_rate"], "where": {"column": "kind"}}}
    tree = baselines(settings(folder, data=data, tasks=tasks), to=str(tmp_path / "b.json"), only=("label rate",))
    inside = {split: part["weight"] * (part["kind"] != 0) for split, part in rows.items()}
    rate = np.average(rows["train"]["clicked"], weights=inside["train"])
    expected = log_loss(rows["test"]["clicked"], np.full(400, rate), sample_weight=inside["test"])
    assert tree["test"]["clicked"]["log_loss"]["label rate"] == pytest.approx(expected, rel=1e-6)


def test_a_log_probability_is_measured_as_one(folder, tmp_path, found):
    tasks = {"clicked": {"output": "log_probability", "metrics": ["auc", "log_loss"]}}
    tree = baselines(
        settings(folder, tasks=tasks, model={"name": "custom:gated"}),
        to=str(tmp_path / "b.json"),
        only=("label rate", "logistic regression"),
    )
    for name in ("label rate", "logistic regression"):
        assert tree["test"]["clicked"]["log_loss"][name] == pytest.approx(
            found["test"]["clicked"]["log_loss"][name], rel=1e-5
        )


def test_a_label_between_0_and_1_is_both(tmp_path, folder):
    """Logistic regression on half a label is one on a positive and a negative of half the weight."""
    for split in ("train", "validation", "test"):
        table = pq.read_table(folder / f"{split}.parquet")
        half = pa.array(np.clip(table["clicked"].to_numpy(), 0.25, 0.75))
        pq.write_table(
            table.set_column(table.column_names.index("clicked"), "clicked", half), tmp_path / f"{split}.parquet"
        )
    tree = baselines(settings(tmp_path), only=("logistic regression",))
    part = {split: columns(tmp_path / f"{split}.parquet") for split in ("train", "test")}
    strength = float(tree["about"]["baselines"]["clicked"]["logistic regression"]["chosen"].removeprefix("C = "))
    matrix, labels = hot(part["train"], part, IDS), part["train"]["clicked"]
    model = LogisticRegression(C=strength, max_iter=1000, tol=1e-6)
    model.fit(np.vstack([matrix, matrix]), np.repeat([0, 1], 900), np.concatenate([1 - labels, labels]))
    predicted, label = expit(model.decision_function(hot(part["test"], part, IDS))), part["test"]["clicked"]
    expected = -(label * np.log(predicted) + (1 - label) * np.log(1 - predicted)).mean()
    assert tree["test"]["clicked"]["log_loss"]["logistic regression"] == pytest.approx(expected, abs=2e-4)


def test_more_rows_than_allowed_are_sampled_and_it_is_said(folder, tmp_path, capsys):
    tree = baselines(settings(folder), to=str(tmp_path / "b.json"), only=("label rate",), max_rows=250)
    assert (
        "data.train: 250 rows, a sample of 900\ndata.validation: 250 rows, a sample of 300\n" in capsys.readouterr().out
    )
    assert tree["about"]["rows"] == {"max_rows": 250, "train_rows": 250, "validation_rows": 250}
    assert tree["about"]["samples"] == {"validation": 300, "test": 400}  # every row is measured
    again = baselines(settings(folder), to=str(tmp_path / "c.json"), only=("label rate",), max_rows=250)
    assert again["test"] == tree["test"]


def test_without_validation_nothing_is_chosen(folder, tmp_path):
    tree = baselines(
        settings(folder, data={"validation": []}),
        to=str(tmp_path / "b.json"),
        only=("logistic regression", "boosted trees"),
    )
    assert tree["about"]["baselines"]["clicked"]["logistic regression"]["chosen"] == "C = 1"
    assert "validation" not in tree
    assert {*tree["test"]["clicked"]["auc"]} == {"logistic regression", "boosted trees"}


def test_what_is_left_out_is_said(folder, tmp_path, capsys):
    for split in ("train", "validation", "test"):
        table = pq.read_table(folder / f"{split}.parquet").drop_columns(["user", "item"])
        table = table.set_column(
            table.column_names.index("clicked"), "clicked", pa.array(np.ones(len(table), np.float32))
        )
        pq.write_table(table, tmp_path / f"{split}.parquet")
    data = {"sparse": {"country": {"rows": 5}}, "labels": ["clicked", "stars"], "numeric_labels": ["stars"]}
    tasks = {"clicked": {}, "stars": {"loss": "squared"}}
    tree = baselines(settings(tmp_path, data=data, tasks=tasks))
    left_out = tree["about"]["left_out"]
    assert left_out["clicked"]["logistic regression"] == "every label is 1"
    assert "--user and --item" in left_out["stars"]["matrix factorization"]
    assert "stars: matrix factorization is left out: no two features" in capsys.readouterr().out


def test_the_file_keeps_other_tasks_of_the_same_rows_and_refuses_other_rows(folder, tmp_path):
    file = str(tmp_path / "b.json")
    for task, only in (("clicked", "label rate"), ("kind", "class rates")):
        tasks = {task: TASKS[task] if task == "kind" else {}}
        data = {"labels": [task], "numeric_labels": ["kind"] if task == "kind" else []}
        baselines(settings(folder, data=data, tasks=tasks), to=file, only=(only,))
    kept = json.loads((tmp_path / "b.json").read_text())
    assert {*kept["test"]} == {*kept["about"]["tasks"]} == {"clicked", "kind"}
    other = settings(folder, data={"test": [str(folder / "train.parquet")]})
    with pytest.raises(
        InputError, match=r"^--to is '.*b.json', which has the baselines of other rows \(data.test has "
    ):
        baselines(other, to=file, only=("label rate",))
    tree = baselines(other, to=file, only=("label rate",), overwrite=True)
    assert json.loads((tmp_path / "b.json").read_text()) == tree
    assert {*tree["test"]} == {"clicked"}


WRONG = [
    (["--max-rows", "0"], "--max-rows is 0; it must be at least 1"),
    (["--max-rows", "many"], "--max-rows is 'many'"),
    (["--only", "logistic regresion"], "--only has 'logistic regresion'; did you mean 'logistic regression'?"),
    (["--to", ""], "--to is empty; name a file, any fsspec URL, or leave it out"),
    (["--user", ""], "--user is empty; name a column, or leave it out"),
    (["--user", "usr"], "--user is 'usr', which is no column of data.train; did you mean 'user'?"),
    (["--item", "nothing"], "--item is 'nothing', which is no column of data.train; known: "),
    (["--user", "item", "--item", "item"], "--user and --item are both 'item'; name two columns"),
    (["--user", "tags"], "--user is 'tags', a feature with lists of ids; name one with single ids"),
    (["--to", "{folder}/train.parquet"], "which data.baselines did not write; name another file"),
    (["--to", "nowhere://b/c.json"], "--to is 'nowhere://b/c.json', which cannot be used"),
    (["--data.train", "{folder}/none"], "data.train: no Parquet file at '{folder}/none'"),
    (["--data.validation", "--data.test"], "data.validation and data.test are both empty; name one of them"),
    (["--data.labels", "number2"], "no column 'number2'"),
    (["--data.labels", "stars"], "column 'stars': "),
    (["--evaluate.metrics", "rmse"], "evaluate.metrics has 'rmse', which takes a value"),
    (["--data.segments.path", "days/{{segment}}", "--data.train"], "data.segments.path is set, whose segments"),
    (["--tp", "b.json"], "--tp"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_input_is_one_line(folder, tmp_path, arguments, message):
    file = write_config(tmp_path / "config.toml", config_of(folder))
    words = [word.format(folder=folder) for word in arguments]
    done = run_trainer("baselines", file, *([] if "--to" in words else ["--to", tmp_path / "b.json"]), *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("error: ")
    assert message.format(folder=folder) in done.stderr
    assert not (tmp_path / "b.json").exists()


def test_a_missing_package_is_named(folder, monkeypatch):
    monkeypatch.setattr("builtins.__import__", _without_scikit_learn(__import__))
    with pytest.raises(InputError) as refused:
        baselines(settings(folder))
    assert str(refused.value) == "baselines needs the package sklearn; pip install 'torchx-recsys[baselines]'"


def _without_scikit_learn(original):
    def find(name, *arguments):
        if name == "torchx_recsys.apps.baselines.run":
            raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
        return original(name, *arguments)

    return find
