"""Jobs on a live topic that are killed again and again: trainers, the cutter and the broker."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from command import start_trainer
from forked import ForkedProcess
from kafka_broker import Broker
from live_topic import Producer
from ports import free_port

UNDER_WAY = 0.7  # part of the steps after which the last disturbance comes
MOST_SECONDS = 0.7  # from then on until it comes
STANDS_STILL = (0.5, 4.0)  # seconds
PATIENCE_SECONDS = 600
TICK_SECONDS = 0.005


class Job:
    """The processes of a job, started again with the same command after each disturbance.

    Args:
        words: The command.
        log: File for what it prints.
        ranks: Number of ranks, started as torchrun starts them but forked; 0 for a job without ranks.
        environment: Further variables.
    """

    def __init__(self, words: Sequence[object], log: Path, ranks: int = 0, **environment: str) -> None:
        self.words, self._log, self.ranks = [*words], log, ranks
        self._outcome = Path(f"{log}-outcome")
        self._environment = environment | {"TORCHX_OUTCOME_FILE": str(self._outcome)}
        self._processes: list[ForkedProcess] = []
        self._was_disturbed = False

    def start(self) -> None:
        """Starts it."""
        self._outcome.unlink(missing_ok=True)
        self._was_disturbed = False
        if not self.ranks:
            self._processes = [start_trainer(self.words, self._log, self._log, 0, **self._environment)]
            return
        world = {"WORLD_SIZE": str(self.ranks), "LOCAL_WORLD_SIZE": str(self.ranks), "TORCHELASTIC_RUN_ID": "chaos"}
        world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self._processes = [
            start_trainer(
                self.words, self._log, self._log, 0, RANK=str(rank), LOCAL_RANK=str(rank), **world, **self._environment
            )
            for rank in range(self.ranks)
        ]

    def goes_on(self) -> bool:
        """Starts it again if a disturbance has ended it; returns False once it has finished.

        Raises:
            AssertionError: It has ended by itself.
        """
        codes = [process.poll() for process in self._processes]
        if None in codes:
            return True
        if codes and not self._was_disturbed:
            assert not any(codes), (self.words, codes, self.output()[-5000:])
        if codes and not any(codes) and not self.outcome().startswith("stopped"):
            return False
        self.start()
        return True

    def end(self) -> None:
        """Waits for its end, which has to be a good one."""
        codes = [process.wait(PATIENCE_SECONDS) for process in self._processes]
        assert not any(codes), (self.words, codes, self.output()[-5000:])

    def code(self) -> int:
        """Returns the largest exit code, once all processes have ended."""
        return max(process.wait(PATIENCE_SECONDS) for process in self._processes)

    def kill(self, dice: random.Random) -> bool:
        """Kills its processes, in random order and not all at once; returns whether all still ran."""
        in_time = self._is_whole()
        first, *others = dice.sample(self._processes, len(self._processes))
        _send(first, signal.SIGKILL)
        if others:
            time.sleep(dice.random() * 0.1)
        for process in others:
            _send(process, signal.SIGKILL)
        for process in self._processes:
            process.wait(PATIENCE_SECONDS)
        self._was_disturbed = True
        return in_time

    def ask_to_stop(self, dice: random.Random) -> bool:
        """Sends SIGTERM to one process, and waits until all have ended; returns whether all still ran."""
        in_time = self._is_whole()
        self._was_disturbed = True
        _send(dice.choice(self._processes), signal.SIGTERM)
        return in_time

    @property
    def is_started(self) -> bool:
        """Whether it was started."""
        return bool(self._processes)

    def output(self) -> str:
        """Returns what it has printed so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def outcome(self) -> str:
        """Returns the line that it wrote for the scheduler."""
        return self._outcome.read_text() if self._outcome.exists() else ""

    def _is_whole(self) -> bool:
        return all(process.poll() is None for process in self._processes)


def _send(process: ForkedProcess, number: signal.Signals) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):  # it may end meanwhile
            os.kill(process.pid, number)


