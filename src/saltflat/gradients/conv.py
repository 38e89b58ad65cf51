"""Convolutions of any dimension, stride, padding, dilation and grouping, and transposed ones.

Four exact ways to the per-unit gradient of a weight (out, in, k...), or to its norm alone:

* *shifted* (stride 1): on flattened, padded images a kernel offset is an offset in memory, so each kernel
  element is one batched matrix product of two views. A stride that divides the kernel becomes stride 1 when
  its s x s phases of the image pose as channels, and so does any stride of a 1 x 1 kernel;
* *windows* (any stride): the input is unfolded for the time of one batched product;
* *grouped* (everything else): one call of torch's own weight gradient, with rows posing as groups;
* *pixel Gram*: only the norm. Two patches' inner product is a sum of pixels' inner products along the
  diagonal, so the Gram matrix of *pixels*, shifted and added, replaces that of patches.

Gradients or their norm alone: `factors_are_cheaper` decides, with the cost model that linear layers use.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.gradients.parts import (
    Dense,
    Gram,
    Part,
    added_up,
    blank,
    factors_are_cheaper,
    gram_square,
    pair_sum,
    precise,
)
from saltflat.gradients.tape import Tape, Weight, rule
from saltflat.tree import Tree

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

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def square(self) -> Tensor:
        x, grad = precise(self.x), precise(self.grad)
        positions = grad.transpose(1, 2).flatten(2)  # (units, out, images * positions)
        patches = patch_gram(x, self.geometry, grad.shape[-2:])
        return gram_square(Gram([positions.mT @ positions]), Gram([patches]))

    def dot(self, direction: Tree) -> Tensor:
        moved = self.geometry.forward(self.x.flatten(0, 1), direction[self.name].to(self.x.dtype))
        return pair_sum(moved.reshape(self.grad.shape), self.grad)

    def weighted(self, weights: Tensor) -> Tree:
        x, grad = precise(self.x), precise(self.grad)
        grad = grad * weights.to(grad.dtype).view(-1, 1, 1, 1, 1)
        return {self.name: self.geometry.weight_gradient(x.flatten(0, 1), grad.flatten(0, 1))}

    def dense(self) -> Tree:
        return self.multiplied().dense()

    def multiplied(self) -> Dense | Taps:
        """The gradients themselves."""
        images = self.x.shape[1]
        return dense_part(self.name, self.x.flatten(0, 1), self.grad.flatten(0, 1), self.geometry, images)  # type: ignore[return-value]

    def erased(self, dead: Tensor) -> Patches:
        return replace(self, x=blank(self.x, dead), grad=blank(self.grad, dead))

    @property
    def kind(self) -> Hashable:
        return Patches, self.geometry, self.x.shape[2:]

    def beside(self, *others: Patches) -> Patches:
        every = (self, *others)
        x, grad = torch.cat([p.x for p in every], 1), torch.cat([p.grad for p in every], 1)
        return replace(self, x=x, grad=grad)

    def scaled_square(self, scale: Tensor) -> Tensor:
        """||scale_o G_io||^2, summed over output channels o."""
        return replace(self, grad=precise(self.grad) * scale.view(-1, 1, 1)).square()


@dataclass(frozen=True)
class Taps:
    """The gradients themselves, kernel element by kernel element.

    Where ``phases`` is s > 1 the input's channels are s x s phases of an image, (in, s, s), and the kernel
    element (i, j) stands for s x s elements from (i s, j s) on.
    """

    name: str
    values: Tensor  # (high, wide, units, out, in)
    phases: int = 1

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def square(self) -> Tensor:
        return torch.linalg.vector_norm(self.values.flatten(3), dim=3).square().sum((0, 1))

    def scaled_square(self, scale: Tensor) -> Tensor:
        """||scale_o G_io||^2, summed over output channels o."""
        return torch.linalg.vector_norm(self.values, dim=4).square().sum((0, 1)) @ scale.square()

    def dot(self, direction: Tree) -> Tensor:
        (stack,) = self.dense().values()
        return stack.flatten(1) @ direction[self.name].flatten().to(stack.dtype)

    def weighted(self, weights: Tensor) -> Tree:
        taps = self.values.flatten(0, 1).flatten(2)  # (taps, units, out * in)
        total = weights.to(taps.dtype).expand(len(taps), 1, -1) @ taps
        total = total.view(*self.values.shape[:2], 1, *self.values.shape[3:])
        return {self.name: self._kernels(total)[0].contiguous()}

    def dense(self) -> Tree:
        return {self.name: self._kernels(self.values)}

    def erased(self, dead: Tensor) -> Taps:
        return replace(self, values=self.values.masked_fill(dead.view(-1, 1, 1), 0))

    @property
    def kind(self) -> Hashable:
        return Taps, self.phases, self.values.shape

    def beside(self, *others: Taps) -> Taps:
        return replace(self, values=added_up([self.values, *(other.values for other in others)]))

    @property
    def own(self) -> bool:
        return True  # products of their own, made here

    def take(self, other: Taps) -> None:
        self.values.add_(other.values)

    @property
    def by_place(self) -> Tensor:
        """``values`` as (places, units, channels, entries), a view; a place is a kernel element."""
        return self.values.view(-1, *self.values.shape[2:])

    def placed(self, direction: Tensor) -> Tensor:
        """What has the parameter's shape, as ``values`` lie for a unit: (places, channels, entries)."""
        (high, wide), s = self.values.shape[:2], self.phases
        split = direction.unflatten(3, (wide, s)).unflatten(2, (high, s)).permute(2, 4, 0, 1, 3, 5)
        return split.flatten(3).flatten(0, 1)  # as `_kernels` undoes it

    def _kernels(self, values: Tensor) -> Tensor:
        """(high, wide, units, out, in s s) -> (units, out, in, high s, wide s)."""
        s = self.phases
        split = values.unflatten(4, (-1, s, s)).permute(2, 3, 4, 0, 5, 1, 6)
        return split.flatten(5, 6).flatten(3, 4)


