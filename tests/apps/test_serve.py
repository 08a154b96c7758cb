"""The HTTP endpoint as a client sees it: answers, refusals in one line, many requests at once, a clean stop."""

import asyncio
import json
import shutil
import signal
import socket

import aiohttp
import numpy as np
import pytest
from endpoint import Served
from exported import first_rows, parity_of, step_directory
from jobs import launch
from predictions import read
from raw_columns import columns_config, write_columns

from torchx_recsys.apps.export.load import load
from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.__main__ import main as trainer

REQUESTS = 1000


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """An export with every rule and type of a column."""
    folder = tmp_path_factory.mktemp("serve")
    raw = write_columns(folder / "raw")
    vocabulary((str(raw),), ("listed",), str(folder / "vocabulary"), min_count=8, unseen_rows=3)
    tree = columns_config(raw, folder / "vocabulary/listed.parquet", train__steps=5)
    launch([{"config": tree, "out": str(folder / "run")}], 1, folder)
    words = ["export", folder / "run/config.toml", "--out", folder / "run", "--to", folder / "to"]
    assert trainer([str(word) for word in words]) == 0
    return step_directory(folder / "to")


@pytest.fixture(scope="module")
def served(directory, tmp_path_factory):
    served = Served(directory, tmp_path_factory.mktemp("served"))
    yield served
    served.process.kill()


@pytest.fixture(scope="module")
def parity(directory):
    return parity_of(directory)


def test_answers_are_those_of_the_trainer(served, parity):
    ((status, content),) = served.ask({"columns": parity["columns"]})
    assert status == 200
    assert content["outputs"].keys() == parity["answers"].keys()
    for name, values in parity["answers"].items():
        np.testing.assert_allclose(content["outputs"][name], values, atol=1e-6)


def test_answers_are_those_in_the_files_of_a_prediction(served, directory, tmp_path):
    """Row by row, of a model that takes numbers, ids, lists and strings, any of which can be missing."""
    run, raw = directory.parents[1] / "run", directory.parents[1] / "raw"
    words = ["predict", run / "config.toml", "--out", run, "--source", raw, "--to", tmp_path / "parts"]
    assert trainer([*map(str, words), "--rows-per-part", "64", "--batch-size", "32"]) == 0
    predicted = read(tmp_path / "parts")
    names = [column["name"] for column in json.loads((directory / "signature.json").read_text())["columns"]]
    columns = {name: predicted[name].to_pylist() for name in names}
    assert all(None in columns[name] for name in ("price", "user", "tags", "word"))
    whole = [first_rows(columns, slice(0, 150)), first_rows(columns, slice(150, 300))]
    (first, one), (second, two), *rows = served.ask(
        *({"columns": some} for some in whole),
        *({"columns": first_rows(columns, slice(row, row + 1))} for row in range(0, len(predicted), 15)),
    )
    assert (first, second) == (200, 200)
    for name, answers in one["outputs"].items():
        written = np.array(predicted[name].to_pylist())
        assert np.ptp(written) > 1e-4
        np.testing.assert_allclose([*answers, *two["outputs"][name]], written, rtol=0, atol=1e-6)
        alone = [content["outputs"][name][0] for _, content in rows]
        np.testing.assert_allclose(alone, written[::15], rtol=0, atol=1e-6)


def test_an_export_of_version_1_is_told_of_missing_ids_by_its_mark(directory, parity):
    """Its program has no inputs that say which ids are there."""
    model = load(directory)
    model.signature["inputs"] = [entry for entry in model.signature["inputs"] if "present_of" not in entry]
    found, users = model.inputs(parity["columns"]), parity["columns"]["user"]
    assert not [name for name in found if name.endswith(".present")]
    assert None in users
    assert found["user"].tolist() == [-(2**63) if one is None else one for one in users]


def test_health_and_signature(served, directory):
    assert served.ask(b"", method="GET", path="/health") == [(200, {"status": "ok", "model": "din", "step": 5})]
    ((status, content),) = served.ask(b"", method="GET", path="/signature")
    assert (status, content) == (200, json.loads((directory / "signature.json").read_text()))


def test_of_a_thousand_requests_at_once_none_is_lost_and_each_has_its_own_answer(served, parity):
    """Requests of one to three samples, so that batches are cut at different places; a wrong one now and then."""
    starts = [(n * 7 % 61, n % 3 + 1) for n in range(REQUESTS)]
    bodies = [{"columns": first_rows(parity["columns"], slice(start, start + size))} for start, size in starts]
    for n in range(0, REQUESTS, 50):
        bodies[n] = {"columns": bodies[n]["columns"] | {"plain": [50] * starts[n][1]}}
    found = served.ask(*bodies)
    assert len(found) == REQUESTS
    for n, ((start, size), (status, content)) in enumerate(zip(starts, found, strict=True)):
        if n % 50 == 0:
            assert (status, content) == (400, {"error": "column 'plain': id 50 is outside [0, 50)"})
            continue
        assert status == 200, content
        for name, values in parity["answers"].items():
            np.testing.assert_allclose(content["outputs"][name], values[start : start + size], atol=1e-6)


