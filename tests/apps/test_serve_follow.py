"""A server that follows current.json: no request fails or sees half of an export, whatever it takes over."""

import asyncio
import shutil
import threading
import time
from itertools import combinations

import aiohttp
import numpy as np
import pytest
from deltas import STEPS, copied, export, name_current, train, wide_config
from endpoint import Served
from exported import first_rows, parity_of
from sequences import sequence_config, write_histories

from torchx_recsys.apps.export.load import load, read_changes
from torchx_recsys.apps.serve.batching import Batcher
from trainer.__main__ import main as trainer

pytestmark = pytest.mark.more("test_serve.py answers, test_publishing.py moves current.json")

FOLLOWED = ("--follow", "True", "--poll-seconds", "0.05")


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Exports of a run: a whole one and three deltas. Besides, `step-30`, of a model that takes other columns."""
    folder = tmp_path_factory.mktemp("follow")
    histories = write_histories(folder / "histories", 130)
    other = sequence_config(histories, "din", data__validation=[str(histories)], train__steps=5)
    train(folder, {"wide": wide_config(folder), "other": other})
    for step in STEPS:
        export(folder / "wide", folder / "to", step, "--delta", "True")
    export(folder / "other", folder / "others", 5)
    (folder / "others/step-5").rename(folder / "to/step-30")
    return folder / "to"


class Asking(threading.Thread):
    """Asks a server for single samples and batches of them, until it is stopped; some requests are always waiting."""

    def __init__(self, served: Served, columns: dict) -> None:
        super().__init__()
        self._served, self._columns, self._ends = served, columns, threading.Event()
        self.found: list[tuple[slice, int, dict]] = []

    def __enter__(self) -> "Asking":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self.join()

    def run(self) -> None:
        asyncio.run(self._ask())

    async def _ask(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:

            async def client(number: int) -> None:
                rows = slice(number, number + 1 + number % 3)
                body = {"columns": first_rows(self._columns, rows)}
                while not self._ends.is_set():
                    async with session.post(f"{self._served.url}/predict", json=body) as response:
                        self.found.append((rows, response.status, await response.json()))

            await asyncio.gather(*map(client, range(8)))

    def wait_for_more(self) -> None:
        """Returns once every client has been answered again."""
        more = len(self.found) + 20
        until(lambda: len(self.found) >= more)


def until(is_so) -> None:
    end = time.monotonic() + 600
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.few(1, "one stands for all")
def test_it_takes_over_whatever_current_json_names(exports, tmp_path):
    to = copied(exports, tmp_path / "to", *STEPS[1:], STEPS[0])
    served = Served(to / "step-5", tmp_path, *FOLLOWED)
    columns = parity_of(to / "step-5")["columns"]
    models = {step: load(to / f"step-{step}") for step in STEPS}
    answers = {step: model(columns)["label_probability"].numpy() for step, model in models.items()}
    assert all(np.abs(answers[one] - answers[two]).min() > 3e-6 for one, two in combinations(STEPS, 2))
    taken, lines = [], served.output.read_text().count("\n")

    def take(step, changed):
        """Names an export, and checks what the server then says and answers."""
        asking.wait_for_more()
        name_current(to, f"step-{step}")
        until(lambda: served.output.read_text().count("\n") > lines + len(taken))
        taken.append(served.output.read_text().splitlines()[-1])
        assert taken[-1].startswith(f"step {step} is served: {changed} rows changed, ")
        assert taken[-1].endswith(" ms between batches")
        assert served.ask(b"", method="GET", path="/health")[0][1]["step"] == step
        ((status, content),) = served.ask({"columns": columns})
        assert status == 200
        np.testing.assert_allclose(content["outputs"]["label_probability"], answers[step], rtol=0, atol=1e-6)
        asking.wait_for_more()

    def rows(*steps):
        return sum(read_changes(to / f"step-{step}").rows for step in steps)

    with Asking(served, columns) as asking:
        take(10, rows(10))
        take(20, rows(15, 20))  # two at once
        take(10, "all")  # back: loaded whole
        content = (to / "step-15/changes.bin").read_bytes()
        (to / "step-15/changes.bin").write_bytes(content[:-1] + b"!")
        name_current(to, "step-15")
        until(lambda: served.errors.read_text().count("\n"))
        (to / "step-15/changes.bin").write_bytes(content)
        take(15, rows(15))
        name_current(to, "step-25")  # nothing is there yet
        until(lambda: served.errors.read_text().count("\n") == 2)
        asking.wait_for_more()
        shutil.copytree(to / "step-20", to / "step-25")
        shutil.rmtree(to / "step-20")
        until(lambda: served.output.read_text().count("\n") > lines + len(taken))
        assert served.output.read_text().splitlines()[-1].startswith(f"step 20 is served: {rows(25)} rows changed, ")
    damaged, missing = served.errors.read_text().splitlines()  # each told once, however often it was looked at
    assert damaged.startswith("step 10 is still served: ")
    assert damaged.endswith("/step-15/changes.bin is damaged or missing; copy the directory again")
    assert missing.startswith("step 15 is still served: ")
    assert "step-25 is no whole export: manifest.json, which is written last, is missing" in missing
    for part, status, content in asking.found:
        assert status == 200, content
        found = np.array(content["outputs"]["label_probability"])
        assert len([step for step in STEPS if np.abs(answers[step][part] - found).max() <= 1e-6]) == 1
    served.process.kill()


def test_a_model_that_takes_other_columns(exports, tmp_path):
    to = copied(exports, tmp_path / "to", 30, 5)
    served = Served(to / "step-5", tmp_path, *FOLLOWED)
    columns, others = (parity_of(to / f"step-{step}")["columns"] for step in (5, 30))
    assert [status for status, _ in served.ask({"columns": columns}, {"columns": others})] == [200, 400]
    name_current(to, "step-30")
    until(lambda: "step 5 is served: all rows changed" in served.output.read_text())
    assert [status for status, _ in served.ask({"columns": columns}, {"columns": others})] == [400, 200]
    served.process.kill()


def test_a_request_is_computed_by_the_model_that_read_its_columns(exports):
    """Of two models whose requests wait side by side."""
    models = [load(exports / name) for name in ("step-5", "step-30")]
    columns = [parity_of(exports / name)["columns"] for name in ("step-5", "step-30")]
    wanted = [model(first_rows(of, slice(8))) for model, of in zip(models, columns, strict=True)]

    async def ask():
        batcher = Batcher(models[0], 0.05, 256)
        worker = asyncio.create_task(batcher.work())
        places = [(row // 3 % 2, row) for row in range(8)]
        asked = [
            batcher.answer(models[which], models[which].inputs(first_rows(columns[which], slice(row, row + 1))), 1)
            for which, row in places
        ]
        for (which, row), found in zip(places, await asyncio.gather(*asked), strict=True):
            for name, values in wanted[which].items():
                np.testing.assert_allclose(found[name], values[row : row + 1], rtol=0, atol=1e-6)
        worker.cancel()

    asyncio.run(ask())


def test_only_a_directory_of_exports_can_be_followed(exports, capfd):
    words = ["serve", "--directory", str(exports / "step-5"), "--follow", "True"]
    assert trainer(words) == 2
    assert "which has no current.json; name the directory that `export` writes to" in capfd.readouterr().err
    assert trainer([*words[:2], str(exports), *words[3:], "--poll-seconds", "0"]) == 2
    assert "--poll-seconds" in capfd.readouterr().err
