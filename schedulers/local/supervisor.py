"""Supervisor of one local job: `python -P -m schedulers.local.supervisor RECORD_DIR`.

The scheduler starts one supervisor for each job, in a session of its own. A supervisor starts the replicas, combines
their logs, restarts them when they fail, and ends them when the job is cancelled. The record holds all of its state. A
supervisor lives as long as the job; if it dies, the kernel sends SIGTERM to its replicas.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path

from schedulers.local.processes import end_with_parent
from schedulers.local.record import STARTING_AGAIN, Process, Progress, Record, Replica, being_cancelled, look
from schedulers.local.restarts import Restarts
from schedulers.predecessors import missed, waits_for
from trainer.core.outcome import SAVED_STEP_VARIABLE, is_final, is_finished, is_stopped, is_wrong_input

TICK_SECONDS = 0.1
LOOK_SECONDS = 1  # interval between two looks at the jobs that must end first
CANNOT_START = 127


class Logs:
    """The two files that a replica writes to, and a third with the whole lines of both as they arrive."""

    def __init__(self, replica: Replica) -> None:
        Path(replica.combined).parent.mkdir(parents=True, exist_ok=True)
        self.stdout, self.stderr, self.combined = (
            FileIO(name, "a") for name in (replica.stdout, replica.stderr, replica.combined)
        )
        self._sources = [FileIO(name) for name in (replica.stdout, replica.stderr)]
        self._rests = [b"", b""]

    def combine(self, *, last: bool = False) -> None:
        """Copies new lines; at the end, also an unfinished line."""
        for number, source in enumerate(self._sources):
            new = self._rests[number] + source.read()
            whole, newline, self._rests[number] = new.rpartition(b"\n")
            self.combined.write(whole + newline)
        if last:
            self.combined.write(b"".join(rest + b"\n" for rest in self._rests if rest))

    def note(self, text: str) -> None:
        """Writes a line between two attempts."""
        self.stderr.write(f"torchx: {text}\n".encode())


class Supervisor:
    """One job, from its first attempt to its last."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.job = record.job()
        self.logs = [Logs(replica) for replica in self.job.replicas]
        self.progress = Progress(state="PENDING" if self.job.predecessors else "RUNNING", supervisor=os.getpid())
        self.restarts = Restarts(max_retries=self.job.max_retries, max_free=self.job.max_free_restarts)
        self.outcome = ""  # outcome of the last attempt, or why there was no attempt
        self.running: list[subprocess.Popen[bytes]] = []
        self.stop_requested = False
        self.cancelled = False
        self._watched = [] if self.job.detach else [sys.stdin]
        signal.signal(signal.SIGTERM, self._request_stop)

    def _request_stop(self, *_: object) -> None:
        self.stop_requested = True

    def run(self) -> None:
        """Runs the job until it succeeds, fails for good, or is cancelled."""
        try:
            self.finish(self.state_at_the_end())
        except OSError as error:  # a full disk above all
            self.give_up(error)

    def state_at_the_end(self) -> str:
        """Runs the job, with the restarts that are allowed, and returns its final state."""
        if not self.may_start():
            return "CANCELLED"
        self.attempt()
        while not (state := self.final_state()):
            self.back_off()
            if not self.stop_requested:
                self.progress.restarts += 1
                self.attempt()
        return state

    def may_start(self) -> bool:
        """Waits for the jobs that must end first; returns whether all have ended as required, without a cancel."""
        waited_for = self.job.predecessors
        while (waits := waits_for(waited_for, look)) and not self.stop_requested:
            if why := missed(waited_for, look):
                self.outcome = why
                self.note(why)
                return False
            if not self.progress.message:
                self.note(waits)
            self.progress.state, self.progress.message = "PENDING", waits
            self.record.write(self.progress)
            self.idle(LOOK_SECONDS)
        self.outcome = "cancelled before it started" if self.stop_requested else ""
        return not self.stop_requested

    def final_state(self) -> str | None:
        """Returns the state in which the job ends after this attempt, or None if it restarts."""
        succeeded = all(process.exit_code == 0 for process in self.progress.processes)
        if is_finished(self.outcome) or (succeeded and not self.cancelled):
            return "SUCCEEDED"
        if self.stop_requested:
            return "CANCELLED"
        if is_wrong_input(self.outcome) or not self.restarts.allowed(self.outcome):
            return "FAILED"
        return None

    def back_off(self) -> None:
        """Waits before a restart, unless the last attempt gained a step; a stop request ends the wait."""
        self.restarts.count(self.outcome)
        seconds, restart = self.restarts.wait_seconds, f"restart {self.progress.restarts + 1}"
        after = f" in {seconds} seconds" if seconds else ""
        self.note(f"{self.summary()}; {STARTING_AGAIN}{after}, {restart}")
        if seconds:
            self.progress.state = "PENDING"
            self.progress.message = f"waits {seconds} seconds for {restart}: {self.summary()}"
            self.record.write(self.progress)
        self.idle(seconds)

    def note(self, text: str) -> None:
        """Writes a line to the logs of all replicas."""
        for logs in self.logs:
            logs.note(text)

    def idle(self, seconds: float) -> None:
        """Waits; a stop request ends the wait."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.stop_requested:
            self.pause()

    def attempt(self) -> None:
        """Starts all replicas and waits until all have ended."""
        self.record.outcome_file.unlink(missing_ok=True)
        self.record.training_file.unlink(missing_ok=True)
        self.running = []
        self.progress.state, self.progress.message, self.progress.processes = "RUNNING", "", []
        for replica, logs in zip(self.job.replicas, self.logs, strict=True):
            replica.error_file.unlink(missing_ok=True)
            self.progress.processes.append(self.start(replica, logs))
        self.record.write(self.progress)
        self.wait()
        self.outcome = self.record.outcome()

    def start(self, replica: Replica, logs: Logs) -> Process:
        """Starts one replica; a replica that cannot be started counts as failed with exit code 127."""
        try:
            process = subprocess.Popen(
                replica.args,
                env={"PYTHONUNBUFFERED": "1", **os.environ, **self._saved_before(), **replica.env},
                cwd=replica.cwd,
                stdin=subprocess.DEVNULL,
                stdout=logs.stdout,
                stderr=logs.stderr,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            logs.note(f"cannot start {replica.name}: {error}")
            return Process(pid=0, exit_code=CANNOT_START, ended=time.time())
        self.running.append(process)
        return Process(pid=process.pid)

    def _saved_before(self) -> dict[str, str]:
        step = self.restarts.newest_step
        return {SAVED_STEP_VARIABLE: str(step)} if step else {}

    def wait(self) -> None:
        """Waits for all replicas; stops the others when one fails or when the job is cancelled."""
        deadline = None
        while self.poll():
            self.pause()
            failed = any(process.exit_code for process in self.progress.processes)
            if deadline is None and (failed or self.stop_requested):
                self.cancelled = self.stop_requested
                self.terminate()
                deadline = time.monotonic() + self.job.grace_seconds
            if deadline is not None and time.monotonic() > deadline:
                self.record.kill_processes()
        self.record.kill_processes()  # processes that a replica has started and not ended

    def poll(self) -> bool:
        """Records which replicas have ended, and returns whether some still run."""
        codes = {process.pid: process.poll() for process in self.running}
        news = [each for each in self.progress.processes if each.exit_code != codes.get(each.pid, each.exit_code)]
        for process in news:
            process.exit_code, process.ended = codes[process.pid], time.time()
        if news:
            self.record.write(self.progress)
        return None in codes.values()

    def pause(self) -> None:
        """Waits a moment, combines the logs, and requests a stop when the shell of an attached job is gone."""
        if any(select.select(self._watched, [], [], TICK_SECONDS)):
            self._watched = []
            self.stop_requested = True
        for logs in self.logs:
            logs.combine()

    def terminate(self) -> None:
        """Sends SIGTERM to the replicas that still run, on which they save and leave."""
        if self.cancelled:
            self.progress.message = being_cancelled(self.job)
            self.record.write(self.progress)
        for process in self.running:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)

    def finish(self, state: str) -> None:
        """Writes the final state, and removes the record if the job is being deleted."""
        for logs in self.logs:
            logs.combine(last=True)
        self.progress.state = state
        self.progress.message = self.final_message(state)
        self.record.write(self.progress)
        if self.record.delete_file.exists():
            self.record.remove()

    def give_up(self, error: OSError) -> None:
        """Ends a job whose record or logs cannot be written; its replicas still get time to save."""
        self.cancelled = False
        self.terminate()
        deadline = time.monotonic() + self.job.grace_seconds
        while time.monotonic() < deadline and any(process.poll() is None for process in self.running):
            time.sleep(TICK_SECONDS)
        self.record.kill_processes()
        folders = " or ".join({self.job.log_dir: None, str(self.record.folder): None})
        self.progress.state = "FAILED"
        self.progress.message = f"ended, as nothing can be written to {folders}: {error.strerror or error}"
        self.record.write_on_full_disk(self.progress)

    def final_message(self, state: str) -> str:
        """Returns the message of a job that has ended."""
        if state == "FAILED" and is_stopped(self.outcome):
            allowed = f"max_free_restarts={self.job.max_free_restarts} restarts in a row that gained no step"
            return f"not started again after {allowed}; the last attempt {self.outcome}"
        return self.last_line() if state == "SUCCEEDED" else self.summary()

    def summary(self) -> str:
        """Returns the outcome that the job wrote in this attempt, or else how each failed replica ended."""
        ends = zip(self.job.replicas, self.progress.processes, strict=False)  # there are none before it has started
        failed = [f"{replica.name} {ending(process.exit_code)}" for replica, process in ends if process.exit_code]
        return self.last_line() or ", ".join(failed)

    def last_line(self) -> str:
        """Returns the outcome; nothing if it only reports a checkpoint, after which the job went on."""
        return self.outcome if is_final(self.outcome) else ""


def ending(exit_code: int | None) -> str:
    """Returns an exit code in words."""
    if exit_code == CANNOT_START:
        return "could not be started or ended with exit code 127: its program was not found"
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def main() -> None:
    """Supervises the job of the record that the command line names."""
    supervisor = Supervisor(Record(Path(sys.argv[1])))
    supervisor.record.write(supervisor.progress)
    print("ready", flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    supervisor.run()


if __name__ == "__main__":
    main()
