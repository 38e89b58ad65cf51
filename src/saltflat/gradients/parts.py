"""Per-unit gradients of a few parameters, in whatever form is cheapest to hold.

A *part* stands for the gradients g_1 .. g_U of U units with respect to some parameters. It never has
to be a stack of U gradients: `Outer` holds the two factors that a linear layer's gradient is made of,
`Rows` the touched rows of an embedding. All answer the same four questions, exactly:

    square()        ||g_i||^2                    (units,)
    dot(direction)  <g_i, direction>             (units,)
    weighted(c)     sum_i c_i g_i                a tree
    dense()         g_1 .. g_U                   a tree with a leading unit axis

Layout: the first axis is always the unit; a unit's several positions (tokens, views, points in weight
space, repeated uses of one layer) lie side by side on the second axis, because a sum over positions is
all that a parameter ever sees of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor

from saltflat.tree import Tree, wide


class Part(Protocol):
    """The gradients of all units with respect to the parameters ``names``."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def square(self) -> Tensor: ...

    def dot(self, direction: Tree) -> Tensor: ...

    def weighted(self, weights: Tensor) -> Tree: ...

    def dense(self) -> Tree: ...

    def erased(self, dead: Tensor) -> Part:
        """The same part with the units where ``dead`` is true set to zero, NaN and infinity included."""
        ...

    @property
    def kind(self) -> Hashable:
        """Parts of one parameter and one kind can be laid side by side."""
        ...

    def beside(self, *others: Any) -> Part:
        """The sum of this part and others of the same kind, in memory of its own."""
        ...


class Adding(Part, Protocol):
    """A part that others of its kind can be added to where it lies, with no more room.

    ``own``: whether nobody else holds its memory. A gradient that came as it is may be another part's factor.
    One that may not hold gradients yet also has ``start``, and is told there that others will be added to it.
    """

    @property
    def own(self) -> bool: ...

    def take(self, other: Any) -> None: ...


def is_adding(part: Any) -> TypeGuard[Adding]:
    """By one method: it is asked of every part of every pass, and a look at the whole protocol takes longer."""
    return hasattr(part, "take")


def blank(values: Tensor, dead: Tensor) -> Tensor:
    """``values`` with the dead units' entries replaced (not multiplied) by zero."""
    return values.masked_fill(dead.view(-1, *[1] * (values.ndim - 1)), 0)


def precise(values: Tensor) -> Tensor:
    """float32 or better: neither norms nor sums over units are taken in half precision."""
    return values.to(wide(values.dtype))


def lines(values: Tensor) -> Tensor:
    """One line of numbers per unit."""
    return values.reshape(len(values), -1)


def tiny(dtype: torch.dtype) -> float:
    """The square root of the smallest normal number: what is smaller has a square of 0."""
    return 2 * torch.finfo(dtype).tiny ** 0.5


def square_rows(values: Tensor) -> Tensor:
    """The squared norm of each unit's entries, in one pass and without a temporary copy.

    *Guarantee*: entries whose squares vanish count as if they were just large enough not to. Else a unit with one
    factor of 1e-25 and another of 1e21 would have norm 0, and pass unclipped.
    """
    flat = lines(precise(values))
    return (torch.linalg.vector_norm(flat, dim=1) + tiny(flat.dtype) * flat.shape[1] ** 0.5).square()


@dataclass(frozen=True)
class Dense:
    """A plain stack of gradients, for parameters that are small or used at very many positions."""

    name: str
    values: Tensor  # (units, *shape)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def square(self) -> Tensor:
        return square_rows(self.values)

    def dot(self, direction: Tree) -> Tensor:
        return lines(self.values) @ direction[self.name].flatten().to(self.values.dtype)

    def weighted(self, weights: Tensor) -> Tree:
        values = lines(precise(self.values))
        return {self.name: (weights.to(values.dtype) @ values).view(self.values.shape[1:])}

    def dense(self) -> Tree:
        return {self.name: self.values}

    def erased(self, dead: Tensor) -> Dense:
        return replace(self, values=blank(self.values, dead))

    @property
    def kind(self) -> Hashable:
        return Dense

    def beside(self, *others: Dense) -> Dense:
        return replace(self, values=added_up([self.values, *(other.values for other in others)]))

    @property
    def own(self) -> bool:
        return False

    def take(self, other: Dense) -> None:
        self.values.add_(other.values)

    @property
    def by_place(self) -> Tensor:
        """``values`` as (places, units, channels, entries), a view; there is one place."""
        return self.values.view(1, *self.values.shape[:2], -1)

    def placed(self, direction: Tensor) -> Tensor:
        """What has the parameter's shape, as ``values`` lie for a unit: (places, channels, entries)."""
        return direction.flatten(1).unsqueeze(0)

    def scaled_square(self, scale: Tensor) -> Tensor:
        """||scale_o G_io||^2, summed over output channels o, the parameter's first axis."""
        norms = torch.linalg.vector_norm(self.values.flatten(2), dim=2)
        return norms.square() @ scale.square()


