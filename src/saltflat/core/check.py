"""What a model must be to have per-unit gradients, and how to make it so."""

from __future__ import annotations

import copy
import logging
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from saltflat import tree
from saltflat.clipping import Chunk
from saltflat.core.sampling import Batch, Indices, form_of, joined, leaves, mapped, pick, rows_in
from saltflat.core.shards import agreed, most_of, settle
from saltflat.errors import ModelError, SaltflatError, SettingError
from saltflat.gradients.width import widened
from saltflat.settings import is_whole
from saltflat.tree import Tree

Take = Callable[[Indices], Batch]
T = TypeVar("T")

_TOLERANCE = 1e-3  # float32 gradients by two routes; a real mistake is off by its whole size


def check_model(model: nn.Module) -> None:
    """Refuse layers through which one example's data reaches another's gradient.

    >>> check_model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)))
    Traceback (most recent call last):
    saltflat.errors.ModelError: layer '1' is a BatchNorm1d: ...
    """
    check_whole(model)
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise ModelError("the model has lazy layers without a shape yet: run one batch through it first")
    for name, module in model.named_modules():
        _check_layer(name, module)


def check_whole(model: nn.Module) -> None:
    """Refuse what stands between saltflat and a model: a compiler, or copies of it.

    >>> check_whole(nn.DataParallel(nn.Linear(2, 2)))
    Traceback (most recent call last):
    saltflat.errors.ModelError: the model is wrapped in DataParallel: ...
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is an nn.Module; got a {type(model).__name__}")
    for module in model.modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise ModelError(
                "the model, or a part of it, is compiled (torch.compile), and a compiled function cannot be followed "
                "layer by layer; hand in the model itself, and compile it after training"
            )
        if type(module).__name__ in _COPIES:
            raise ModelError(
                f"the model is wrapped in {type(module).__name__}: its copies would clip, draw and add noise each for "
                "itself; hand in the model itself (model.module): processes of torchrun share the work by themselves"
            )


_COPIES = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def _check_layer(name: str, module: nn.Module) -> None:
    if isinstance(module, _BatchNorm):
        _check_batch_norm(name, module)
    if isinstance(module, _SpectralNorm) and module.training:
        raise ModelError(
            f"{name!r} is a spectral norm in train mode: its power iteration changes its buffers with every call, so "
            "that the calls of one step would see different models; put it into eval mode, or use "
            "parametrizations.weight_norm"
        )
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm | WeightNorm):
            kind = "spectral_norm" if isinstance(hook, SpectralNorm) else "weight_norm"
            raise ModelError(
                f"layer {name!r} has the old torch.nn.utils.{kind}, which writes a tensor into the layer with every "
                f"call; use torch.nn.utils.parametrizations.{kind}"
                + (" in eval mode" if kind == "spectral_norm" else "")
            )
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        raise ModelError(
            f"layer {name!r} is a {type(module).__name__} with running statistics, which carry data from one "
            "example to the next; build it with track_running_stats=False"
        )


def _check_batch_norm(name: str, module: _BatchNorm) -> None:
    """With fixed statistics it is an affine map of each example; else the batch's own would take their place."""
    if not module.training and module.running_mean is not None and module.running_var is not None:
        if name not in _fixed:
            _fixed.add(name)
            log.warning(
                "layer %r keeps the statistics it has: what is promised assumes that they are public", name
            )
        return
    raise ModelError(
        f"layer {name!r} is a {type(module).__name__}: it normalises with the whole batch's statistics, so one "
        "example's gradient depends on the others and clipping bounds nothing; replace it with "
        "saltflat.without_batchnorm(model), which puts GroupNorm in its place, or, if its running statistics are "
        "public, put it into eval mode and leave it there"
    )


log = logging.getLogger("saltflat")
_fixed: set[str] = set()  # layers that the log has named already


