"""What must stay true as training goes on: units apart, the model's own tensors still, noise and movement everywhere.

A `Trial` is a model without chance, a point and some units: the gate of `core.check` makes one before the first step,
and `LookAgain` one of a physical batch later.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from saltflat import tree
from saltflat.clipping import Chunk
from saltflat.core.layers import check_model
from saltflat.core.sampling import Batch, pick, rows_in
from saltflat.core.shards import agreed, most_of, settle
from saltflat.errors import ModelError
from saltflat.gradients.width import widened
from saltflat.tree import Tree

T = TypeVar("T")
TOLERANCE = 1e-3  # float32 gradients by two routes; a real mistake is off by its whole size


class Differentiable(Protocol):
    """A contribution whose vectors are gradients of a loss that can be taken unit by unit."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def rows_per_unit(self) -> int: ...

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Chunk: ...

    def losses_of_units(self, point: Tree, batch: Batch) -> Tensor: ...

    def still(self, fixed: Tree | None = None, *, alike: bool = True) -> Differentiable: ...

    def placed(self) -> Differentiable: ...

    def near(self, points: Sequence[Tree]) -> AbstractContextManager[Differentiable]: ...


@dataclass(frozen=True)
class Trial:
    """A model without chance, a point, and units that its loss takes."""

    contribution: Differentiable
    params: Tree = field(repr=False)
    batch: Batch = field(repr=False)
    units: int
    tolerance: float
    by_chance: bool = False  # views are drawn, so that a unit's depend on who else is in the batch
    length: float | None = None  # of the look at units; None: see `look_at`

    def some(self, units: Sequence[int]) -> Batch:
        """The batch of these units alone."""
        rows = self.contribution.rows_per_unit
        places = torch.arange(self.units * rows).view(self.units, rows)
        return pick(self.batch, places[list(units)].flatten())

    def chunk(self, units: Sequence[int]) -> Chunk:
        return self.contribution([self.params], [1.0], self.some(units))

    def agreed(self, value: T) -> T:
        """The same in all processes, where they try together."""
        return agreed(value, self.params)

    @cached_property
    def together(self) -> Chunk:
        """All units in one batch."""
        return self.chunk(range(self.units))

    @cached_property
    def look(self) -> Tree:
        """See `look_at`."""
        return look_at(self.params, self.length)

    def signature(self, units: Sequence[int]) -> Tensor:
        """Of these units, in a batch of theirs alone."""
        return signature(self.chunk(units), self.look)

    @cached_property
    def whole(self) -> Tensor:
        """The signatures of all units in one batch."""
        return signature(self.together, self.look)

    @property
    def is_telling(self) -> bool:
        """Whether units differ and have gradients: else the trial would pass whatever the model does."""
        norms = self.whole[:, 0]
        return self.agreed(
            self.units > 2 and bool(torch.isfinite(norms).all()) and int((norms > 0).sum()) > self.units // 2
        )


class Spot(Protocol):
    """Looks at a model again while it trains; called with the weights, and some units of a step, or None at the end."""

    def changed(self) -> bool:
        """Whether the model is in a mode that was not looked at yet."""
        ...

    def __call__(self, params: Tree, batch: Batch | None) -> None: ...


@dataclass(frozen=True)
class LookAgain:
    """The spot check: the model's tensors are as they were, and a unit of the step has the gradient that it has alone.

    Every mode that steps are taken in is looked at: a batch norm of one's own may mix in train mode only.
    """

    contribution: Differentiable
    held: Held
    modes: set[tuple[bool, ...]]  # in which units were found to be apart

    def changed(self) -> bool:
        return modes_of(self.contribution.model) not in self.modes

    def __call__(self, params: Tree, batch: Batch | None) -> None:
        self.held.check(self.contribution.model)
        if batch is None:
            self.held.clear(self.contribution.model)
        if self.changed():
            check_model(self.contribution.model)  # which may name the layer
        if batch is not None and rows_in(batch) >= 2 * self.contribution.rows_per_unit:
            self._compare(params, batch)
            self.modes.add(modes_of(self.contribution.model))
            self.held.check(self.contribution.model)

    def _compare(self, params: Tree, batch: Batch) -> None:
        units = rows_in(batch) // self.contribution.rows_per_unit
        trial = Trial(self.contribution.still(), tree.map_tree(widened, params), batch, units, TOLERANCE)
        _check_alone(trial, trial.agreed(secrets.randbelow(units)))
        _check_part(trial)