@dataclass(frozen=True)
class Outer:
    """g_i = sum_t b_it a_it^T: a linear map used at T positions, kept as its two factors.

    The ghost norm needs no gradient: ||g_i||^2 = sum_{t,s} <a_it, a_is> <b_it, b_is>
    (Goodfellow 2015; Li et al., "Large Language Models Can Be Strong DP Learners", 2022).
    """

    name: str
    a: Tensor  # (units, positions, inputs)
    b: Tensor  # (units, positions, outputs)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def square(self) -> Tensor:
        if self.a.shape[1] == 1:
            return square_rows(self.a) * square_rows(self.b)
        return gram_square(*self.grams())

    def grams(self) -> Grams:
        """Of inputs and outputs, whose product entry by entry adds up to the square."""
        return gram(self.a), gram(self.b)

    def dot(self, direction: Tree) -> Tensor:
        return pair_sum(self.a @ direction[self.name].to(self.a.dtype).mT, self.b)

    def weighted(self, weights: Tensor) -> Tree:
        a, b = precise(self.a), precise(self.b)
        if a.shape[2] < b.shape[2]:  # the narrower one is scaled
            return {self.name: _product(_times(a, weights), b)}
        return {self.name: _product(a, _times(b, weights))}

    def dense(self) -> Tree:
        return {self.name: self.b.mT @ self.a}

    def erased(self, dead: Tensor) -> Outer:
        return replace(self, a=blank(self.a, dead), b=blank(self.b, dead))

    @property
    def kind(self) -> Hashable:
        return Outer

    def beside(self, *others: Outer) -> Part:
        every = (self, *others)
        return outer(self.name, torch.cat([p.a for p in every], 1), torch.cat([p.b for p in every], 1))


@dataclass(frozen=True)
class Bias:
    """g_i = sum_t b_it: a bias at T positions. It is an `Outer` whose input is 1 everywhere."""

    name: str
    b: Tensor  # (units, positions, outputs), the very factor of the map that it is the bias of

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def square(self) -> Tensor:
        return square_rows(self._sums())

    def dot(self, direction: Tree) -> Tensor:
        sums = self._sums()
        return sums @ direction[self.name].to(sums.dtype)

    def weighted(self, weights: Tensor) -> Tree:
        b = precise(self.b)
        each = weights.to(b.dtype).repeat_interleave(b.shape[1])
        return {self.name: each @ b.flatten(0, 1)}

    def dense(self) -> Tree:
        return {self.name: self._sums()}

    def erased(self, dead: Tensor) -> Bias:
        return replace(self, b=blank(self.b, dead))

    @property
    def kind(self) -> Hashable:
        return Bias

    def beside(self, *others: Bias) -> Dense:
        return Dense(self.name, added_up([each._sums() for each in (self, *others)]))

    def _sums(self) -> Tensor:
        return self.b.sum(1, dtype=wide(self.b.dtype))


