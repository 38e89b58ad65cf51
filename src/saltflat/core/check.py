"""The gate before the first step: a model is tried on rows, and refused if anything is off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from saltflat.core.sampling import Batch, Indices, form_of, joined, leaves, mapped, rows_in
from saltflat.core.spot import (
    MIXED,
    TOLERANCE,
    Differentiable,
    Held,
    LookAgain,
    Spot,
    Trial,
    distance,
    gap_between,
    modes_of,
    signature,
)
from saltflat.errors import DataError, ModelError, SaltflatError
from saltflat.tree import Tree, called, dense, has_shards, map_tree

Take = Callable[[Indices], Batch]


def check_step(contribution: Differentiable, params: Tree, take: Take, count: int) -> Spot:
    """Try the model before the first step, and refuse it if anything is off; what comes back looks again later.

    On rows that are made up in the form of the data, or on the data's own where the loss does not take those: every
    trained parameter takes part in a loss; each unit's kept gradient equals the one that plain automatic
    differentiation gives for its loss; and it stays the same whoever else is in the batch, and however many. All of
    that without chance, in float64 where the model can. No buffer or other tensor of the model changes. Nothing is
    released: the model passes or a `ModelError` says which reason holds.

    With sharded weights all processes of the group try it on the same rows, each fetching layer by layer, and go by
    what the first one finds.
    """
    held = Held.by(contribution.model)
    ways = _Ways(contribution, params)
    own, like = _own_rows(ways, take, count)
    made = None if like is None else _made_up_trial(ways, like)
    trials = [trial for trial in (made, own) if trial is not None]
    if like is not None and not trials:
        raise ModelError(
            "the loss is no finite number on any of the first examples, nor on made-up rows in their form, so the "
            "model could not be tried; are its weights finite, and does it run twice on the same rows?"
        )
    for trial in trials:
        _tried(trial, quiet=trial is own)
        held.check(contribution.model)
        if trial.is_telling:
            break
    return LookAgain(contribution, held, {modes_of(contribution.model)})


def _tried(trial: Trial, *, quiet: bool) -> None:
    """``quiet``: on private rows, whose values an error of the model's own may hold."""
    try:
        _check_connected(trial)
        _check_apart(trial)
        _check_forgets(trial)
        _check_gradients(trial)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"the loss runs on a batch, and on one example alone, or in its gradients, it fails with a "
            f"{type(error).__name__}: it asserts something about the batch, or forward or backward does something that "
            "cannot be followed example by example (a compiled or quantised part, a weight that forward writes into); "
            "take that part out, or freeze it"
        ) from (None if quiet else error)


@dataclass(frozen=True)
class _Ways:
    """How a model may be tried: in float64, or in its own type where it does not run in float64.

    In float32 two routes to one gradient may differ by much more than rounding where layers nearly cancel, or where a
    number so close to 0 changes its sign that a ReLU lets it pass; so the look at units is a short one there.
    """

    contribution: Differentiable
    params: Tree = field(repr=False)

    @cached_property
    def wide(self) -> Tree:
        """The point in float64."""
        return map_tree(_double, self.params)

    @property
    def exact(self) -> Tree:
        """What the model holds besides, in float64; as it is now: trying a model may untie what it has tied."""
        model = self.contribution.model
        rest = (*model.named_buffers(), *model.named_parameters())
        return {name: _double(leaf.detach()) for name, leaf in rest if name not in self.params}

    def trial(self, batch: Batch) -> Trial | None:
        """The first way in which the loss runs on these rows; None if there is none.

        Views are all alike if the model takes rows as they are, and drawn where it does not.
        """
        units = rows_in(batch) // self.contribution.rows_per_unit
        for alike in (True, False):
            still = partial(self.contribution.still, alike=alike)
            for trial in (
                Trial(still(self.exact), self.wide, mapped(_double, batch), units, 1e-6, not alike),
                Trial(still(), self.params, batch, units, TOLERANCE, not alike, length=1.0),
            ):
                if _runs(trial):
                    return trial
        return None


def _double(leaf: Tensor) -> Tensor:
    return leaf.double() if leaf.is_floating_point() else leaf


def _runs(trial: Trial) -> bool:
    try:
        with torch.no_grad():
            losses = trial.contribution.losses_of_units(trial.params, trial.batch)
    except ModelError:
        raise
    except Exception:
        return False
    return trial.agreed(bool(torch.isfinite(losses).all()))


