"""Dense values: an export refuses the numbers that training refuses, and no others."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
import torch

from trainer.config.features import DenseFeature
from trainer.rules.dense import filled, has_dense_value, transformed

VALUES = [
    None,
    0.0,
    -1.0,
    -3.0,
    -2.999,
    1e-3,
    88.0,
    *(sign * 10.0**power for sign in (1, -1) for power in range(30, 39)),
]
MEANS, STDS, MISSING = (0.0, 3e38, -3e38), (1.0, 1e-3, 1e-36, 1e6), (0.0, -3.0, 3e37)
CLIPS = ([], [-10.0, 1e30], [-3e38, 3e38])


@pytest.mark.parametrize("transform", ["none", "log1p", "log3"])
def test_numbers_without_a_finite_value(transform):
    array = pa.array(VALUES, pa.float32())
    raw = array.to_numpy(zero_copy_only=False)
    refused = 0
    for mean, std, missing, clip in itertools.product(MEANS, STDS, MISSING, CLIPS):
        feature = DenseFeature(transform=transform, mean=mean, std=std, missing=missing, clip=clip)
        with np.errstate(all="ignore"):
            trained = np.isfinite(transformed(filled(array, feature), feature))
            keys = feature.model_dump()
            np.testing.assert_array_equal(has_dense_value(raw, keys, np), trained)
            np.testing.assert_array_equal(has_dense_value(torch.from_numpy(raw), keys, torch), trained)
        refused += np.count_nonzero(~trained)
    assert refused
