"""Weights that this process does not hold whole: each is fetched where a function meets it, and let go of after that.

A model runs at a point whose leaves are sharded over processes. `Away` sees every torch function before all other
modes do, and puts the whole of a weight in its place for as long as the function takes. What automatic differentiation
would save of it for the backward pass is a note instead, by which it is fetched again. So at any time the weights of a
few functions are in memory, and never those of the whole model, unless forward makes others out of them and keeps
these (a weight that is standardised, or cut up for several heads).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from saltflat.gradients.tape import Tape, tensors_in
from saltflat.tree import cut

Fetch = Callable[[Sequence[int]], Sequence[Tensor]]  # numbers of leaves -> all of each
_Met = dict[int, Tensor]  # by the address of the leaf that was met

_SHAPES = {  # what may be asked of a weight without fetching it
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout")),
    *(getattr(Tensor, name).__get__ for name in ("requires_grad", "is_leaf", "grad")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.__len__, Tensor.element_size),
    *(Tensor.is_floating_point, torch.is_floating_point, Tensor.is_complex, torch.is_complex, torch.numel),
}


class Away:
    """The leaves that are elsewhere, by number: the same numbers in every process."""

    def __init__(self, leaves: Iterable[Tensor], fetch: Fetch) -> None:
        self._leaves = list(leaves)  # held: their addresses are their names
        self._number = {id(leaf): number for number, leaf in enumerate(self._leaves)}
        self._fetch = fetch
        self._here: dict[int, tuple[Any, int]] = {}  # where a whole one lies in memory -> it, its number

    def knows(self, leaf: Tensor) -> bool:
        return id(leaf) in self._number

    @contextmanager
    def near(self, tape: Tape | None = None) -> Iterator[None]:
        """A model may run inside as if it had its weights; ``tape``, if there is one, learns which they are."""
        with saved_tensors_hooks(self._noted, self._found), _Fetching(self, tape):
            yield

    def wholes(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """All of these leaves; one that takes part in the graph does so whole."""
        numbers, made = [self._number[id(leaf)] for leaf in leaves], []
        for leaf, number, fetched in zip(leaves, numbers, self._fetch(numbers), strict=True):
            wanted = leaf.requires_grad and torch.is_grad_enabled()
            made.append(_Fetched.apply(leaf, fetched) if wanted else fetched)
            self._here[made[-1].untyped_storage().data_ptr()] = (weakref.ref(made[-1]), number)
        return made

    def _noted(self, saved: Tensor) -> Any:
        """A note in the place of a weight; whatever else is saved stays."""
        place = saved.untyped_storage().data_ptr() if type(saved) is Tensor else 0
        made, number = self._here.get(place, (None, 0))
        if not place or made is None or made() is None:
            return saved
        return _Note(number, tuple(saved.shape), saved.stride(), int(saved.storage_offset()))

    def _found(self, kept: Any) -> Tensor:
        if not isinstance(kept, _Note):
            return kept
        (whole,) = self._fetch([kept.number])
        return whole.as_strided(kept.shape, kept.stride, kept.offset)


class _Note:
    """Which leaf was saved, and how it was looked at."""

    def __init__(self, number: int, shape: tuple[int, ...], stride: tuple[int, ...], offset: int) -> None:
        self.number, self.shape, self.stride, self.offset = number, shape, stride, offset


class _Fetched(torch.autograd.Function):
    """A sharded leaf -> all of it; of the gradient each process keeps its own part."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, fetched: Tensor) -> Tensor:
        ctx.like = leaf.detach()
        return fetched.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return cut(grad, ctx.like), None


class _Fetching(TorchFunctionMode):
    """Entered last, so that it is the first to see a function."""

    def __init__(self, away: Away, tape: Tape | None) -> None:
        super().__init__()
        self.away, self.tape = away, tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        met = {id(t): t for t in tensors_in(args, kwargs) if self.away.knows(t)}
        if not met:
            return func(*args, **kwargs)
        if func in _SHAPES:
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs)
        wholes = dict(zip(met, self.away.wholes(list(met.values())), strict=True))
        args, kwargs = _put(args, wholes), _put(kwargs, wholes)
        return func(*args, **kwargs) if self.tape is None else self._on_tape(func, args, kwargs, met, wholes)

    def _on_tape(self, func: Any, args: Any, kwargs: Any, met: _Met, wholes: _Met) -> Any:
        tape, result = self.tape, None
        assert tape is not None
        for name, leaf in met.items():
            tape.stand_in(wholes[name], leaf)
        try:
            result = func(*args, **kwargs)
        finally:
            answers = {id(made) for made in tensors_in(result)}
            for name, leaf in met.items():
                if id(wholes[name]) not in answers:  # else the model goes on with the tensor itself
                    tape.stand_down(wholes[name], leaf)
        return result


def is_fetching(mode: TorchFunctionMode) -> bool:
    """Whether a mode is that of `Away.near`."""
    return isinstance(mode, _Fetching)


def _put(item: Any, wholes: dict[int, Tensor]) -> Any:
    """The same arguments with whole weights."""
    if isinstance(item, Tensor):
        return wholes.get(id(item), item)
    if isinstance(item, (list, tuple)) and tensors_in(item):
        return type(item)(_put(x, wholes) for x in item)
    if isinstance(item, dict):
        return {key: _put(x, wholes) for key, x in item.items()}
    return item