def without_batchnorm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """A copy of the model with GroupNorm in the place of every BatchNorm.

    The number of groups is the largest divisor of the channels that is at most ``groups``; in the place of a
    BatchNorm1d, which may see one number per channel, each group has at least 16 channels, or all of them. Learned
    scales and shifts are kept; running statistics, which came from data, are dropped.

    >>> norm = without_batchnorm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), groups=4)[1]
    >>> type(norm).__name__, norm.num_groups, norm.num_channels
    ('GroupNorm', 4, 8)
    >>> without_batchnorm(nn.BatchNorm1d(64)).num_groups
    4
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is an nn.Module; got a {type(model).__name__}")
    if not is_whole(groups):
        raise SettingError(f"groups is a whole number, at least 1; got {groups!r}")
    if isinstance(model, _BatchNorm):
        return _group_norm(model, groups)
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _group_norm(child, groups))
    return model


def _group_norm(batch_norm: _BatchNorm, groups: int) -> nn.Module:
    if isinstance(batch_norm.weight, UninitializedParameter):
        raise ModelError("a lazy BatchNorm has no channels yet: run one batch through the model first")
    channels, least = batch_norm.num_features, 16 if isinstance(batch_norm, nn.BatchNorm1d) else 1
    fitting = [g for g in range(1, min(groups, channels) + 1) if channels % g == 0 and channels // g >= least]
    norm = nn.GroupNorm(max(fitting, default=1), channels, batch_norm.eps, affine=batch_norm.affine)
    if batch_norm.affine:
        norm.weight, norm.bias = batch_norm.weight, batch_norm.bias
    after = list(batch_norm.children())  # an activation inside the norm, as some libraries have it
    return nn.Sequential(norm, *after) if after else norm


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


class Spot(Protocol):
    """Looks at a model again while it trains; called with the weights, and some units of a step, or None at the end."""

    def changed(self) -> bool:
        """Whether the model is in a mode that was not looked at yet."""
        ...

    def __call__(self, params: Tree, batch: Batch | None) -> None: ...


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
    own, like = _own_rows(contribution, params, take, count)
    made = None if like is None else _made_up_trial(contribution, params, like)
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
            f"the loss runs, and its per-example gradients fail with a {type(error).__name__}: forward or backward "
            "does something that cannot be followed example by example (activation checkpointing, a compiled or "
            "quantised part, a custom function); take that part out, or freeze it"
        ) from (None if quiet else error)


@dataclass(frozen=True)
class Trial:
    """A model without chance, a point, and units that its loss takes."""

    contribution: Differentiable
    params: Tree = field(repr=False)
    batch: Batch = field(repr=False)
    units: int
    tolerance: float
    by_chance: bool = False  # views are drawn, so that a unit's depend on who else is in the batch

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

    @property
    def is_telling(self) -> bool:
        """Whether units differ and have gradients: else the trial would pass whatever the model does."""
        norms = self.together.norms()
        return self.agreed(
            self.units > 2 and bool(torch.isfinite(norms).all()) and int((norms > 0).sum()) > self.units // 2
        )


def _trial(contribution: Differentiable, params: Tree, batch: Batch) -> Trial | None:
    """A trial in float64, or in the model's own type where it does not run in float64; None if it runs in neither.

    In float32 two routes to one gradient may differ by much more than rounding where layers nearly cancel. Views are
    all alike if the model takes rows as they are, and drawn where it does not.
    """
    units = rows_in(batch) // contribution.rows_per_unit
    model, double = contribution.model, lambda leaf: leaf.double() if leaf.is_floating_point() else leaf
    rest = {n: leaf for n, leaf in (*model.named_buffers(), *model.named_parameters()) if n not in params}
    exact = {name: double(leaf.detach()) for name, leaf in rest.items()}
    wide = {name: double(leaf) for name, leaf in params.items()}
    for alike in (True, False):
        for trial in (
            Trial(
                contribution.still(exact, alike=alike), wide, mapped(double, batch), units, 1e-6, not alike
            ),
            Trial(contribution.still(alike=alike), params, batch, units, _TOLERANCE, not alike),
        ):
            if _runs(trial):
                return trial
    return None


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


def _made_up_trial(contribution: Differentiable, params: Tree, like: Batch) -> Trial | None:
    """Rows of random numbers, each of another size, in the form of the data: no private row is looked at."""
    rows = _MADE_UP * contribution.rows_per_unit
    source = torch.Generator().manual_seed(0)
    sizes = torch.linspace(0.2, 2.0, rows)[torch.randperm(rows, generator=source)]

    def made(leaf: Tensor) -> Tensor:
        shape = (rows, *leaf.shape[1:])
        if not leaf.is_floating_point():  # 0 and 1 are classes, tokens and masks almost anywhere
            return torch.randint(2, shape, generator=source).to(leaf)
        return (torch.randn(shape, generator=source) * sizes.view(-1, *[1] * (len(shape) - 1))).to(leaf)

    try:
        return _trial(contribution, params, mapped(made, like))
    except ModelError:
        return None  # the data's own rows will tell


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
        trial = Trial(self.contribution.still(), tree.map_tree(widened, params), batch, units, _TOLERANCE)
        one, norms = trial.agreed(secrets.randbelow(units)), trial.together.norms()
        if trial.agreed(bool(torch.isfinite(norms[one]))):  # else it is left out anyway
            only = (torch.arange(units, device=norms.device) == one).to(norms.dtype)
            together, alone = trial.together.weighted_sum(only), _alone(trial, one)
            gap = trial.agreed(_gap(together, alone)[0])
            if gap > trial.tolerance and gap > trial.tolerance + _jitter(trial, one, alone):
                raise ModelError(_MIXED)
        _check_part(trial)


def _check_part(trial: Trial) -> None:
    """Every unit of a secret third of the batch, in another order, is what it was among all of them.

    A model may mix only a few of many rows, or by their places, and one drawn unit is seldom among those. A unit that
    rounding alone changes as much as mixing would says nothing here, as it may be an odd record.
    """
    some = trial.agreed(secrets.SystemRandom().sample(range(trial.units), max(1, trial.units // 3)))
    looks = _looks(trial.params, length=tree.size(trial.params) ** 0.5)[:1]
    here, there = _signature(trial.chunk(some), looks), _signature(trial.together, looks)[some]
    gaps = _distances(there, here)
    if not trial.agreed(bool((gaps > trial.tolerance).any())):
        return
    jitter = 30 * _distances(here, _signature(_jittered(trial).chunk(some), looks))
    if bool(((gaps > trial.tolerance + jitter) & (jitter <= _MOST_JITTER)).any()):
        raise ModelError(_MIXED)


def _alone(trial: Trial, one: int) -> Tree:
    """A unit's gradient with nobody beside it."""
    chunk = trial.chunk([one])
    return chunk.weighted_sum(torch.ones_like(chunk.norms()))


