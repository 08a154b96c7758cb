"""The values that TorchRec's own tests of its metrics expect, from our metrics and from the installed TorchRec's."""

import math

import numpy as np
import pytest
import torch
from evaluated import computed
from torchrec.metrics.accuracy import AccuracyMetric
from torchrec.metrics.auc import AUCMetric
from torchrec.metrics.auprc import AUPRCMetric
from torchrec.metrics.calibration import CalibrationMetric
from torchrec.metrics.calibration_with_recalibration import RecalibratedCalibrationMetric
from torchrec.metrics.gauc import GAUCMetric
from torchrec.metrics.mae import MAEMetric
from torchrec.metrics.metrics_config import DefaultTaskInfo
from torchrec.metrics.mse import MSEMetric
from torchrec.metrics.ndcg import NDCGMetric
from torchrec.metrics.ne import NEMetric
from torchrec.metrics.ne_with_recalibration import RecalibratedNEMetric
from torchrec.metrics.precision import PrecisionMetric
from torchrec.metrics.rauc import RAUCMetric
from torchrec.metrics.recall import RecallMetric
from torchrec.metrics.segmented_ne import SegmentedNEMetric
from torchrec.metrics.xauc import XAUCMetric

UNKNOWN = None  # TorchRec compares with a formula there, not with a number
FIVE = {"predictions": [0.2, 0.6, 0.8, 0.4, 0.9], "labels": [1, 0, 0, 1, 1]}
AUC, COUNTED = FIVE | {"weights": [0.13, 0.2, 0.5, 0.8, 0.75]}, FIVE | {"weights": [0.3, 0.2, 0.5, 0.8, 0.7]}
CERTAIN = {"predictions": [1, 0, 0, 1, 1], "labels": [1, 0, 0, 1, 1]}
INVERSE = {"predictions": [0, 1, 1, 0, 0], "labels": [1, 0, 0, 1, 1]}
EQUAL = {"predictions": [0.5] * 6, "labels": [1, 0, 1, 0, 1, 0]}
RAMP = {"predictions": [0.0001 * number for number in range(10000)] * 2, "labels": [0] * 10000 + [1] * 10000}
APART, CROSSED = [1] * 5000 + [0] * 10000 + [1] * 5000, [0] * 5000 + [1] * 10000 + [0] * 5000
SHIFTED = {"predictions": [0.1, 0.2, 0.3, 0.4, 0.5], "labels": [1, 0, 1, 1, 0], "weights": [1, 1, 1, 0, 1]}
ONE_TASK = {
    "predictions": [0.2281, 0.1051, 0.4885, 0.7740, 0.3097],
    "labels": [1, 0, 0, 1, 0],
    "weights": [0.6334, 0.6937, 0.6631, 0.5078, 0.3570],
}
OTHER_TASK = {
    "predictions": [0.4658, 0.3445, 0.6048, 0.6587, 0.5088],
    "labels": [1, 1, 1, 1, 0],
    "weights": [0.2637, 0.2479, 0.2697, 0.6500, 0.7583],
}
SESSIONS = {"predictions": [0.1, 0.5, 0.3, 0.4, 0.2, 0.1], "labels": [1, 0, 1, 1, 0, 1], "groups": [1, 1, 1, 2, 2, 2]}
FALLING = {"predictions": [0.9, 0.8, 0.7, 0.6, 0.5], "labels": [1, 0, 1, 1, 0], "groups": [0, 0, 0, 1, 1]}
HARD = {
    "predictions": [0.3, 0.9, 0.1, 0.8, 0.2, 0.8, 0.7, 0.6, 0.5, 0.5],
    "labels": [1, 1, 1, 0, 0, 1, 0, 1, 1, 0],
    "groups": [0, 0, 1, 1, 1, 2, 2, 2, 3, 3],
}
PAIRS = {"predictions": [0.1, 0.2, 0.3, 0.4, 0.5], "labels": [0.2, 0.1, 0.3, 0.5, 0.25], "weights": [1, 1, 1, 0, 1]}
SWAPPED = {"predictions": [1, 2, 3, 4], "labels": [2, 1, 4, 3]}
GROUPED = {"grouped_auc": True}
CASES = {
    # name: (the value, our metric, TorchRec's with its options, the samples)
    "auc": (0.4464, "auc", AUCMetric, {}, AUC),
    "auc, apart": (1, "auc", AUCMetric, {}, RAMP | {"weights": APART}),
    "auc, crossed": (0, "auc", AUCMetric, {}, RAMP | {"weights": CROSSED}),
    "auc, balanced": (0.5, "auc", AUCMetric, {}, RAMP),
    "gauc": (0.2419, "gauc", AUCMetric, GROUPED, AUC | {"groups": [0, 1, 0, 1, 1]}),
    "gauc, certain": (1, "gauc", AUCMetric, GROUPED, CERTAIN | {"groups": [1, 1, 0, 0, 1]}),
    "gauc, inverse": (0, "gauc", AUCMetric, GROUPED, INVERSE | {"groups": [0, 1, 0, 1, 1]}),
    "gauc, ties": (0.5, "gauc", AUCMetric, GROUPED, EQUAL | {"groups": [1, 1, 1, 0, 0, 0]}),
    "gauc, one group": (0.4464, "gauc", AUCMetric, GROUPED, AUC | {"groups": [1] * 5}),
    "gauc of candidates": (0.75, "gauc", GAUCMetric, {}, FALLING),
    "auprc": (0.8291, "auprc", AUPRCMetric, {}, AUC),
    "auprc, crossed": (0.3069, "auprc", AUPRCMetric, {}, RAMP | {"weights": CROSSED}),
    "auprc, certain": (1, "auprc", AUPRCMetric, {}, CERTAIN),
    "normalized entropy": (1.3936, "normalized_entropy", NEMetric, {}, AUC),
    "recalibrated": (2.8214, "normalized_entropy", RecalibratedNEMetric, {"recalibration_coefficient": 0.1}, SHIFTED),
    "calibration": (UNKNOWN, "calibration", CalibrationMetric, {}, AUC),
    "recalibrated calibration": (
        0.0837,
        "calibration",
        RecalibratedCalibrationMetric,
        {"recalibration_coefficient": 0.1},
        SHIFTED,
    ),
    "accuracy": (0.28, "accuracy@0.6", AccuracyMetric, {"threshold": 0.6}, COUNTED),
    "accuracy, certain": (1, "accuracy@0.6", AccuracyMetric, {"threshold": 0.6}, CERTAIN),
    "accuracy, inverse": (0, "accuracy@0.1", AccuracyMetric, {"threshold": 0.1}, INVERSE),
    "accuracy, apart": (1, "accuracy@0.5", AccuracyMetric, {}, RAMP | {"weights": APART}),
    "accuracy, crossed": (0, "accuracy@0.5", AccuracyMetric, {}, RAMP | {"weights": CROSSED}),
    "accuracy, balanced": (0.5, "accuracy@0.5", AccuracyMetric, {}, RAMP),
    "precision": (0.5, "precision@0.6", PrecisionMetric, {"threshold": 0.6}, COUNTED),
    "precision, certain": (1, "precision@0.6", PrecisionMetric, {"threshold": 0.6}, CERTAIN),
    "precision, inverse": (0, "precision@0.1", PrecisionMetric, {"threshold": 0.1}, INVERSE),
    "recall": (0.7 / 1.8, "recall@0.6", RecallMetric, {"threshold": 0.6}, COUNTED),
    "recall, certain": (1, "recall@0.6", RecallMetric, {"threshold": 0.6}, CERTAIN),
    "recall, inverse": (0, "recall@0.1", RecallMetric, {"threshold": 0.1}, INVERSE),
    "mae": (UNKNOWN, "mae", MAEMetric, {}, PAIRS),
    "mse": (UNKNOWN, "mse", MSEMetric, {}, PAIRS),
    "rmse": (UNKNOWN, "rmse", MSEMetric, {}, PAIRS),
    "xauc": (0.6667, "xauc", XAUCMetric, {}, PAIRS),
    "regression auc": (2 / 3, "xauc", RAUCMetric, {}, SWAPPED),
    "ndcg": (1 - (0.3066 + 0.0803) / 2, "ndcg@10", NDCGMetric, {}, SESSIONS),
    "ndcg of the first": (1 - (0.6131 + 0.3869) / 2, "ndcg@2", NDCGMetric, {"k": 2}, SESSIONS),
}
ROWS = [0, 2, 3], [1, 4]  # of the groups 0 and 1
OF_VALUES = ("mae", "mse", "rmse", "xauc")
NAMES = {
    RAUCMetric: "rauc",
    GAUCMetric: "gauc",
    NEMetric: "ne",
    RecalibratedNEMetric: "ne",
    RecalibratedCalibrationMetric: "calibration",
}
"""TorchRec's names of values, where they differ from ours."""


