"""Convolutions of any dimension, stride, padding, dilation and grouping, and transposed ones.

Three exact ways to the per-unit gradient of a weight (out, in, k...), none of which holds an unfolded input:

* *grouped*: one call of torch's own weight gradient, with the rows of the batch posing as groups;
* *shifted*: on flattened, padded images a kernel offset is an offset in memory, so each kernel element is
  one batched matrix product of two views;
* *pixel Gram*: only the norm. Two patches' inner product is a sum of pixels' inner products along the
  diagonal, so the Gram matrix of *pixels*, shifted and added, replaces that of patches.

Which one: `factors_are_cheaper`, the same cost model that linear layers use.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.clipping.parts import Dense, Part, blank, factors_are_cheaper, pair_sum, precise
from saltflat.clipping.tape import Tape, Weight, rule
from saltflat.core.tree import Tree

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Everything about a convolution but its numbers."""

    shape: Sizes  # of the weight
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    transposed: bool = False
    output_padding: Sizes = ()
    groups: int = 1

    def weight_gradient(self, x: Tensor, grad: Tensor, *, groups: int = 1) -> Tensor:
        """Torch's own weight gradient, summed over rows; with ``groups`` rows posing as groups, kept apart."""
        weight = x.new_empty(1).expand(groups * self.shape[0], *self.shape[1:])
        return torch.ops.aten.convolution_backward(
            grad,
            x,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding or (0,) * len(self.stride),
            groups * self.groups,
            [False, True, False],
        )[1]

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.ops.aten.convolution(
            x,
            weight,
            None,
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding or (0,) * len(self.stride),
            self.groups,
        )

    @property
    def is_plain(self) -> bool:
        """Two-dimensional, one group, not transposed: the shifted product and the Gram matrix apply."""
        return len(self.stride) == 2 and self.groups == 1 and not self.transposed

    @property
    def has_unit_stride(self) -> bool:
        return set(self.stride) == {1}


@dataclass(frozen=True)
class Patches:
    """A plain two-dimensional convolution's gradient, kept as its input and the gradient at its output."""

    name: str
    x: Tensor  # (units, images, in, height, width)
    grad: Tensor  # (units, images, out, height, width)
    geometry: Geometry
    along: Tensor | None = None  # <G_io, W_o>, (units, out), where it could be had for nothing

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def square(self) -> Tensor:
        x, grad = precise(self.x), precise(self.grad)
        positions = grad.transpose(1, 2).flatten(2)  # (units, out, images * positions)
        patches = patch_gram(x, self.geometry, grad.shape[-2:])
        return pair_sum(positions.mT @ positions, patches)

    def dot(self, direction: Tree) -> Tensor:
        moved = self.geometry.forward(self.x.flatten(0, 1), direction[self.name].to(self.x.dtype))
        return pair_sum(moved.reshape(self.grad.shape), self.grad)

    def weighted(self, weights: Tensor) -> Tree:
        grad = self.grad * weights.to(self.grad.dtype).view(-1, 1, 1, 1, 1)
        return {self.name: self.geometry.weight_gradient(self.x.flatten(0, 1), grad.flatten(0, 1))}

    def dense(self) -> Tree:
        images = self.x.shape[1]
        part = dense_part(self.name, self.x.flatten(0, 1), self.grad.flatten(0, 1), self.geometry, images)
        return part.dense()

    def erased(self, dead: Tensor) -> Patches:
        return replace(self, x=blank(self.x, dead), grad=blank(self.grad, dead))

    @property
    def kind(self) -> Hashable:
        return Patches, self.geometry, self.x.shape[2:]

    def beside(self, other: Patches) -> Patches:
        x, grad = torch.cat([self.x, other.x], 1), torch.cat([self.grad, other.grad], 1)
        along = None if self.along is None or other.along is None else self.along + other.along
        return replace(self, x=x, grad=grad, along=along)

    def channel_sums(self) -> Tensor:
        """The sum of each output channel's gradient: one thin convolution; (units, out)."""
        geometry = replace(self.geometry, shape=(1, 1, *self.geometry.shape[2:]))
        x = precise(self.x).sum(2).flatten(0, 1).unsqueeze(1)
        patches = geometry.forward(x, x.new_ones(geometry.shape)).view(*self.grad.shape[:2], 1, -1)
        return (precise(self.grad).flatten(3) @ patches.mT).squeeze(3).sum(1)

    def channel_dots(self, weight: Tensor) -> Tensor:
        """<G_io, weight_o>; (units, out)."""
        moved = self.geometry.forward(self.x.flatten(0, 1), weight.to(self.x.dtype)).view(self.grad.shape)
        return torch.linalg.vecdot(precise(moved).flatten(3), precise(self.grad).flatten(3)).sum(1)

    def scaled_channels(self, scale: Tensor) -> Patches:
        return replace(self, grad=self.grad * scale.to(self.grad.dtype).view(-1, 1, 1))


def patch_gram(x: Tensor, geometry: Geometry, output: Sizes) -> Tensor:
    """<patch_s, patch_t> for all pairs of a unit's output positions; (units, positions, positions)."""
    units, images = x.shape[:2]
    if not geometry.has_unit_stride:
        unfold = F.unfold(
            x.flatten(0, 1), geometry.shape[2:], geometry.dilation, geometry.padding, geometry.stride
        )
        unfold = unfold.view(units, images, *unfold.shape[1:]).transpose(1, 2).flatten(2)
        return unfold.mT @ unfold
    pixels = x.transpose(1, 2).flatten(2)
    gram = (pixels.mT @ pixels).view(units, *(images, *x.shape[3:]) * 2)
    if geometry.shape[2:] == (1, 1) and geometry.padding == (0, 0):
        return gram.flatten(4).flatten(1, 3)
    total = gram.new_zeros(units, *(images, *output) * 2)
    for i in range(geometry.shape[2]):
        for j in range(geometry.shape[3]):
            at, rows = _overlap(i * geometry.dilation[0] - geometry.padding[0], x.shape[3], output[0])
            to, columns = _overlap(j * geometry.dilation[1] - geometry.padding[1], x.shape[4], output[1])
            total[:, :, at, to, :, at, to] += gram[:, :, rows, columns, :, rows, columns]
    return total.flatten(4).flatten(1, 3)


def _overlap(shift: int, length: int, output: int) -> tuple[slice, slice]:
    """Where output positions t and input positions t + shift both exist."""
    first, last = max(0, -shift), min(output, length - shift)
    return slice(first, last), slice(first + shift, last + shift)


def dense_part(name: str, x: Tensor, grad: Tensor, geometry: Geometry, images: int) -> Dense:
    """The gradients themselves; ``images`` rows to a unit."""
    x, grad = precise(x), precise(grad)
    if geometry.is_plain and geometry.has_unit_stride and x.shape[1] >= 8:
        values, axes = shifted_gradients(x, grad, geometry), (2, 3, 0, 1)
    else:
        values, axes = grouped_gradients(x, grad, geometry), None
    if images > 1:
        values = values.view(-1, images, *values.shape[1:]).sum(1)
    return Dense(name, values, axes)


def grouped_gradients(x: Tensor, grad: Tensor, geometry: Geometry) -> Tensor:
    """(rows, *weight shape), by torch's weight gradient of one image with rows x channels channels."""
    rows = x.shape[0]
    if rows == 0:
        return x.new_zeros(0, *geometry.shape)
    one_image = lambda t: t.reshape(1, -1, *t.shape[2:])
    return geometry.weight_gradient(one_image(x), one_image(grad), groups=rows).view(rows, *geometry.shape)


def shifted_gradients(x: Tensor, grad: Tensor, geometry: Geometry) -> Tensor:
    """(rows, kernel height, kernel width, out, in), one batched product per kernel element.

    In a padded image with rows of length w, the pixel under kernel element (i, j) of output position t
    lies i w + j further on. The output's gradient gets the same row length, with zeros at the end.
    """
    (high, wide), (down, right) = geometry.shape[2:], geometry.dilation
    x = F.pad(x, (geometry.padding[1],) * 2 + (geometry.padding[0],) * 2)
    width, extra = x.shape[3], right * (wide - 1)
    grad = F.pad(grad, (0, extra)).flatten(2)
    length = grad.shape[2] - extra
    grad, x = grad[:, :, :length], x.flatten(2)
    values = x.new_empty(x.shape[0], high, wide, grad.shape[1], x.shape[1])
    for i in range(high):
        for j in range(wide):
            start = i * down * width + j * right
            torch.bmm(grad, x[:, :, start : start + length].mT, out=values[:, i, j])
    return values


