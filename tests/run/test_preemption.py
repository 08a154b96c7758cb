"""A job that gets a stop request saves and exits, and is later resumed without loss."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from command import write_config
from forked import run_forked
from jobs import config, losses, write_rows
from ranks import run_on_ranks
from trainer_process import Gate, Training, committed, is_running

from trainer.core.distributed import process_group
from trainer.run import preemption
from trainer.run.preemption import SAME_REQUEST_SECONDS, Action, StopRequests

STEPS, GATE = 30, 10
STOPS = "training stops after this step"


@pytest.fixture(scope="module")
def setting(rows, tmp_path_factory):
    """A configuration, and the losses of a run of it that nobody disturbs, on 2 ranks."""
    folder = tmp_path_factory.mktemp("preemption")
    file = write_config(folder / "config.toml", config(rows, model__name="custom:gated", train__steps=STEPS))
    job = Training(file, folder / "baseline")
    output = job.end()
    assert job.code == 0, output
    return file, losses(folder / "baseline")


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path / "gate", GATE)


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_agent_loses_no_step(setting, gate, tmp_path, number):
    file, baseline = setting
    job = Training(file, tmp_path / "out", **gate.environment).after_steps(5).signal(number)
    job.wait_until(lambda: STOPS in job.output())
    gate.open()
    output = job.end()
    (saved,) = committed(job.out)
    assert 5 <= saved < STEPS
    assert job.code == 1  # torchrun's answer to every signal
    assert job.outcome() == f"stopped at step {saved}, saved {job.out}/checkpoints/step-{saved:09d}\n"
    assert job.outcome() in output
    assert json.loads((job.out / "run.json").read_text())["state"] == "stopped"

    again = Training(file, job.out)
    assert f"resumed after step {saved} " in again.end()
    assert again.code == 0
    assert losses(job.out) == baseline
    assert again.outcome() == f"finished at step {STEPS}\n"
    assert json.loads((job.out / "run.json").read_text())["state"] == "finished"


def test_a_signal_to_one_rank_stops_all(setting, tmp_path):
    job = Training(setting[0], tmp_path / "out", "--train.steps", "1000000").after_steps(5)
    os.kill(job.workers()[1], signal.SIGTERM)  # which does not say when it has it
    job.end()
    assert job.outcome().startswith(f"stopped at step {committed(job.out)[-1]}, saved")


def test_without_torchrun_the_exit_code_is_75(setting, gate, tmp_path):
    job = Training(setting[0], tmp_path / "out", ranks=0, **gate.environment).after_steps(5).signal(signal.SIGTERM)
    job.wait_until(lambda: STOPS in job.output())
    gate.open()
    assert "SIGTERM: training stops after this step and saves" in job.end()
    assert job.code == 75


def test_an_interrupted_evaluation_is_repeated_on_resume(rows, tmp_path):
    many = write_rows(tmp_path / "many", [20_000])
    tree = config(rows, train__steps=4, data__validation=[str(many)], evaluate__every_steps=2)
    file = write_config(tmp_path / "config.toml", tree)
    job = Training(file, tmp_path / "out", "--evaluate.global-batch-size", "1", ranks=0)
    job.after_steps(2).signal(signal.SIGTERM).end()
    assert job.code == 75
    assert committed(job.out) == [2]
    assert not (job.out / "evaluations.jsonl").exists()
    Training(file, job.out, "--evaluate.global-batch-size", "10000", ranks=0).end()
    evaluations = [json.loads(line) for line in (job.out / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["step"], line["samples"]) for line in evaluations] == [(2, 20_000), (4, 20_000)]


def test_a_second_signal_ends_it_at_once_even_in_a_collective(setting, gate, tmp_path):
    """Rank 0 waits for rank 1, which stands still before the gate opens."""
    job = Training(setting[0], tmp_path / "out", **gate.environment).after_steps(5)
    first, second = job.workers()
    os.kill(second, signal.SIGSTOP)
    gate.open()
    time.sleep(1)
    os.kill(first, signal.SIGTERM)
    job.wait_until(lambda: STOPS in job.output())
    time.sleep(SAME_REQUEST_SECONDS + 1)
    os.kill(first, signal.SIGTERM)
    job.wait_until(lambda: not is_running(first))
    os.kill(second, signal.SIGKILL)
    assert "SIGTERM: training ends at once; it resumes from the last checkpoint" in job.end()
    assert committed(job.out) == []
    assert not Path(f"{job.out}-outcome").exists()


def test_a_job_with_too_little_time_to_save_keeps_its_last_checkpoint(setting, gate, tmp_path):
    flags = ["--checkpoint.every-steps", "3", "--checkpoint.grace-seconds", "0"]
    job = Training(setting[0], tmp_path / "out", *flags, ranks=0, **gate.environment)
    job.wait_until(lambda: committed(job.out)).signal(signal.SIGTERM).wait_until(lambda: STOPS in job.output())
    gate.open()
    job.end()
    saved = committed(job.out)[-1]
    assert saved % 3 == 0
    stopped, url = job.steps(), f"{job.out}/checkpoints/step-{saved:09d}"
    lost = f"step {stopped} is lost" if stopped == saved + 1 else f"steps {saved + 1} to {stopped} are lost"
    said = f"saved {url}" if stopped == saved else f"{lost}: the newest checkpoint saved is {url}"
    assert job.outcome() == f"stopped at step {stopped}, {said}\n"
    assert job.code == 75


def record_actions(folder: Path) -> None:
    """Calls as in ten steps; rank 1 requests a save from the third until it begins, and a stop from the eighth."""
    preemption.RANKS_PER_CALL = 1
    with process_group() as context:
        requests, actions = StopRequests(context), []
        for step in range(10):
            if step == 7 and context.rank == 1:
                requests.take(signal.SIGTERM)
            wants_save = context.rank == 1 and step >= 2 and Action.SAVE not in actions
            actions.append(requests.all_reduce(save=wants_save))
        (folder / f"{context.rank}.json").write_text(json.dumps(actions))


def test_many_ranks_exchange_requests_once_in_several_calls(tmp_path):
    """As two ranks do where each more rank adds a call: at the second call, the fourth, the sixth."""
    run_forked(run_on_ranks, 2, record_actions, tmp_path, folder=tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    go, save, stop = Action.CONTINUE, Action.SAVE, Action.STOP
    assert first == [go, go, go, go, go, save, go, go, go, stop]