def _jitter(trial: Trial, one: int, alone: Tree) -> float:
    """What rounding may do to a unit alone: many times what a change of each weight by its last digit does.

    It is large where weights are, or where their type is narrow, and knows nothing of other units: a model that mixes
    does not become an honest one by it.
    """
    return min(_MOST_JITTER, 30 * _gap(_alone(_jittered(trial), one), alone)[0])


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
    plain: Mapping[str, Mapping[str, object]] = field(repr=False)  # attributes of every layer

    @classmethod
    def by(cls, model: nn.Module) -> Held:
        tensors = {name: leaf.detach().clone() for name, leaf in _untrained(model)}
        shallow = lambda value: type(value)(value) if type(value) in (dict, list) else value
        plain = {
            name: {key: shallow(value) for key, value in vars(module).items() if key not in _TORCHS_OWN}
            for name, module in model.named_modules()
        }
        return cls(tensors, plain)

    def clear(self, model: nn.Module) -> None:
        """Take out what forward left in the model, a map of attention or the last batch: it is made of private rows.

        Whoever saves the whole model would release it without noise. Weights and buffers are not touched.
        """
        for name, module in model.named_modules():
            for key, value in list(vars(module).items()) if name in self.plain else ():
                if any(f"{name}.{each}" not in self.tensors for each, _ in _held_as(key, value, module)):
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


def _put_back(module: nn.Module, key: str, before: Mapping[str, object]) -> None:
    """An attribute as it was: lists and dictionaries in place, as others may hold them too."""
    now, then = vars(module)[key], before.get(key)
    if isinstance(now, list) and isinstance(then, list):
        now[:] = then
    elif isinstance(now, dict) and isinstance(then, dict):
        now.clear()
        now.update(then)
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


def _own_rows(
    contribution: Differentiable, params: Tree, take: Take, count: int
) -> tuple[Trial | None, Batch | None]:
    """A trial on the first units whose loss is finite, if there are any, and one unit for its form.

    If the loss runs on none, the error is the model's.
    """
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
            trial = _trial(contribution, params, batch)
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
    return (_together(contribution, params, found) if found else None), like


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
    if loss is None or not isinstance(empty, Sequence) or len(empty) != 2 or tree.has_shards(params):
        return False
    try:
        with torch.no_grad():
            found = loss(functional_call(contribution.model, params, (empty[0],)), empty[1])
    except Exception:
        return False
    return isinstance(found, Tensor)


def _together(contribution: Differentiable, params: Tree, found: Sequence[Trial]) -> Trial | None:
    """One trial of the units of several, as far as they have one form."""
    alike = [each.batch for each in found if form_of(each.batch) == form_of(found[0].batch)]
    if len(alike) < len(found):
        raise ModelError(
            "examples have different shapes, so they do not fit into one batch; pad them to one length, or give the "
            "data a collate function that does"
        )
    return replace(found[0], batch=joined(alike), units=len(alike))


def _check_rows(contribution: Differentiable, batch: Batch) -> None:
    """Refuse data that gives more or fewer rows than units: each row would have a clip of its own."""
    if rows_in(batch) != contribution.rows_per_unit:
        raise ModelError(
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


def _check_gradients(trial: Trial) -> None:
    """Each unit's kept gradient is the one of plain automatic differentiation."""
    units = min(trial.units, 3)
    batch, chunk = trial.some(range(units)), trial.chunk(range(units))
    leaves = _free(trial.params)
    with trial.contribution.near([leaves]) as here:
        with torch.enable_grad():
            losses = here.losses_of_units(leaves, batch)
        grads_of = (
            torch.autograd.grad(losses[unit], list(leaves.values()), retain_graph=True, allow_unused=True)
            for unit in range(units)
        )
        found = list(grads_of) if tree.has_shards(leaves) else grads_of  # while weights can be fetched
    for unit, grads in enumerate(found):
        plain = {
            n: torch.zeros_like(leaf) if g is None else g
            for (n, leaf), g in zip(leaves.items(), grads, strict=True)
        }
        norms = chunk.norms()
        kept = chunk.weighted_sum((torch.arange(units, device=norms.device) == unit).to(norms.dtype))
        gap, name = _gap(kept, plain)
        if gap > trial.tolerance:
            raise ModelError(
                f"parameter {name!r}: its per-example gradient does not match plain automatic differentiation: a "
                "function with a backward of its own, or a weight that is changed in place; take it out, or freeze it"
            )


def _check_apart(trial: Trial) -> None:
    """Every unit's gradient is the same in any company: alone, without this one or that, in a smaller batch.

    Where views are drawn by chance a smaller batch would draw others, so there units are exchanged instead; and so it
    is with the model's own draws, if it has any, lest it hides among rows that draw alike.
    """
    looks = _looks(trial.params)
    whole = _signature(trial.together, looks)
    _check_companies(trial, whole, looks)
    if not trial.by_chance:
        placed = replace(trial, contribution=trial.contribution.placed(), by_chance=True)
        few = range(min(trial.units, _FEW))
        if trial.agreed(_distance(whole[list(few)], _signature(placed.chunk(few), looks))) > trial.tolerance:
            _check_companies(placed, _signature(placed.together, looks), looks)


def _check_companies(trial: Trial, whole: Tensor, looks: Sequence[Tree]) -> None:
    everyone = list(range(trial.units))
    if trial.by_chance:
        companies = [[*everyone[:k], (k + 1) % trial.units, *everyone[k + 1 :]] for k in everyone[:4]]
    else:
        third, largest = trial.units // 3 + 1, trial.agreed(int(torch.nan_to_num(whole[:, 0]).argmax()))
        gone = {largest, third} if trial.units > _FEW else {third}
        companies = [[u for u in everyone if u not in gone], everyone[third:], everyone[:1], everyone[-1:]]
        _check_spoilt(trial, whole, largest, looks)
    for company in companies:
        if len(company) > (1 if trial.by_chance else 0):
            here, there = _signature(trial.chunk(company), looks), whole[company]
            stayed = [place for place, unit in enumerate(company) if not trial.by_chance or unit == place]
            gap = trial.agreed(_distance(there[stayed], here[stayed]))
            if gap > trial.tolerance and gap > trial.tolerance + _rounding(trial, whole, looks):
                raise ModelError(_why_not_apart(trial, whole, looks))


def _check_forgets(trial: Trial) -> None:
    """Units are what they were after quite other rows: a running maximum, wherever it is kept, would have moved.

    What a model keeps of the rows before would let a unit of one step change everybody's gradient in all later ones.
    """
    units, looks = range(min(trial.units, _FEW)), _looks(trial.params)
    before = _signature(trial.together, looks)[list(units)]
    with suppress(Exception):  # a loss may refuse numbers so large; what was seen of them was seen
        replace(trial, batch=mapped(of_other_sizes, trial.batch)).chunk(range(trial.units))
    gap = trial.agreed(_distance(before, _signature(trial.chunk(units), looks)))
    if gap > trial.tolerance:
        again = _distance(*(_signature(trial.chunk(units), looks) for _ in range(2)))
        raise ModelError(_DRAWN if again > trial.tolerance else _REMEMBERED)


def of_other_sizes(leaf: Tensor) -> Tensor:
    """The same rows, from a thousandth of what they were to a thousand times that; whole numbers in another order."""
    if not leaf.is_floating_point():
        return leaf.flip(0)
    return leaf * torch.logspace(3, -3, len(leaf)).to(leaf).view(-1, *[1] * (leaf.ndim - 1))


def _why_not_apart(trial: Trial, whole: Tensor, looks: Sequence[Tree]) -> str:
    """Draws that nobody can still, if the same units are not themselves a second time; else units that mix."""
    again = _signature(trial.chunk(range(trial.units)), looks)
    return _DRAWN if _distance(whole, again) > trial.tolerance else _MIXED


def _check_spoilt(trial: Trial, whole: Tensor, unit: int, looks: Sequence[Tree]) -> None:
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
        here = _signature(beside.together, looks)[1:]
    except Exception:  # a unit that makes the loss fail is left out by itself
        return
    gap = trial.agreed(_distance(whole[company[1:]], here))
    if gap > trial.tolerance and gap > trial.tolerance + _rounding(trial, whole, looks):
        raise ModelError(_why_not_apart(trial, whole, looks))


def _rounding(trial: Trial, whole: Tensor, looks: Sequence[Tree]) -> float:
    """What rounding alone may do: many times what the same units in another order do."""
    if trial.by_chance:  # each place has draws of its own
        return 0.0
    turned = _signature(trial.chunk(range(trial.units)[::-1]), looks)
    return min(1e-4, 30 * _distance(whole.flip(0), turned))


def _looks(params: Tree, length: float = 1.0) -> list[Tree]:
    """Two random directions in weight space, of about this length."""
    source, scale = torch.Generator().manual_seed(1), length / max(1, tree.size(params)) ** 0.5
    if tree.has_shards(params):
        return [_Drawn(params, scale, seed) for seed in range(2)]
    drawn = lambda leaf: (torch.randn(leaf.shape, generator=source) * scale).to(leaf)
    return [tree.map_tree(drawn, params) for _ in range(2)]


class _Drawn(Tree):
    """A random direction whose leaves are drawn whenever they are asked for: the whole of it is in no memory."""

    def __init__(self, params: Tree, scale: float, seed: int) -> None:
        super().__init__()
        self._params, self._scale, self._seed = params, scale, seed

    def __missing__(self, name: str) -> Tensor:
        leaf, source = self._params[name], torch.Generator()
        source.manual_seed(2 * list(self._params).index(name) + self._seed)
        return (torch.randn(leaf.shape, generator=source) * self._scale).to(leaf.device, leaf.dtype)


def _signature(chunk: Chunk, looks: Sequence[Tree]) -> Tensor:
    """Each unit's norm and two inner products, which a change of its gradient changes; (units, 3)."""
    norms = chunk.norms()
    return torch.stack([norms, *(chunk.dot(look).to(norms) for look in looks)], 1)


def _distance(there: Tensor, here: Tensor) -> float:
    """The largest difference of two signatures beside a unit's norm; 0 where there are none."""
    return float(_distances(there, here).max()) if len(there) else 0.0


def _distances(there: Tensor, here: Tensor) -> Tensor:
    """Of every unit: how far two signatures are apart beside its norm; infinite if one is finite and the other not."""
    finite, other = torch.isfinite(there).all(1), torch.isfinite(here).all(1)
    gaps = (there - here).abs().amax(1) / (there[:, 0] + 1e-12)
    gaps = torch.where(finite & other, gaps, torch.zeros_like(gaps))
    return torch.where(finite != other, torch.full_like(gaps, math.inf), gaps)


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
_MIXED = (
    "one example's gradient changes when another example does, or leaves: something in the model or the loss mixes the "
    "batch (a batch statistic, a maximum or a ranking over examples, a contrastive loss, a division by the batch's "
    "length); each example's loss must depend on it alone"
)


def _gap(mine: Tree, other: Tree) -> tuple[float, str]:
    """How far two gradients are apart, beside their length, and the parameter where it shows most."""
    pairs = {name: (tree.own_part(mine[name]), tree.own_part(leaf)) for name, leaf in other.items()}
    gaps = {name: float((a - b).abs().max()) if b.numel() else 0.0 for name, (a, b) in pairs.items()}
    if tree.has_shards(other):
        gaps = dict(zip(gaps, most_of(list(gaps.values())), strict=True))
    worst = max(gaps, key=lambda name: gaps[name])
    length = float(tree.norm(mine) + tree.norm(other))
    return (gaps[worst] / (length + 1e-9) if math.isfinite(length) else 0.0), worst
