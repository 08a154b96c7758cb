"""Errors are reported by type: the user's mistakes and storage in one line, bugs with a traceback."""

import pytest

from trainer.core.errors import (
    InputError,
    LostRankError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StoragePermissionError,
    nearest,
    report_error,
    some_of,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("train.steps is 0;\n  use  1"), 2),
        (StorageError("train.steps is 0;\n  use  1"), 1),
        (StorageNotFoundError("train.steps is 0;\n  use  1"), 1),
        (StorageExistsError("train.steps is 0;\n  use  1"), 1),
        (StoragePermissionError("train.steps is 0;\n  use  1"), 1),
        (LostRankError("train.steps is 0;\n  use  1"), 1),
    ],
)
def test_expected_errors_are_one_line(capsys, error, code):
    assert report_error(error) == code
    assert capsys.readouterr().err == "error: train.steps is 0; use 1\n"


def test_many_names_are_a_few_and_their_number():
    names = [f"column_{number}" for number in range(20_000)]
    assert some_of([1, 2]) == "1, 2"
    assert some_of([]) == ""
    assert some_of(names, 2) == "column_0, column_1, and 19,998 more"
    assert len(nearest("zzz", names)) < 400
    assert nearest("column_19999x", names) == "; did you mean 'column_19999'?"


def test_an_error_that_repeats_a_long_value_keeps_its_key_and_remedy(capsys):
    report_error(InputError(f"data.train is {[*range(50_000)]}; use fewer"))
    line = capsys.readouterr().err
    assert len(line) < 4200
    assert line.startswith("error: data.train is [0, 1, 2")
    assert line.endswith("49999]; use fewer\n")
    assert "characters are left out" in line


@pytest.mark.parametrize("error", [ValueError("x is 1"), OSError(28, "No space left on device"), KeyError("x")])
def test_bugs_keep_their_traceback(capsys, error):
    with pytest.raises(type(error)) as caught:
        raise error
    assert report_error(caught.value) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback (most recent call last):")
    assert printed.splitlines()[-1] == f"{type(error).__name__}: {error}"


def test_storage_errors_are_those_of_python_too():
    assert issubclass(StorageNotFoundError, FileNotFoundError)
    assert issubclass(StorageExistsError, FileExistsError)
    assert issubclass(StoragePermissionError, PermissionError)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sdg", "; did you mean 'sgd'?"), ("momentum", "; known: adam, sgd"), ("", "; known: adam, sgd")],
)
def test_the_nearest_name_is_suggested(name, expected):
    assert nearest(name, ["sgd", "adam"]) == expected