class Chaos:
    """Disturbs jobs at random moments until all trainers have finished.

    Args:
        broker: The broker.
        producer: Has to run all the time.
        cutter: The job that cuts.
        trainers: The jobs that train, with functions that return their steps.
        segments: Function that returns the number of segments that are cut.
        seed: Of the disturbances and their moments.

    Attributes:
        done: The disturbances that came while their process ran, with the moments.
        missed: Those that came when it had just ended.
    """

    def __init__(
        self,
        broker: Broker,
        producer: Producer,
        cutter: Job,
        trainers: dict[Job, Callable[[], int]],
        segments: Callable[[], int],
        seed: int,
    ) -> None:
        self._broker, self._producer, self._cutter, self._trainers = broker, producer, cutter, trainers
        self._segments, self._dice = segments, random.Random(seed)
        self._began, self._goes_on_at = time.monotonic(), float("inf")
        self._turns = Counter[Job]()
        self.done: list[str] = []
        self.missed = 0

    def run(self, kinds: Sequence[str], steps: int) -> None:
        """Injects disturbances, spread over the steps of the slowest trainer, and trains to the end.

        Args:
            kinds: `kill a trainer`, `stop a trainer`, `kill the cutter`, `kill the broker`, `stop the broker`.
            steps: Number of steps that each trainer takes about.
        """
        for job in self._trainers:
            job.start()
        order, begin = self._dice.sample(kinds, len(kinds)), min(self._steps())
        for number, kind in enumerate(order):
            least = begin + (steps - begin) * UNDER_WAY * number / len(order)
            if not self._goes_on_until(lambda least=least: min(self._steps()) >= least) or not self._disturb(kind):
                break
        assert not self._goes_on_until(lambda: False)
        self._resume()

    def stop(self) -> None:
        """Kills what still runs."""
        self._resume()
        for job in (self._cutter, *self._trainers):
            if job.is_started:
                job.kill(self._dice)

    def _disturb(self, kind: str) -> bool:
        """Waits for a random moment, and disturbs; returns False once all trainers have finished."""
        job = self._next_trainer() if "trainer" in kind else self._cutter
        moment = time.monotonic() + self._dice.random() * MOST_SECONDS
        if not self._goes_on_until(lambda: time.monotonic() > moment):
            return False
        at = f"{time.monotonic() - self._began:6.1f} s, {self._segments()} segments cut, steps " + ", ".join(
            map(str, self._steps())
        )
        if self._inject(kind, job):
            self.done.append(f"{kind}{f' of {job.ranks} ranks' if job.ranks and 'trainer' in kind else ''}: {at}")
        else:
            self.missed += 1
        return True

    def _inject(self, kind: str, job: Job) -> bool:
        if kind == "kill the broker":
            self._resume()
            self._broker.kill()
            time.sleep(self._dice.random())
            self._broker.start()
            return True
        if kind == "stop the broker":
            self._resume()
            self._broker.stop()
            self._goes_on_at = time.monotonic() + self._dice.uniform(*STANDS_STILL)
            return True
        return job.ask_to_stop(self._dice) if kind.startswith("stop") else job.kill(self._dice)

    def _steps(self) -> list[int]:
        return [steps() for steps in self._trainers.values()]

    def _next_trainer(self) -> Job:
        """Returns the running trainer that was disturbed least."""
        job = min(self._running(), key=lambda job: self._turns[job])
        self._turns[job] += 1
        return job

    def _running(self) -> list[Job]:
        return [job for job in self._trainers if job.goes_on()]

    def _check(self, deadline: float) -> None:
        assert time.monotonic() < deadline, [job.output()[-3000:] for job in (self._cutter, *self._trainers)]
        self._producer.check()
        assert self._cutter.goes_on(), self._cutter.output()

    def _goes_on_until(self, condition: Callable[[], bool]) -> bool:
        """Keeps all jobs running until something has happened; returns False once all trainers have finished."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            self._check(deadline)
            if time.monotonic() > self._goes_on_at:
                self._resume()
            if not [job for job in self._trainers if job.goes_on()]:
                return False
            time.sleep(TICK_SECONDS)
        return bool(self._running())

    def _resume(self) -> None:
        self._goes_on_at = float("inf")
        with suppress(ProcessLookupError):
            self._broker.go_on()
