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
