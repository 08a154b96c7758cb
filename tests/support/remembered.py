"""What trainers find before they train, found once for all trainers that tests fork: dense parts of models, and plans.

To measure a model takes a trainer 0.1 s, and to plan it up to 0.2; of the thousand jobs of all tests most train a model
under a plan that another has found. A file for each, in the folder that the tests name, has the result.
"""

import hashlib
import json
import os
import pickle
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from torchx_recsys.planner.plan import Problem
from torchx_recsys.planner.search import Solution
from torchx_recsys.planner.tables import DensePart
from trainer.plan.dense_part import NO_WORK

FOLDER = "TESTS_REMEMBERED"
SUPPORT = Path(__file__).parent
NAMED = re.compile(r'"(\w+):\w+"')  # modules with parts of models; those of a test may be others in the next one
IRRELEVANT = ("checkpoint", "evaluate", "finetune", "report")  # sections; so are files, and how long training takes
T = TypeVar("T")


def remembered_parts(measure: Callable[..., DensePart]) -> Callable[..., DensePart]:
    """Returns the same function, which looks into the folder first."""

    @lru_cache(maxsize=256)
    def found(config: str, *shape: int) -> DensePart:
        relevant = _relevant(config)
        if not all((SUPPORT / f"{module}.py").exists() for module in NAMED.findall(relevant)):
            return measure(config, *shape)
        return _find(
            f"{relevant} {shape}",
            lambda: measure(config, *shape),
            lambda part: part.work != NO_WORK,  # of which each job is warned
        )

    return found


def remembered_plans(find_plan: Callable[[Problem], Solution]) -> Callable[[Problem], Solution]:
    """Returns the same function, which looks into the folder first."""

    def found(problem: Problem) -> Solution:
        decides = (problem.tables, problem.topology, problem.dense.memory, problem.reserve, problem.slower)
        return _find(repr(decides), lambda: find_plan(problem))

    return found


def _find(key: str, find: Callable[[], T], is_kept: Callable[[T], bool] = lambda _: True) -> T:
    """Returns what another process has found under a key, or else finds it."""
    if FOLDER not in os.environ:
        return find()
    file = Path(os.environ[FOLDER], hashlib.sha256(key.encode()).hexdigest())
    if file.exists():
        return pickle.loads(file.read_bytes())
    found, new = find(), file.with_suffix(f".{os.getpid()}")
    if is_kept(found):
        new.write_bytes(pickle.dumps(found))
        new.rename(file)
    return found


def _relevant(config: str) -> str:
    tree = json.loads(config)
    for section in IRRELEVANT:
        del tree[section]
    for split in ("train", "validation", "test"):
        del tree["data"][split]
    for length in ("steps", "epochs"):
        del tree["train"][length]
    return json.dumps(tree)
