"""An export is compared with the trainer on what a client would send: ids before the sample, and their weights."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sequences import sequence_config, write_histories

from torchx_recsys.apps.export.reference import ALONE, plain_answers, read_rows, torchrec_answers
from torchx_recsys.apps.export.signature import signature
from torchx_recsys.apps.export.tables import replace_tables
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.models.builder import build_model
from trainer.training.id_map import IdMap

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
    (part,) = read_rows(files, config.data, IdMap(config.data, ALONE))
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


def test_actions_have_their_weights_in_an_export(tmp_path):
    folder = write_histories(tmp_path / "data", 40)
    config = Config.model_validate(sequence_config(folder, "hstu"))
    model = build_model(config.data, config.model, config.predictions(), torch.device("cpu"))
    drawn = {name: torch.randn(one.shape) for name, one in model.state_dict().items() if one.is_meta}
    model.load_state_dict(drawn, strict=False, assign=True)
    files = find_files("data.train", config.data.train, config.data)
    batch = next(read_rows(files, config.data, IdMap(config.data, ALONE))).batch
    expected = torchrec_answers(model, batch)
    replace_tables(model, config.data)
    torch.testing.assert_close(plain_answers(model, batch), expected)
    batch.sparse.weights().fill_(1)
    assert (plain_answers(model, batch) - expected).abs().max() > 1e-3
