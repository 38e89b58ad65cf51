"""Public examples, as methods use them in the private phase: their gradients, and nothing of anybody else's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from saltflat.core.contribution import PerExample
from saltflat.core.sampling import Indices, Units, physical
from saltflat.errors import DataError, ModelError, PrivacyError, SettingError
from saltflat.gradients.tape import OwnFunction
from saltflat.gradients.width import Narrowed, is_narrow
from saltflat.settings import is_whole
from saltflat.tree import Tree, add, called, dense, has_shards, map_tree, mul, size, zeros_like

CHUNK = 256  # examples in memory at once, where all are asked about
TOGETHER = (
    128  # rows of minibatches that share a pass: alone, such small ones take longer to start than to run
)
HELD = 1 << 26  # numbers of the gradients that such a pass holds at once
DEEP, MANY = 6, 64  # how far what holds units is looked into, and lists that are no list of examples


@dataclass(frozen=True)
class Public:
    """Examples that are public, or made by a program, with the loss that they are seen through.

    ``contribution`` is what `per_example` gives, with the model that is trained; ``named`` says in the privacy
    statement what the examples are.

    *Guarantee*: gradients of public examples at released weights are post-processing, and free; the people whose
    examples these are get no protection at all, and the statement says so. Nothing here can see that they are public:
    only that they are not the very units that are trained on.

    >>> from saltflat import per_example, supervised
    >>> from saltflat.data import TensorUnits
    >>> linear = torch.nn.Linear(2, 3)
    >>> loss = supervised(torch.nn.CrossEntropyLoss(reduction="none"))
    >>> Public(per_example(linear, loss), TensorUnits((torch.zeros(5, 2), torch.arange(5) % 3)), "made up").described
    'made up (5 examples)'
    """

    contribution: PerExample = field(repr=False)
    units: Units = field(repr=False)
    named: str = "public examples"

    def __post_init__(self) -> None:
        if not isinstance(self.contribution, PerExample):
            raise SettingError(
                f"the contribution of public examples is per_example(model, loss); got a "
                f"{type(self.contribution).__name__}"
            )
        if not (callable(getattr(self.units, "take", None)) and is_whole(getattr(self.units, "count", None))):
            raise SettingError(
                f"units are public examples, at least one, such as TensorUnits((inputs, targets)); got a "
                f"{type(self.units).__name__}"
            )
        if not (isinstance(self.named, str) and self.named.strip()):
            raise SettingError("named is empty: say in words what the public examples are")

    @property
    def described(self) -> str:
        """What the examples are and how many: both are public."""
        return f"{self.named} ({self.units.count} {self.contribution.unit}s)"

    def gradient(self, point: Tree, *, batch: int = 1, source: Generator | None = None) -> Tree:
        """The mean gradient over ``batch`` examples that ``source`` draws with replacement; over all without one."""
        if source is None:
            return self._mean(point, np.arange(self.units.count))
        drawn = torch.randint(self.units.count, (batch,), generator=source)
        return self._mean(point, drawn.numpy())

    def gradients(self, point: Tree, *, batch: int, sources: Sequence[Generator]) -> Iterator[Tree]:
        """As `gradient` for one source after the other; minibatches that are small share a pass."""
        most = max(1, min(TOGETHER // (batch * self.contribution.views), HELD // size(point)))
        if has_shards(point) or is_narrow(self.contribution.model):
            most = 1
        for start in range(0, len(sources), most):
            drawn = [
                torch.randint(self.units.count, (batch,), generator=source).numpy()
                for source in sources[start : start + most]
            ]
            yield from [self._mean(point, drawn[0])] if len(drawn) == 1 else self._means(point, drawn)

    def loss(self, point: Tree) -> float:
        """The mean loss over all examples."""
        with torch.no_grad():
            parts = [
                self.contribution.losses_of_units(point, self.units.take(part)).double().sum()
                for part in physical(np.arange(self.units.count), CHUNK)
            ]
        return float(torch.stack(parts).sum()) / self.units.count

    def check_linear(self, point: Tree) -> None:
        """Refuse a model whose outputs are not linear in the weights: they are at a middle what they are on average."""
        source = torch.Generator().manual_seed(0)
        away = [
            map_tree(lambda w: w + torch.randn(w.shape, generator=source, dtype=w.dtype), point)
            for _ in range(2)
        ]
        places = [*away, mul(add(away[0], away[1]), 0.5)]
        rows = self.units.take(np.arange(min(8, self.units.count)))
        one, other, middle = (self._outputs(place, rows) for place in places)
        if not torch.allclose((one + other) / 2, middle, rtol=1e-3, atol=1e-3 * float(middle.abs().max())):
            raise ModelError(
                "mirror descent in its exact form is for linear models, as its step is a convex problem there; this "
                "model's outputs are not linear in its weights: take the method Mirror, its first-order form"
            )

    def _outputs(self, point: Tree, rows: Sequence[Tensor]) -> Tensor:
        heard: list[Tensor] = []

        def predict(*args: Any, **kwargs: Any) -> Tensor:
            heard.append(called(self.contribution.model, point, args, kwargs))
            return heard[-1]

        with torch.no_grad():
            self.contribution.loss(predict, rows)
        return heard[-1].double()

    def _mean(self, point: Tree, which: Indices) -> Tree:
        """By plain automatic differentiation: nobody's own gradient is needed here."""
        own = {name: leaf.detach().clone().requires_grad_() for name, leaf in point.items()}
        total = zeros_like(point)
        for part in physical(which, CHUNK):
            with torch.enable_grad():
                losses = self.contribution.losses_of_units(own, self.units.take(part))
                mean = losses.sum() / len(which)
            found = torch.autograd.grad(mean, list(own.values()), allow_unused=True)
            for name, leaf in zip(own, found, strict=True):
                if leaf is not None:
                    total[name] += dense(leaf)
        self._check_finite(total)
        return total

    def _means(self, point: Tree, drawn: Sequence[Indices]) -> Iterator[Tree]:
        """The means over minibatches of one size, as the gradients of units that have so many views each."""
        try:
            stacks = self.contribution.group_means(point, self.units.take(np.concatenate(drawn)), len(drawn))
        except (Narrowed, OwnFunction):  # plain automatic differentiation does what a tape cannot
            yield from (self._mean(point, which) for which in drawn)
            return
        self._check_finite(stacks)
        for place in range(len(drawn)):
            yield {name: stack[place] for name, stack in stacks.items()}

    def _check_finite(self, tree: Tree) -> None:
        if not all(_is_finite(leaf) for leaf in tree.values()):
            raise DataError(
                f"the gradient of {self.named} is not finite: they hold a NaN or an infinity, or training diverged; "
                "look at them, or lower the learning rate"
            )


