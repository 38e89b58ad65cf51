"""What one unit contributes: its gradient, combined over points in weight space, views and own rows.

A loss is a function ``loss(predict, batch)`` that returns one number for every row; ``predict`` is the
model at the point that was asked for. `supervised` makes one from an ordinary criterion.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from itertools import combinations
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from saltflat.clipping import Chunk
from saltflat.core.ahead import Ahead, ahead_of
from saltflat.core.chance import Draws, secret, still, still_by_place
from saltflat.core.check import Take, check_step, check_views
from saltflat.core.group import ALONE, Group
from saltflat.core.layers import check_model, check_whole
from saltflat.core.memory import keep_freed_memory
from saltflat.core.micro_batches import (
    MicroBatches,
    canonical,
    form_key,
    has_rows,
    is_row_wise,
    tokens_in,
    with_floats,
)
from saltflat.core.reading import AT_FIRST, check_read
from saltflat.core.rng import Generator, fenced_draws, find_generators, fresh_key
from saltflat.core.sampling import (
    Batch,
    Form,
    Indices,
    Sampler,
    Units,
    every,
    form_of,
    joined,
    labels,
    leaves,
    mapped,
    physical,
    pick,
    read_each,
    rows_in,
)
from saltflat.core.shards import Dealt, by_hand, fetching, sharded_leaves
from saltflat.core.spot import Spot, held_by
from saltflat.errors import DataError, ModelError, SettingError
from saltflat.gradients.away import Away
from saltflat.gradients.chunk import Kept, Use, checked_losses, kept
from saltflat.gradients.tape import OwnFunction, ReadsValues, WatchValueReads
from saltflat.gradients.width import (
    Narrowed,
    Wide,
    full_float32,
    is_narrow,
    narrow_leaves,
    note_narrow,
    widened,
)
from saltflat.privacy.noise import SecureSampling
from saltflat.settings import is_whole
from saltflat.tree import Tree, add, called, copied, has_shards, is_sharded, map_tree, size

log = logging.getLogger("saltflat")
Predict = Callable[..., Any]
Loss = Callable[[Predict, Batch], Tensor]


class Contribution(Protocol):
    """What one unit adds to a step, whoever the unit is: an example, a user with many rows, a client that trains.

    A call turns a physical batch into its units' vectors at the asked points, ``losses`` into each unit's loss at each
    point; ``model`` holds the weights, ``unit`` names whose privacy it is. ``check`` refuses, before the first step,
    what would let one unit's data reach another's vector, and gives a `Spot` that looks again as training goes on; it
    releases nothing. One that changes from step to step (a learning rate of its own, public coins) also has
    ``at(step)``, itself at that step, counted from 0: it is asked for before the step's door opens.

    *Guarantee*: a unit's vector depends on that unit alone. Everything that is promised rests on this.
    """

    @property
    def model(self) -> nn.Module: ...

    @property
    def unit(self) -> str: ...

    def check(self, params: Tree, take: Take, count: int) -> Spot: ...

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Chunk: ...

    def losses(self, points: Sequence[Tree], batch: Batch) -> Tensor: ...


def supervised(criterion: Callable[[Any, Tensor], Tensor]) -> Loss:
    """The loss of (inputs, targets) batches; ``criterion`` gives one number per example.

    >>> loss = supervised(nn.CrossEntropyLoss(reduction="none"))
    >>> loss(nn.Linear(2, 3), (torch.zeros(4, 2), torch.zeros(4, dtype=torch.long))).shape
    torch.Size([4])
    """
    return Supervised(criterion)


@dataclass(frozen=True)
class Supervised:
    """See `supervised`; a value, so that it can go to another process."""

    criterion: Callable[[Any, Tensor], Tensor]

    def __call__(self, predict: Predict, batch: Batch) -> Tensor:
        if not isinstance(batch, Sequence) or len(batch) < 2:
            raise ModelError(
                f"a criterion takes pairs of inputs and targets, and the data gives {_said(batch)}: pass a function "
                'loss(predict, batch), such as lambda predict, batch: criterion(predict(batch["x"]), batch["y"])'
            )
        return self.criterion(predict(batch[0]), batch[1])


def _said(batch: Batch) -> str:
    if isinstance(batch, Mapping):
        return f"dictionaries with {', '.join(map(repr, batch))}"
    return "one tensor" if isinstance(batch, Tensor) else f"{type(batch).__name__}s of one item"


ROOM = 1 << 25  # numbers: gradients of units that several points may hold at once
FEWEST = 16  # units at once, however large the model: fewer take longer to start than to run
AMPLE = 3  # times `ROOM`, for half of a physical batch: one point holds about as much for the whole
MAX_CAST = 4  # integer leaves of an example that are tried as floating-point numbers
REFUSED = (ModelError, SettingError)  # the model's fault or the user's, whatever the data holds


@dataclass(frozen=True)
class PerExample:
    """See `per_example`."""

    model: nn.Module
    loss: Loss
    views: int = 1
    augment: Callable[[Batch], Batch] | None = None
    unit: str = "example"
    fixed: Tree = field(default_factory=dict)  # stands for tensors of the model that no point has
    strict: bool = False  # whether a failure is an error, not a unit without a contribution
    draws: Draws = secret  # where dropout, augmentations and the like take their randomness from
    places: tuple[int, ...] = ()  # with `by_view`: which view each point is asked about
    away: Away | None = field(
        default=None, repr=False
    )  # where sharded weights are fetched from, for one question
    # Random generators that the user's augmentation and loss hold; None if there is no such code.
    generators: tuple[Generator, ...] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        keep_freed_memory()  # private steps are about to be taken in this process
        check_views_of(self.views, self.unit)
        if not isinstance(self.model, nn.Module):
            raise ModelError(f"the model is an nn.Module; got a {type(self.model).__name__}")
        for name, function in (("loss", self.loss), ("augment", self.augment)):
            if not (callable(function) or (name == "augment" and function is None)):
                raise SettingError(f"{name} is a function; got a {type(function).__name__}")
        if self.generators is None and not (self.augment is None and isinstance(self.loss, Supervised)):
            object.__setattr__(self, "generators", tuple(find_generators(self.augment, self.loss)))

    @property
    def rows_per_unit(self) -> int:
        """Rows of a unit in a batch, before augmentation."""
        return self.views if self.augment is None else 1

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Chunk:
        with self.near(points) as here:
            return here._chunk(points, weights, batch)

    @contextmanager
    def near(self, points: Sequence[Tree]) -> Iterator[PerExample]:
        """The same, and inside it sharded weights of these points are fetched as they are met.

        All processes of a group come in and leave together, also those that have no units to ask about.
        """
        if self.away is not None or isinstance(points, Copies) or not has_shards(points[0]):
            yield self
            return
        with by_hand(self.model):
            own = [leaf for tree in (*points, self.fixed) for leaf in tree.values() if is_sharded(leaf)]
            with fetching([*own, *sharded_leaves(self.model)]) as away:
                yield replace(self, away=away)

    def _chunk(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch | None) -> Chunk:
        """``batch`` is None in a process that has no units while others of its group have."""
        rows = 0 if batch is None else rows_in(batch)
        if rows % self.rows_per_unit:
            raise SettingError(f"{rows} rows cannot be {self.views} views each of whole examples")
        if batch is None or rows == 0:
            return Kept(0, [], points[0])
        try:
            return self._kept(points, weights, batch)
        except REFUSED:
            raise
        except (
            ReadsValues
        ):  # an `assert` or an `if` on values of the batch: alone, each unit meets its own only
            log_slow_loss()
            return self._each_alone(points, weights, batch)
        except OwnFunction as function:
            log_own_function(str(function))
            return self._each_alone(points, weights, batch)
        except Exception:  # a unit that makes anything fail contributes zero, and nothing is said of it
            if self.strict:  # only what fails alone is an error
                return self._each_alone(points, weights, batch)
            return self._without_offenders(points, weights, batch)

    def check(self, params: Tree, take: Take, count: int) -> Spot:
        """See `check_model`, `check_views` and `check_step`."""
        check_model(self.model)
        with full_float32():
            if self.augment is not None:
                check_views(self._drawn_views, take, count)
            return check_step(self, params, take, count)

    def check_read(self, take: Take, units: Indices) -> None:
        """See `saltflat.core.reading`; asked again as training goes on, of units that were drawn."""
        check_read(take, units, self.rows_per_unit)

    def _drawn_views(self, batch: Batch) -> Batch:
        with still(self.generators):
            return self._views_of(batch)

    def still(self, fixed: Tree | None = None, *, alike: bool = True) -> PerExample:
        """The same without chance, for comparisons: dropout leaves everything, other draws are always the same.

        With ``alike`` a unit's views are the unit itself; a batch of another size would draw others.
        """
        views = each_view(lambda rows: rows, self.views) if alike and self.augment else self.augment
        fixed = self.fixed if fixed is None else fixed
        draws = still if alike else still_by_place
        return replace(self, draws=draws, fixed=fixed, augment=views, strict=True)

    def placed(self) -> PerExample:
        """The same without chance, but with draws that differ from place to place in a batch."""
        return replace(self, draws=still_by_place)

    def losses_at(self, point: Tree, batch: Batch, narrow: bool | None = None) -> Tensor:
        """The loss of every row at a point, in float32 where the model would take less: ``narrow``, if that is known.

        While a tape looks on, to ask every weight for its type is as many functions more for it to follow.
        """
        own = {**self.fixed, **point}
        predict = lambda *args, **kwargs: called(self.model, own, args, kwargs)
        if not (is_narrow(self.model) if narrow is None else narrow):
            return self.loss(predict, batch)
        own = map_tree(widened, {**narrow_leaves(self.model), **own})
        with Wide():
            return self.loss(predict, mapped(widened, batch))

    def losses_of_units(self, point: Tree, batch: Batch) -> Tensor:
        """The loss of every unit: the mean over its views."""
        with self.near([point]) as here, self.draws(self.generators):
            batch = self._views_of(batch)
            losses = checked_losses(here._followed(point, batch), rows_in(batch))
        return losses.view(-1, self.views).mean(1)

    def _followed(self, point: Tree, batch: Batch) -> Tensor:
        """As `losses_at`, without a tape: sharded weights are fetched here."""
        with self.away.near() if self.away else nullcontext():
            return self.losses_at(point, batch)

    def _views_of(self, batch: Batch) -> Batch:
        """The augmented rows. Views that were not declared would count as units, each with a clip of its own."""
        if self.augment is None:
            return batch
        before, batch = rows_in(batch), self.augment(batch)
        if rows_in(batch) != before * self.views:
            raise SettingError(
                f"augment made {rows_in(batch)} rows of {before} examples, and views={self.views} were declared; "
                "give per_example and the augmentation the same number of views"
            )
        return batch

    def losses(self, points: Sequence[Tree], batch: Batch) -> Tensor:
        """The loss of every unit at each point, on the same views; NaN for a unit whose loss fails.

        (points, units)
        """
        with torch.no_grad(), self.near(points) as here:
            if batch is None:  # no units here, while others of the group have some
                return torch.zeros(len(points), 0)
            try:
                with WatchValueReads() as reads:
                    found = here._losses(points, batch)
                if not reads.noticed:
                    return found
            except REFUSED:
                raise
            except Exception:
                pass
            return torch.cat([here._losses_alone(points, one) for one in self._units_of(batch)], 1)

    def _losses(self, points: Sequence[Tree], batch: Batch) -> Tensor:
        with self.draws(self.generators):
            batch = self._views_of(batch)
            rows = [checked_losses(self._followed(point, batch), rows_in(batch)) for point in points]
        return torch.stack(rows).view(len(points), -1, self.views).mean(2)

    def _losses_alone(self, points: Sequence[Tree], one: Batch) -> Tensor:
        try:
            return self._losses(points, one).cpu()
        except REFUSED:
            raise
        except Exception:
            return torch.full((len(points), 1), float("nan"))

    def _kept(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Kept:
        """In float32 or better: a model that turns out to take less is run again, and known from then on."""
        if not is_narrow(self.model):
            try:
                return self._kept_at(points, weights, batch)
            except Narrowed:
                note_narrow(self.model)
        try:
            return self._kept_at([map_tree(widened, point) for point in points], weights, batch)
        except Narrowed:
            raise ModelError(
                "a part of the model computes in half precision whatever it is given (a function with a forward of "
                "its own), and kernels of half precision round an example's gradient by who is beside it; let that "
                "part take float32"
            ) from None

    def _kept_at(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Kept:
        with self.draws(self.generators):
            batch = self._views_of(batch)
            return kept(
                self._asked(points, weights, batch),
                rows=rows_in(batch) // (self.views if self.places else 1),
                views=1 if self.places else self.views,
                points=len(points),
                constants=self._constants(),
                away=self.away,
            )

    def group_means(self, point: Tree, batch: Batch, groups: int) -> Tree:
        """The mean gradient over each of ``groups`` groups, as many units in each, one group after the other.

        (groups, *shape). It is nobody's own gradient: for examples that are public.
        """
        with self.draws(self.generators):
            batch = self._views_of(batch)
            use = partial(self.losses_at, batch=batch, narrow=is_narrow(self.model)), point, 1.0
            rows = rows_in(batch)
            found = kept([use], rows=rows, views=rows // groups, points=1, constants=self._constants())
        parts, stacks = list(reversed(found.parts)), Tree()
        del found
        while parts:  # each is let go of when its gradients are there
            stacks.update(parts.pop().dense())
        none = lambda leaf: torch.zeros(groups, *leaf.shape, dtype=leaf.dtype, device=leaf.device)
        return {name: stacks[name] if name in stacks else none(leaf) for name, leaf in point.items()}

    def _constants(self) -> list[Tensor]:
        """What the model holds beside a point's own."""
        return [*self.fixed.values(), *self.model.buffers(), *self.model.parameters(), *self._held()]

    def _asked(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Iterator[Use]:
        """Every point with the rows that it is asked about: all of them, or one view of each unit.

        One at a time: neither the rows of all views nor copies of all points are in memory at once.
        """
        places, narrow = self.places or [None] * len(points), is_narrow(self.model)
        for point, weight, place in zip(points, weights, places, strict=True):
            part = batch if place is None else every(self.views, batch, place % self.views)
            yield partial(self.losses_at, batch=part, narrow=narrow), point, weight
            del part, point

    def at_once(self, most: int, points: Sequence[Tree]) -> int:
        """How many units are asked at a time at these points, of ``most`` in a physical batch: equal parts of it.

        At several points units' own gradients are added up, where one point is known by smaller things; so a part is
        what has `ROOM`, half of the batch if that has `AMPLE` times as much, or `FEWEST`.
        """
        fit = ROOM // max(1, size(points[0]))
        fit = max(FEWEST, fit, min(AMPLE * fit, -(-most // 2)))
        return most if len(points) == 1 else -(-most // -(-most // fit))

    def by_view(self, places: Sequence[int]) -> PerExample:
        """The same, but point k sees one view of every unit only, number ``places[k]``; of one view all points see it.

        *Guarantee*: as before; a unit's views go to points by their place in the unit, never by the unit's in a batch.
        """
        if not places or (max(places) + 1) % self.views:
            raise SettingError(
                f"{len(set(places))} points cannot be dealt out to {self.views} views of an example: give the method "
                "as many copies as there are views, or a multiple"
            )
        return replace(self, places=tuple(places))

    def _held(self) -> Iterator[Tensor]:
        """Tensors that the model's layers hold besides: the same for every row."""
        return (leaf for module in self.model.modules() for _, leaf in held_by(module))

    def _units_of(self, batch: Batch) -> Iterator[Batch]:
        """Each unit as a batch of its own."""
        for rows in torch.arange(rows_in(batch)).split(self.rows_per_unit):
            yield pick(batch, rows)

    def _each_alone(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Chunk:
        """Every unit in a batch of its own: exact whatever the code does with a batch, and slow."""
        return Joined([self._alone(points, weights, one) for one in self._units_of(batch)])

    def _alone(self, points: Sequence[Tree], weights: Sequence[float], one: Batch) -> Chunk:
        try:
            return self._kept(points, weights, one)
        except REFUSED:
            raise
        except Exception:
            if self.strict:
                raise
            return Without(Kept(1, [], points[0]), torch.ones(1, dtype=torch.bool))

    def integers_to_cast(self, like: Batch) -> tuple[int, ...]:
        """Which integer leaves must be floating-point numbers for the loss to run, by their places.

        The answer is found on rows of zeros in the form of ``like``, so it depends on the form and the model alone.
        JSON and CSV readers give 1 where 1.0 is meant; labels and words, which the loss takes as integers, stay.

        Args:
            like: One unit's rows, of which only types and shapes are used.

        Returns:
            The fewest places with which the loss runs; none if it runs as it is, or not at all.
        """
        every_leaf = list(enumerate(leaves(like)))
        places = [place for place, leaf in every_leaf if leaf.dtype == torch.int64][:MAX_CAST]
        if not places or sharded_leaves(self.model):
            return ()
        zeros, dtype = mapped(torch.zeros_like, like), main_dtype(self.model)
        for number in range(len(places) + 1):
            for some in combinations(places, number):
                if self._runs_on(with_floats(zeros, some, dtype)):
                    return some
        return ()

    def _runs_on(self, batch: Batch) -> bool:
        try:
            with torch.no_grad():
                self.still().losses_of_units({}, batch)
        except Exception:
            return False
        return True

    def _without_offenders(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Chunk:
        """A unit that fails alone, forward or backward, is void; the others see a batch of the same shape."""
        sound = torch.tensor([self._survives(points, weights, one) for one in self._units_of(batch)])
        if not bool(sound.any()):
            return Kept(0, [], points[0])
        unit, rows = torch.where(sound, torch.arange(len(sound)), sound.long().argmax()), self.rows_per_unit
        stand_in = (unit.unsqueeze(1) * rows + torch.arange(rows)).flatten()
        try:
            return Without(self._kept(points, weights, pick(batch, stand_in)), ~sound)
        except REFUSED:
            raise
        except Exception:  # fine alone, and not together: then each is taken alone
            return self._each_alone(points, weights, batch)

    def _survives(self, points: Sequence[Tree], weights: Sequence[float], one: Batch) -> bool:
        try:
            self._kept(points, weights, one)
        except REFUSED:
            raise
        except Exception:
            return False
        return True


@cache
def log_slow_loss() -> None:
    """Say once that units are run one at a time."""
    log.warning(
        "The loss or the model reads values of a batch in Python (assert, if, item()). Examples are run one at a time, "
        "which is slow. Remove that code to run them in batches."
    )


@cache
def log_own_function(name: str) -> None:
    """Say once that units are run one at a time."""
    log.warning(
        "The custom function %s takes a trained parameter, whose gradient its own backward alone knows. Examples are "
        "run one at a time, which is exact but slow. Give the function activations only to run them in batches.",
        name,
    )


def main_dtype(model: nn.Module) -> torch.dtype:
    """The type of the model's first trained parameter."""
    trained = (p.dtype for p in model.parameters() if p.requires_grad)
    return next(trained, torch.get_default_dtype())


@dataclass(frozen=True)
class Joined:
    """Several chunks, seen as one: the units of the first, then those of the second, and so on."""

    chunks: Sequence[Chunk] = field(repr=False)

    def norms(self) -> Tensor:
        return torch.cat([chunk.norms() for chunk in self.chunks])

    def dot(self, direction: Tree) -> Tensor:
        return torch.cat([chunk.dot(direction) for chunk in self.chunks])

    def weighted_sum(self, weights: Tensor) -> Tree:
        parts = weights.split([len(chunk.norms()) for chunk in self.chunks])
        pairs = zip(self.chunks, parts, strict=True)
        return reduce(add, (chunk.weighted_sum(part) for chunk, part in pairs))

    def leaves(self, weights: Tensor) -> Iterator[tuple[str, Tensor]]:
        return iter(self.weighted_sum(weights).items())

    def scaled(self, scale: Tree) -> Chunk:
        return Joined([chunk.scaled(scale) for chunk in self.chunks])

    def only(self, names: Collection[str]) -> Chunk:
        return Joined([chunk.only(names) for chunk in self.chunks])


@dataclass(frozen=True)
class Without:
    """A chunk in which some units are void: their norm is NaN, so that clipping leaves them out."""

    chunk: Kept = field(repr=False)
    void: Tensor = field(repr=False)

    def norms(self) -> Tensor:
        return self.chunk.norms().masked_fill(self.void.to(self.chunk.device), float("nan"))

    def dot(self, direction: Tree) -> Tensor:
        return self.chunk.dot(direction)

    def weighted_sum(self, weights: Tensor) -> Tree:
        return self.chunk.weighted_sum(weights)

    def leaves(self, weights: Tensor) -> Iterator[tuple[str, Tensor]]:
        return self.chunk.leaves(weights)

    def scaled(self, scale: Tree) -> Chunk:
        return Without(self.chunk.scaled(scale), self.void)

    def only(self, names: Collection[str]) -> Chunk:
        return Without(self.chunk.only(names), self.void)


def check_views_of(views: object, unit: str = "example") -> None:
    """Refuse a number of views, or of a user's rows, that is none."""
    if is_whole(views):
        return
    if unit == "user":
        raise SettingError(f"a user has a whole number of rows, at least one; got rows={views!r}")
    raise SettingError(f"an example has at least one view, and whole ones; got views={views!r}")


def each_view(augment: Callable[[Batch], Batch], views: int) -> Callable[[Batch], Batch]:
    """Augmentation multiplicity: every row ``views`` times, side by side, each changed by ``augment`` on its own.

    For `per_example`'s ``augment``; ``augment`` maps rows to as many rows, and may be random.

    *Guarantee*: an example's views are averaged before the clip, so they count as one unit.
    De et al., "Unlocking High-Accuracy Differentially Private Image Classification through Scale", 2022.

    >>> flip = each_view(lambda batch: -batch, 2)
    >>> flip(torch.tensor([1.0, 2.0]))
    tensor([-1., -1., -2., -2.])
    """
    check_views_of(views)
    if not callable(augment):
        raise SettingError(f"augment is a function; got a {type(augment).__name__}")
    return lambda batch: augment(pick(batch, torch.arange(rows_in(batch)).repeat_interleave(views)))


def per_example(
    model: nn.Module,
    loss: Loss,
    *,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
) -> PerExample:
    """One unit is one example: g_i = mean over its views of the gradient of its loss.

    ``augment`` turns a batch of n examples into n * views rows, the views of one example next to each other.

    *Guarantee*: all views and points are combined before clipping, so an example moves the sum by at most
    the clip norm. An example with a NaN, an infinity or a loss that fails contributes zero, and the others
    are computed exactly as they would have been.
    """
    check_whole(model)
    return PerExample(model, loss, views, augment)


def per_user(model: nn.Module, loss: Loss, *, rows: int) -> PerExample:
    """One unit is one user with ``rows`` rows in every batch, padded where the user has fewer.

    The batch holds users' rows next to each other, and the loss gives 0 for padding. g_i is the mean over
    the user's rows, so a user moves the sum by at most the clip norm however many rows are real.
    """
    check_whole(model)
    return PerExample(model, loss, rows, None, "user")


@dataclass(frozen=True)
class Private:
    """What a unit contributes, the units, and how many they are: read once, before training.

    Args:
        contribution: What one unit adds to a step.
        units: The private data.
        count: The number of units.
        form: The form of rows that are read together: of arrays, which have one. None: units are read one at a time.
        max_tokens: The largest number of positions in a micro-batch; None for no limit.
        casts: Which integers of a form become floating-point numbers, by the form's key; see `integers_to_cast`.
    """

    contribution: Contribution
    units: Units = field(repr=False)
    count: int = field(repr=False)
    form: Form | None = None
    max_tokens: int | None = None
    casts: dict[Any, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, contribution: Contribution, units: Units, *, max_tokens: int | None = None) -> Private:
        """Read how many units there are, and no unit."""
        form = None
        if is_row_wise(units):
            with suppress(Exception):
                form = form_of(units.take(np.arange(0)))
        return cls(contribution, ahead_of(units), units.count, form, max_tokens)

    @property
    def has_rows(self) -> bool:
        """Whether a unit is some rows of a batch; clients and teachers are not."""
        return hasattr(self.contribution, "rows_per_unit")

    @property
    def rows_per_unit(self) -> int:
        """Rows of a unit in a batch, where units are rows."""
        return getattr(self.contribution, "rows_per_unit", 1)

    def at(self, step: int) -> Private:
        """The same at a step, counted from 0, for a contribution that asks for it."""
        moved = getattr(self.contribution, "at", None)
        return self if moved is None else replace(self, contribution=moved(step))

    def check(self, params: Tree, example: Batch | None = None) -> Spot:
        """Refuse data, a loss or a model through which units mix; see `Contribution.check` and `check_read`.

        Args:
            params: The weights that are trained.
            example: Made-up or public units in the form of a batch. With them the model and the loss are tried on
                these units, and no private unit is read.
        """
        if example is not None:
            return self._check_on(example, params)
        if (check_units := getattr(self.contribution, "check_read", None)) is not None:
            check_units(self.units.take, np.arange(min(self.count, AT_FIRST)))
        return self.contribution.check(params, self.take, self.count)

    def _check_on(self, example: Batch, params: Tree) -> Spot:
        if not self.has_rows:
            raise SettingError(
                f"an example stands for rows of a batch, and a {self.contribution.unit} is none"
            )
        batch = self._cast(canonical(example, self._dtype))
        units, left = divmod(rows_in(batch), self.rows_per_unit)
        if left or not units or not has_rows(batch, units * self.rows_per_unit):
            raise SettingError(
                f"the example is a batch of whole units: each of its tensors has a first axis with "
                f"{self.rows_per_unit} rows for every {self.contribution.unit}"
            )
        rows = torch.arange(units * self.rows_per_unit).view(units, self.rows_per_unit)
        return self.contribution.check(
            params, lambda indices: pick(batch, rows[np.asarray(indices)].flatten()), units
        )

    def take(self, indices: Indices) -> Batch:
        """Read some units for a check, as training reads them. Raises what reading raises."""
        if not self.has_rows or self.form is not None:
            return self.units.take(indices)
        found = []
        with fenced_draws(find_generators(self.units)) as start_from:
            for index in indices:
                start_from(fresh_key())
                found.append(self._cast(canonical(self.units.take(np.array([index])), self._dtype)))
        if len({form_key(form_of(each)) for each in found}) > 1:
            raise DataError("these examples have different shapes, and do not fit into one batch")
        return joined(found)

    def micro_batches(self, parts: Sequence[Indices], most: int) -> Iterator[Batch]:
        """Read units and yield them in micro-batches of equal form.

        Args:
            parts: The units, in the portions in which they are read. The next portion is read ahead where the units
                allow it.
            most: The largest number of units in a micro-batch.

        Guarantee:
            A unit is in exactly one micro-batch if it can be read alone, and in none otherwise, whatever the other
            units are.
        """
        if not self.has_rows:
            for part in self._expected(parts):
                if batch := self._clients(part):
                    yield batch
            return
        if self.form is None:
            portions = (list(self._alone(part)) for part in self._expected(parts))
            yield from MicroBatches(most, self.max_tokens).of(portions)
            return
        for part in self._expected(parts):
            batch = self._rows(part)
            units = [batch] if batch is not None else MicroBatches(most).of([list(self._alone(part))])
            for each in units:
                yield from self._within_tokens(each)

    def largest_batch(self, part: Indices) -> Batch | None:
        """The largest micro-batch of these units; None if none of them can be read."""
        batches = list(self.micro_batches([part], len(part)))
        return max(batches, key=_units_in) if batches else None

    def together(self, part: Indices) -> Batch | None:
        """One batch of all of these units; None if one of them cannot be read or has another form."""
        batches = list(self.micro_batches([part], len(part)))
        whole = len(batches) == 1 and rows_in(batches[0]) == len(part) * self.rows_per_unit
        return batches[0] if whole else None

    def expect(self, part: Indices) -> None:
        """These units will be asked for: they may be read ahead, if there is anybody to do that."""
        if isinstance(self.units, Ahead):
            self.units.expect(part)

    def _expected(self, parts: Sequence[Indices]) -> Iterator[Indices]:
        for number, part in enumerate(parts):
            for soon in parts[number : number + 2]:
                self.expect(soon)
            yield part

    def _rows(self, part: Indices) -> Batch | None:
        """Rows of arrays, read together; None if a row cannot be read, or is not of the declared form."""
        try:
            batch = self.units.take(part)
            sound = form_of(batch) == self.form and has_rows(batch, len(part) * self.rows_per_unit)
            return batch if sound else None
        except Exception:
            return None

    def _alone(self, part: Indices) -> Iterator[Batch]:
        """Each unit that can be read alone and has its declared number of rows.

        A row of arrays keeps their form: it is what it would be among others.
        """
        for unit in read_each(self.units, part):
            try:
                own = self._cast(canonical(unit, self._dtype)) if self.form is None else unit
                if has_rows(own, self.rows_per_unit) and self.form in (None, form_of(own)):
                    yield own
            except Exception:
                continue

    def _cast(self, unit: Batch) -> Batch:
        key = form_key(form_of(unit))
        if key not in self.casts:
            to_cast = getattr(self.contribution, "integers_to_cast", None)
            self.casts[key] = () if to_cast is None else to_cast(unit)
        return with_floats(unit, self.casts[key], self._dtype) if self.casts[key] else unit

    @property
    def _dtype(self) -> torch.dtype:
        return main_dtype(self.contribution.model)

    def _clients(self, part: Indices) -> Any:
        """Units that are no rows, such as clients; those that cannot be read are left out."""
        if hasattr(self.units, "read_each"):
            return [unit for unit in self.units.read_each(part) if unit is not None]
        try:
            return self.units.take(part)
        except Exception:
            alone = [unit for unit in read_each(self.units, part) if unit is not None]
            return (
                [each for unit in alone for each in unit] if all(isinstance(u, list) for u in alone) else None
            )

    def _within_tokens(self, batch: Batch) -> Iterator[Batch]:
        if self.max_tokens is None:
            yield batch
            return
        units = _units_in(batch) // self.rows_per_unit
        fit = max(1, self.max_tokens * units // tokens_in(batch))
        for rows in torch.arange(units * self.rows_per_unit).split(fit * self.rows_per_unit):
            yield pick(batch, rows)


def _units_in(batch: Batch) -> int:
    return len(batch) if isinstance(batch, list) else rows_in(batch)


@dataclass(frozen=True)
class Copies(Sequence[Tree]):
    """Points of which each is copied when it is taken, and not before: K of them are K times the model."""

    points: Sequence[Tree] = field(repr=False)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, place: Any) -> Any:
        chosen = self.points[place]
        return Copies(chosen) if isinstance(place, slice) else copied(chosen)


@dataclass(frozen=True)
class chunks_of:
    """The drawn units' gradients, one physical batch at a time, at whatever points are asked for.

    *Guarantee*: every batch gets copies of the points, so that a model which changes its weights in place changes
    neither what is released nor what the next batch sees.
    """

    private: Private
    drawn: Indices = field(repr=False)
    most: int
    sampler: Sampler = field(default_factory=SecureSampling)
    group: Group = ALONE  # of which this process takes its share of the drawn

    def __call__(self, points: Sequence[Tree], weights: Sequence[float]) -> Iterator[Chunk]:
        sharded, whole = has_shards(points[0]), self._at_once(points)
        for batch in whole._in_step() if sharded else whole._batches():
            yield self._chunk(
                points, weights, batch, sharded=sharded
            )  # no name holds it while the next is made

    def _chunk(
        self, points: Sequence[Tree], weights: Sequence[float], batch: Batch, *, sharded: bool
    ) -> Chunk:
        # Where every point waits its turn, so does its copy; sharded ones are known by where they lie.
        own = [copied(point) for point in points] if sharded else Copies(points)
        chunk = self.private.contribution(own, weights, batch)
        return Dealt(chunk, own[0]) if sharded else chunk  # type: ignore[arg-type]

    def _at_once(self, points: Sequence[Tree]) -> chunks_of:
        """The same, with smaller physical batches if the contribution wants such at these points."""
        fewer = getattr(self.private.contribution, "at_once", None)
        return self if fewer is None else replace(self, most=fewer(self.most, points))

    def _batches(self) -> Iterator[Batch]:
        """Micro-batches of the drawn units; a unit that cannot be read is left out."""
        return self.private.micro_batches(self._parts(), self.most)

    def _parts(self) -> list[Indices]:
        """The drawn units of this process, in physical batches."""
        return list(physical(self.group.mine(self.drawn), self.most))

    def expect(self) -> None:
        """Read the first physical batch ahead."""
        for part in self._parts()[:1]:
            self.private.expect(part)

    def _in_step(self) -> Iterator[Any]:
        """As `_batches`, as many in every process, for sharded weights: None where this one has none left."""
        mine = list(self._batches()) if self.private.form is None else self._batches()
        rounds = -(-len(self.group.largest(self.drawn)) // self.most)
        if isinstance(mine, list):  # how many forms a process meets is its own
            rounds = self.group.most(len(mine))
        batches = iter(mine)
        for _ in range(rounds):
            yield next(batches, None)

    def apart(
        self, points_of: Callable[[int], Sequence[Tree]], weights: Sequence[float], groups: int | None
    ) -> Iterator[Chunk]:
        """Each unit, or each group of units, at points of its own; `labels` says which."""
        everybody = self.group.told(lambda: labels(len(self.drawn), groups, self.sampler))
        if has_shards(points_of(0)[0]):  # all processes ask at the same points at the same time
            for label in np.unique(everybody):
                yield from replace(self, drawn=self.drawn[everybody == label])(points_of(int(label)), weights)
            return
        mine, own = self.group.mine(self.drawn), self.group.mine(everybody)
        for label in np.unique(own):
            together = replace(self, drawn=mine[own == label], group=ALONE)
            yield from together(points_of(int(label)), weights)

    def by_view(self, places: Sequence[int]) -> chunks_of:
        """The same, but point k sees view ``places[k]`` of every unit only."""
        dealt = getattr(self.private.contribution, "by_view", None)
        if dealt is None:
            raise SettingError(
                f"a {self.private.contribution.unit} has no views, which this method pairs with points in weight "
                "space; take per_example(model, loss, views=K, augment=...), or another method"
            )
        return replace(self, private=replace(self.private, contribution=dealt(places)))

    def losses(self, points: Sequence[Tree]) -> Iterator[Tensor]:
        """Every unit's loss at each point; (points, units)."""
        for batch in self._in_step() if has_shards(points[0]) else self._batches():
            yield self.private.contribution.losses([copied(point) for point in points], batch)
