"""Parameters outside any layer: class tokens, position embeddings, scales, and every function without a rule.

All of these get one copy of the parameter per row (`Tape.per_row`); automatic differentiation does the rest.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.errors import ModelError
from saltflat.gradients.axes import ALIGNED
from saltflat.gradients.tape import DERIVATIONS, Tape, rule, tensors_in

log = logging.getLogger("saltflat")
_told: set[str] = set()  # functions that the log has named already

ELEMENTWISE = [
    getattr(owner, name)
    for owner, names in (
        (torch, "add sub mul div true_divide pow maximum minimum where clamp lerp addcmul"),
        (
            Tensor,
            "add sub mul div true_divide pow __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ "
            "__imul__ __truediv__ __rtruediv__ __itruediv__ __pow__ __rpow__ add_ sub_ mul_ div_ where maximum minimum",
        ),
    )
    for name in names.split()
]
IN_PLACE = {
    *(Tensor.add_, Tensor.sub_, Tensor.mul_, Tensor.div_),
    *(Tensor.__iadd__, Tensor.__isub__, Tensor.__imul__, Tensor.__itruediv__),
}
ALIGNED.update(ELEMENTWISE)


@rule(*ELEMENTWISE, F.scaled_dot_product_attention)
def elementwise(tape: Tape, func: Any, *args: Any, **kwargs: Any) -> Any:
    """x + p, x * p, ..., attention with a learned bias: the parameter is broadcast over the rows.

    Where positions are folded into the rows, each row's copy serves its own.
    """
    tensors = tensors_in(args, kwargs)
    axes = max(t.ndim for t in tensors)
    longest = max(len(t) for t in tensors if t.ndim == axes) if axes else 1
    each = longest // tape.rows if longest > tape.rows > 1 else 1
    into_weight = func in IN_PLACE and tape.weight(args[0]) is not None
    args, kwargs = _copied(tape, (args, kwargs), axes, each)
    if into_weight:  # p /= x: the name stands for the copies from here on
        args = (args[0].clone(), *args[1:])
    return func(*args, **kwargs)


@rule(torch.cat, torch.concat, torch.concatenate)
def concatenate(tape: Tape, func: Any, *args: Any, **kwargs: Any) -> Any:
    """cat([token.expand(rows, ...), x], 1)."""
    axes = tensors_in(args, kwargs)[0].ndim
    args, kwargs = _copied(tape, (args, kwargs), axes)
    return func(*args, **kwargs)


@rule(Tensor.expand_as)
def expand_as(tape: Tape, func: Any, value: Tensor, other: Tensor) -> Tensor:
    """p.expand_as(x): the copies are the answer."""
    weight = tape.weight(value)
    return func(tape.per_row(weight, other.ndim) if weight else value, other)


@rule(Tensor.expand, Tensor.repeat, torch.broadcast_to, Tensor.broadcast_to, table=DERIVATIONS)
def repeat(tape: Tape, func: Any, value: Tensor, *sizes: Any, **kwargs: Any) -> Tensor:
    """p.expand(rows, ...): the same parameter once more for every row, remembered as such."""
    weight = tape.weight(value)
    with torch.enable_grad():
        traced = func(tape.traced(value), *sizes, **kwargs)
    widened = traced.shape[0] == tape.rows > 1 and traced.numel() == value.numel() * tape.rows
    for_each_row = widened and (value.ndim < traced.ndim or value.shape[:1] == (1,))
    return tape.share(traced, repeats=weight if for_each_row else None)


@rule(None)
def anything_else(tape: Tape, func: Any, *args: Any, **kwargs: Any) -> Any:
    """A function that no rule covers: `torch.func.vmap` over the rows, for this function alone."""
    _tell_once(_title(func))
    leaves, rebuild = torch.utils._pytree.tree_flatten((args, kwargs))
    taken = {i: _rows_of(tape, leaf, func) for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
    moving = {i: rows for i, rows in taken.items() if rows is not None}

    def one_row(*mine: Tensor) -> Any:
        filled = list(leaves)
        for i, leaf in zip(moving, mine, strict=True):
            filled[i] = leaf if tape.weight(leaves[i]) else leaf.unsqueeze(0)
        new_args, new_kwargs = torch.utils._pytree.tree_unflatten(filled, rebuild)
        return torch.utils._pytree.tree_map(lambda y: y.squeeze(0), func(*new_args, **new_kwargs))

    return torch.func.vmap(one_row, randomness="different")(*moving.values())


def _copied(tape: Tape, item: Any, axes: int, each: int = 1) -> Any:
    """The same arguments with per-row copies in the place of weights, ``each`` times side by side."""
    weight = tape.weight(item)
    if weight is not None:
        copies = tape.per_row(weight, axes)
        return copies.repeat_interleave(each, 0) if each > 1 and len(copies) == tape.rows else copies
    if isinstance(item, (list, tuple)):
        return type(item)(_copied(tape, x, axes, each) for x in item)
    if isinstance(item, dict):
        return {key: _copied(tape, x, axes, each) for key, x in item.items()}
    return item


def _rows_of(tape: Tape, leaf: Tensor, func: Any) -> Tensor | None:
    """What vmap shall take apart: copies of weights, rows of data; constants stay whole."""
    weight = tape.weight(leaf)
    if weight is not None:
        return tape.per_row(weight, weight.value.ndim + 1)
    if tape.is_shared(leaf) or leaf.ndim == 0:
        return None
    if leaf.shape[0] != tape.rows:
        raise ModelError(
            f"{_title(func)} got a tensor of shape {tuple(leaf.shape)} whose first axis is not the batch "
            f"({tape.rows} rows); keep the batch on the first axis (batch_first=True)"
        )
    return leaf


def _tell_once(title: str) -> None:
    if title not in _told:
        _told.add(title)
        log.warning("no rule for %s: its rows are taken apart with torch.func.vmap, exact but slow", title)


def _title(func: Any) -> str:
    return getattr(func, "__name__", str(func))
