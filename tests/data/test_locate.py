"""Samples of a step are found in the files."""

import re

import pyarrow.parquet as pq
import pytest
from jobs import config, write_rows

from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.loader import Loader
from trainer.data.locate import locate
from trainer.data.order import Lanes

SEED = 3


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_sample_is_where_it_is_said_to_be(tmp_path, shuffle):
    write_rows(tmp_path, [130, 0, 90], row_group_size=37)
    tree = config(tmp_path, data__shuffle=shuffle)
    tree["data"]["dense"] = {"row_id": {}}
    data = Config.model_validate(tree).data
    files = find_files("data.train", data.train, data)
    lanes = Lanes(files.rows, 8, 64)
    loader = Loader(files, data, lanes, 0, 1, SEED, shuffle)
    for step, batch in enumerate(loader.batches(0, 2 * lanes.steps), 1):
        for position, (row, weight) in enumerate(zip(batch.dense[:, 0], batch.weights, strict=True)):
            found = locate(files, data, lanes, SEED, step, position)
            assert (found == "padding") == (weight == 0)
            if weight:
                name, group, place = re.fullmatch(r"(.+), row group (\d+), row (\d+)", found).groups()
                assert pq.ParquetFile(name).read_row_group(int(group))["row_id"][int(place)].as_py() == row
