"""An export is compared with the trainer on what a client would send: ids before the sample, without later ones."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apps.export.reference import ALONE, read_rows
from apps.export.signature import signature
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.training.managed_ids import ManagedIds

NOW = 1_700_000_000


def test_a_client_sends_no_ids_after_the_sample(tmp_path):
    columns = {
        "label": [0.0, 1.0, 0.0],
        "seen": [[1, 2, 3], [4], None],
        "at": [[NOW - 9, NOW, NOW - 1], [NOW + 5], None],
        "seconds": [[0.5, 1.0, 2.0], [4.0], None],
        "now": [NOW] * 3,
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    seen = {"rows": 9, "times": "at", "before": "now"}
    sparse = {"seen": seen, "watched": seen | {"column": "seen", "weights": "seconds"}}
    data = {"train": [str(tmp_path)], "sparse": sparse}
    config = Config.model_validate({"data": data, "model": {"name": "wide_deep"}})
    files = find_files("data.train", config.data.train, config.data)
    (part,) = read_rows(files, config, ManagedIds(config.data, ALONE))
    assert part.columns["seen"] == [[1, 3], [], []]
    assert part.columns["seconds"] == [[0.5, 2.0], [], []]
    assert [one.tolist() for one in part.batch.sparse["watched"].to_dense()] == [[1, 3], [], []]


def test_features_of_one_column_keep_the_same_ids():
    seen = {"rows": 9, "times": "at", "before": "now"}
    data = DataConfig.model_validate({"sparse": {"seen": seen, "ever": {"rows": 9, "column": "seen"}}})
    with pytest.raises(
        InputError, match=r"^data\.sparse\.ever\.times is None, but data\.sparse\.seen\.times is 'at' for"
    ):
        signature(data, {"seen": pa.list_(pa.int64())}, ["seen", "ever"], [])
