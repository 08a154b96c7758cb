"""Tables that are pooled and sharded in different ways, beside one another."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import config, launch_rounds, losses

pytestmark = pytest.mark.more("test_sharding.py has one pooling")

ROWS = 256
POOLING = {"s0": "sum", "s1": "mean", "s2": "sum", "s3": "mean"}
MIXED = {
    "mean_by_rows": ["table_wise", "row_wise", "column_wise", "table_wise"],
    "mean_by_columns": ["row_wise", "column_wise", "table_wise", "table_row_wise"],
    "all_by_rows": ["row_wise"] * 4,
}


def planned(data, kinds):
    sparse = {name: {"rows": 50, "pooling": pooling} for name, pooling in POOLING.items()}
    tables = {name: {"sharding_types": [kind]} for name, kind in zip(POOLING, kinds, strict=True)}
    return config(data, data__sparse=sparse, planner__tables=tables)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pooling")
    random = np.random.default_rng(0)
    lists = {name: [list(random.integers(0, 50, random.integers(0, 5))) for _ in range(ROWS)] for name in POOLING}
    columns = {name: pa.array(values, pa.list_(pa.int32())) for name, values in lists.items()}
    dense = {name: random.standard_normal(ROWS).astype(np.float32) for name in ("d0", "d1")}
    label = random.integers(0, 2, ROWS).astype(np.float32)
    pq.write_table(pa.table({**dense, **columns, "label": label}), folder / "rows.parquet")
    mixed = [
        {"config": planned(folder / "rows.parquet", kinds), "out": str(folder / name)} for name, kinds in MIXED.items()
    ]
    whole = {"config": planned(folder / "rows.parquet", ["table_wise"] * 4), "out": str(folder / "whole")}
    launch_rounds([(1, [whole]), (2, mixed)], folder)
    return folder


@pytest.mark.parametrize("name", MIXED)
def test_sums_and_means_do_not_depend_on_the_plan_of_other_tables(runs, name):
    """Beside a row-wise mean, TorchRec divides the sums of other tables too."""
    np.testing.assert_allclose(losses(runs / name), losses(runs / "whole"), rtol=1e-5)