# Units that are made up: more than the eight hardest of a batch, and few enough to be quick. Companies of 11, 9, 7, 5
# units are seldom as many as a layer is wide, for which rows might be taken.
_MADE_UP, _FEW = 11, 5


def _made_up_trial(ways: _Ways, like: Batch) -> Trial | None:
    """Rows of random numbers, each of another size, in the form of the data: no private row is looked at."""
    rows = _MADE_UP * ways.contribution.rows_per_unit
    source = torch.Generator().manual_seed(0)
    sizes = torch.linspace(0.2, 2.0, rows)[torch.randperm(rows, generator=source)]

    def made(leaf: Tensor) -> Tensor:
        shape = (rows, *leaf.shape[1:])
        if not leaf.is_floating_point():  # 0 and 1 are classes, tokens and masks almost anywhere
            return torch.randint(2, shape, generator=source).to(leaf)
        return (torch.randn(shape, generator=source) * sizes.view(-1, *[1] * (len(shape) - 1))).to(leaf)

    try:
        return ways.trial(mapped(made, like))
    except ModelError:
        return None  # the data's own rows will tell


def check_views(views: Callable[[Batch], Batch], take: Take, count: int) -> None:
    """Refuse an augmentation through which one example reaches another's views, under the same draws."""
    try:
        batches = [take(np.array([first, *range(1, min(count, 4))])) for first in (0, count - 1)]
    except Exception:  # what cannot be read contributes nothing; others are looked at as training goes on
        return
    rows = rows_in(batches[0]) // max(1, min(count, 4))
    try:
        one, other = (list(leaves(views(batch))) for batch in batches)
    except SaltflatError:
        raise
    except Exception:  # the same, of what cannot be augmented
        return
    for a, b in zip(one, other, strict=True):
        own = len(a) // max(1, min(count, 4))
        if rows and not torch.equal(torch.nan_to_num(a[own:]), torch.nan_to_num(b[own:])):
            raise ModelError(
                "the augmentation mixes examples: changing one of them changes another's views (mixup, cutmix, a batch "
                "statistic); each example's views must be made of it alone"
            )


_FIRST = 64  # units among which some that can be tried are looked for


def _own_rows(ways: _Ways, take: Take, count: int) -> tuple[Trial | None, Batch | None]:
    """A trial on the first units whose loss is finite, if there are any, and one unit for its form.

    If the loss runs on none, the error is the model's.
    """
    contribution, params = ways.contribution, ways.params
    found: list[Trial] = []
    like: Batch | None = None
    failed: tuple[Batch, Exception] | None = None
    for unit in range(min(count, _FIRST)):
        batch = None
        try:
            batch = take(np.array([unit]))
            _check_rows(contribution, batch)
            with torch.no_grad():
                contribution.losses_of_units(params, batch)
            like = batch if like is None else like
            trial = ways.trial(batch)
        except ModelError:
            raise
        except Exception as failure:
            failed = (batch, failure)
            continue
        found += [trial] if trial is not None else []
        if len(found) == 4:
            break
    if like is None and failed is not None:
        raise ModelError(
            "the loss, or an augment before it, fails on every one of the first examples: "
            f"{_why(contribution, params, *failed)}"
        )
    return (_together(found) if found else None), like


def _why(contribution: Differentiable, params: Tree, batch: Batch | None, error: Exception) -> str:
    """What fails, in words that hold no value of the data: those of the same failure on made-up rows, if it is one."""
    if isinstance(error, SaltflatError):  # our own words
        return str(error)
    if batch is None:
        return f"they cannot be read ({type(error).__name__})"
    if _takes_outputs(contribution, params, batch):
        return (
            "it is called as loss(predict, batch), where predict is the model and batch has the form of the data, and "
            "this one takes (outputs, targets): pass saltflat.supervised(loss)"
        )
    try:
        with torch.no_grad():
            contribution.losses_of_units(params, mapped(torch.zeros_like, batch))
    except Exception as same:
        return str(same).strip().splitlines()[0] if str(same).strip() else type(same).__name__
    return f"a {type(error).__name__} that rows of zeros do not give; are the labels, and everything else, in range?"


def _takes_outputs(contribution: Differentiable, params: Tree, batch: Batch) -> bool:
    """Whether the loss would run as a criterion of (outputs, targets), on rows of zeros."""
    loss, empty = getattr(contribution, "loss", None), mapped(torch.zeros_like, batch)
    if loss is None or not isinstance(empty, Sequence) or len(empty) != 2 or has_shards(params):
        return False
    try:
        with torch.no_grad():
            found = loss(called(contribution.model, params, (empty[0],)), empty[1])
    except Exception:
        return False
    return isinstance(found, Tensor)


