"""Where the random layers of a model, and augmentations, take their randomness from.

Masks drawn from one stream shift when a unit leaves: from a stream that somebody can repeat, the others' gradients
would change with it. From one that is secret and new each time, a unit's masks are as likely whoever else is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from saltflat.core.rng import Generator, fenced_draws, fresh_key, torch_generators

# Generators of the user's code, or None if only torch's own layers draw -> a context with streams of its own.
Draws = Callable[[Sequence[Generator] | None], AbstractContextManager[None]]


@contextmanager
def secret(held: Sequence[Generator] | None) -> Iterator[None]:
    """Draw from streams that start at a fresh secret key; streams outside continue as if nothing had been drawn.

    Args:
        held: Generators that an augmentation or a loss of the user's holds; then numpy's and Python's own streams are
            fenced, too. None: only layers of torch draw here.
    """
    with _seeded(fresh_key(), held):
        yield


@contextmanager
def still(held: Sequence[Generator] | None) -> Iterator[None]:
    """No chance: dropout leaves everything, and whatever else torch draws is the same each time, and for each row."""
    with _seeded(0, held), _WithoutDropout(alike=True):
        yield


@contextmanager
def still_by_place(held: Sequence[Generator] | None) -> Iterator[None]:
    """No chance either; but what else torch draws differs from row to row: each place of a batch has its own draws."""
    with _seeded(0, held), _WithoutDropout(alike=False):
        yield


@contextmanager
def repeated(held: Sequence[Generator] = ()) -> Iterator[None]:
    """The same draws each time, alike for every row: the default streams of torch, numpy and Python, and ``held``."""
    with still(held):
        yield


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """A stream that begins at ``key``; afterwards torch's own goes on as if nothing had been drawn."""
    with _seeded(key, None):
        yield


@contextmanager
def _seeded(seed: int, held: Sequence[Generator] | None) -> Iterator[None]:
    """All streams begin at ``seed``, and are put back afterwards.

    Without ``held`` only torch's, generator by generator: `torch.manual_seed` asks for every kind of device, and
    numpy's and Python's streams take longer to put back than a small layer to run.
    """
    if held is not None:
        with fenced_draws(held) as start_from:
            start_from(seed)
            yield
        return
    sources = torch_generators()
    before = [source.get_state() for source in sources]
    try:
        for source in sources:
            source.manual_seed(seed)
        yield
    finally:
        for source, state in zip(sources, before, strict=True):
            source.set_state(state)


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
