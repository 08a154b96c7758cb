"""Wrong input around DLRMv4 in small: one line that names the flag, its value and what to do, and exit code 2."""

import contextlib
import shlex

import pytest

from torchx_recsys.apps.datasets.yambda import yambda
from trainer.__main__ import main as trainer

TRAIN = "train dlrmv4_small --out out "
WRONG = [
    ("--data.history.log nowhere", "data.history.log is 'nowhere', which holds no log.json; name a directory"),
    ("--data.history.log None", "data.history.among is set, but data.history.log is not; name the directory"),
    ("--data.history.user nobody", "no column 'nobody', which data.history.user names; the file has: label, uid"),
    ("--data.history.time label", "column 'label' is of type float; data.history.time takes timestamps"),
    ("--data.history.length 0", "--data.history.length is 0: input should be greater than 0"),
    ("--data.history.among 0", "--data.history.among is 0: input should be greater than 0"),
    ("--data.history.each itme_id", "data.history.each is 'itme_id', which the log at data/yambda/log lacks; did you"),
    ("--data.history.each timestamp", "data.history.each is 'timestamp', a column of the log with"),
    ("--data.history.where action", "data.history.where has ['action']; a condition is a column, a comparison"),
    ("--data.history.colums.items_before item_id", "did you mean --data.history.columns.items_before?"),
    ("--data.history.columns.items_before itme", "data.history.columns.items_before is 'itme', which the log at"),
    ("--data.sparse.items_before.max_ids 20", "data.sparse.actions_before.max_ids is 48, but model.actions names"),
    ("--data.sparse.actions_before.rows 16", "model.action_bits is 3, for numbers below 8, but data.sparse.actions"),
    ("--data.sparse.times_before.pooling none", "but model.history_times names 'times_before'; set it to 'raw'"),
    ("--model.attention_block 1.5", "--model.attention_block is '1.5': input should be a valid integer"),
    ("--model.attention_divisor 0", "--model.attention_divisor is 0.0: input should be greater than 0"),
    ("--model.attention_divisor nan", "--model.attention_divisor is nan: input should be a finite number"),
    ("--model.attention_heads 3", "model.attention_heads is 3, which does not divide the dimension 32"),
    ("--model.dropout 1", "--model.dropout is 1.0: input should be less than 1"),
    ("--model.action_bits 64", "--model.action_bits is 64: input should be less than or equal to 31"),
    ("--model.context item_hours", "model.context names 'item_hours', which is no sparse feature; did you mean"),
    ("--model.context items_before", "data.sparse.items_before.max_ids is 48, but model.context names 'items"),
    ("--model.target_attributes artist_id", "model.target_attributes is ['artist_id']; name the same attributes"),
    ("--model.target_time None", "model.history_times is 'times_before' and model.target_time is None; set both"),
    ("--model.history None", "model.actions names 'actions_before', but model.history is unset; set it"),
    ("--train.recompute maybe", "--train.recompute is 'maybe': it must be true or false"),
    ("--evaluate.every_samples -1", "--evaluate.every_samples is -1: input should be greater than or equal to 0"),
    (
        "--evaluate.every_steps 3 --evaluate.every_samples 25600",
        "evaluate.every_steps is 3 and evaluate.every_samples is 25600; set one of them",
    ),
    (
        "--evaluate.every_samples 0 --evaluate.first_after 5",
        "evaluate.first_after is 5, but evaluate.every_samples and",
    ),
    ("--report.mlperf_log.division open", "is 'open', but report.mlperf_log.organization is not set"),
    ("--report.mlperf_log.organization ''", "--report.mlperf_log.organization is ''"),
    (
        "--report.mlperf_log.organization us --train.stop_early.target None",
        "report.mlperf_log.organization is 'us', but train.stop_early.target is not set",
    ),
    ("--data.segments.path data/yambda/train", "data.segments.path is 'data/yambda/train', which must have {segment}"),
    ("--train.steps 5", "train.steps is set, and so is data.segments.path"),
]
WRONG_DATA = [
    ("yambda --out ''", "--out is ''; name a directory, any fsspec URL"),
    ("yambda --out new --seed -1", "--seed is -1; it must be 0 or more"),
    (
        "yambda --out new --size 50m",
        "--size is 50m, which is read from Yambda's files; name their directory as --source",
    ),
    ("yambda --out new --size 5g", "--size is '5g': input should be '50m', '500m', '5b' or 'generated'"),
    ("yambda --out new --users 0", "--users is 0; it must be 1 or more"),
    ("yambda --out new --genres 3", "--genres is 3; it must be even"),
    ("yambda --out new --beta nan", "--beta is nan: input should be a finite number"),
    ("yambda --out new --other-users 1", "--other-users is 1.0; it must be a share from 0 to below 1"),
    ("yambda --out new --source nowhere", "--source is 'nowhere', which is not there; name Yambda's directory"),
    ("yambda --out short --users 60 --min-history 5000", "--min-history is 5000, after which samples are of 0 windows"),
    ("yambda --out data/yambda --users 90", "data/yambda holds a data set made with users = 60, and now it is 90"),
    ("sort-log --source data/yambda/train --out data/yambda/log --user uid --time timestamp", "or add --overwrite"),
    ("sort-log --source data/yambda/train --out sorted --user uid --time label", "--time is 'label', a column of type"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with a small log and its samples."""
    folder = tmp_path_factory.mktemp("wrong")
    with contextlib.chdir(folder):
        yambda(users=60)
    return folder


@pytest.mark.parametrize(("flags", "says"), [*((TRAIN + flags, says) for flags, says in WRONG), *WRONG_DATA])
def test_wrong_input_is_refused_in_one_line(folder, flags, says, capfd):
    with contextlib.chdir(folder):
        assert trainer(shlex.split(flags)) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert says in error
    assert not (folder / "out/checkpoints").exists()
    assert "nowhere" not in flags or not (folder / "new").exists()