def changed(columns, **values):
    return {"columns": {name: [one[0]] for name, one in columns.items()} | values}


COLUMNS = {
    "a column that is unknown": ({"colour": [1]}, "column 'colour' is unknown; the model takes count, price"),
    "another length": ({"plain": [1, 2]}, "column 'plain' has 2 values, but 'count' has 1"),
    "no list": ({"plain": 7}, "column 'plain' is a number; it must be a list of values"),
    "a string for a list": ({"plain": "7"}, "column 'plain' is a string"),
    "an object for a list": ({"plain": {"a": 1}}, "column 'plain' is an object"),
    "null for a list": ({"plain": None}, "column 'plain' is null; it must be a list"),
    "a string for a number": ({"price": ["12"]}, "column 'price', row 0: '12' is not a number"),
    "a list for a number": ({"price": [[1.0]]}, "column 'price', row 0: [1.0] is not a number"),
    "NaN": (
        {"price": [float("nan")]},
        "column 'price', row 0: nan is not a number; a missing one is null, in Python None",
    ),
    "infinity": ({"price": [float("inf")]}, "column 'price', row 0: inf has no finite value"),
    "beyond float32": ({"price": [1e39]}, "column 'price', row 0: 1e+39 has no finite value"),
    "beyond float64": ({"price": [10**400]}, "has no finite value"),
    "below the logarithm": (
        {"price": [-3]},
        "column 'price', row 0: -3 has no finite value under the transform 'log3'",
    ),
    "at the logarithm's end": ({"count": [-1]}, "has no finite value under the transform 'log1p'"),
    "an id out of range": ({"plain": [50]}, "column 'plain': id 50 is outside [0, 50)"),
    "an id below 0": ({"plain": [-1]}, "column 'plain': id -1 is outside [0, 50)"),
    "a fraction": ({"plain": [1.5]}, "column 'plain', row 0: 1.5 is not an integer"),
    "a boolean": ({"plain": [True]}, "column 'plain', row 0: True is not an integer"),
    "a string for an id": ({"hashed": ["7"]}, "column 'hashed', row 0: '7' is not an integer"),
    "an id of 65 bits": ({"hashed": [2**64]}, "is not a number of type int64"),
    "a negative one": ({"unsigned": [-1]}, "column 'unsigned', row 0: -1 is not a number of type uint64"),
    "a number for a string": ({"word": [7]}, "column 'word', row 0: 7 is not a string"),
    "an id for a list of them": ({"tags": [3]}, "column 'tags', row 0: 3 is not a list of ids"),
    "a string for a list of strings": ({"terms": ["word 1"]}, "column 'terms', row 0: 'word 1' is not a list"),
    "numbers for strings": ({"terms": [[1]]}, "column 'terms', row 0: 1 is not a string"),
    "a list in a list": ({"tags": [[[1]]]}, "column 'tags', row 0: [1] is not an integer"),
    "an id in a list out of range": ({"tags": [[1, 30]]}, "column 'tags': id 30 is outside [0, 30)"),
    "an id in a history out of range": ({"history": [[60]]}, "column 'history': id 60 is outside [0, 60)"),
    "a text that is long": ({"plain": ["x" * 999]}, f"column 'plain', row 0: '{'x' * 39}... is not an integer"),
}


@pytest.mark.parametrize(("values", "words"), COLUMNS.values(), ids=COLUMNS)
def test_wrong_columns(served, parity, values, words):
    ((status, content),) = served.ask(changed(parity["columns"], **values))
    assert status == 400
    assert words in content["error"]
    assert "\n" not in content["error"]


BODIES = {
    "nothing": (b"", 400, "the body is not JSON"),
    "no JSON": (b"price=3", 400, "the body is not JSON"),
    "no UTF-8": (b'{"columns": {"\xff": []}}', 400, "the body is not JSON"),
    "too deep": (b"[" * 100_000, 400, "the body is not JSON"),
    "a list": ([1], 400, "the body must be"),
    "another key": ({"rows": []}, 400, "the body must be"),
    "no columns": ({"columns": {}}, 400, "column 'count' is missing"),
    "columns that are no object": ({"columns": []}, 400, "the body must be"),
    "a body of 17 MiB": (b" " * (17 << 20), 413, "the body has more than"),
}


@pytest.mark.parametrize(("body", "status", "words"), BODIES.values(), ids=BODIES)
def test_wrong_bodies(served, body, status, words):
    ((found, content),) = served.ask(body)
    assert found == status
    assert words in content["error"]


