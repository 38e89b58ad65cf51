"""Book-keeping: the gradients of one physical batch of units, known by their parts.

One forward pass, one backward pass for the layers' outputs only, then norms and weighted sums from the
parts that the tape kept (Bu et al., "Differentially Private Optimization on Large Model at Small Cost", 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from saltflat.errors import ModelError
from saltflat.gradients import (  # noqa: F401  (they register rules)
    attention,
    bare,
    conv,
    einsum,
    entropy,
    linear,
    norm,
    pooling,
    recompute,
    recurrent,
)
from saltflat.gradients.away import Away
from saltflat.gradients.parts import Dense, Gathered, Part, combined, precise, squares, together
from saltflat.gradients.standardised import Standardisation, Standardised
from saltflat.gradients.tape import OwnFunction, ReadsValues, Tape, Weight
from saltflat.tree import Tree, cut, dense, is_sharded, wide

LossesAt = Callable[[Tree], Tensor]  # a point in weight space -> the loss of every row
Use = tuple[LossesAt, Tree, float]  # rows, the point that they are taken at, and its weight


@dataclass(frozen=True)
class Kept:
    """The gradients of ``units`` units, as parts that together cover every parameter in ``like`` once."""

    units: int
    parts: Sequence[Part] = field(repr=False)  # inputs and gradients of single units
    like: Tree = field(repr=False)

    @property
    def device(self) -> torch.device:
        return next(iter(self.like.values())).device

    def norms(self) -> Tensor:
        """||g_i|| over all parameters jointly; (units,)."""
        some = next(iter(self.like.values()))
        square = torch.zeros(self.units, device=self.device, dtype=wide(some.dtype))
        for each in squares(together(self.parts)):
            square += each
        # A ghost norm is a sum with cancellation: rounding may leave a tiny negative number. NaN stays NaN.
        return torch.where(square < 0, 0, square).sqrt()

    def dot(self, direction: Tree) -> Tensor:
        """<g_i, direction>; (units,)."""
        return torch.stack([part.dot(direction) for part in self.parts]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tree:
        """sum_i c_i g_i, in float32 or better; a unit of weight 0 is left out, whatever it holds.

        Rounded to the weights' own narrow type, a sum would move by more than its units do. Of sharded leaves each
        process keeps its own part, of the sum over the units of this chunk.
        """
        return {
            name: cut(leaf, self.like[name]) if is_sharded(self.like[name]) else leaf
            for name, leaf in self.leaves(weights)
        }

    def leaves(self, weights: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The leaves of `weighted_sum`, whole, one after the other in the order of ``like``."""
        dead = weights == 0
        spare = bool(dead.any())
        parts = {name: part for part in together(self.parts) for name in part.names}
        made: dict[str, Tensor] = {}  # those of a part that has several
        for name, like in self.like.items():
            if name in parts and name not in made:
                part = parts[name]
                made.update((part.erased(dead) if spare else part).weighted(weights))
            leaf = made.pop(name, None)
            if leaf is None:
                leaf = torch.zeros(like.shape, device=like.device)
            yield name, leaf.to(wide(like.dtype))

    def scaled(self, scale: Tree) -> Kept:
        """The gradients scale * g_i, coordinate by coordinate; needs each unit's gradient in memory."""
        parts = [
            Dense(name, values * scale[name].to(values.dtype))
            for part in self.parts
            for name, values in part.dense().items()
        ]
        return Kept(self.units, parts, self.like)

    def only(self, names: Collection[str]) -> Kept:
        """The gradients with respect to these parameters alone."""
        parts = [some for part in self.parts for some in _within(part, names)]
        return Kept(self.units, parts, {name: self.like[name] for name in names})


def _within(part: Part, names: Collection[str]) -> list[Part]:
    """What a part says of these parameters; one that straddles two layers is taken apart."""
    inside = [name in names for name in part.names]
    if all(inside) or not any(inside):
        return [part] if all(inside) else []
    return [Dense(name, values) for name, values in part.dense().items() if name in names]


def book_keeping(
    losses_at: LossesAt,
    points: Sequence[Tree],
    weights: Sequence[float],
    *,
    rows: int,
    views: int = 1,
    constants: Iterable[Tensor] = (),
) -> Kept:
    """The gradients of sum_k weights_k loss(points_k), for ``rows / views`` units, mean over a unit's views.

    ``losses_at`` runs the model at a point and returns the loss of each row. ``constants`` are the tensors
    that the model holds beside the points' own: buffers and frozen parameters.
    """
    asked = [(losses_at, point, weight) for point, weight in zip(points, weights, strict=True)]
    return kept(asked, rows=rows, views=views, points=len(asked), constants=constants)


