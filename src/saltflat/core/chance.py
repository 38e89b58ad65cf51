"""Where the random layers of a model, and augmentations, take their randomness from.

Masks drawn from one stream shift when a unit leaves: from a stream that somebody can repeat, the others' gradients
would change with it. From one that is secret and new each time, a unit's masks are as likely whoever else is there.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

Draws = Callable[[Any], AbstractContextManager[None]]  # an augmentation, or None -> a stretch of randomness


@contextmanager
def secret(augment: Any) -> Iterator[None]:
    """A stream that nobody knows, whatever was seeded outside, which goes on as if nothing had been drawn."""
    with _seeded(int.from_bytes(os.urandom(8), "little") >> 1, augment):
        yield


@contextmanager
def still(augment: Any) -> Iterator[None]:
    """No chance: dropout leaves everything, and whatever else torch draws is the same each time, and for each row."""
    with _seeded(0, augment), _WithoutDropout(alike=True):
        yield


@contextmanager
def still_by_place(augment: Any) -> Iterator[None]:
    """No chance either; but what else torch draws differs from row to row: each place of a batch has its own draws."""
    with _seeded(0, augment), _WithoutDropout(alike=False):
        yield


@contextmanager
def repeated() -> Iterator[None]:
    """The same draws each time, alike for every row: torch's, and those of numpy and Python that have no owner."""
    ours, theirs = random.getstate(), np.random.get_state()  # noqa: NPY002  (what others draw from is set back)
    try:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        with still(None):
            yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)  # noqa: NPY002


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """A stream that begins at ``key``; afterwards torch's own goes on as if nothing had been drawn."""
    with _seeded(key, None):
        yield


@contextmanager
def _seeded(seed: int, augment: Any) -> Iterator[None]:
    """All sources begin at ``seed``, and are put back afterwards.

    Generator by generator: `torch.manual_seed` asks for every kind of device, and takes longer than a small layer.
    """
    sources = [
        *_sources(),
        *filter(None, [getattr(augment, "generator", None)]),
    ]  # an augmentation may bring one
    before = [source.get_state() for source in sources]
    try:
        for source in sources:
            source.manual_seed(seed)
        yield
    finally:
        for source, state in zip(sources, before, strict=True):
            source.set_state(state)


def _sources() -> list[torch.Generator]:
    """The generators that layers draw from unless told otherwise: the CPU's, and those of devices in use."""
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found += torch.cuda.default_generators
    if torch.backends.mps.is_available():
        found.append(torch.mps._get_default_mps_generator())
    return found


_DROPOUTS = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout),
    *(torch.dropout_, torch.alpha_dropout_, torch.feature_dropout_, torch.feature_alpha_dropout_),
}


_SIZED = {torch.rand, torch.randn}  # by sizes
_LIKE = {torch.rand_like, torch.randn_like, torch.randint_like}  # by a tensor of the same form
_FILLED = {  # in place
    *(
        Tensor.normal_,
        Tensor.uniform_,
        Tensor.exponential_,
        Tensor.bernoulli_,
        Tensor.random_,
        Tensor.log_normal_,
    ),
    *(Tensor.cauchy_, Tensor.geometric_),
}
_DRAWS = {*_SIZED, *_LIKE, *_FILLED, torch.bernoulli, Tensor.bernoulli}
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu}


class _WithoutDropout(TorchFunctionMode):
    """Dropout hands its input on; attention and recurrent layers run without it.

    ``alike``: every row gets the same draws. Those of a layer's own (noise, a path that is left out) would change with
    the number of rows that came before.
    """

    def __init__(self, *, alike: bool) -> None:
        super().__init__()
        self.alike = alike

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.gumbel_softmax:
            with self:
                return _gumbel_softmax(*args, **kwargs)
        if self.alike and func in _DRAWS:
            return _for_each_row(func, args, kwargs)
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            kwargs.pop("dropout_p", None)
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        elif func is F.multi_head_attention_forward:
            args = (*args[:10], 0.0, *args[11:]) if len(args) > 10 else args
            kwargs |= {"dropout_p": 0.0} if "dropout_p" in kwargs else {}
        elif func in _RECURRENT and isinstance(
            args[5], float
        ):  # (x, h, weights, biases, layers, dropout, ...)
            args = (*args[:5], 0.0, *args[6:])
        return func(*args, **kwargs)


def _gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """torch's own, in functions that a mode sees: softmax((logits + g) / tau), g drawn from Gumbel(0, 1)."""
    drawn = -torch.empty_like(logits).exponential_().log()
    soft = ((logits + drawn) / tau).softmax(dim)
    if not hard:
        return soft
    chosen = torch.zeros_like(logits).scatter_(dim, soft.argmax(dim, keepdim=True), 1.0)
    return chosen - soft.detach() + soft


def _for_each_row(func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """What the function would draw, with the draws of the first row for every row."""
    if func in _SIZED:
        size = kwargs.pop("size", args[0] if args and not isinstance(args[0], int) else args)
        if not size:
            return func(size, **kwargs)
        return func((1, *size[1:]), **kwargs).expand(*size).clone()
    first = args[0] if args else kwargs.pop("self" if func in _FILLED else "input")
    if first.ndim == 0 or len(first) == 0:
        return func(first, *args[1:], **kwargs)
    if func in (torch.bernoulli, Tensor.bernoulli):
        return (torch.rand_like(first[:1]) < first).to(first.dtype)
    if func in _FILLED:
        rest = [value[:1] if isinstance(value, Tensor) and value.ndim else value for value in args[1:]]
        return first.copy_(func(first[:1].clone(), *rest, **kwargs))
    return func(first[:1], *args[1:], **kwargs).expand_as(first).clone()