def test_too_many_samples_and_none(served, parity):
    many = {name: [values[0]] * 257 for name, values in parity["columns"].items()}
    none = {name: [] for name in parity["columns"]}
    (first, one), (second, two) = served.ask({"columns": many}, {"columns": none})
    assert (first, second) == (413, 400)
    assert "257 samples are more than the 256" in one["error"]
    assert "column 'count' is empty" in two["error"]


def test_samples_are_counted_before_they_are_read(served, parity):
    many = {name: [values[0]] * 257 for name, values in parity["columns"].items()}
    many["plain"][-1] = "no id"
    ((status, content),) = served.ask({"columns": many})
    assert (status, content) == (413, {"error": "257 samples are more than the 256 that are answered at once"})


def test_small_requests_are_answered_while_a_large_one_is_read(served, parity):
    small = {"columns": first_rows(parity["columns"], slice(1))}
    large = {"columns": small["columns"] | {"tags": [[7] * 1_500_000]}}
    answered = []

    async def ask(session, body):
        async with session.post(f"{served.url}/predict", data=json.dumps(body)) as response:
            answered.append((len(body["columns"]["tags"][0] or ()), response.status))

    async def ask_all():
        async with aiohttp.ClientSession() as session:
            asked = asyncio.create_task(ask(session, large))
            while not asked.done():
                await ask(session, small)
            await asked

    asyncio.run(ask_all())
    assert {status for _, status in answered} == {200}
    assert [size for size, _ in answered].index(1_500_000) > 5


def test_a_client_that_goes_away_leaves_no_trace(served, parity):
    host, port = served.url.removeprefix("http://").rsplit(":", 1)
    body = json.dumps({"columns": parity["columns"]}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for sent in (head, head + body[:100], head + body):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    assert served.ask({"columns": parity["columns"]})[0][0] == 200
    assert served.errors.read_text() == ""


def test_a_body_that_says_that_it_is_too_large_is_not_read(served):
    host, port = served.url.removeprefix("http://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=600) as connection:
        connection.sendall(f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 413")


def test_other_paths_and_methods(served):
    assert [served.ask(b"", path=path)[0][0] for path in ("/", "/predictions", "/health")] == [404, 404, 405]
    ((status, content),) = served.ask(b"", method="GET")
    assert (status, content) == (405, {"error": "GET /predict: /predict does not take it"})


def test_it_still_answers_after_all_of_this(served, parity):
    assert served.ask({"columns": parity["columns"]})[0][0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_once_all_is_answered(directory, parity, tmp_path, number):
    served = Served(directory, tmp_path)

    async def stop_while_asking():
        async with aiohttp.ClientSession() as session:
            asked = [
                asyncio.create_task(session.post(f"{served.url}/predict", json={"columns": parity["columns"]}))
                for _ in range(20)
            ]
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            served.process.send_signal(number)
            return [task.result().status for task in (await asyncio.wait(asked))[0] if not task.exception()]

    assert 200 in (statuses := asyncio.run(stop_while_asking()))
    assert {*statuses} == {200}
    assert served.process.wait(30) == 0
    assert served.output.read_text().endswith("stopped\n")
    assert served.errors.read_text() == ""


def refused(capfd, *words):
    assert trainer(["serve", *map(str, words)]) == 2
    line = capfd.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    return line


def test_directories_that_cannot_be_served(directory, tmp_path, capfd):
    assert "holds no whole export" in refused(capfd, "--directory", tmp_path)
    shutil.copytree(directory, tmp_path / "whole")
    (tmp_path / "whole/manifest.json").unlink()
    assert "holds no whole export" in refused(capfd, "--directory", tmp_path / "whole")
    shutil.copytree(directory, tmp_path / "harmed")
    content = bytearray((directory / "model.pt2").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "harmed/model.pt2").write_bytes(content)
    assert "model.pt2 is damaged" in refused(capfd, "--directory", tmp_path / "harmed")
    assert "export with --compile True" in refused(capfd, "--directory", directory, "--compiled", "True")


def test_addresses_that_cannot_be_served_at(directory, capfd):
    with socket.create_server(("localhost", 0)) as taken:
        line = refused(capfd, "--directory", directory, "--port", taken.getsockname()[1])
    assert "where nothing can be served" in line
    assert "where nothing can be served" in refused(capfd, "--directory", directory, "--port", 70000)
    assert "where nothing can be served" in refused(capfd, "--directory", directory, "--host", "192.0.2.1")
    assert "--wait-ms" in refused(capfd, "--directory", directory, "--wait-ms", "-1")
    assert "--batch-samples" in refused(capfd, "--directory", directory, "--batch-samples", "0")
