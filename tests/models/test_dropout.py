"""Dropout: its masks against NumPy, and that they depend on nothing but seed, step, sample, layer and column."""

import numpy as np
import pytest
import torch

from trainer.core.arrays import mix
from trainer.models.dropout import Dropout
from trainer.models.step_samples import StepSamples

SEED, STEP, ROWS, COLUMNS, RATE = 5, 9, 64, 96, 0.3


def at(first=0, rows=ROWS, seed=SEED, step=STEP, layers=1, **options):
    """Returns the last of some layers, before samples of a step."""
    samples = StepSamples()
    found = [Dropout(RATE, samples, **options) for _ in range(layers)][-1]
    samples.begin(seed, step, torch.arange(first, first + rows), torch.ones(rows))
    return found


def expected(layer=1):
    """Returns the mask by unsigned arithmetic, `[ROWS, COLUMNS]`: True where a value stays."""
    (of_step,) = np.random.SeedSequence((SEED, STEP)).generate_state(1, np.uint64)
    rows = mix(np.arange(ROWS, dtype=np.uint64) + of_step).astype(np.uint32)
    columns = mix(np.arange(COLUMNS, dtype=np.uint64) + (np.uint64(layer) << np.uint64(40))).astype(np.uint32)
    bits = rows[:, None] ^ columns
    for factor in (0x7FEB352D, 2**32 - 0x7B935975):
        bits = bits * np.uint32(factor)
        sign = np.where(bits >> np.uint32(31), np.uint32(0xFFFE0000), np.uint32(0))
        bits ^= bits >> np.uint32(15) | sign
    return bits >= round(RATE * 2**31)


@pytest.mark.parametrize("layer", [1, 3])
def test_values_stay_by_a_hash_and_are_scaled_up(layer):
    values = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found = at(layers=layer)(values)
    kept = expected(layer)
    np.testing.assert_allclose(found.detach(), np.where(kept, values.detach(), 0) / (1 - RATE), rtol=1e-6)
    found.sum().backward()
    np.testing.assert_allclose(values.grad, kept / (1 - RATE), rtol=1e-6)


def test_masks_are_as_random_as_coins():
    ones = torch.ones(1024, 512)
    found = (at(rows=1024)(ones) > 0).numpy()
    spread = (RATE * (1 - RATE)) ** 0.5
    assert abs(found.mean() - (1 - RATE)) < 5 * spread / found.size**0.5
    coins = (found - (1 - RATE)) / spread
    for one in (coins, coins.T):  # samples, then columns: neither their means nor their pairs are alike
        assert 0.9 < one.mean(axis=1).std() * one.shape[1] ** 0.5 < 1.1
        pairs = one @ one.T / one.shape[1]
        np.fill_diagonal(pairs, 0)
        assert 0.98 < pairs.std() * one.shape[1] ** 0.5 < 1.02


def test_a_mask_depends_on_seed_step_and_layer():
    ones = torch.ones(ROWS, COLUMNS)
    masks = [at(**given)(ones) for given in ({}, {"seed": SEED + 1}, {"step": STEP + 1}, {"layers": 2})]
    alike = [(masks[0] == other).float().mean().item() for other in masks]
    chance = RATE**2 + (1 - RATE) ** 2
    assert alike == [1, *3 * [pytest.approx(chance, abs=0.04)]]


@pytest.mark.parametrize("from_the_end", [False, True])
def test_a_mask_does_not_depend_on_the_batch_the_order_or_the_padding(from_the_end):
    items = torch.ones(ROWS, 6, 16)
    whole = at(from_the_end=from_the_end)(items)
    part = at(first=48, rows=16, from_the_end=from_the_end)(items[48:])
    assert torch.equal(part, whole[48:])
    some, shorter = np.array([40, 3, 17]), whole[:, -4:] if from_the_end else whole[:, :4]
    layer = at(from_the_end=from_the_end)
    with layer.samples.only(some):
        assert torch.equal(layer(items[:3, :4]), shorter[some])
    assert torch.equal(layer(items), whole)


def test_nothing_is_dropped_outside_of_training():
    layer = at(rows=8).eval()
    values = torch.ones(ROWS, COLUMNS)  # of another number of samples than the step had
    assert layer(values) is values
    with layer.samples.only(np.array([60])):
        assert layer(values) is values