def _together(found: Sequence[Trial]) -> Trial:
    """One trial of those units of several that have the most common form; training keeps forms apart as well."""
    forms = [form_of(each.batch) for each in found]
    first = forms.index(max(forms, key=forms.count))
    alike = [each.batch for each, form in zip(found, forms, strict=True) if form == forms[first]]
    return replace(found[first], batch=joined(alike), units=len(alike))


def _check_rows(contribution: Differentiable, batch: Batch) -> None:
    """Raise if a unit has more or fewer rows than declared: each row would have a clip of its own."""
    if rows_in(batch) != contribution.rows_per_unit:
        raise DataError(
            f"one unit gave {rows_in(batch)} rows where {contribution.rows_per_unit} was declared (as views, or of a "
            "user): each row would be clipped by itself, and a unit would move the sum by several clip norms; let "
            "collate give one row per unit, or use per_user(rows=...)"
        )


def _check_connected(trial: Trial) -> None:
    two = trial.some(range(min(trial.units, 2)))
    leaves = _free(trial.params)
    with trial.contribution.near([leaves]) as here:
        _check_all_used(lambda leaves: here.losses_of_units(leaves, two), leaves)


def check_connected(losses: Callable[[Tree], Tensor], params: Tree) -> None:
    """Refuse a parameter that no loss depends on: noise alone would move it, and it would never learn.

    Read from the graph, not from values: an adapter whose gradient is merely zero now does take part.
    """
    _check_all_used(losses, _free(params))


def _free(params: Tree) -> Tree:
    """Copies that gradients are taken at."""
    return {name: leaf.clone().requires_grad_() for name, leaf in params.items()}


def _check_all_used(losses: Callable[[Tree], Tensor], leaves: Tree) -> None:
    with torch.enable_grad():
        total = losses(leaves).sum()
    if not total.requires_grad:
        raise ModelError("the loss does not depend on any trained parameter; is the output detached?")
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for name, grad in zip(leaves, grads, strict=True):
        if grad is None:
            raise ModelError(
                f"parameter {name!r} takes no part in the loss, so noise alone would move it (an adapter that is "
                "switched off, a layer never called, a detached output); use it in forward, or freeze it with "
                "requires_grad_(False)"
            )


def _check_gradients(trial: Trial) -> None:
    """Units' kept gradients are those of plain automatic differentiation.

    sum_i c_i g_i of a few units, which plain backward gives in one pass as the gradient of sum_i c_i l_i. No two c_i
    are alike beside the units' norms, so that neither a small unit nor one that has another's gradient goes unseen.
    """
    norms = trial.whole[:, 0]
    some = trial.agreed(torch.isfinite(norms).nonzero().flatten()[:3].tolist())
    if not some:
        return
    weights = torch.zeros_like(norms)
    weights[some] = torch.tensor([1.0, -0.7, 0.4][: len(some)]).to(norms)
    weights = torch.where((weights != 0) & (norms > 0), weights / norms, weights)
    leaves = _free(trial.params)
    with trial.contribution.near([leaves]) as here:
        with torch.enable_grad():
            losses = here.losses_of_units(leaves, trial.some(some))
            total = (losses * weights[some].to(losses)).sum()
        grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    plain = {
        n: torch.zeros_like(leaf) if g is None else dense(g)
        for (n, leaf), g in zip(leaves.items(), grads, strict=True)
    }
    gap, name = gap_between(trial.together.weighted_sum(weights), plain)
    if gap > trial.tolerance:
        raise ModelError(
            f"parameter {name!r}: its per-example gradient does not match plain automatic differentiation: a "
            "custom function whose backward mixes examples or is not linear, or a weight that is changed in place; "
            "take it out, or freeze it"
        )


def _check_apart(trial: Trial) -> None:
    """Every unit's gradient is the same in any company: alone, without this one or that, in a smaller batch.

    Where views are drawn by chance a smaller batch would draw others, so there units are exchanged instead; and so it
    is with the model's own draws, if it has any, lest it hides among rows that draw alike.
    """
    _check_companies(trial)
    if not trial.by_chance:
        placed = replace(trial, contribution=trial.contribution.placed(), by_chance=True)
        few = range(min(trial.units, _FEW))
        here = signature(placed.chunk(few), trial.look)
        if trial.agreed(distance(trial.whole[list(few)], here)) > trial.tolerance:
            _check_companies(placed)


