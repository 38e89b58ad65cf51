"""Scaled weight standardisation: convolutions whose weight is normalised per output channel before use.

    V_o = gain_o c_o / sqrt(max(n_o, 1e-4)),   c_o = W_o - mean(W_o),   n_o = ||c_o||^2

With u_o = c_o / sqrt(n_o) and F entries to a channel, a gradient G_o at V_o becomes

    s_o (G_o - mean(G_o) - <u_o, G_o> u_o)  at W_o,   s_o = gain_o / sqrt(n_o),   and   <u_o, G_o>  at gain_o,

so its squared norm needs ||s_o G_o||^2 and two inner products per channel, never the gradient itself.
(In a channel so small that 1e-4 takes the place of n_o, the term with u_o falls away.)
Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization", 2021.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from saltflat.gradients.conv import Geometry, Patches, Summed, Taps
from saltflat.gradients.parts import Dense, Part, precise, slack
from saltflat.gradients.tape import DERIVATIONS, Tape, rule
from saltflat.tree import Tree

FLOOR = 1e-4
_FAINT = 1e-2  # a gain so small beside its bias that dividing the output by it would leave rounding errors


def standardised(weight: Tensor, gain: Tensor | None = None) -> Tensor:
    """The weight with mean 0 and norm ``gain`` (1 without one) in every output channel.

    >>> w = standardised(torch.randn(4, 3, 2, 2))
    >>> torch.allclose(w.flatten(1).norm(dim=1), torch.ones(4), atol=1e-5)
    True
    """
    if has_torch_function_variadic(weight):
        return handle_torch_function(standardised, (weight,), weight, gain)
    centred, square = _centred(weight)
    unit = centred / _wide(square.clamp(min=FLOOR).sqrt(), centred)
    return unit if gain is None else unit * _wide(gain, unit)


def _centred(weight: Tensor) -> tuple[Tensor, Tensor]:
    """c, and n per output channel."""
    centred = weight - weight.mean(tuple(range(1, weight.ndim)), keepdim=True)
    flat = centred.flatten(1)
    return centred, torch.linalg.vecdot(flat, flat)


def _wide(numbers: Tensor, like: Tensor) -> Tensor:
    """A number per output channel, to be multiplied with a tensor of the weight's shape."""
    return numbers.view(-1, *[1] * (like.ndim - 1))