def ours(metric, columns, move=0.0):
    """Our metric of probabilities or, of values, of values; `move` is added to logits."""
    columns = {name: np.array(values, np.int64 if name == "groups" else float) for name, values in columns.items()}
    columns.setdefault("weights", np.ones(len(columns["labels"])))
    if metric in OF_VALUES:
        return computed([metric], columns, output="value")[metric]
    with np.errstate(divide="ignore"):
        logits = np.log(columns["predictions"]) - np.log1p(-columns["predictions"])
    return computed([metric], columns | {"predictions": logits.clip(-50, 50) + move})[metric]


def theirs(metric, columns, **options):
    """TorchRec's metric of all samples at once, by the names that it gives its values."""
    task = DefaultTaskInfo.name
    columns = {"weights": [1.0] * len(columns["labels"]), **columns}
    of_samples = {name: {task: torch.tensor([columns[name]]).float()} for name in ("predictions", "labels", "weights")}
    groups = torch.tensor(columns.get("groups", []))
    if metric is GAUCMetric:
        of_samples["num_candidates"] = groups.unique_consecutive(return_counts=True)[1]
    elif metric is NDCGMetric:
        options |= {"session_key": "session", "report_ndcg_as_decreasing_curve": False}
        of_samples["required_inputs"] = {"session": groups}
    elif len(groups):
        of_samples["required_inputs"] = {"grouping_keys": groups}
    size = len(columns["labels"])
    of_run = {"world_size": 1, "my_rank": 0, "batch_size": size, "window_size": max(100, size)}
    found = metric(tasks=[DefaultTaskInfo], **of_run, **options)
    found.update(**of_samples)
    return {name.partition("|")[2]: value.item() for name, value in found.compute().items()}