def _check_companies(trial: Trial) -> None:
    everyone = list(range(trial.units))
    if trial.by_chance:
        companies = [[*everyone[:k], (k + 1) % trial.units, *everyone[k + 1 :]] for k in everyone[:4]]
    else:
        third = trial.units // 3 + 1
        largest = trial.agreed(int(torch.nan_to_num(trial.whole[:, 0]).argmax()))
        gone = {largest, third} if trial.units > _FEW else {third}
        companies = [[u for u in everyone if u not in gone], everyone[third:], everyone[:1], everyone[-1:]]
        _check_spoilt(trial, largest)
    for company in companies:
        if len(company) > (1 if trial.by_chance else 0):
            here, there = trial.signature(company), trial.whole[company]
            stayed = [place for place, unit in enumerate(company) if not trial.by_chance or unit == place]
            gap = trial.agreed(distance(there[stayed], here[stayed]))
            if gap > trial.tolerance and gap > trial.tolerance + _rounding(trial):
                raise ModelError(_why_not_apart(trial))


def _check_forgets(trial: Trial) -> None:
    """Units are what they were after quite other rows: a running maximum, wherever it is kept, would have moved.

    What a model keeps of the rows before would let a unit of one step change everybody's gradient in all later ones.
    """
    units = range(min(trial.units, _FEW))
    before = trial.whole[list(units)]
    with suppress(Exception):  # a loss may refuse numbers so large; what was seen of them was seen
        replace(trial, batch=mapped(of_other_sizes, trial.batch)).chunk(range(trial.units))
    gap = trial.agreed(distance(before, trial.signature(units)))
    if gap > trial.tolerance:
        again = distance(*(trial.signature(units) for _ in range(2)))
        raise ModelError(_DRAWN if again > trial.tolerance else _REMEMBERED)


def of_other_sizes(leaf: Tensor) -> Tensor:
    """The same rows, from a thousandth of what they were to a thousand times that; whole numbers in another order."""
    if not leaf.is_floating_point():
        return leaf.flip(0)
    return leaf * torch.logspace(3, -3, len(leaf)).to(leaf).view(-1, *[1] * (leaf.ndim - 1))


def _why_not_apart(trial: Trial) -> str:
    """Draws that nobody can still, if the same units are not themselves a second time; else units that mix."""
    again = trial.signature(range(trial.units))
    return _DRAWN if distance(trial.whole, again) > trial.tolerance else MIXED


def _check_spoilt(trial: Trial, unit: int) -> None:
    """A unit whose numbers are none leaves the others as they are: 0 times a mean over the batch does not.

    Such a unit adds nothing itself; but if it made the others' gradients NaN, these would be left out as well.
    """
    company = [unit, *(u for u in range(trial.units) if u != unit)][:_FEW]
    mine = torch.arange(len(company) * trial.contribution.rows_per_unit) < trial.contribution.rows_per_unit

    def spoilt(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        wrong = torch.full_like(leaf, math.nan).flatten()
        wrong[1::2] = math.inf  # some models clear the one and not the other
        return torch.where(mine.to(leaf.device).view(-1, *[1] * (leaf.ndim - 1)), wrong.view_as(leaf), leaf)

    beside = replace(trial, batch=mapped(spoilt, trial.some(company)), units=len(company))
    try:
        here = signature(beside.together, trial.look)[1:]
    except Exception:  # a unit that makes the loss fail is left out by itself
        return
    gap = trial.agreed(distance(trial.whole[company[1:]], here))
    if gap > trial.tolerance and gap > trial.tolerance + _rounding(trial):
        raise ModelError(_why_not_apart(trial))


def _rounding(trial: Trial) -> float:
    """What rounding alone may do: many times what the same units in another order do."""
    if trial.by_chance:  # each place has draws of its own
        return 0.0
    turned = trial.signature(range(trial.units)[::-1])
    return min(1e-4, 30 * distance(trial.whole.flip(0), turned))


_DRAWN = (
    "the same examples give other gradients each time: the model or the loss draws random numbers that are not torch's "
    "own (numpy, Python's random, a torch.Generator that it holds), or counts its calls; draw with torch's functions, "
    "whose seed is secret here"
)

_REMEMBERED = (
    "the same examples give other gradients once the model has seen others: the model or the loss keeps something of "
    "what it saw (a running maximum or mean, a memory bank, a counter), in a number, an array or a tensor; one "
    "example would change what all later ones do, so keep nothing between calls"
)
