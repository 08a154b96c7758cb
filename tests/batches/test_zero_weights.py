"""Samples that all weigh nothing: training continues, with one warning."""

import pyarrow as pa
import pyarrow.parquet as pq
from jobs import config, launch, losses


def test_all_weights_zero_is_reported_once(rows, tmp_path):
    for file in rows.glob("*.parquet"):
        table = pq.read_table(file)
        table = table.append_column("nothing", pa.array([0.0] * len(table)))
        pq.write_table(table.append_column("one", pa.array([1.0] * len(table))), tmp_path / file.name)
    for weight in ("nothing", "one"):
        job = {"config": config(tmp_path, train__steps=3, data__weight=weight), "out": str(tmp_path / weight)}
        warnings = [line for line in launch([job], 1, tmp_path).splitlines() if line.startswith("warning: ")]
        if weight == "one":
            assert warnings == []
        else:
            assert len(warnings) == 1
            assert all(words in warnings[0] for words in ("nothing is learned", "weight 0", "data.weight"))
            assert losses(tmp_path / weight) == [0, 0, 0]
