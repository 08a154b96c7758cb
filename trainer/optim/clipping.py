"""Clipping of gradients: of the dense part by norm or value, of the tables by value."""

from collections.abc import Iterable

from torch import Tensor, nn

from trainer.config.optimizer import DenseOptimizerConfig


def clip(parameters: Iterable[nn.Parameter], config: DenseOptimizerConfig) -> Tensor | None:
    """Clips gradients in place, by their norm or by their values, as configured.

    Needs no collective: every rank has the same gradients of the dense part, averaged over the ranks.

    Returns:
        The norm of all gradients together before clipping; None if clipping is off.
    """
    if config.max_norm is None and config.max_value is None:
        return None
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    if config.max_norm is not None:
        return nn.utils.clip_grad_norm_(trained, config.max_norm, config.norm_type)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in trained], config.norm_type)  # pyrefly: ignore
    assert config.max_value is not None
    nn.utils.clip_grad_value_(trained, config.max_value)
    return norm


def clamp(gradients: Iterable[Tensor], max_gradient: float | None, world_size: int) -> None:
    """Clamps each value of the tables' gradients, in place, to a size that does not depend on plan and ranks.

    Args:
        gradients: This rank's gradients of embeddings, the mean over ranks still to be taken.
        max_gradient: The largest absolute value; None clamps nothing.
        world_size: Number of ranks.
    """
    if max_gradient is not None:
        for gradient in gradients:
            gradient.clamp_(-max_gradient * world_size, max_gradient * world_size)
