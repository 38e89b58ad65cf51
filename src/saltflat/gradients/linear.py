"""Linear layers and embeddings: y = x W^T + b at any number of positions; rows of a table."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.errors import ModelError
from saltflat.gradients.parts import Part, Rows, outer
from saltflat.gradients.tape import DERIVATIONS, Tape, Weight, rule


@rule(F.linear)
def linear(tape: Tape, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y_t = W x_t + b, so g_W = sum_t y'_t x_t^T and g_b = sum_t y'_t, where y' is the gradient at y.

    Positions may be folded into the first axis, all of one row before those of the next, as ``x.view(-1, width)`` does;
    the tape knows whether they are.
    """
    w, b = tape.weight(weight), tape.weight(bias)
    if tape.is_shared(x) or (x.ndim > 1 and not tape.holds_rows(x)):
        return tape.by_vmap(func, x, weight, bias)
    return tape.watch(func(x, weight, bias), lambda grad: linear_parts(tape, x, grad, w, b))


def linear_parts(tape: Tape, x: Tensor, grad: Tensor, w: Weight | None, b: Weight | None) -> list[Part]:
    """The parts of a linear layer from its input and the gradient at its output."""
    parts: list[Part] = []
    if w is not None:
        parts.append(outer(w.name, tape.by_unit(x.detach()), tape.by_unit(grad)))
    if b is not None:
        parts.append(bias_part(tape, b, grad))
    return parts


def bias_part(tape: Tape, b: Weight, grad: Tensor) -> Part:
    """The sum over positions of the gradient at the output; (rows, ..., width)."""
    if grad.ndim == 2 and len(grad) == tape.rows:  # one position: nothing to sum, nothing to copy
        return tape.stack(b.name, grad)
    return tape.stack(b.name, grad.reshape(tape.rows, -1, grad.shape[-1]).sum(1, dtype=_wide(grad)))


@rule(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm)
def matmul(tape: Tape, func: Any, x: Tensor, y: Tensor) -> Tensor:
    """x @ M with a matrix M is a linear layer with weight M^T."""
    if tape.weight(y) is not None and y.ndim == 2 and not tape.is_shared(x) and x.ndim > 1:
        return tape.again(F.linear, x, tape.again(Tensor.t, y))
    return tape.by_vmap(func, x, y)


@rule(torch.addmm, Tensor.addmm)
def addmm(tape: Tape, func: Any, b: Tensor, x: Tensor, y: Tensor, **kwargs: Any) -> Tensor:
    """b + x @ M, a linear layer as some language models write it."""
    plain = (
        not kwargs
        and tape.weight(y) is not None
        and not tape.is_shared(x)
        and tape.is_shared(b)
        and b.ndim == 1
    )
    if plain:
        return tape.again(F.linear, x, tape.again(Tensor.t, y), b)
    return tape.by_vmap(func, b, x, y, **kwargs)


@rule(F.embedding, table=DERIVATIONS)
def constant_embedding(
    tape: Tape, func: Any, rows: Tensor, weight: Tensor, *others: Any, **named: Any
) -> Tensor:
    """W[row_t] at constants, such as token types that are 0 everywhere: looked up once if all rows ask the same."""
    if rows.ndim > 1 and rows.shape[0] == tape.rows > 1 and bool((rows == rows[:1]).all()):
        first = tape.again(Tensor.__getitem__, rows, slice(0, 1))
        once = tape.again(func, first, weight, *others, **named)
        return tape.again(Tensor.expand, once, tape.rows, *once.shape[1:])
    with torch.enable_grad():
        return tape.share(func(rows, tape.traced(weight), *others, **named))


@rule(F.embedding)
def embedding(
    tape: Tape,
    func: Any,
    rows: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """y_t = W[row_t]. The padding row is looked up, but never trained."""
    if max_norm is not None or scale_grad_by_freq:
        raise ModelError(
            "Embedding with max_norm or scale_grad_by_freq mixes examples; build it without these options"
        )
    w = tape.weight(weight)
    if w is None:
        return func(rows, weight, padding_idx)
    tape.check_rows(func, rows)

    def keep(grad: Tensor) -> list[Part]:
        if padding_idx is not None:
            grad = grad.masked_fill((rows == padding_idx).unsqueeze(-1), 0)
        index = rows.reshape(tape.rows // tape.views, -1)
        return [Rows(w.name, index, tape.by_unit(grad), weight.shape[0])]

    return tape.watch(func(rows, weight, padding_idx), keep)


def _wide(values: Tensor) -> torch.dtype:
    return values.dtype if values.dtype in (torch.float32, torch.float64) else torch.float32