@dataclass(frozen=True)
class Siblings:
    """Linear maps from each of some inputs to each of some outputs, and ``biases`` biases of every output.

    Attention's query, key and value have one input; an LSTM's W x_t + U h_(t-1) + b + c has one output. Their squares
    add up to that of one map with all inputs, a 1 for each bias, and all outputs side by side,

        ||g_i||^2 = sum_{t,s} (biases + sum_j <a_jit, a_jis>) sum_k <b_kit, b_kis>

    So every Gram matrix is taken once, the inputs are multiplied by the units' weights once, and biases cost nothing.
    """

    inputs: Sequence[Tensor]  # (units, positions, width), at more than one position
    outputs: Sequence[Tensor]
    maps: Sequence[Sequence[str]]  # for each output, the map's name for each input
    biases: Sequence[Sequence[str]]  # for each output, as many

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for each in (*self.maps, *self.biases) for name in each)

    def erased(self, dead: Tensor) -> Siblings:
        """Without these units, whatever they hold."""
        inputs, outputs = ([blank(x, dead) for x in factors] for factors in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs)

    def square(self) -> Tensor:
        return gram_square(*self.grams())

    def grams(self) -> Grams:
        return gram(*self.inputs).plus(len(self.biases[0])), gram(*self.outputs)

    def weighted(self, weights: Tensor) -> Tree:
        widths = [x.shape[2] for x in self.inputs]
        if sum(widths) > sum(b.shape[2] for b in self.outputs):  # the narrower ones are scaled
            return self._by_outputs(weights)
        found: Tree = {}
        inputs = self._weighted_inputs(weights)
        for b, maps, biases in zip(self.outputs, self.maps, self.biases, strict=True):
            whole = _product(inputs, precise(b))
            *leaves, last = whole.split([*widths, whole.shape[1] - sum(widths)], 1)
            found.update((name, leaf.contiguous()) for name, leaf in zip(maps, leaves, strict=True))
            found.update((name, last[:, 0].clone()) for name in biases)  # each its own: they are written into
        return found

    def _by_outputs(self, weights: Tensor) -> Tree:
        found: Tree = {}
        for b, maps, biases in zip(self.outputs, self.maps, self.biases, strict=True):
            b = _times(precise(b), weights)
            found.update((name, _product(precise(x), b)) for name, x in zip(maps, self.inputs, strict=True))
            found.update((name, b.sum((0, 1))) for name in biases)
        return found

    def _weighted_inputs(self, weights: Tensor) -> Tensor:
        """c_i (a_1it, a_2it, ..., 1, 0, 0, ...), the 1 where there are biases.

        Zeros fill it up to a multiple of 8: a product that is 97 wide took a fifth longer than one that is 104 wide.
        """
        positions, width = self.inputs[0].shape[1], sum(x.shape[2] for x in self.inputs)
        more = 8 - width % 8 if self.biases[0] else 0
        c = weights.to(wide(self.inputs[0].dtype)).view(-1, 1, 1)
        one = c.new_zeros(1, 1, more)
        one[..., :1] = 1
        return torch.cat([*(precise(x) * c for x in self.inputs), (one * c).expand(-1, positions, -1)], 2)


def together(parts: Iterable[Part]) -> list[Part | Siblings]:
    """The same gradients, where linear maps of one input or of one output, and their biases, are asked at once."""
    parts = list(parts)
    maps = [part for part in parts if isinstance(part, Outer) and part.a.shape[1] > 1]
    biases: dict[Hashable, list[str]] = {}
    for part in parts:
        if isinstance(part, Bias):
            biases.setdefault(_place(part.b), []).append(part.name)
    found = [_siblings(same, biases) for same in _families(maps)]
    taken = {name for each in found if each is not None for name in each.names}
    rest = [part for part in parts if taken.isdisjoint(part.names)]
    return [*(each for each in found if each is not None), *rest]


def _families(maps: Sequence[Outer]) -> list[list[Outer]]:
    """Maps of one input; those that have theirs alone, by their output."""
    by_input, by_output = _sorted_by(maps, "a"), []
    for same in by_input:
        if len(same) == 1:
            by_output += same
    return [same for same in by_input if len(same) > 1] + _sorted_by(by_output, "b")


def _sorted_by(maps: Sequence[Outer], factor: str) -> list[list[Outer]]:
    found: dict[Hashable, list[Outer]] = {}
    for each in maps:
        found.setdefault(_place(getattr(each, factor)), []).append(each)
    return list(found.values())