def _is_finite(leaf: Tensor) -> bool:
    """Whether all numbers are; a finite sum says so in one pass, and only an infinite one may be of finite numbers."""
    return bool(leaf.sum().isfinite()) or bool(leaf.isfinite().all())


def check_apart(used: Sequence[object], units: Units) -> None:
    """Refuse private units in the place of public examples: the same ones, or ones that lie in the same memory.

    Copies are not seen: telling them by their values would tell of private ones.
    """
    private = list(_held_by(units)) if used else []
    for each in used:
        if any(_shared(one, other) for one in _held_by(getattr(each, "units", None)) for other in private):
            raise PrivacyError(
                "units that are trained on were handed to a method as public examples: their gradients would be used "
                "without clip and noise; keep the two apart"
            )


def _held_by(holder: object, rows: int = 2, deep: int = DEEP) -> Iterator[object]:
    """The units, whatever they are made from, and every array that may hold their rows, by whatever name.

    An array is one of rows if it has at least as many as its holder has units: a mean over colours is nobody's row.
    """
    if isinstance(holder, Tensor | np.ndarray):
        yield from [holder] if holder.ndim and len(holder) >= rows else []
        return
    if not deep or holder is None or isinstance(holder, type | str | bytes | nn.Module):
        return
    count = _count(holder)
    if count is not None and (
        count >= rows or not isinstance(holder, list)
    ):  # names of classes are a list too
        rows = max(2, count)
        yield holder
    inside: Iterable[object] = getattr(holder, "__dict__", {}).values()
    if isinstance(holder, dict | list | tuple):
        inside = () if len(holder) > MANY else holder.values() if isinstance(holder, dict) else holder
    for each in list(inside):
        yield from _held_by(each, rows, deep - 1)


def _count(holder: object) -> int | None:
    """How many units or items there are in it; None of what is no collection of them: a few of them side by side."""
    if callable(getattr(holder, "take", None)) and is_whole(getattr(holder, "count", None)):
        return int(getattr(holder, "count", 0))
    if isinstance(holder, dict | tuple) or (isinstance(holder, list) and len(holder) <= MANY):
        return None
    try:
        return len(holder) if hasattr(holder, "__getitem__") else None  # type: ignore[arg-type]
    except Exception:  # a length that is not known
        return None


def _shared(one: object, other: object) -> bool:
    """Whether two are the same object, or arrays of which some bytes may be the same."""
    mine, theirs = memory_span(one), memory_span(other)
    if mine is None or theirs is None:
        return one is other
    (place, low, end), (there, start, high) = mine, theirs
    return place == there and low < high and start < end


def memory_span(held: object) -> tuple[str, int, int] | None:
    """Where an array's first byte lies, and where its last one ends; None of what is no array in plain memory."""
    if isinstance(held, np.ndarray):
        where, steps, width = "cpu", held.strides, held.itemsize
        first = int(held.__array_interface__["data"][0])
    elif isinstance(held, Tensor) and held.layout == torch.strided:
        width = held.element_size()
        where, steps, first = str(held.device), tuple(width * step for step in held.stride()), held.data_ptr()
    else:
        return None
    ways = [(size - 1) * step for size, step in zip(held.shape, steps, strict=True)]
    if min(held.shape, default=1) == 0:
        return where, first, first
    return where, first + sum(min(0, way) for way in ways), first + sum(max(0, way) for way in ways) + width
