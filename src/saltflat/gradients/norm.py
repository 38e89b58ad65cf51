"""Normalisation layers with affine parameters: y = gamma * z + beta, so g_gamma = sum y' z and g_beta = sum y'."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.errors import ModelError
from saltflat.gradients.parts import Part, precise
from saltflat.gradients.tape import Tape, Weight, rule


@rule(F.layer_norm)
def layer_norm(
    tape: Tape,
    func: Any,
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """z_t = (x_t - mean_t) / std_t over the last axes: sum y' z = sum_t (y'_t x_t) / std_t - y'_t mean_t / std_t."""
    tape.check_rows(func, x)
    y, mean, std_inverse = torch.native_layer_norm(x, list(normalized_shape), weight, bias, eps)
    mean, std_inverse = mean.detach(), std_inverse.detach()
    w, b = tape.weight(weight), tape.weight(bias)
    tail = len(normalized_shape)

    def keep(grad: Tensor) -> list[Part]:
        by_position = lambda t: precise(t).reshape(tape.rows, -1, t.shape[-tail:].numel())
        flat, of_x, shift, scale = map(by_position, (grad, x.detach(), mean, std_inverse))
        parts: list[Part] = []
        if w is not None:
            total = _summed_products(scale, flat, of_x) - (scale * shift).mT @ flat
            parts.append(tape.stack(w.name, total.view(-1, *w.value.shape)))
        if b is not None:
            parts.append(tape.stack(b.name, flat.sum(1).view(-1, *b.value.shape)))
        return parts

    return tape.watch(y, keep)


PIECE = 1 << 17  # numbers that stay in a processor's cache


def _summed_products(scale: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """sum_t s_t x_t y_t for every row; (rows, positions, 1 or width) -> (rows, 1, width).

    Some rows at a time, so that the products are never in main memory; only a processor gains by that.
    """
    some = max(1, PIECE // max(1, x[0].numel())) if x.device.type == "cpu" and len(x) else len(x)
    pieces = zip(*(values.split(some) for values in (scale.mT, x, y)), strict=True)
    return torch.cat([s @ (a * b) for s, a, b in pieces])


@rule(F.group_norm)
def group_norm(
    tape: Tape,
    func: Any,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """z = (x - mean_g) / std_g, g the channel's group: sum y' z = (sum y' x - mean_g sum y') / std_g.

    So two sums per channel are enough, and z itself is never formed.
    """
    tape.check_rows(func, x)
    rows, channels = x.shape[:2]  # positions that are folded into the rows are rows of the layer
    x = x.contiguous()
    y, mean, std_inverse = torch.native_group_norm(
        x, weight, bias, rows, channels, x[0, 0].numel(), num_groups, eps
    )
    mean, std_inverse = (s.detach().repeat_interleave(channels // num_groups, 1) for s in (mean, std_inverse))
    w, b = tape.weight(weight), tape.weight(bias)

    def keep(grad: Tensor) -> list[Part]:
        flat = precise(grad).reshape(rows, channels, -1)
        total = flat.sum(2)
        parts: list[Part] = []
        if w is not None:
            with_x = torch.linalg.vecdot(flat, precise(x.detach()).reshape(rows, channels, -1))
            parts.append(by_channel(tape, w, (with_x - mean * total) * std_inverse))
        if b is not None:
            parts.append(by_channel(tape, b, total))
        return parts

    return tape.watch(y, keep)


def by_channel(tape: Tape, weight: Weight, each: Tensor) -> Part:
    """(rows, channels), or more rows where positions are folded into them -> a sum for each row."""
    return tape.stack(
        weight.name, each if len(each) == tape.rows else each.view(tape.rows, -1, each.shape[1]).sum(1)
    )


@rule(F.batch_norm)
def batch_norm(
    tape: Tape,
    func: Any,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """With fixed statistics: z = (x - mean) / sqrt(var + eps), an affine map; with the batch's own, rows would mix."""
    if training or running_mean is None or running_var is None:
        raise ModelError(
            "BatchNorm normalises with the whole batch's statistics; put GroupNorm in its place with "
            "saltflat.without_batchnorm(model), or keep it in eval mode, with statistics that are public"
        )
    tape.check_rows(func, x)
    w, b = tape.weight(weight), tape.weight(bias)
    y = func(x, running_mean, running_var, weight, bias, False, momentum, eps)
    mean, scale = precise(running_mean), torch.rsqrt(precise(running_var) + eps)

    def keep(grad: Tensor) -> list[Part]:
        flat = precise(grad).reshape(*x.shape[:2], -1)
        total = flat.sum(2)
        parts: list[Part] = []
        if w is not None:
            with_x = torch.linalg.vecdot(flat, precise(x.detach()).reshape(*x.shape[:2], -1))
            parts.append(by_channel(tape, w, (with_x - mean * total) * scale))
        if b is not None:
            parts.append(by_channel(tape, b, total))
        return parts

    return tape.watch(y, keep)


@rule(F.instance_norm)
def instance_norm(
    tape: Tape,
    func: Any,
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """A group norm with one channel per group; running statistics would carry data from row to row."""
    if running_mean is not None or not use_input_stats:
        raise ModelError(
            "InstanceNorm with running statistics mixes examples; build it with track_running_stats=False"
        )
    return group_norm(tape, func, x, x.shape[1], weight, bias, eps)


@rule(F.rms_norm)
def rms_norm(
    tape: Tape,
    func: Any,
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """y = gamma * z, z = x / rms(x): the product is an ordinary one."""
    return tape.again(torch.mul, func(x, normalized_shape, None, eps), weight)


@rule(torch.prelu, F.prelu)
def prelu(tape: Tape, func: Any, x: Tensor, weight: Tensor) -> Tensor:
    """y = max(x, 0) + a min(x, 0), with one a or one for each channel (the second axis): g_a = sum y' min(x, 0)."""
    tape.check_rows(func, x)
    if (w := tape.weight(weight)) is None:
        return func(x, weight)

    def keep(grad: Tensor) -> list[Part]:
        each = precise(grad) * precise(x.detach()).clamp(max=0)
        channels = w.value.numel() if x.ndim > 1 else 1
        inner = x.shape[2:].numel() if channels > 1 else 1
        by_channel = each.reshape(tape.rows, -1, channels, inner)
        return [tape.stack(w.name, by_channel.sum((1, 3)).view(-1, *w.value.shape))]

    return tape.watch(func(x, weight), keep)
