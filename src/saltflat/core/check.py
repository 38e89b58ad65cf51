"""What a model must be to have per-unit gradients, and how to make it so."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from saltflat.clipping import Chunk
from saltflat.core.sampling import Batch, Indices
from saltflat.errors import ModelError
from saltflat.tree import Tree

Take = Callable[[Indices], Batch]

_TOLERANCE = 1e-3  # float32 gradients by two routes; a real mistake is off by its whole size


def check_model(model: nn.Module) -> None:
    """Refuse layers through which one example's data reaches another's gradient.

    >>> check_model(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False)))
    Traceback (most recent call last):
    saltflat.errors.ModelError: layer '1' is a BatchNorm1d: ...
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ModelError(
                f"layer {name!r} is a {type(module).__name__}: it normalises with the whole batch's statistics, so "
                "one example's gradient depends on the others and clipping bounds nothing (frozen and affine-free "
                "ones too); replace it with saltflat.without_batchnorm(model), which puts GroupNorm in its place"
            )
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise ModelError(
                f"layer {name!r} is a {type(module).__name__} with running statistics, which carry data from one "
                "example to the next; build it with track_running_stats=False"
            )


def without_batchnorm(model: nn.Module, *, groups: int = 32) -> nn.Module:
    """A copy of the model with GroupNorm in the place of every BatchNorm.

    The number of groups is the largest divisor of the channels that is at most ``groups``. Learned scales
    and shifts are kept; running statistics, which came from data, are dropped.

    >>> norm = without_batchnorm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), groups=4)[1]
    >>> type(norm).__name__, norm.num_groups, norm.num_channels
    ('GroupNorm', 4, 8)
    """
    if isinstance(model, _BatchNorm):
        return _group_norm(model, groups)
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _group_norm(child, groups))
    return model


def _group_norm(batch_norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    channels = batch_norm.num_features
    count = max(g for g in range(1, min(groups, channels) + 1) if channels % g == 0)
    norm = nn.GroupNorm(count, channels, batch_norm.eps, affine=batch_norm.affine)
    if batch_norm.affine:
        norm.weight, norm.bias = batch_norm.weight, batch_norm.bias
    return norm


class Differentiable(Protocol):
    """A contribution whose vectors are gradients of a loss that can be taken unit by unit."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def augment(self) -> Callable[[Batch], Batch] | None: ...

    def __call__(self, points: Sequence[Tree], weights: Sequence[float], batch: Batch) -> Chunk: ...

    def losses_of_units(self, point: Tree, batch: Batch) -> Tensor: ...


def check_step(contribution: Differentiable, params: Tree, take: Take, count: int) -> None:
    """Try the model on a few units before the first step, and refuse it if anything is off.

    For two and for three units, under one random state: each unit's kept gradient equals the one that plain
    automatic differentiation gives for its loss; changing one unit leaves the others' gradients alone; no
    buffer changes; every trained parameter takes part in a loss. Nothing is released: the model passes or a
    `ModelError` says why not.
    """
    before = {name: buffer.clone() for name, buffer in contribution.model.named_buffers()}
    units = _sound_units(contribution, params, take, min(count, 8))
    if units:
        _check_connected(contribution, params, take(np.array(units)))
    for few in (2, 3):
        if len(units) >= few:
            some = np.array(units[:few])
            _check_gradients(contribution, params, take(some), few)
            other = take(np.array([some[-1], *some[1:]]))
            _check_isolation(contribution, params, take(some), other)
    for name, buffer in contribution.model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise ModelError(
                f"buffer {name!r} changes when the model sees data, and would release it without noise; "
                "remove the running statistics, or keep that layer in eval mode"
            )


def _sound_units(contribution: Differentiable, params: Tree, take: Take, count: int) -> list[int]:
    """The first units on which the loss runs; if it runs on none, the error is the model's."""
    sound, error = [], None
    for unit in range(count):
        try:
            with torch.no_grad():
                contribution.losses_of_units(params, take(np.array([unit])))
            sound.append(unit)
        except ModelError:
            raise
        except Exception as failure:
            error = failure
    if not sound and error is not None:
        raise ModelError(f"the loss fails on every one of the first examples: {error}") from error
    return sound


def _check_connected(contribution: Differentiable, params: Tree, batch: Batch) -> None:
    """Refuse a parameter that no loss depends on: noise alone would move it, and it would never learn.

    Read from the graph, not from values: an adapter whose gradient is merely zero now does take part.
    """
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    with _one_random_state(contribution), torch.enable_grad():
        total = contribution.losses_of_units(leaves, batch).sum()
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


def _check_gradients(contribution: Differentiable, params: Tree, batch: Batch, units: int) -> None:
    with _one_random_state(contribution):
        chunk = contribution([params], [1.0], batch)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
    with _one_random_state(contribution), torch.enable_grad():
        losses = contribution.losses_of_units(leaves, batch)
    for unit in range(units):
        grads = torch.autograd.grad(losses[unit], list(leaves.values()), retain_graph=True, allow_unused=True)
        kept = chunk.weighted_sum(torch.eye(units, dtype=losses.dtype, device=losses.device)[unit])
        for (name, mine), plain in zip(kept.items(), grads, strict=True):
            _compare(name, mine, torch.zeros_like(mine) if plain is None else plain)


def _compare(name: str, mine: Tensor, plain: Tensor) -> None:
    gap, size = (mine - plain).abs().max(), plain.abs().max() + mine.abs().max()
    if bool(torch.isfinite(size)) and float(gap) > _TOLERANCE * float(size) + 1e-7:
        raise ModelError(
            f"parameter {name!r}: its per-example gradient does not match plain automatic differentiation; the "
            "batch must be the first axis of every activation (batch_first=True), and each example independent"
        )


def _check_isolation(contribution: Differentiable, params: Tree, batch: Batch, other: Batch) -> None:
    """``other`` differs from ``batch`` in its first unit only."""
    with _one_random_state(contribution):
        norms = contribution([params], [1.0], batch).norms()
    with _one_random_state(contribution):
        changed = contribution([params], [1.0], other).norms()
    if not torch.allclose(norms[1:], changed[1:], rtol=1e-6, equal_nan=True):
        raise ModelError(
            "one example's gradient changes when another example does: something in the model or the loss mixes "
            "the batch (a batch statistic, a contrastive loss); each example's loss must depend on it alone"
        )


@contextmanager
def _one_random_state(contribution: Differentiable) -> Iterator[None]:
    """Dropout, augmentations and the like draw the same numbers each time, and later ones as if never asked."""
    own = getattr(contribution.augment, "generator", None)  # an augmentation may bring one
    before = own.get_state() if own is not None else None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            if own is not None:
                own.manual_seed(0)
            yield
        finally:
            if own is not None:
                own.set_state(before)