@pytest.mark.parametrize("case", CASES)
def test_ours_is_the_golden_value_and_torchrec_s(case):
    golden, name, metric, options, columns = CASES[case]
    # Recalibrated by a coefficient, a probability p is p / (p + (1 - p) / coefficient): its logit moves.
    found = ours(name, columns, math.log(options.get("recalibration_coefficient", 1.0)))
    own_name = "grouped_auc" if options == GROUPED else NAMES.get(metric, name.partition("@")[0])
    assert found == pytest.approx(theirs(metric, columns, **options)[f"window_{own_name}"], abs=1e-5)
    if golden is not UNKNOWN:
        assert found == pytest.approx(golden, abs=1e-4)


SEGMENTS = {
    "two": (AUC, [0, 1, 0, 1, 1], [3.1615, 1.6004]),
    "all in one": (AUC, [0] * 5, [1.3936]),
    "three": (
        {"predictions": [*AUC["predictions"], 0.4], "labels": [*AUC["labels"], 0], "weights": [*AUC["weights"], 0.4]},
        [0, 1, 0, 1, 2, 2],
        [3.1615, 1.8311, 0.3814],
    ),
    "another task": (AUC | {"predictions": [0.6, 0.2, 0.4, 0.8, 0.9]}, [0, 1, 0, 1, 1], [1.0034, 0.4859]),
}


@pytest.mark.parametrize("case", SEGMENTS)
def test_the_normalized_entropy_of_each_segment(case):
    columns, segments, expected = SEGMENTS[case]
    values = theirs(
        SegmentedNEMetric, columns | {"groups": segments}, num_groups=len(expected), grouping_keys="grouping_keys"
    )
    for segment, golden in enumerate(expected):
        here = np.array(segments) == segment
        found = ours("normalized_entropy", {name: np.array(value)[here] for name, value in columns.items()})
        assert found == pytest.approx(golden, abs=1e-4)
        assert found == pytest.approx(values[f"lifetime_segmented_ne_{segment}"], abs=1e-4)


def test_what_torchrec_counts_in_another_way():
    """A group of one class has 0.5 in its grouped AUC; a group whose predictions are equal is left out of its GAUC."""
    alone = FIVE | {"labels": [1] * 5, "groups": [1, 0, 0, 1, 0]}
    assert theirs(AUCMetric, alone, **GROUPED)["window_grouped_auc"] == 0.5
    assert math.isnan(ours("gauc", alone))
    for task, golden in ((ONE_TASK, 0.4725), (OTHER_TASK, 0.25)):
        task = task | {"groups": [0, 1, 0, 0, 1]}
        sides = [ours("gauc", {name: np.array(values)[rows] for name, values in task.items()}) for rows in ROWS]
        both = [0.5 if math.isnan(side) else side for side in sides]
        assert np.mean(both) == pytest.approx(golden, abs=1e-4)
        assert theirs(AUCMetric, task, **GROUPED)["window_grouped_auc"] == pytest.approx(golden, abs=1e-4)
        assert ours("gauc", task) == pytest.approx(np.nanmean(sides))
    found = theirs(GAUCMetric, HARD)
    assert (found["window_gauc"], found["window_gauc_num_samples"]) == (pytest.approx(0.25), 2)
    assert ours("gauc", HARD) == pytest.approx((0.25 * 2 + 0.5) / 3)
