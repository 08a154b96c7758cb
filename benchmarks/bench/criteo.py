"""Speed of the loader beside plain pyarrow on data with nulls, whose ids exceed the tables, as Criteo's do."""

import math
from tempfile import TemporaryDirectory

from apps.calibrate.setting import TABLE_ROWS
from apps.datasets.synthetic import synthetic
from benchmarks.bench.comparison import Comparison, alternate
from benchmarks.bench.readers import LANES, load, one_core, rate, read_columns
from trainer.config.features import SparseFeature
from trainer.data.dataset import find_files
from trainer.data.lanes import Lanes
from trainer.training.session import Session

MOST_ROWS = 1_000_000  # enough for windows of full length in every lane
IDS = 10 * TABLE_ROWS
NULL_RATE = 0.1


def compare_criteo(session: Session, repeats: int) -> list[Comparison]:
    """Compares the loader with plain pyarrow on 13 dense and 26 sparse columns with nulls, ids taken modulo rows."""
    rows = min(session.order.files.rows, MOST_ROWS)
    with TemporaryDirectory() as folder, one_core():
        synthetic(folder, rows, validation_rows=0, test_rows=0, table_rows=(IDS,), null_rate=NULL_RATE)
        sparse = {name: SparseFeature(rows=TABLE_ROWS, ids="modulo") for name in session.config.data.sparse}
        config = session.config.data.model_copy(update={"train": [f"{folder}/train"], "sparse": sparse})
        files = find_files("data.train", config.train, config)
        lanes = Lanes(files.rows, LANES, LANES * math.ceil(config.global_batch_size / LANES))
        loader, arrow = alternate(
            repeats, lambda: rate(load(files, config, lanes)), lambda: rate(read_columns(files, config))
        )
    return [Comparison("loader of nulls, modulo", "pyarrow, same columns", "samples/s", 0.45, loader, arrow)]