@dataclass
class Standardisation:
    """How a standardised weight came about, and two sums over its uses that its gradients' norm needs.

    ``sums`` is the sum of G_io's entries, ``along`` is <u_o, G_io>; both (units, channels). ``observed`` is the number
    of uses that they are taken over: only who has seen all uses of a weight knows the norm.
    """

    weight: str | None
    gain: str | None
    centred: Tensor  # c, in the weight's shape
    root: Tensor  # sqrt(n), per output channel: u = c / sqrt(n)
    slope: Tensor  # s, per output channel
    clamped: Tensor  # whether 1e-4 stands for n, per output channel
    gain_value: Tensor | None
    units: int
    sums: Tensor | float = 0.0
    along: Tensor | float = 0.0
    observed: int = 0

    def observe(
        self, x: Tensor, grad: Tensor, geometry: Geometry, output: tuple[Tensor | None, Tensor | None]
    ) -> Standardisation:
        """Take note of one use: its input, the gradient at its output, the output (if intact) and its bias.

        What is returned knows of this use alone.

        sum_t y'_ot (y_ot - b_o) = gain_o <u_o, G_io>: the output knows the second sum already, and a thin
        convolution with ones gives the first.
        """
        flat = precise(grad).flatten(2)
        ones = replace(geometry, shape=(1, 1, *geometry.shape[2:]), groups=1)
        totals = precise(x).sum(1, keepdim=True)
        totals = ones.forward(totals, totals.new_ones(ones.shape)).flatten(2)
        sums = self._by_unit((flat @ totals.mT).squeeze(2))
        along = self._by_unit(self._seen(x, flat, geometry, output))
        self.sums, self.along, self.observed = self.sums + sums, self.along + along, self.observed + 1
        return replace(self, sums=sums, along=along)

    def carried(self, part: Dense | Patches | Summed | Taps) -> list[Part]:
        """The gradients of the uses seen here, at W and at gain: parts to which those of other points can be added.

        ``part``: s_o G_io.
        """
        parts: list[Part] = []
        if self.weight is not None:
            parts.append(Carried(part.multiplied() if isinstance(part, Patches) else part, self))
        if self.gain is not None:
            parts.append(Dense(self.gain, torch.as_tensor(self.along)))
        return parts

    def _seen(
        self, x: Tensor, flat: Tensor, geometry: Geometry, output: tuple[Tensor | None, Tensor | None]
    ) -> Tensor:
        y, bias = output
        gain = self.gain_value
        off = gain is not None and bool(
            (gain.abs() < _FAINT * (1 + (0 if bias is None else bias.abs()))).any()
        )
        if y is None or off:  # spoilt by an in-place activation, or of a channel nearly off
            return torch.linalg.vecdot(flat, geometry.forward(precise(x), self.unit).flatten(2))
        along = torch.linalg.vecdot(flat, precise(y).flatten(2))
        if bias is not None:
            along = along - flat.sum(2) * bias
        return along if self.gain_value is None else along / self.gain_value

    @property
    def unit(self) -> Tensor:
        """u, in the weight's shape."""
        return self.centred / _wide(self.root, self.centred)

    @property
    def flat(self) -> Tensor:
        """mean(G_io); (units, channels)."""
        return torch.as_tensor(self.sums) / self.centred[0].numel()

    @property
    def along_u(self) -> Tensor:
        """<u_o, G_io> where it is subtracted; (units, channels)."""
        return torch.where(self.clamped, 0, torch.as_tensor(self.along))

    def _by_unit(self, rows: Tensor) -> Tensor:
        return rows.view(self.units, -1, rows.shape[1]).sum(1)

    @property
    def roots(self) -> tuple[str, ...]:
        return tuple(name for name in (self.weight, self.gain) if name is not None)

    def back(self, grad: Tensor) -> Tree:
        """Carry a gradient from the standardised weight back to W and gain."""
        axes, unit = tuple(range(1, grad.ndim)), self.unit
        along = (grad * unit).sum(axes, keepdim=True)
        flat = grad - grad.mean(axes, keepdim=True) - torch.where(_wide(self.clamped, grad), 0, along) * unit
        tree: Tree = {}
        if self.weight is not None:
            tree[self.weight] = flat * _wide(self.slope, grad)
        if self.gain is not None:
            tree[self.gain] = along.flatten()
        return tree

    def back_each(self, part: Dense | Taps) -> Tree:
        """Carry every unit's gradient back; what they are along u and 1 is known."""
        each, tree = lambda numbers: numbers.unsqueeze(-1), Tree()
        if self.weight is not None:
            values = part.by_place - each(self.flat)
            values.addcmul_(each(self.along_u), part.placed(self.unit).unsqueeze(1), value=-1)
            values.mul_(each(self.slope))
            (tree[self.weight],) = replace(part, values=values.view(part.values.shape)).dense().values()
        if self.gain is not None:
            tree[self.gain] = torch.as_tensor(self.along)
        return tree

    def square(self, part: Dense | Patches | Taps) -> Tensor:
        """||back(G_i)||^2 for every unit."""
        sums, along = torch.as_tensor(self.sums), torch.as_tensor(self.along)
        projected = sums.square() / self.centred[0].numel() + torch.where(self.clamped, 0, along.square())
        scaled = part.scaled_square(self.slope)
        square = scaled * (1 + slack(scaled.dtype)) - projected @ self.slope.square()
        if self.weight is None:
            square = torch.zeros_like(square)
        return square + along.square().sum(1) if self.gain is not None else square


@dataclass(frozen=True)
class Standardised:
    """The gradients at a standardised weight's own parameters."""

    part: Dense | Patches | Taps
    how: Standardisation

    @property
    def names(self) -> tuple[str, ...]:
        return self.how.roots

    def square(self) -> Tensor:
        return self.how.square(self.part)

    def dot(self, direction: Tree) -> Tensor:
        dense = self.dense()
        return torch.stack([dense[n].flatten(1) @ direction[n].flatten() for n in self.names]).sum(0)

    def weighted(self, weights: Tensor) -> Tree:
        (total,) = self.part.weighted(weights).values()
        return self.how.back(total)

    def dense(self) -> Tree:
        return self.how.back_each(self.part.multiplied() if isinstance(self.part, Patches) else self.part)

    def erased(self, dead: Tensor) -> Standardised:
        return replace(self, part=self.part.erased(dead))

    @property
    def kind(self) -> Hashable:
        return Standardised, self.part.kind

    def beside(self, *others: Any) -> Part:
        raise NotImplementedError("uses are combined before they are carried back")


PUT_OFF = 8  # points whose u are subtracted by one product, which reads and writes all units' gradients