class Summed:
    """Gradients by kernel element at one of several points, of which the products are made as they are added up.

        G_i = sum_k scale_k y'_ik x_ik^T

    The first point's are `Taps`; every other's are added to these inside the product. Made first and added then, they
    would be written and read once more, for all units. ``scale``: a number for each output channel.

    *Guarantee*: norms and sums are those of the very numbers that are kept; a unit meets its own factors alone.
    """

    own = True

    def __init__(
        self,
        name: str,
        factors: tuple[Tensor, Tensor],
        geometry: Geometry,
        *,
        images: int,
        phases: int,
        scale: Tensor | None,
    ) -> None:
        self.name, self._scale = name, scale
        self._geometry, self._images, self._phases = geometry, images, phases
        self.kind: Hashable = Summed, geometry, images, phases, factors[0].shape
        self._factors: tuple[Tensor, Tensor] | None = factors  # until they are multiplied
        self._taps: Taps | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def start(self, points: int) -> None:
        """Be the one that other points are added to, ``points`` in all."""
        self.taps()

    def take(self, other: Summed) -> None:
        """Add the gradients of another point, which are multiplied here if they were not yet."""
        taps, factors = self.taps(), other._factors
        if factors is None or self._images > 1:
            taps.take(other.taps())
        else:
            shifted_gradients(*factors, self._geometry, scale=other._scale, total=taps.values)

    def taps(self) -> Taps:
        """The gradients, multiplied."""
        if self._factors is not None:
            factors, self._factors = self._factors, None
            values = shifted_gradients(*factors, self._geometry, scale=self._scale)
            self._taps = Taps(self.name, _by_unit(values, self._images), self._phases)
        assert self._taps is not None
        return self._taps

    def beside(self, *others: Summed) -> Taps:
        return self.taps().beside(*(other.taps() for other in others))

    def square(self) -> Tensor:
        return self.taps().square()

    def dot(self, direction: Tree) -> Tensor:
        return self.taps().dot(direction)

    def weighted(self, weights: Tensor) -> Tree:
        return self.taps().weighted(weights)

    def dense(self) -> Tree:
        return self.taps().dense()

    def erased(self, dead: Tensor) -> Taps:
        return self.taps().erased(dead)


def _scaled(grad: Tensor, scale: Tensor | None) -> Tensor:
    """The gradient at an output, (rows, out, height, width), times a number for each channel."""
    return grad if scale is None else grad * scale.view(-1, 1, 1)


def _by_unit(values: Tensor, images: int) -> Tensor:
    """(high, wide, rows, out, in), summed over each unit's images."""
    return values.unflatten(2, (-1, images)).sum(3) if images > 1 else values


