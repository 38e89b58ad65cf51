"""Max pooling on a processor, in a fraction of the time: the same values, and gradients to the same places.

Torch's kernel takes one number after the other where an image lies channel by channel; where it lies pixel by pixel
the channels of a pixel go through together. So the image is laid out anew for the time of the pooling, there and back.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.gradients.tape import DATA_ALONE, rule

FEWEST = 8  # channels: as many as a vector holds
SMALL = 1 << 14  # numbers: below, to lay them out takes longer than to pool them


class _MaxPool(torch.autograd.Function):
    """(rows, channels, height, width) -> the largest of each window; among equals the first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *how: Any) -> Tensor:
        pixels = x.contiguous(memory_format=torch.channels_last)
        y, places = torch.ops.aten.max_pool2d_with_indices(pixels, *how)
        ctx.save_for_backward(x, places.contiguous())
        ctx.how = how
        return y.contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, places = ctx.saved_tensors
        into = torch.ops.aten.max_pool2d_with_indices_backward(grad.contiguous(), x, *ctx.how, places)
        return into, *[None] * len(ctx.how)


@rule(F.max_pool2d, torch.max_pool2d, table=DATA_ALONE)
def max_pool2d(func: Any, input: Tensor, *others: Any, **named: Any) -> Any:
    """The usual form, images of several channels that lie channel by channel; any other runs as it is."""
    usual = (
        input.ndim == 4
        and input.device.type == "cpu"
        and input.dtype in (torch.float32, torch.float64)
        and input.shape[1] >= FEWEST
        and input.numel() > SMALL
        and input.is_contiguous()
    )
    how = _arguments(*others, **named) if usual else None
    return func(input, *others, **named) if how is None else _MaxPool.apply(input, *how)


def _arguments(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Any, ...] | None:
    """As torch's operation takes them; None if places are asked for, or sizes are no plain numbers."""
    sizes = [kernel_size, kernel_size if stride is None else stride, padding, dilation]
    whole = [
        [size] if isinstance(size, int) else list(size)
        for size in sizes
        if isinstance(size, (int, tuple, list))
    ]
    plain = len(whole) == len(sizes) and all(type(each) is int for size in whole for each in size)
    return (*whole, ceil_mode) if plain and not return_indices else None