class Waiting:
    """What is still to be subtracted from units' gradients: for each of several points a number and a direction.

        g_io -= flat_io + sum_k along_iko d_ko,   as one product in every channel: (units, points) (points, entries)

    There is room for all of them from the first on: what is left of every pass by itself keeps free memory in pieces.
    """

    def __init__(self, part: Dense | Taps, points: int) -> None:
        places, units, channels, entries = part.by_place.shape
        self._part, self._points, self._filled = part, points, 0
        self._flat = part.values.new_zeros(channels, units, 1)
        self._along = part.values.new_empty(channels, units, points)
        self._directions = part.values.new_empty(places, channels, points, entries)

    def add(self, flat: Tensor, along: Tensor, direction: Tensor) -> None:
        """One more point; with the last for which there is room, all are subtracted."""
        self._flat += flat.mT.unsqueeze(2)
        self._along[:, :, self._filled] = along.mT
        self._directions[:, :, self._filled] = self._part.placed(direction)
        self._filled += 1
        if self._filled == self._points:
            self.subtract()

    def subtract(self) -> None:
        """All that is here, if there is anything."""
        if not self._filled:
            return
        filled = slice(self._filled)
        along = self._along[:, :, filled].contiguous()
        for values, directions in zip(self._part.by_place, self._directions, strict=True):
            # Into memory of its own: where a result does not lie in order, the product is taken matrix by matrix.
            values.transpose(0, 1).sub_(torch.baddbmm(self._flat, along, directions[:, filled]))
        self._flat.zero_()
        self._filled = 0


class Carried:
    """The gradients at a standardised weight W itself, added up over points that have an s and a u of their own each.

        g_io = sum_k s_ko G_iko - sum_k s_ko mean(G_iko) - sum_k s_ko <u_ko, G_iko> u_ko

    The first sum grows point by point, where it lies. What the others need is a number for each unit and channel, so
    they wait, and are subtracted for several points at once.

    *Guarantee*: norms and sums are those of the very numbers that are kept; no norm is a difference of larger ones.
    """

    own = True

    def __init__(self, part: Dense | Summed | Taps, how: Standardisation) -> None:
        self._part, self._name = part, str(how.weight)
        self._own = how.flat * how.slope, how.along_u * (how.slope / how.root), how.centred
        self._waiting: Waiting | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self._name,)

    @property
    def kind(self) -> Hashable:
        return Carried, self._part.kind

    def start(self, points: int) -> None:
        """Be the one that other points are added to, ``points`` in all."""
        if self._waiting is None:
            self._waiting = Waiting(self._plain(), -(-points // -(-points // PUT_OFF)))
            self._waiting.add(*self._own)
            del self._own  # nothing else holds on to c

    def take(self, other: Carried) -> None:
        """Add the gradients of another point, or of several."""
        self.start(PUT_OFF)
        if other._waiting is not None:
            self._plain().take(other._settled())  # type: ignore[arg-type]
        else:
            self._part.take(other._part)  # type: ignore[arg-type]
            self._waiting.add(*other._own)  # type: ignore[union-attr]

    def beside(self, *others: Carried) -> Carried:
        for other in others:
            self.take(other)
        return self

    def square(self) -> Tensor:
        return self._settled().square()

    def dot(self, direction: Tree) -> Tensor:
        return self._settled().dot(direction)

    def weighted(self, weights: Tensor) -> Tree:
        return self._settled().weighted(weights)

    def dense(self) -> Tree:
        return self._settled().dense()

    def erased(self, dead: Tensor) -> Part:
        return self._settled().erased(dead)

    def _plain(self) -> Dense | Taps:
        """sum_k s_ko G_iko, from which something may have been subtracted."""
        return self._part.taps() if isinstance(self._part, Summed) else self._part

    def _settled(self) -> Dense | Taps:
        """The gradients, with all that waits subtracted."""
        self.start(1)
        self._waiting.subtract()  # type: ignore[union-attr]
        return replace(self._plain(), name=self._name)


@rule(standardised, table=DERIVATIONS)
def derive(tape: Tape, func: Any, weight: Tensor, gain: Tensor | None = None) -> Tensor:
    """Put the standardised weight on the tape, with what its gradients need."""
    w, g = tape.weight(weight), tape.weight(gain)
    centred, square = _centred(precise(weight))
    root = square.clamp(min=FLOOR).sqrt()
    slope = (1 if gain is None else precise(gain)) / root
    roots = all(x is None or x.name in tape.roots for x in (w, g))
    how = Standardisation(
        weight=w.name if w else None,
        gain=g.name if g else None,
        centred=centred,
        root=root,
        slope=slope,
        clamped=square < FLOOR,
        gain_value=gain,
        units=tape.rows // tape.views,
    )
    value = (centred * _wide(slope, centred)).to(weight.dtype)
    again = lambda: func(
        w.traced_as(weight) if w else weight, g.traced_as(gain) if g and gain is not None else gain
    )
    return tape.share(value, again, how=how if roots else None)
