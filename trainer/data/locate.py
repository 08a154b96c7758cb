"""Finds the place in the files of a sample of a step."""

from trainer.config.data import DataConfig
from trainer.data.dataset import FileSet
from trainer.data.order import Lanes, ends_of, epoch_order, row_slices, window_order, windows
from trainer.data.row_groups import RowGroupReader


def locate(files: FileSet, config: DataConfig, lanes: Lanes, seed: int, step: int, position: int) -> str:
    """Returns what messages call a sample: its file, row group and row.

    Args:
        files: The data set.
        config: How it is shuffled.
        lanes: The samples of every step.
        seed: Seed of the shuffling.
        step: The step; the first is 1.
        position: The sample's place in the global batch, rank after rank.
    """
    epoch, epoch_step = divmod(step - 1, lanes.steps)
    lane, sample = divmod(position, lanes.samples_per_step)
    at = epoch_step * lanes.samples_per_step + sample
    order = epoch_order(files.row_groups, seed, epoch, config.shuffle)
    for window in windows(row_slices(order, ends_of(order), *lanes.bounds(lane)), config.shuffle_window_rows):
        if at < window.stop:
            shuffled = window_order(len(window), seed, epoch, lane, window.number) if config.shuffle else None
            row = at - window.start
            row = row if shuffled is None else int(shuffled[row])
            break
    else:
        return "padding"
    for row_slice in window.row_slices:
        if row < len(row_slice):
            break
        row -= len(row_slice)
    return RowGroupReader(files, config, []).where_row(row_slice.group, row_slice.start + row, epoch)
