"""Attention in blocks, forward and gradients, against the full matrix of all tokens in float64."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import silu
from torch.utils.flop_counter import FlopCounterMode

from trainer.models.blocked_attention import silu_attention
from trainer.models.hstu import RelativeBias

DIVISOR, SCALE, MINUTE = 7.0, 0.4, 60
SIZES = [  # tokens, of which the last ones ask, and the block
    (1, 1, 1),
    (1, 1, 256),
    (2, 2, 1),
    (13, 13, 5),
    (13, 13, 13),
    (64, 64, 63),
    (100, 1, 8),
    (100, 37, 8),
    (257, 257, 256),
    (700, 700, 129),
]


class Pairs:
    """A bias that no function of the distance is, with weights that each pair of tokens uses."""

    def __init__(self, tokens, samples, heads, dtype):
        random = torch.Generator().manual_seed(1)
        sizes = (1, heads, tokens, 1), (samples, 1, 1, tokens)
        self.weights = [torch.randn(size, generator=random).to(dtype).requires_grad_() for size in sizes]

    def __call__(self, queries, keys):
        """Returns `[B, H, n, k]`."""
        asked, seen = self.weights
        return asked[:, :, queries] * seen[..., keys]


def parts(samples, heads, tokens, asking, columns, dtype):
    """Returns queries, keys, values and the gradient of what comes out; the first half of sample 0 is padding."""
    random = torch.Generator().manual_seed(0)
    found = [torch.randn(samples, heads, n, columns, generator=random) for n in (asking, tokens, tokens, asking)]
    found[2][0, :, : tokens // 2] = 0
    if samples > 2:
        found[2][1] = 0  # an empty history
    return [one.to(dtype).requires_grad_() for one in found]


def full(queries, keys, values, bias):
    others = keys.shape[2] - queries.shape[2]
    scores = SCALE * queries @ keys.mT
    if bias:
        scores = scores + bias(slice(others, keys.shape[2]), slice(0, keys.shape[2]))
    return silu(scores).tril(others) / DIVISOR @ values


def in_blocks(block):
    return lambda *inputs: silu_attention(*inputs[:3], divisor=DIVISOR, block=block, scale=SCALE, bias=inputs[3])


def computed(attention, inputs, bias):
    """Returns what comes out, and the gradients of all that goes in."""
    *inputs, down = inputs
    found = attention(*inputs, bias)
    learned = [*inputs, *(bias.weights if bias else [])]
    return [found.detach(), *torch.autograd.grad((found * down).sum(), learned)]


def assert_close(found, expected, relative):
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one.double() - other).abs().max() <= relative * other.abs().max()


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("tokens", "asking", "block"), SIZES)
def test_blocks_are_the_full_matrix(tokens, asking, block, has_bias):
    exact = parts(3, 2, tokens, asking, 4, torch.float64)
    bias = Pairs(tokens, 3, 2, torch.float64) if has_bias else None
    expected = computed(full, exact, bias)
    assert_close(computed(in_blocks(block), exact, bias), expected, 1e-12)
    single = [one.detach().float().requires_grad_() for one in exact]
    of_single = Pairs(tokens, 3, 2, torch.float32) if has_bias else None
    assert_close(computed(in_blocks(block), single, of_single), expected, 1e-5)


def test_a_long_history_is_the_full_matrix():
    exact = parts(1, 1, 4096, 4096, 2, torch.float64)
    expected = computed(full, exact, None)
    assert_close(computed(in_blocks(1000), exact, None), expected, 1e-12)
    single = [one.detach().float().requires_grad_() for one in exact]
    assert_close(computed(in_blocks(256), single, None), expected, 1e-5)


def test_distances_and_times_are_looked_up_in_each_block():
    tokens, random = 50, torch.Generator().manual_seed(2)
    by_distance, by_time = (torch.randn(size, generator=random).double().requires_grad_() for size in (tokens, 32))
    times = torch.randint(0, 10**6, (3, tokens), generator=random).cumsum(1)
    bias = RelativeBias(by_distance, by_time, (times + MINUTE, times))
    inputs = parts(3, 2, tokens, tokens, 4, torch.float64)
    expected = computed(full, inputs, bias)
    assert all(gradient.abs().max() > 0 for gradient in expected[-2:])
    assert_close(computed(in_blocks(7), inputs, bias), expected, 1e-12)
    by_time.requires_grad_(False)  # as optimizer.dense.frozen does
    found = in_blocks(7)(*inputs[:3], bias)
    (gradient,) = torch.autograd.grad((found * inputs[3]).sum(), [by_distance])
    assert_close([gradient], [expected[-2]], 1e-12)


@pytest.mark.parametrize("block", [64, 1024])
def test_scores_and_sums_of_half_precision_are_float32(block):
    """Beside a loop in float64 over the same rounded inputs: what is left is the rounding of results and weights."""
    inputs = [one.detach().bfloat16().requires_grad_() for one in parts(1, 2, 1024, 1024, 16, torch.float32)]
    exact = [one.detach().double().requires_grad_() for one in inputs]
    with torch.autocast("cpu", torch.bfloat16):
        found = computed(in_blocks(block), inputs, None)
    assert {one.dtype for one in found} == {torch.bfloat16}
    assert_close(found, computed(full, exact, None), 2**-7)


def kept(tokens, block):
    """Returns the bytes that are kept for backward."""
    inputs, sizes = parts(1, 2, tokens, tokens, 8, torch.float32)[:3], {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        in_blocks(block)(*inputs, None)
    return sum(sizes.values())


def test_what_is_kept_grows_with_the_length():
    assert [kept(tokens, 64) for tokens in (128, 256, 512)] == [3 * 2 * 8 * 4 * tokens for tokens in (128, 256, 512)]


def test_little_above_the_diagonal_is_computed():
    *inputs, down = parts(1, 1, 512, 512, 8, torch.float32)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad((in_blocks(64)(*inputs, None) * down).sum(), inputs)
    whole = 7 * 2 * 512 * 512 * 8  # two products forward; one again and four in backward
    assert counter.get_total_flops() == whole * (8 + 1) / (2 * 8)
