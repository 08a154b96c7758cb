"""The dense part that is kept between starts: found again for the same model alone."""

import pytest
from small_disk import fill, mounted_disk

from torchx_recsys.planner.tables import DenseMemory, DensePart, DenseWork
from trainer.plan import kept_part
from trainer.plan.kept_part import NO_WORK, find_part

PART = DensePart(
    DenseMemory(weights=1, gradients=2, state=3, averages=4, activations=5, sample=6, build=7),
    DenseWork(flops=0.1, batched_flops=2.5, bytes=3.0, gradients=4.0, kernels=5.0),
)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "torchx-recsys"


def never():
    raise AssertionError("measured again")


def test_a_part_is_measured_once():
    assert find_part([{"model": "a"}, 8], lambda: PART) == PART
    assert find_part([{"model": "a"}, 8], never) == PART


@pytest.mark.parametrize("decides", [[{"model": "b"}, 8], [{"model": "a"}, 9]])
def test_another_configuration_is_measured(decides):
    find_part([{"model": "a"}, 8], lambda: PART)
    with pytest.raises(AssertionError):
        find_part(decides, never)


def test_other_code_is_measured(monkeypatch):
    find_part([{"model": "a"}], lambda: PART)
    monkeypatch.setattr(kept_part, "_code", lambda: ["another version"])
    with pytest.raises(AssertionError):
        find_part([{"model": "a"}], never)


def test_objects_of_the_user_are_measured_every_time():
    find_part([{"model": "my.module:Model"}], lambda: PART)
    with pytest.raises(AssertionError):
        find_part([{"model": "my.module:Model"}], never)


def test_a_model_without_a_step_is_not_kept():
    find_part([1], lambda: DensePart(PART.memory, NO_WORK))
    with pytest.raises(AssertionError):
        find_part([1], never)


def test_a_damaged_file_is_measured_again_with_a_line(empty_cache, capsys):
    find_part([1], lambda: PART)
    (file,) = empty_cache.glob("*.dense")
    file.write_text("{")
    assert find_part([1], lambda: PART) == PART
    assert "the dense part is measured again, as what was kept of it cannot be used" in capsys.readouterr().out
    assert find_part([1], never) == PART


def test_without_a_cache_training_goes_on_with_a_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert find_part([1], lambda: PART) == PART
    assert "the dense part is measured at every start: data.cache" in capsys.readouterr().out


def test_with_a_full_disk_training_goes_on_with_a_line(tmp_path, monkeypatch, capsys):
    with mounted_disk(tmp_path, 1) as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        (disk / "torchx-recsys").mkdir()
        fill(disk)
        assert find_part([1], lambda: PART) == PART
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("the measured dense part is not kept for the next start: data.cache")
    assert "No space left on device" in line