def patch_gram(x: Tensor, geometry: Geometry, output: Sizes) -> Tensor:
    """<patch_s, patch_t> for all pairs of a unit's output positions; (units, positions, positions)."""
    units, images = x.shape[:2]
    if not geometry.has_unit_stride:
        patches = windows(x.flatten(0, 1), geometry, output)
        patches = patches.view(units, images, *patches.shape[1:]).transpose(1, 2).flatten(2)
        return patches.mT @ patches
    pixels = x.transpose(1, 2).flatten(2)
    gram = (pixels.mT @ pixels).view(units, *(images, *x.shape[3:]) * 2)
    if geometry.shape[2:] == (1, 1) and geometry.padding == (0, 0):
        return gram.flatten(4).flatten(1, 3)
    total = gram.new_zeros(units, *(images, *output) * 2)
    for i, j in product(*map(range, geometry.shape[2:])):
        at, rows = _overlap(i * geometry.dilation[0] - geometry.padding[0], x.shape[3], output[0])
        to, columns = _overlap(j * geometry.dilation[1] - geometry.padding[1], x.shape[4], output[1])
        total[:, :, at, to, :, at, to] += gram[:, :, rows, columns, :, rows, columns]
    return total.flatten(4).flatten(1, 3)


def _overlap(shift: int, length: int, output: int) -> tuple[slice, slice]:
    """Where output positions t and input positions t + shift both exist."""
    first, last = max(0, -shift), min(output, length - shift)
    return slice(first, last), slice(first + shift, last + shift)


MANY = 8  # input channels from which on a product per kernel element is faster than unfolding


def dense_part(
    name: str,
    x: Tensor,
    grad: Tensor,
    geometry: Geometry,
    images: int,
    points: int = 1,
    scale: Tensor | None = None,
) -> Dense | Taps | Summed:
    """The gradients themselves; ``images`` rows to a unit. At several ``points`` they may be `Summed`.

    ``scale``: a number for each output channel that they are multiplied by.
    """
    x, grad = precise(x), precise(grad)
    if not geometry.is_plain:
        values = grouped_gradients(x, _scaled(grad, scale), geometry)
        return Dense(name, values.unflatten(0, (-1, images)).sum(1) if images > 1 else values)
    x, unstrided, phases = with_unit_stride(x, geometry, grad.shape[2:])
    if unstrided.has_unit_stride and x.shape[1] >= MANY:
        if points > 1:
            return Summed(name, (x, grad), unstrided, images=images, phases=phases, scale=scale)
        return Taps(name, _by_unit(shifted_gradients(x, grad, unstrided, scale=scale), images), phases)
    grad = _scaled(grad, scale)
    values = (grad.flatten(2) @ windows(x, unstrided, grad.shape[2:]).mT).view(-1, *geometry.shape)
    return Dense(name, values.unflatten(0, (-1, images)).sum(1) if images > 1 else values)


