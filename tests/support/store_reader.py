"""A process that reads a published model so many times a second, and writes down what it got, until it has a version.

`python -m store_reader URL QUESTIONS PER_SECOND TO READ_ROWS` answers questions by a StoredModel if READ_ROWS is empty;
else it reads rows by the function of that file. It ends once TO.stop has the number of a version, and it has got that.
"""

import json
import re
import sys
import time
import zlib
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import redis

ROWS = 40  # of a table, that are read at once


def asked(columns: dict, place: int) -> dict:
    """Returns a question: two rows of columns."""
    return {name: values[place : place + 2] for name, values in columns.items()}


def as_text(outputs: dict) -> str:
    """Returns all bits of outputs."""
    return " ".join(f"{name} {outputs[name].numpy().tobytes().hex()}" for name in sorted(outputs))


def wanted_rows(place: int) -> list[tuple[str, int]]:
    """Returns the rows of a question."""
    return [(f"s{number % 6}", (place + number) % 100) for number in range(ROWS)]


def of_rows(rows: list[bytes]) -> str:
    """Returns a checksum of rows."""
    return str(zlib.crc32(b"".join(rows)))


def guide_reader(folder: Path) -> Path:
    """Writes the guide's own reader to a file."""
    text = (Path(__file__).parents[2] / "docs/guides/row_store.md").read_text()
    (code,) = re.findall(r"^```python\n(# read_rows.py\n.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (folder / "read_rows.py").write_text(code)
    return folder / "read_rows.py"


def module_of(file: Path) -> ModuleType:
    """Returns the module in a file."""
    spec = spec_from_file_location(file.stem, file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def by_model(url: str, columns: dict) -> Callable[[int], tuple[str, int]]:
    """Returns a function that answers a question by a model, with its version."""
    import torch

    from torchx_recsys import StoredModel

    torch.set_num_threads(1)
    model = StoredModel(url)
    return lambda place: (as_text(model(asked(columns, place))), model.version)


def by_commands(url: str, file: Path) -> Callable[[int], tuple[str, int]]:
    """Returns a function that reads the rows of a question by plain commands, with their version."""
    read_rows, client = module_of(file).read_rows, redis.Redis.from_url(url, protocol=2)

    def read(place: int) -> tuple[str, int]:
        version, rows = read_rows(client, "model", wanted_rows(place))
        return of_rows(rows), version

    return read


if __name__ == "__main__":
    url, questions, per_second, to, file = sys.argv[1:]
    columns, stop = json.loads(Path(questions).read_text()), Path(f"{to}.stop")
    read = by_commands(url, Path(file)) if file else by_model(url, columns)
    places, answers, version = len(next(iter(columns.values()))) - 1, [], 0
    Path(f"{to}.ready").touch()
    begun, number = time.monotonic(), 0
    while not (stop.exists() and version == int(stop.read_text() or -1)):
        place = number * 7 % places
        text, version = read(place)
        answers.append((place, text, version))
        number += 1
        time.sleep(max(0.0, begun + number / float(per_second) - time.monotonic()))
    Path(to).write_text(json.dumps({"answers": answers, "seconds": time.monotonic() - begun}))