def conv_parts(
    tape: Tape, x: Tensor, grad: Tensor, geometry: Geometry, w: Weight | None, b: Weight | None
) -> list[Part]:
    """The parts of a convolution from its input and the gradient at its output."""
    parts: list[Part] = []
    if w is not None:
        parts.append(weight_part(w.name, x, grad, geometry, tape.views))
    if b is not None:
        parts.append(tape.stack(b.name, precise(grad).flatten(2).sum(2)))
    return parts


def weight_part(name: str, x: Tensor, grad: Tensor, geometry: Geometry, images: int) -> Part:
    """Factors or gradients, whichever is cheaper."""
    positions, inputs = grad[0, 0].numel() * images, math.prod(geometry.shape[1:])
    gram_width = grad.shape[1] + (x.shape[1] if geometry.has_unit_stride else inputs) + 40
    if geometry.is_plain and factors_are_cheaper(positions, inputs, grad.shape[1], gram_width):
        by_unit = lambda t: t.reshape(-1, images, *t.shape[1:])
        return Patches(name, by_unit(x), by_unit(grad), geometry)
    return dense_part(name, x, grad, geometry, images)


@rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(
    tape: Tape,
    func: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """y = W * x + b."""
    dims = weight.ndim - 2
    if isinstance(padding, str):
        x, padding = _padded(x, padding, weight.shape[2:], _sizes(dilation, dims)), 0
    geometry = Geometry(
        tuple(weight.shape), _sizes(stride, dims), _sizes(padding, dims), _sizes(dilation, dims), groups=groups
    )
    y = func(x, weight, bias, stride, padding, dilation, groups)
    return _watched(tape, x, y, geometry, weight, bias)


@rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def transposed_convolution(
    tape: Tape,
    func: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The adjoint of a convolution, used as a layer."""
    dims = weight.ndim - 2
    stride, padding, dilation, extra = (_sizes(s, dims) for s in (stride, padding, dilation, output_padding))
    geometry = Geometry(tuple(weight.shape), stride, padding, dilation, True, extra, groups)
    y = func(x, weight, bias, stride, padding, extra, groups, dilation)
    return _watched(tape, x, y, geometry, weight, bias)


def _watched(
    tape: Tape, x: Tensor, y: Tensor, geometry: Geometry, weight: Tensor, bias: Tensor | None
) -> Tensor:
    w, b = tape.weight(weight), tape.weight(bias)
    x = x.detach()

    def keep(grad: Tensor) -> list[Part]:
        parts = conv_parts(tape, x, grad, geometry, w, b)
        if output is not None and isinstance(parts[0], Patches) and output._version == version:
            parts[0] = replace(parts[0], along=_along(output, grad, bias, tape.views))
        return parts

    watched = tape.watch(y, keep)
    # A weight that was made from parameters may need <G, W>, which the output gives away: sum y' (y - b).
    output = watched.detach() if w is not None and w.how is not None else None
    version = watched._version  # an in-place activation that follows would spoil it, and shows here
    return watched


def _along(output: Tensor, grad: Tensor, bias: Tensor | None, images: int) -> Tensor:
    flat = precise(grad).flatten(2)
    along = torch.linalg.vecdot(flat, precise(output).flatten(2))
    if bias is not None:
        along = along - flat.sum(2) * bias
    return along.view(-1, images, along.shape[1]).sum(1)


def _sizes(value: Any, dims: int) -> Sizes:
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims if len(value) == 1 else 1)


def _padded(x: Tensor, mode: str, kernel: Sizes, dilation: Sizes) -> Tensor:
    """padding="same" in numbers; an odd one goes to the end, as torch does."""
    if mode == "valid":
        return x
    ends: list[int] = []
    for size, step in zip(reversed(kernel), reversed(dilation), strict=True):
        total = step * (size - 1)
        ends += [total // 2, total - total // 2]
    return F.pad(x, ends)
