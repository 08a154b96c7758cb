"""Writes the page of a run while it trains and at its end."""

from collections.abc import Mapping

from trainer.extensions.page.recorded import read_if_whole
from trainer.extensions.page.run_page import CALIBRATION, PAGE, write_page
from trainer.training.watchers import RunView, Watcher


class Page(Watcher):
    """Writes the page of a run into its directory, at every evaluation and at the end."""

    files = {"page": PAGE}

    def after_evaluation(self, run: RunView, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Writes the calibration of the evaluation, and the page."""
        if run.context.is_rank0 and (curves := run.calibration_curves()):
            with run.tolerate_failed_writes():
                kept = read_if_whole(run.directory, CALIBRATION)
                run.directory.write_json(CALIBRATION, kept | {split: {"step": step, "tasks": curves}})
        self._write(run)

    def at_end(self, run: RunView, step: int, state: str) -> None:
        """Writes the page."""
        self._write(run)  # after run.json, as a disk may be almost full

    def _write(self, view: RunView) -> None:
        if view.context.is_rank0:
            with view.tolerate_failed_writes():
                write_page(view.directory)
