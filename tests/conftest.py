import gc
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import durations
import pytest
import slurm_cluster
from command import write_config
from interpreter import forked_programs
from jobs import config, write_rows

SUPPORT = str(Path(__file__).parent / "support")
UNIT_CASES = 2  # of each test with parameters
gc.disable()  # until all tests are collected: a quarter of the time of each worker before its first test
PROCESS_EVENTS = {"subprocess.Popen", "os.fork", "os.posix_spawn"}


def pytest_addoption(parser):
    parser.addoption("--unit", action="store_true", help="sample tests with many parameters, and skip what is no unit")
    parser.addoption("--all", action="store_true", help="run whole matrices, not a sample of them")
    parser.addoption(
        "--record-durations", action="store_true", help=f"write what each file takes to {durations.FILE.name}"
    )


def pytest_report_header(config):
    """Says how the Slurm of the tests tells the processes of a job, which decides whom its signals reach."""
    return None if config.getoption("unit") else f"slurm: {slurm_cluster.described()}"


def pytest_configure(config):
    """Gives every process one thread, as those of many tests would wait for one another, and the support modules."""
    os.environ["OMP_NUM_THREADS"] = "1"
    # torch looks up the name of whoever connects to its store; a lookup that is lost would take 5 s, of a 0.2 s test.
    os.environ["RES_OPTIONS"] = "timeout:1"
    os.environ["TORCHX_RECSYS_SITE"] = ""  # defaults of this machine's administrators are none of the tests'
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")]))
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory()
        os.environ["TESTS_REMEMBERED"] = folder.name  # read by remembered.py
        config.add_cleanup(folder.cleanup)
    if config.getoption("unit"):
        sys.addaudithook(skip_where_a_process_starts)
    if config.getoption("record_durations"):
        config.pluginmanager.register(durations.Recorder(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Samples tests, before `-m` takes those of one tier out of the sample, and sorts what is left."""
    if not config.getoption("all"):
        sample(config, items)
    leave_all_but_few(items)
    yield
    durations.sort_longest_first(items)


def sample(config, items):
    of_unit = config.getoption("unit")
    candidates = [item for item in items if not (of_unit and "slow" in item.keywords)]
    chosen = {id(item) for item in sampled(candidates, UNIT_CASES if of_unit else len(items))}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
    items[:] = [item for item in items if id(item) in chosen]


def leave_all_but_few(items):
    """Marks the cases of tests marked `few` as `more`, but for the first ones of each."""
    seen = Counter()
    for item in items:
        if marker := item.get_closest_marker("few"):
            number, reason = marker.args
            test = item.path, item.parent.name, item.originalname
            seen[test] += 1
            if seen[test] > number:
                item.add_marker(pytest.mark.more(reason))


def pytest_collection_finish():
    """Turns garbage collection on, for what tests make from here on."""
    gc.freeze()
    gc.enable()


def sampled(items, most):
    """Yields so many cases of each test at most, or as many as its marker says, the same ones every time."""
    cases = {}
    for item in items:
        cases.setdefault((item.path, item.parent.name, item.originalname), []).append(item)
    for (_, _, name), found in cases.items():
        marker = found[0].get_closest_marker("sample")
        yield from random.Random(name).sample(found, min(len(found), most, *(marker.args if marker else ())))


def pytest_generate_tests(metafunc):
    """Parametrizes tests by the matrix of their module: `MATRIX`, names and a function of whether it is run whole."""
    names, cells = getattr(metafunc.module, "MATRIX", ("", None))
    if names and {*names.split(", ")} <= {*metafunc.fixturenames}:
        metafunc.parametrize(names, cells(metafunc.config.getoption("all")))


@pytest.fixture(scope="module")
def cells(request):
    """A function that returns the values of parameters, `a, b`, that tests of the module have here, in their order.

    A tier has some of them, and so has a test that was chosen by name: nothing is trained for the others.
    """
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]

    def found(names):
        each = [tuple(map(item.callspec.params.get, names.split(", "))) for item in here]
        chosen = dict.fromkeys(values for values in each if None not in values)
        return [values if len(values) > 1 else values[0] for values in chosen]

    return found


@pytest.fixture(scope="module")
def matrix(request, cells):
    """The cells of the module's matrix that are run."""
    return cells(request.module.MATRIX[0])


@pytest.fixture(autouse=True)
def path_of_modules():
    """Takes back what a command in this process has put on sys.path: a directory of the test, with modules in it."""
    before = sys.path[:]
    yield
    sys.path[:] = before


def pytest_runtest_setup(item):
    """Skips at once what needs a cluster, whose stand-ins start processes in threads that the test waits for."""
    if item.config.getoption("unit") and "cluster" in item.fixturenames:
        pytest.skip("needs a cluster")


def skip_where_a_process_starts(event, _):
    """Distinguishes unit tests from others by what they do: a list or a marker per file would fall behind."""
    if event in PROCESS_EVENTS and "PYTEST_CURRENT_TEST" in os.environ:
        pytest.skip("starts a process")


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    """A small data set that `jobs.config` describes."""
    return write_rows(tmp_path_factory.mktemp("rows"), [130, 126])


@pytest.fixture(scope="module")
def path(tmp_path_factory, request):
    """A PATH whose `python` and `torchx` are forked; of whole matrices, the environment's own."""
    if request.config.getoption("all"):
        yield os.environ["PATH"]
    else:
        with forked_programs(tmp_path_factory.mktemp("programs")) as programs:
            yield os.pathsep.join([str(programs), os.environ["PATH"]])


@pytest.fixture
def refusal(rows, tmp_path, capfd):
    """Trains with changes of the configuration, and flags, that are refused in one line; returns the line."""
    from trainer.__main__ import main as trainer

    def refusal(changes: dict, *flags: str) -> str:
        file = write_config(tmp_path / "config.toml", config(rows, **changes))
        assert trainer(["train", str(file), "--out", str(tmp_path / "out"), *flags]) == 2
        line = capfd.readouterr().err
        assert line.startswith("error: ")
        assert line.count("\n") == 1
        assert not [*tmp_path.rglob("manifest.json")]
        return line

    return refusal


@pytest.fixture(scope="session", autouse=True)
def state_directory(tmp_path_factory):
    """Keeps the records of local jobs out of the user's own state directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield
