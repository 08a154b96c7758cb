"""Causal attention without a softmax, in blocks of queries: its memory grows with the length, not with its square.

Backward needs queries, keys and values alone, and computes the weights of each block anew. A block sees the keys up to
its last query, so that little above the diagonal is computed. Without a softmax each block is whole by itself. Torch's
`scaled_dot_product_attention` and `flex_attention` have no attention without one.

Legend: `B` samples, `H` heads, `Q` queries, `L` keys, `C` columns of a head; `n` queries of a block, `k` keys that it
sees. Inside, samples and heads are one dimension.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


class Bias(Protocol):
    """What is added to the scores of a block, and the weights that it is made of."""

    @property
    def weights(self) -> Sequence[Tensor]:
        """The weights."""
        ...

    def __call__(self, queries: slice, keys: slice) -> Tensor:
        """Returns the bias between the tokens in these places, `[B or 1, H or 1, n, k]`."""
        ...


@dataclass(frozen=True)
class _Options:
    """What all blocks share; `others` is the number of tokens before the first query."""

    divisor: float
    block: int
    scale: float
    bias: Bias | None
    heads: int
    others: int

    def blocks(self, queries: int) -> Iterator[tuple[slice, int]]:
        """Yields the places of the queries of each block, and the number of keys that it sees."""
        for start in range(0, queries, self.block):
            stop = min(start + self.block, queries)
            yield slice(start, stop), self.others + stop

    def bias_of(self, here: slice, seen: int) -> Tensor | None:
        """Returns the bias of a block."""
        places = slice(self.others + here.start, self.others + here.stop)
        return self.bias(places, slice(0, seen)) if self.bias else None


def silu_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    divisor: float,
    block: int,
    scale: float = 1.0,
    bias: Bias | None = None,
) -> Tensor:
    """Returns the sum of the values up to each query, by weights `SiLU(scale * score + bias) / divisor`.

    Scores, weights and sums are float32 at least, whatever the inputs are.

    Args:
        queries: `[B, H, Q, C]`, of the last tokens.
        keys: `[B, H, L, C]`, of all tokens. No query sees a key after its own.
        values: `[B, H, L, C]`; zeros where a token is padding.
        divisor: What the weights are divided by.
        block: Most queries of a block. Another number rounds differently.
        scale: Factor of the scores, the products of queries and keys.
        bias: What is added to them.

    Returns:
        `[B, H, Q, C]`.
    """
    heads, asking = queries.shape[1:3]
    options = _Options(divisor, block, scale, bias, heads, keys.shape[2] - asking)
    # In one piece, or the products of each block would copy all keys.
    queries, keys, values = (one.flatten(0, 1) for one in (queries, keys, values))
    if asking <= block and queries.dtype == _exact(queries.dtype):
        # Left to autograd, which is faster: a single block keeps about as much as the layers around it.
        of_block = options.bias_of(slice(0, asking), keys.shape[1])
        found = _attended(queries, keys, values, of_block, scale, divisor, heads)
    else:
        found = _in_blocks(options, torch.compiler.is_compiling(), queries, keys, values)
    return found.unflatten(0, (-1, heads))


# Not in a compiled graph, which would have as many blocks as the first length.
@torch.compiler.disable
def _in_blocks(options: _Options, is_compiled: bool, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return _forward(options, is_compiled, queries, keys, values)
    weights = options.bias.weights if options.bias else ()
    return _Blocks.apply(options, is_compiled, queries, keys, values, *weights)  # pyrefly: ignore[bad-return]


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: _Options, is_compiled: bool, *inputs: Tensor) -> Tensor:
        queries, keys, values, *_ = inputs  # the others are here for their gradients
        ctx.options, ctx.is_compiled = options, is_compiled
        ctx.save_for_backward(queries, keys, values)
        return _forward(options, is_compiled, queries, keys, values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        return None, None, *_backward(ctx.options, ctx.is_compiled, gradients[0], *ctx.saved_tensors)


def _forward(options: _Options, is_compiled: bool, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    attended = _maybe_compiled(_attended, is_compiled)
    found = []
    with _without_autocast(queries):
        for here, seen in options.blocks(queries.shape[1]):
            bias = options.bias_of(here, seen)
            parts = queries[:, here], keys[:, :seen], values[:, :seen], bias
            found.append(attended(*parts, options.scale, options.divisor, options.heads))
    return torch.cat(found, dim=1)


def _backward(
    options: _Options, is_compiled: bool, gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> list[Tensor]:
    """Returns the gradients of queries, keys, values and the weights of the bias."""
    gradients_of = _maybe_compiled(_gradients, is_compiled)
    gradient = (gradient.to(_exact(gradient.dtype)) / options.divisor).to(queries.dtype)
    totals = [torch.zeros_like(one, dtype=_exact(one.dtype)) for one in (queries, keys, values)]
    weights = [*options.bias.weights] if options.bias else []
    of_weights = [torch.zeros_like(one) for one in weights]
    for here, seen in options.blocks(queries.shape[1]):
        places = here, slice(0, seen), slice(0, seen)
        with torch.enable_grad():
            bias = options.bias_of(here, seen)
        parts = [one[:, place] for one, place in zip((queries, keys, values), places, strict=True)]
        known = None if bias is None else bias.detach()
        *found, of_scores = gradients_of(gradient[:, here], *parts, known, options.scale, options.heads)
        for total, place, one in zip(totals, places, found, strict=True):
            total[:, place] += one
        if bias is not None and bias.requires_grad:
            _add_gradients(of_weights, weights, bias, of_scores.unflatten(0, (-1, options.heads)))
    return [total.to(queries.dtype) for total in totals] + of_weights


def _add_gradients(totals: list[Tensor], weights: list[Tensor], bias: Tensor, of_scores: Tensor) -> None:
    learned = [place for place, weight in enumerate(weights) if weight.requires_grad]
    found = torch.autograd.grad(bias, [weights[place] for place in learned], of_scores.sum_to_size(bias.shape))
    for place, one in zip(learned, found, strict=True):
        totals[place] += one


def _attended(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float, divisor: float, heads: int
) -> Tensor:
    """Returns what the queries of a block see, `[B H, n, C]`."""
    scores = _scores(queries, keys, bias, scale, heads)
    weights = _before(functional.silu(scores, inplace=not torch.is_grad_enabled()))
    return (_product(weights.to(values.dtype), values) / divisor).to(values.dtype)


def _gradients(
    gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of queries, keys and values of a block, and of its scores with scale and bias."""
    scores = _scores(queries, keys, bias, scale, heads)
    weights = _before(functional.silu(scores))
    of_values = _product(weights.to(values.dtype).mT, gradient)
    of_scores = _before(torch.ops.aten.silu_backward(_product(gradient, values.mT), scores))
    rounded = (of_scores * scale if scale != 1 else of_scores).to(queries.dtype)
    return _product(rounded, keys), _product(rounded.mT, queries), of_values, of_scores


