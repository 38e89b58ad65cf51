"""In what precision gradients are taken: float32 or better, whatever model, user or machine would take.

Kernels of half precision round a row otherwise by how many rows are beside it: a unit's gradient would depend on who
else was drawn, and norms would come out too small, by thousandths of the clip norm. So narrow weights and inputs are
widened for as long as a gradient is taken, and narrowed only after the noise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saltflat.tree import Tree, wide

log = logging.getLogger("saltflat")

NARROW = frozenset({torch.float16, torch.bfloat16})
_CASTS = frozenset({Tensor.half, Tensor.bfloat16, Tensor.to, Tensor.type})
_KNOWN: WeakSet[nn.Module] = WeakSet()  # models that are known to leave float32 in their forward


class Narrowed(Exception):
    """A model left float32 on its way; never seen by users."""


def check_width(result: Any) -> None:
    """Raise `Narrowed` for a tensor, or a sequence with one, in half precision."""
    if isinstance(result, Tensor):
        if result.dtype in NARROW:
            raise Narrowed
    elif isinstance(result, list | tuple):
        for item in result:
            check_width(item)


def widened(leaf: Tensor) -> Tensor:
    """The same in float32, if it is in half precision; else the very tensor.

    >>> widened(torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return leaf.to(wide(leaf.dtype)) if leaf.dtype in NARROW else leaf


def is_narrow(model: nn.Module) -> bool:
    """Whether a model has weights or buffers in half precision, or was seen to compute in it."""
    return model in _KNOWN or any(
        leaf.dtype in NARROW for leaves in (model.parameters(), model.buffers()) for leaf in leaves
    )


def note_narrow(model: nn.Module) -> None:
    """Remember that a model computes in half precision, by casts of its own or by autocast."""
    if model not in _KNOWN:
        _KNOWN.add(model)
        log.warning(
            "the model computes in half precision (a cast, or torch.autocast in its forward); its gradients are taken "
            "in float32: rounded by who else is in the batch they would not be private"
        )


def narrow_leaves(model: nn.Module) -> Tree:
    """The weights and buffers of a model that are in half precision, by name."""
    named = (*model.named_parameters(), *model.named_buffers())
    return {name: leaf for name, leaf in named if leaf.dtype in NARROW}


class Wide(TorchFunctionMode):
    """What asks for half precision inside, by a cast, a type, a tensor that it holds or autocast, gets float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _CASTS and (same := _only_narrows(func, args, kwargs or {})) is not None:
            return same
        kept = 1 if _writes(func) else 0  # what is written into must stay the tensor that it is
        with without_autocast():
            result = func(*args[:kept], *_wide(args[kept:]), **_wide(kwargs or {}))
            return result if kept else _wide(result)


def _writes(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return func is Tensor.__setitem__ or name.startswith("__i") or (name.endswith("_") and name[-2:] != "__")


def _only_narrows(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """What a cast to half precision and nothing else gives here: the tensor as it is, widened if need be."""
    value, *given = args
    if func in (Tensor.half, Tensor.bfloat16):
        return widened(value)
    asked = [*given, *kwargs.values()]
    plain = len(asked) == 1 and asked[0] in NARROW and value.is_floating_point()
    return widened(value) if plain else None


def _wide(item: Any) -> Any:
    """The same arguments with float32 for every type, and every tensor, of half precision."""
    if isinstance(item, Tensor):
        return widened(item)
    if isinstance(item, torch.dtype):
        return torch.float32 if item in NARROW else item
    if isinstance(item, dict):
        return {key: _wide(value) for key, value in item.items()}
    if type(item) in (list, tuple):
        return type(item)(_wide(value) for value in item)
    return item


@contextmanager
def without_autocast() -> Iterator[None]:
    """No autocast inside, on any kind of device that has it on."""
    with ExitStack() as stack:
        for kind in _kinds():
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _kinds() -> tuple[str, ...]:
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ("cpu",) if device is None else ("cpu", device.type)


@contextmanager
def full_float32() -> Iterator[None]:
    """Around a private step: no autocast from outside, and no TF32, which has ten bits of a float32's twenty-three."""
    with without_autocast(), ExitStack() as stack:
        if torch.cuda.is_available():
            stack.enter_context(_without_tf32())
        yield


@contextmanager
def _without_tf32() -> Iterator[None]:
    """By the settings that this torch has: newer ones refuse to read the old after the new were written."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    name, off = ("fp32_precision", "ieee") if hasattr(cudnn, "conv") else ("allow_tf32", False)
    places = [matmul, cudnn.conv, cudnn.rnn] if hasattr(cudnn, "conv") else [matmul, cudnn]
    before = [getattr(place, name) for place in places]
    try:
        for place in places:
            setattr(place, name, off)
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            setattr(place, name, value)