def with_unit_stride(x: Tensor, geometry: Geometry, output: Sizes) -> tuple[Tensor, Geometry, int]:
    """The same convolution with stride 1, where there is one: (input, geometry, phases)."""
    (high, wide), s = geometry.shape[2:], geometry.stride[0]
    if geometry.has_unit_stride or geometry.stride != (s, s) or geometry.dilation != (1, 1):
        return x, geometry, 1
    x = F.pad(x, (geometry.padding[1],) * 2 + (geometry.padding[0],) * 2) if any(geometry.padding) else x
    if (high, wide) == (1, 1):
        x = x[:, :, ::s, ::s]
        return x, replace(geometry, stride=(1, 1), padding=(0, 0)), 1
    if high % s or wide % s or x.shape[1] * s * s < MANY:
        return x, replace(geometry, padding=(0, 0)), 1
    tall, long = (size + k // s - 1 for size, k in zip(output, (high, wide), strict=True))
    x = x[:, :, : tall * s, : long * s].unflatten(3, (long, s)).unflatten(2, (tall, s))
    x = x.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    shape = (geometry.shape[0], x.shape[1], high // s, wide // s)
    return x, replace(geometry, shape=shape, stride=(1, 1), padding=(0, 0)), s


def grouped_gradients(x: Tensor, grad: Tensor, geometry: Geometry) -> Tensor:
    """(rows, *weight shape), by torch's weight gradient of one image with rows x channels channels."""
    rows = x.shape[0]
    if rows == 0:
        return x.new_zeros(0, *geometry.shape)
    one_image = lambda t: t.reshape(1, -1, *t.shape[2:])
    return geometry.weight_gradient(one_image(x), one_image(grad), groups=rows).view(rows, *geometry.shape)


def windows(x: Tensor, geometry: Geometry, output: Sizes) -> Tensor:
    """The input unfolded, (rows, in x kernel, positions): one strided copy, faster than `F.unfold`."""
    x = F.pad(x, (geometry.padding[1],) * 2 + (geometry.padding[0],) * 2).contiguous()
    rows, channels, tall, wide = x.stride()
    (down, right), (step, stride) = geometry.dilation, geometry.stride
    view = x.as_strided(
        (*x.shape[:2], *geometry.shape[2:], *output),
        (rows, channels, tall * down, wide * right, tall * step, wide * stride),
    )
    return view.reshape(x.shape[0], math.prod(geometry.shape[1:]), -1)


WORKING_SET = 8_000_000  # bytes of padded images that are worked on at once: they stay in the cache


def shifted_gradients(
    x: Tensor, grad: Tensor, geometry: Geometry, *, scale: Tensor | None = None, total: Tensor | None = None
) -> Tensor:
    """(kernel height, kernel width, rows, out, in), one batched product per kernel element; added to ``total``.

    ``scale``: a number for each output channel that they are multiplied by.

    In a padded image with lines of length w, the pixel under kernel element (i, j) of output position t lies
    i w + j further on. The output's gradient gets the same length of lines, with zeros at the end. Zeros before a line
    of the image also stand behind the line above it, as products of zeros take their time too.
    """
    (rows, inputs, tall, wide), (_, outputs, *output) = x.shape, grad.shape
    (up, left), (down, right) = geometry.padding, geometry.dilation
    width = max(wide + left, output[1])
    padded_height = tall + 2 * up + bool(left)  # zeros behind the last line are on a line of their own
    length = output[0] * width - (width - output[1])  # to the last output position
    few = _at_once(rows, x.element_size() * width * (inputs * padded_height + outputs * output[0]))
    lines, columns = slice(up, up + tall), slice(left, left + wide)  # of an image within its padding
    padded = _room(x, (few, inputs, padded_height, width), lines, columns) if up or left else None
    grads = _room(x, (few, outputs, output[0], width), slice(0, output[0]), slice(0, output[1]))
    values = x.new_empty(*geometry.shape[2:], rows, outputs, inputs) if total is None else total
    for start in range(0, rows, few):
        some = slice(start, min(start + few, rows))
        count = some.stop - start
        into = grads[:count, ..., : output[1]]
        into.copy_(grad[some]) if scale is None else torch.mul(grad[some], scale.view(-1, 1, 1), out=into)
        images = x[some]
        if padded is not None:
            padded[:count, :, lines, columns] = images
            images = padded[:count]
        flat, shifted = grads[:count].flatten(2)[..., :length], images.flatten(2)
        for i, j in product(*map(range, geometry.shape[2:])):
            at = i * down * width + j * right
            under, here = shifted[..., at : at + length].mT, values[i, j, some]
            torch.bmm(flat, under, out=here) if total is None else here.baddbmm_(flat, under)
    return values


def _at_once(rows: int, size: int) -> int:
    """How many rows of ``size`` bytes each are worked on together: parts of nearly one size, no thread idle in any."""
    parts, threads = -(-rows * size // WORKING_SET), torch.get_num_threads()
    return max(1, min(rows, -(-rows // (max(1, parts) * threads)) * threads))


def _room(like: Tensor, shape: Sizes, lines: slice, columns: slice) -> Tensor:
    """Memory for images that will be written at these lines and columns; around them it is zero, and stays so."""
    room = like.new_empty(shape)
    for rest in (room[..., : lines.start, :], room[..., lines.stop :, :]):
        rest.zero_()
    for rest in (room[..., : columns.start], room[..., columns.stop :]):
        rest.zero_()
    return room


def conv_parts(
    tape: Tape,
    x: Tensor,
    grad: Tensor,
    geometry: Geometry,
    w: Weight | None,
    b: Weight | None,
    scale: Tensor | None = None,
) -> list[Part]:
    """The parts of a convolution from its input and the gradient at its output; ``scale`` as in `Summed`."""
    parts: list[Part] = []
    if w is not None:
        images = len(x) // (
            tape.rows // tape.views
        )  # of a unit: its views, and pictures folded into the rows
        parts.append(weight_part(w.name, x, grad, geometry, images, tape.points, scale))
    if b is not None:
        total = precise(grad).flatten(2).sum(2)
        rows = total if len(total) == tape.rows else total.view(tape.rows, -1, total.shape[1]).sum(1)
        parts.append(tape.stack(b.name, rows))
    return parts


def weight_part(
    name: str,
    x: Tensor,
    grad: Tensor,
    geometry: Geometry,
    images: int,
    points: int = 1,
    scale: Tensor | None = None,
) -> Part:
    """Factors or gradients, whichever is cheaper when a unit has ``images`` images at each of ``points`` points.

    Gradients at several points add up, while the Gram matrix of factors laid side by side grows with their square.
    """
    positions, (outputs, *patch) = grad[0, 0].numel() * images * points, geometry.shape
    # Adding up shifted Gram matrices costs some forty operations an entry; unfolding costs more than that.
    gram_width = outputs + x.shape[1] + 40 if geometry.has_unit_stride else 2.5 * (outputs + math.prod(patch))
    if geometry.is_plain and factors_are_cheaper(positions, gram_width, math.prod(geometry.shape)):
        by_unit = lambda t: t.reshape(-1, images, *t.shape[1:])
        return Patches(name, by_unit(x), by_unit(_scaled(grad, scale)), geometry)
    return dense_part(name, x, grad, geometry, images, points, scale)


@rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(
    tape: Tape, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any, **named: Any
) -> Tensor:
    """y = W * x + b."""
    stride, padding, dilation, groups = _settings(how, named, stride=1, padding=0, dilation=1, groups=1)
    dims = weight.ndim - 2
    if isinstance(padding, str):
        x, padding = _padded(x, padding, weight.shape[2:], _sizes(dilation, dims)), 0
    steps, edges, gaps = (_sizes(setting, dims) for setting in (stride, padding, dilation))
    geometry = Geometry(tuple(weight.shape), steps, edges, gaps, groups=groups)
    y = func(x, weight, bias, stride, padding, dilation, groups)
    return _watched(tape, x, y, geometry, weight, bias)


@rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def transposed_convolution(
    tape: Tape, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any, **named: Any
) -> Tensor:
    """The adjoint of a convolution, used as a layer."""
    *given, groups, dilation = _settings(
        how, named, stride=1, padding=0, output_padding=0, groups=1, dilation=1
    )
    stride, padding, extra, dilation = (_sizes(setting, weight.ndim - 2) for setting in (*given, dilation))
    geometry = Geometry(tuple(weight.shape), stride, padding, dilation, True, extra, groups)
    y = func(x, weight, bias, stride, padding, extra, groups, dilation)
    return _watched(tape, x, y, geometry, weight, bias)


def _settings(how: tuple[Any, ...], named: dict[str, Any], **usual: Any) -> tuple[Any, ...]:
    """What a torch function was called with, in the order of its own arguments."""
    return tuple({**usual, **dict(zip(usual, how, strict=False)), **named}.values())


def _watched(
    tape: Tape, x: Tensor, y: Tensor, geometry: Geometry, weight: Tensor, bias: Tensor | None
) -> Tensor:
    tape.check_rows("a convolution", x)
    w, b = tape.weight(weight), tape.weight(bias)
    x = x.detach()

    def keep(grad: Tensor) -> list[Part]:
        if output is None or w is None or geometry.transposed or geometry.groups > 1:
            return conv_parts(tape, x, grad, geometry, w, b)
        seen = w.how.observe(x, grad, geometry, (output if output._version == version else None, bias))
        if tape.points == 1 or not geometry.is_plain:
            return conv_parts(tape, x, grad, geometry, w, b)
        into, *others = conv_parts(tape, x, grad, geometry, w, b, w.how.slope)
        return [*seen.carried(into), *others]  # to be added to other points', which have other weights

    watched = tape.watch(y, keep)
    # Only a standardised weight wants the output; an in-place activation that follows shows in its version.
    output, version = (watched.detach() if w is not None and w.how is not None else None), watched._version
    return watched


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