def kept(
    asked: Iterable[Use],
    *,
    rows: int,
    views: int = 1,
    points: int,
    constants: Iterable[Tensor] = (),
    away: Away | None = None,
) -> Kept:
    """As `book_keeping`, with losses of its own for every one of ``points`` points: other rows of the same units, say.

    ``asked`` may make its points and rows as they are taken: one is let go of before the next is asked for.
    ``away``: where weights come from that this process does not hold whole.
    """
    found: dict[str, Gathered] = {}
    like: list[Tree] = []  # the first point
    setting = {"rows": rows, "views": views, "points": points, "constants": list(constants), "found": found}
    for use in asked:
        like = like or [use[1]]
        _gather(use, Tape(use[1], **setting), away)  # type: ignore[arg-type]
        del use  # before the next one is made
    return Kept(rows // views, [each.part() for each in found.values()], like[0])


def _gather(use: Use, tape: Tape, away: Away | None) -> None:
    """One pass, forward and back; when this returns, nothing is left of it but what was found."""
    losses_at, point, weight = use
    try:
        with torch.enable_grad():
            with tape, away.near(tape) if away else nullcontext():
                losses = checked_losses(losses_at(point), tape.rows)
            if tape.reads_values and tape.rows > tape.views:
                raise ReadsValues
            if losses.requires_grad:
                (losses * (weight / tape.views)).sum().backward()
        resolve(tape)  # it may ask once more for what a checkpointed function made
    except OwnFunction as function:
        if tape.rows > tape.views:
            raise
        if away is not None:
            raise ModelError(
                f"the custom function {function} takes a trained parameter, and the weights are sharded; hand it "
                "activations only, or train without sharding"
            ) from None
        _gather_plainly(use, tape)
    finally:
        for segment in tape.segments:
            segment.clear()


def _gather_plainly(use: Use, tape: Tape) -> None:
    """The gradient of one unit alone, by plain automatic differentiation: that of anything, and slow."""
    losses_at, point, weight = use
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in point.items()}
    with torch.enable_grad():
        losses = checked_losses(losses_at(leaves), tape.rows)
        if not losses.requires_grad:
            return
        total = (losses * (weight / tape.views)).sum()
        grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for name, grad in zip(leaves, grads, strict=True):
        if grad is not None:
            tape.keep(Dense(name, precise(dense(grad)).unsqueeze(0)))


def checked_losses(losses: Tensor, rows: int) -> Tensor:
    """The losses, if there is one for every row."""
    if losses.shape != (rows,):
        raise ModelError(
            f"the loss gave shape {tuple(losses.shape)} for {rows} rows, but clipping needs one loss per example, "
            f"shape ({rows},): use reduction='none', and average over an example's own tokens or pixels only"
        )
    return losses


def resolve(tape: Tape) -> None:
    """Carry the uses of weights that forward made back to the parameters that they are made of."""
    for name in list(tape.uses):
        weight, part = tape.derived[name], combined(tape.uses.pop(name))
        if weight.back is not None:
            carried = [weight.back(part)]
        elif weight.how is not None and _is_known(tape, name, weight.how):
            carried = [Standardised(part, weight.how)]  # type: ignore[arg-type]
        else:
            carried = carried_back(tape, weight, part)
        for each in carried:
            tape.keep(each)


def _is_known(tape: Tape, name: str, how: Standardisation) -> bool:
    """Whether every use of a standardised weight was seen, at one point, and its parameters have no other."""
    return tape.points == 1 and how.observed == tape.times[name] and tape.found.keys().isdisjoint(how.roots)


def carried_back(tape: Tape, weight: Weight, part: Part) -> list[Part]:
    """Per-unit gradients at a derived weight -> per-unit gradients at its parameters, by a batched backward."""
    traced = weight.traced  # from here on its parameters are traced, too
    leaves = {name: root.traced for name, root in tape.roots.items() if root.is_traced}
    (stack,) = part.dense().values()
    grads = torch.autograd.grad(
        traced,
        list(leaves.values()),
        stack.to(weight.value.dtype),
        is_grads_batched=True,
        allow_unused=True,
        retain_graph=True,
    )
    return [Dense(name, grad) for name, grad in zip(leaves, grads, strict=True) if grad is not None]