def _check_alone(trial: Trial, one: int) -> None:
    """A unit with nobody beside it is what it was among all of them; one that is no number is left out anyway.

    Where its signature is the same to more digits than are asked for, so is every coordinate; else each is compared.
    """
    if not trial.agreed(bool(torch.isfinite(trial.whole[one, 0]))):
        return
    chunk = trial.chunk([one])
    if trial.agreed(distance(trial.whole[[one]], signature(chunk, trial.look))) <= trial.tolerance / 100:
        return
    norms = trial.whole[:, 0]
    only = (torch.arange(trial.units, device=norms.device) == one).to(norms.dtype)
    alone = _sum_of(chunk)
    gap = trial.agreed(gap_between(trial.together.weighted_sum(only), alone)[0])
    if gap > trial.tolerance and gap > trial.tolerance + _jitter(trial, one, alone):
        raise ModelError(MIXED)


def _check_part(trial: Trial) -> None:
    """Every unit of a secret third of the batch, in another order, is what it was among all of them.

    A model may mix only a few of many rows, or by their places, and one drawn unit is seldom among those. A unit that
    rounding alone changes as much as mixing would says nothing here, as it may be an odd record.
    """
    some = trial.agreed(secrets.SystemRandom().sample(range(trial.units), max(1, trial.units // 3)))
    here = trial.signature(some)
    gaps = distances(trial.whole[some], here)
    if not trial.agreed(bool((gaps > trial.tolerance).any())):
        return
    jitter = 30 * distances(here, signature(_jittered(trial).chunk(some), trial.look))
    if bool(((gaps > trial.tolerance + jitter) & (jitter <= _MOST_JITTER)).any()):
        raise ModelError(MIXED)


def _sum_of(chunk: Chunk) -> Tree:
    return chunk.weighted_sum(torch.ones_like(chunk.norms()))


def _jitter(trial: Trial, one: int, alone: Tree) -> float:
    """What rounding may do to a unit alone: many times what a change of each weight by its last digit does.

    It is large where weights are, or where their type is narrow, and knows nothing of other units: a model that mixes
    does not become an honest one by it.
    """
    return min(_MOST_JITTER, 30 * gap_between(_sum_of(_jittered(trial).chunk([one])), alone)[0])


_MOST_JITTER = 0.05  # more than that is not put down to rounding


def _jittered(trial: Trial) -> Trial:
    """The same with each weight changed by about its last digit."""

    def moved(leaf: Tensor) -> Tensor:
        part = tree.own_part(leaf)
        return tree.as_part(part * (1 + torch.finfo(part.dtype).eps * torch.randn_like(part)), leaf)

    return replace(trial, params=tree.map_tree(moved, trial.params))


def modes_of(model: nn.Module) -> tuple[bool, ...]:
    """Which layers are in train mode."""
    return tuple(module.training for module in model.modules())


@dataclass(frozen=True)
class Held:
    """What a model must keep while it trains: every tensor that is not trained; and what else it holds at first."""

    tensors: Mapping[str, Tensor] = field(repr=False)
    buffers: Mapping[str, bool] = field(repr=False)  # by every name that they have; whether there was one
    plain: Mapping[str, Mapping[str, object]] = field(repr=False)  # attributes of every layer

    @classmethod
    def by(cls, model: nn.Module) -> Held:
        tensors = {name: leaf.detach().clone() for name, leaf in _untrained(model)}
        shallow = lambda value: type(value)(value) if type(value) in (dict, list, set) else value
        plain = {
            name: {key: shallow(value) for key, value in vars(module).items() if key not in _TORCHS_OWN}
            for name, module in model.named_modules()
        }
        buffers = {
            f"{name}.{key}": leaf is not None
            for name, module in model.named_modules()
            for key, leaf in module._buffers.items()
        }
        return cls(tensors, buffers, plain)

    def clear(self, model: nn.Module) -> None:
        """Take out what forward left in the model, a map of attention or the last batch: it is made of private rows.

        Whoever saves the whole model would release it without noise. Weights are not touched, nor buffers that were
        there at first; one that forward registered on the way is taken out too, and so is what a list, a dictionary or
        a set got, whatever it is: a row is one as a list of numbers too.
        """
        for name, module in model.named_modules():
            for key in [key for key in module._buffers if not self.buffers.get(f"{name}.{key}")]:
                if (
                    f"{name}.{key}" in self.buffers
                ):  # a place that was empty, as a norm without statistics has it
                    module._buffers[key] = None
                else:
                    del module._buffers[key]
            for key, value in list(vars(module).items()) if name in self.plain else ():
                new = any(f"{name}.{each}" not in self.tensors for each, _ in _held_as(key, value, module))
                if new or _grew(value, self.plain[name].get(key)):
                    _put_back(module, key, self.plain[name])

    def check(self, model: nn.Module) -> None:
        settle(model)
        for name, leaf in _untrained(model):
            before = self.tensors.get(name)
            if before is not None and not torch.equal(tree.own_part(leaf), tree.own_part(before)):
                raise ModelError(
                    f"buffer {name!r} changes when the model sees data, and would release it without noise; "
                    "remove the running statistics, or keep that layer in eval mode"
                )


def _grew(now: object, then: object) -> bool:
    """Whether a list, a dictionary or a set of plain things has others in it than it had."""
    mine, before = _inside(now), _inside(then)
    if mine is None or before is None:
        return False
    if any(isinstance(each, nn.Parameter | nn.Module) for each in (*mine, *before)):
        return False  # weights that a layer lists, which others may have moved to a device
    return len(mine) != len(before) or any(one is not other for one, other in zip(mine, before, strict=True))


def _inside(value: object) -> list[object] | None:
    """What is in a list, a dictionary or a set; None of anything else."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list | set) else None


def _put_back(module: nn.Module, key: str, before: Mapping[str, object]) -> None:
    """An attribute as it was: lists and dictionaries in place, as others may hold them too."""
    now, then = vars(module)[key], before.get(key)
    if isinstance(now, list) and isinstance(then, list):
        now[:] = then
    elif isinstance(now, dict) and isinstance(then, dict):
        now.clear()
        now.update(then)
    elif isinstance(now, set) and isinstance(then, set):
        now.clear()
        now |= then
    elif key in before:
        setattr(module, key, then)
    else:
        delattr(module, key)


def _untrained(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers, frozen parameters, and tensors that a module holds besides."""
    yield from model.named_buffers()
    yield from ((name, p) for name, p in model.named_parameters() if not p.requires_grad)
    trained = {id(p) for p in model.parameters() if p.requires_grad}  # some modules keep a list of them
    for name, module in model.named_modules():
        yield from ((f"{name}.{k}", leaf) for k, leaf in held_by(module) if id(leaf) not in trained)


def held_by(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that a module holds as plain attributes, or in dictionaries and lists: neither parameters nor buffers."""
    for key, value in vars(module).items():
        yield from _held_as(key, value, module)


def _held_as(key: str, value: object, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield key, value
    elif key == "_flat_weights" and isinstance(module, nn.RNNBase):
        return  # the weights that a recurrent layer was last run with
    elif value and isinstance(value, dict | list | tuple) and key not in _TORCHS_OWN:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((f"{key}.{k}", leaf) for k, leaf in items if _is_plain(leaf))


def _is_plain(leaf: object) -> bool:
    """A tensor that is no parameter: recurrent layers keep a list of those."""
    return isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter)


_TORCHS_OWN = frozenset(vars(nn.Module()))  # where parameters, buffers, layers and hooks are kept


def check_answer(answer: Tree, params: Tree) -> Tree:
    """``answer`` itself, if it is noise in every parameter; reads nothing but what was released.

    Gaussian noise leaves no coordinate at 0, whatever the data; half of them may be lost to a narrow dtype.
    """
    for name, leaf in params.items():
        found = answer.get(name)
        if found is None or found.shape != leaf.shape:
            raise ModelError(
                f"parameter {name!r} was left out of the clipped sum; freeze it, or report this model"
            )
        if leaf.numel() and (not found.isfinite().all() or int((found == 0).sum()) > leaf.numel() // 2):
            raise ModelError(
                f"parameter {name!r} got no noise in (most of) its coordinates, so its release would not be private; "
                f"give a noise source that covers every leaf, and a dtype wider than {found.dtype}"
            )
    return answer


def check_moved(before: Tree, after: Tree) -> bool:
    """Whether a step moved the weights; ModelError if it moved some parameters and left others.

    A step that moves none is let pass: a schedule may begin at a learning rate of 0.
    """
    still = [name for name, leaf in before.items() if leaf.numel() and torch.equal(leaf, after[name])]
    if len(still) == len(before):
        return False
    if still:
        raise ModelError(
            f"parameter {still[0]!r} was not moved by a step that moved others, so it would never train; give it a "
            "learning rate above 0 (and a dtype that can hold so small a change), or freeze it"
        )
    return True


def look_at(params: Tree, length: float | None = None) -> Tree:
    """A random direction in weight space: any change of a gradient has an inner product with it as large as itself.

    <change, look> is normal, with the change's length as standard deviation, wherever the change is: one that is spread
    over all coordinates shows as well as one in a single coordinate. With another ``length`` of the direction than
    sqrt(D), it shows that much less.
    """
    scale = 1.0 if length is None else length / max(1, tree.size(params)) ** 0.5
    if tree.has_shards(params):
        return _Drawn(params, scale)
    source = torch.Generator().manual_seed(1)
    return tree.map_tree(lambda leaf: (torch.randn(leaf.shape, generator=source) * scale).to(leaf), params)


class _Drawn(Tree):
    """A random direction whose leaves are drawn whenever they are asked for: the whole of it is in no memory."""

    def __init__(self, params: Tree, scale: float) -> None:
        super().__init__()
        self._params, self._scale = params, scale

    def __missing__(self, name: str) -> Tensor:
        leaf, source = self._params[name], torch.Generator()
        source.manual_seed(1 + list(self._params).index(name))
        return (torch.randn(leaf.shape, generator=source) * self._scale).to(leaf.device, leaf.dtype)


def signature(chunk: Chunk, look: Tree) -> Tensor:
    """Each unit's norm and inner product with a direction, which a change of its gradient changes; (units, 2)."""
    norms = chunk.norms()
    return torch.stack([norms, chunk.dot(look).to(norms)], 1)


def distance(there: Tensor, here: Tensor) -> float:
    """The largest difference of two signatures beside a unit's norm; 0 where there are none."""
    return float(distances(there, here).max()) if len(there) else 0.0


def distances(there: Tensor, here: Tensor) -> Tensor:
    """Of every unit: how far two signatures are apart beside its norm; infinite if one is finite and the other not."""
    finite, other = torch.isfinite(there).all(1), torch.isfinite(here).all(1)
    gaps = (there - here).abs().amax(1) / (there[:, 0] + 1e-12)
    gaps = torch.where(finite & other, gaps, torch.zeros_like(gaps))
    return torch.where(finite != other, torch.full_like(gaps, math.inf), gaps)


def gap_between(mine: Tree, other: Tree) -> tuple[float, str]:
    """How far two gradients are apart, beside their length, and the parameter where it shows most."""
    pairs = {name: (tree.own_part(mine[name]), tree.own_part(leaf)) for name, leaf in other.items()}
    gaps = {name: float((a - b).abs().max()) if b.numel() else 0.0 for name, (a, b) in pairs.items()}
    if tree.has_shards(other):
        gaps = dict(zip(gaps, most_of(list(gaps.values())), strict=True))
    worst = max(gaps, key=lambda name: gaps[name])
    length = float(tree.norm(mine) + tree.norm(other))
    return (gaps[worst] / (length + 1e-9) if math.isfinite(length) else 0.0), worst


MIXED = (
    "one example's gradient changes when another example does, or leaves: something in the model or the loss mixes the "
    "batch (a batch statistic, a maximum or a ranking over examples, a contrastive loss, a division by the batch's "
    "length); each example's loss must depend on it alone"
)