def _siblings(maps: Sequence[Outer], biases: dict[Hashable, list[str]]) -> Siblings | None:
    """A family and its biases, which are taken out of ``biases``, if every output has as many; None if it is one map.

    Two maps of one input may have one and the same gradient at their outputs, as in A x + B x: these are two outputs.
    """
    one_input = len(maps) > 1 and _place(maps[0].a) == _place(maps[1].a)
    outputs = [each.b for each in maps] if one_input else [maps[0].b]
    places = [_place(b) for b in outputs]
    waiting = [biases.get(place, []) for place in places]
    count = min(len(mine) // places.count(place) for mine, place in zip(waiting, places, strict=True))
    if len(maps) == 1 and not count:
        return None
    own = [[mine.pop() for _ in range(count)] for mine in waiting]
    inputs = [maps[0].a] if one_input else [each.a for each in maps]
    names = [[each.name] for each in maps] if one_input else [[each.name for each in maps]]
    return Siblings(inputs, outputs, names, own)


def _place(values: Tensor) -> Hashable:
    """Where in memory a tensor's numbers lie, and how: two tensors that agree in it, both alive, are one."""
    return values.device, values.dtype, values.data_ptr(), values.shape, values.stride()


def _times(factor: Tensor, weights: Tensor) -> Tensor:
    """A factor, (units, positions, width), times c_i for every unit i."""
    return factor * weights.to(factor.dtype).view(-1, 1, 1)


# Whether a product that is much taller than wide is taken lying down. Where vectors hold 16 numbers that is faster;
# where they hold 8, products of 5,000 x 1,280 x 96 and 36,743 x 1,280 x 96 took 1.1 to 1.4 times as long that way.
LAID_DOWN = torch.backends.cpu.get_cpu_capability() == "AVX512"


def _product(a: Tensor, b: Tensor) -> Tensor:
    """sum_{i,t} b_it a_it^T."""
    a, b = a.flatten(0, 1), b.flatten(0, 1)
    if LAID_DOWN and b.shape[1] > 8 * a.shape[1]:
        return (a.mT @ b).mT.contiguous()
    return b.mT @ a


@dataclass(frozen=True)
class Rows:
    """An embedding's gradient: at each position, one row of the table receives ``b``.

    It is an `Outer` whose output factor is one-hot, so two positions meet only where they touch the
    same row: ||g_i||^2 = sum_{t,s} [row_it = row_is] <b_it, b_is>.
    """

    name: str
    rows: Tensor  # (units, positions), integers
    b: Tensor  # (units, positions, width)
    count: int  # rows in the table

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def square(self) -> Tensor:
        return gram_square(*self.grams())

    def grams(self) -> Grams:
        b = precise(self.b)
        same = self.rows.unsqueeze(2) == self.rows.unsqueeze(1)
        return Gram([b @ b.mT]), Gram([same.to(b.dtype)])

    def dot(self, direction: Tree) -> Tensor:
        return pair_sum(direction[self.name].to(self.b.dtype)[self.rows], self.b)

    def weighted(self, weights: Tensor) -> Tree:
        b = precise(self.b)
        b = b * weights.to(b.dtype).view(-1, 1, 1)
        total = b.new_zeros(self.count, b.shape[2])
        return {self.name: total.index_add_(0, self.rows.flatten(), b.flatten(0, 1))}

    def dense(self) -> Tree:
        units, _, width = self.b.shape
        values = self.b.new_zeros(units, self.count, width)
        index = self.rows.unsqueeze(2).expand_as(self.b)
        return {self.name: values.scatter_add_(1, index, self.b)}

    def erased(self, dead: Tensor) -> Rows:
        return replace(self, rows=blank(self.rows, dead), b=blank(self.b, dead))

    @property
    def kind(self) -> Hashable:
        return Rows

    def beside(self, *others: Rows) -> Rows:
        every = (self, *others)
        rows, b = torch.cat([p.rows for p in every], 1), torch.cat([p.b for p in every], 1)
        return replace(self, rows=rows, b=b)


@dataclass(frozen=True)
class Tied:
    """One table used both as an embedding and as a linear layer, with the cross term of the two uses.

    ||g_i||^2 = ||linear_i||^2 + ||table_i||^2 + 2 sum_{t,s} <a_it, b_is> linear.b_it[row_is].
    """

    linear: Outer
    table: Rows

    @property
    def names(self) -> tuple[str, ...]:
        return self.linear.names

    def square(self) -> Tensor:
        a, b = precise(self.linear.a), precise(self.linear.b)
        rows = self.table.rows.unsqueeze(1).expand(-1, b.shape[1], -1)
        cross = pair_sum(a @ precise(self.table.b).mT, b.gather(2, rows))
        apart = self.linear.square() + self.table.square()
        return apart * (1 + slack(apart.dtype)) + 2 * cross

    def dot(self, direction: Tree) -> Tensor:
        return self.linear.dot(direction) + self.table.dot(direction)

    def weighted(self, weights: Tensor) -> Tree:
        return _added(self.linear.weighted(weights), self.table.weighted(weights))

    def dense(self) -> Tree:
        return _added(self.linear.dense(), self.table.dense())

    def erased(self, dead: Tensor) -> Tied:
        return Tied(self.linear.erased(dead), self.table.erased(dead))

    @property
    def kind(self) -> Hashable:
        return Tied

    def beside(self, *others: Tied) -> Part:
        linear = self.linear.beside(*(other.linear for other in others))
        return combined([linear, self.table.beside(*(other.table for other in others))])


@dataclass(frozen=True)
class Stretch:
    """A tensor made of weights whose first axis is the batch: each unit's gradient is zero outside its own stretch.

    It is a stop on the way back to the parameters, where it is asked for `dense` alone.
    """

    name: str
    values: Tensor  # (units, length of a stretch, ...)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def dense(self) -> Tree:
        units, length = self.values.shape[:2]
        whole = self.values.new_zeros(units, units, *self.values.shape[1:])
        own = torch.arange(units, device=whole.device)
        whole[own, own] = self.values
        return {self.name: whole.view(units, units * length, *self.values.shape[2:])}

    def square(self) -> Tensor:
        return square_rows(self.values)

    def dot(self, direction: Tree) -> Tensor:
        return pair_sum(self.values, direction[self.name].view_as(self.values))

    def weighted(self, weights: Tensor) -> Tree:
        own = self.values * weights.to(self.values.dtype).view(-1, *[1] * (self.values.ndim - 1))
        return {self.name: own.flatten(0, 1)}

    def erased(self, dead: Tensor) -> Stretch:
        return replace(self, values=blank(self.values, dead))

    @property
    def kind(self) -> Hashable:
        return Stretch

    def beside(self, *others: Stretch) -> Stretch:
        return replace(self, values=added_up([self.values, *(other.values for other in others)]))


def pair_sum(x: Tensor, y: Tensor) -> Tensor:
    """sum_j x_ij y_ij for every unit i, in float32 or better."""
    return torch.linalg.vecdot(lines(precise(x)), lines(precise(y)))


def slack(dtype: torch.dtype) -> float:
    """How much of a sum's terms is added to it, so that rounding can only make a norm larger."""
    return 16 * torch.finfo(dtype).eps


@dataclass(frozen=True)
class Gram:
    """The inner products of a unit's positions with each other, (units, positions, positions), as blocks of a whole."""

    along: Sequence[Tensor]  # square blocks, one after the other, on the diagonal
    above: Sequence[Tensor] = ()  # the others above it: the whole is symmetric, so each stands for two

    @classmethod
    def stacked(cls, grams: Sequence[Gram]) -> Gram:
        """The units of all of them, one after the other."""
        if len(grams) == 1:
            return grams[0]
        along, above = ([g.along for g in grams], [g.above for g in grams])
        return cls(*([torch.cat(each) for each in zip(*blocks, strict=True)] for blocks in (along, above)))

    @property
    def form(self) -> Hashable:
        return (*((x.device, x.dtype, x.shape) for x in (*self.along, *self.above)),)

    @property
    def entries(self) -> int:
        return sum(x.numel() for x in (*self.along, *self.above))

    def plus(self, number: int) -> Gram:
        """With a number added to every entry: as if each position had that many entries more, all of them 1."""
        return Gram([x + number for x in self.along], [x + number for x in self.above]) if number else self

    def diagonal(self) -> Tensor:
        first, *more = (block.diagonal(dim1=1, dim2=2) for block in self.along)
        return torch.cat([first, *more], 1) if more else first

    def inner(self, other: Gram) -> Tensor:
        """sum_{t,s} A_ts B_ts with a matrix in the same blocks."""
        first, *more = map(pair_sum, self.along, other.along)
        for x, y in zip(self.above, other.above, strict=True):
            more.append(2 * pair_sum(x, y))
        return added_up([first, *more]) if more else first


Grams = tuple[Gram, Gram]

# Positions of which a Gram matrix is taken by halves. Where a processor's vectors hold 16 numbers, a product of 17 x 17
# takes twice the time of one of 16 x 16; where they hold 8, halves of 17 to 20 took 1.3 to 1.8 times the whole's time.
HALVED = range(17, 24) if torch.backends.cpu.get_cpu_capability() == "AVX512" else range(0)


def gram(*factors: Tensor) -> Gram:
    """The Gram matrices of factors of the same positions, added up: as if their widths lay side by side."""
    positions = factors[0].shape[1]
    if positions not in HALVED:
        return Gram([_products([(x, x) for x in factors])])
    halves = [x.split(-(-positions // 2), 1) for x in factors]
    along = [_products([(half[side], half[side]) for half in halves]) for side in (0, 1)]
    return Gram(along, [_products([(first, second) for first, second in halves])])


def _products(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """sum_k x_k y_k^T for every unit."""
    (x, y), *more = pairs
    total = precise(x) @ precise(y).mT
    for x, y in more:
        total.baddbmm_(precise(x), precise(y).mT)
    return total


def gram_square(a: Gram, b: Gram) -> Tensor:
    """sum_{t,s} A_ts B_ts for two Gram matrices of the same positions, rounded up; (units,).

    The terms may cancel, and a hostile record can make them: two huge positions that nearly undo each other
    leave a sum that is mere rounding error, while the gradient that rounding leaves in the weighted sum is
    not small. So a multiple of the rounding unit times the largest value that the terms could have,
    (sum_t sqrt(A_tt B_tt))^2, is added.

    *Guarantee*: such a record is clipped harder than its exact norm asks for, never less.
    """
    roots = torch.stack([a.diagonal(), b.diagonal()]).clamp_(min=0).sqrt_()  # ||a_t||, ||b_t||
    terms = torch.linalg.vecdot(*roots).square_()
    # Entries whose squares vanish, beside a large factor: each Gram entry may have lost a few of the smallest numbers.
    lost = roots.sum(2).square_().sum(0)
    least = 1024 * tiny(roots.dtype) ** 2
    return a.inner(b).add_(terms, alpha=slack(roots.dtype)).add_(lost, alpha=least)


SMALL = (
    1 << 18
)  # entries of a Gram matrix, over all units: starting an operation takes longer than to compute it


def squares(parts: Iterable[Part | Siblings]) -> Iterator[Tensor]:
    """||g_i||^2 of the parts, or of several together: small Gram matrices of one form wait for each other."""
    waiting: dict[Hashable, list[Grams]] = {}
    for part in parts:
        if not isinstance(part, (Outer, Siblings, Rows)) or (
            isinstance(part, Outer) and part.a.shape[1] == 1
        ):
            yield part.square()
            continue
        pair = part.grams()
        if pair[0].entries > SMALL:
            yield gram_square(*pair)
        else:
            waiting.setdefault((pair[0].form, pair[1].form), []).append(pair)
    for pairs in waiting.values():
        a, b = (Gram.stacked(grams) for grams in zip(*pairs, strict=True))
        yield gram_square(a, b).view(len(pairs), -1).sum(0)


def added_up(values: Sequence[Tensor]) -> Tensor:
    """The sum, in memory of its own."""
    first, *rest = values
    total = first + rest[0] if rest else first.clone()
    for each in rest[1:]:
        total += each
    return total


def outer(name: str, a: Tensor, b: Tensor, points: int = 1) -> Part:
    """A linear layer's part: its two factors, or the gradients themselves where those are cheaper.

    ``points``: at how many points in weight space there will be as many positions, laid beside these.
    """
    (_, positions, inputs), outputs = a.shape, b.shape[2]
    positions *= points
    if positions > 1 and not factors_are_cheaper(positions, inputs + outputs, inputs * outputs):
        return Dense(name, precise(b).mT @ precise(a))
    return Outer(name, a, b)


def factors_are_cheaper(positions: int, gram_width: float, entries: int) -> bool:
    """Compare the two exact ways to a norm, in floating-point operations per unit on top of plain training.

    Factors cost their Gram matrices, 2 T^2 x gram_width (d + p for a linear layer). Gradients take the
    place of the weighted product that training needs anyway, but writing and reading each of a unit's p d
    entries, and a batched product in the place of one large one, cost some hundred operations an entry:
    a round figure between those measured for sixteen convolutions on one two-core machine (34 to 234).
    """
    return 2 * positions**2 * gram_width < 100 * entries


def laid(parts: list[Part], part: Part) -> list[Part]:
    """One more use of a parameter, beside the one of its kind if there is one; so no kind is there twice."""
    for other in parts:
        if other.kind == part.kind:
            rest = [p for p in parts if p is not other]
            return laid(rest, other.beside(part))  # which may be of another kind: it takes its turn again
    return [*parts, part]


class Gathered:
    """The parts of one parameter at several ``points``, one after the other.

    Gradients are added up as they come, so that they take the room of one point's. Factors are laid side by side, in
    room for all points that is made at the first: what would be left of every pass by itself keeps free memory in
    pieces, and would be copied once more at the end.
    """

    def __init__(self, points: int = 1) -> None:
        self._points = points
        self._parts: dict[Hashable, list[Part]] = {}
        self._rooms: dict[Hashable, Room] = {}
        self._own: set[Hashable] = set()  # kinds whose sum lies in memory that nobody else holds

    def add(self, part: Part) -> None:
        """One more."""
        parts = self._parts.setdefault(part.kind, [])
        if self._points > 1 and isinstance(part, Outer) and self._laid(part):
            return
        if not (parts and is_adding(part)):
            if hasattr(part, "start"):
                part.start(self._points)
            parts.append(part)
        elif part.own or part.kind in self._own:
            parts[0].take(part)  # type: ignore[attr-defined]
        else:
            parts[0] = parts[0].beside(part)
            self._own.add(part.kind)

    def _laid(self, part: Outer) -> bool:
        """Whether there was room for it."""
        if part.kind not in self._rooms:
            self._rooms[part.kind] = Room(part, self._points)
        return self._rooms[part.kind].take(part)

    def part(self) -> Part:
        """All of them as one."""
        parts: list[Part] = []
        for kind, waiting in self._parts.items():
            room: list[Part] = [self._rooms[kind].part()] if kind in self._rooms else []
            first, *rest = room + waiting
            parts = laid(parts, first.beside(*rest) if rest else first)
        return combined(parts)


class Room:
    """Memory for the factors of several points, as many positions each, filled from the front."""

    def __init__(self, first: Outer, points: int) -> None:
        units, positions, _ = first.a.shape
        room = lambda factor: factor.new_empty(units, points * positions, factor.shape[2])
        self._whole, self._filled = replace(first, a=room(first.a), b=room(first.b)), 0

    def take(self, part: Outer) -> bool:
        """Copy a point's factors in, if they fit: a layer that is used twice has more of them than was thought."""
        place = slice(self._filled, self._filled + part.a.shape[1])
        if place.stop > self._whole.a.shape[1]:
            return False
        self._whole.a[:, place], self._whole.b[:, place] = part.a, part.b
        self._filled = place.stop
        return True

    def part(self) -> Outer:
        filled = slice(self._filled)
        return replace(self._whole, a=self._whole.a[:, filled], b=self._whole.b[:, filled])


def combined(parts: list[Part]) -> Part:
    """One part for all uses of one parameter, cross terms included; ``parts`` are of different kinds.

    A table that is also a linear layer keeps both factors; anything else is added up as plain gradients.
    """
    if len(parts) == 1:
        return parts[0]
    by_kind = {part.kind: part for part in parts}
    linear, table = by_kind.get(Outer), by_kind.get(Rows)
    if len(parts) == 2 and isinstance(linear, Outer) and isinstance(table, Rows):
        return Tied(linear, table)
    (name,) = parts[0].names
    return Dense(name, torch.stack([part.dense()[name] for part in parts]).sum(0))


def _added(a: Tree, b: Tree) -> Tree:
    return {name: a[name] + b[name] for name in a}