def _scores(queries: Tensor, keys: Tensor, bias: Tensor | None, scale: float, heads: int) -> Tensor:
    scores = _product(queries, keys.mT)
    if scale != 1:
        scores *= scale
    if bias is None:
        return scores
    of_heads = scores.unflatten(0, (-1, heads))
    # Autograd would copy the gradients of what is added to in place through a view.
    return (of_heads + bias if torch.is_grad_enabled() else of_heads.add_(bias)).flatten(0, 1)


def _before(scores: Tensor) -> Tensor:
    """Returns the scores of keys up to each query, and zeros; the last keys are those of the queries."""
    others = scores.shape[2] - scores.shape[1]
    if torch.is_grad_enabled():
        return scores.tril(others)
    scores[:, :, others:].tril_()  # the only ones that come after any of the queries
    return scores


def _product(one: Tensor, other: Tensor) -> Tensor:
    """Returns the products of matrices, summed and returned in float32 at least."""
    if one.dtype == _exact(one.dtype):
        return one @ other
    return torch.bmm(one, other, out_dtype=torch.float32) if one.is_cuda else one.float() @ other.float()


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _maybe_compiled(function: Callable[..., Any], is_compiled: bool) -> Callable[..., Any]:
    return _compiled(function) if is_compiled else function


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)
