"""Linear layers and embeddings: y = x W^T + b at any number of positions; rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from saltflat.errors import ModelError
from saltflat.gradients.parts import Bias, Dense, Outer, Part, Rows, factors_are_cheaper, outer, precise
from saltflat.gradients.tape import DERIVATIONS, RULES, Tape, Weight, rule


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
        parts.append(outer(w.name, tape.by_unit(x.detach()), tape.by_unit(grad), tape.points))
    if b is not None:
        parts.append(bias_part(tape, b, grad, *parts))
    return parts


def bias_part(tape: Tape, b: Weight, grad: Tensor, beside: Part | None = None) -> Part:
    """The sum over positions of the gradient at the output; (rows, ..., width).

    ``beside``: the part of the map that it is the bias of. If that keeps the gradient at the output, the sum can wait,
    and come out of the map's own products. At several points it is taken: sums have room where all positions have none.
    """
    if isinstance(beside, Outer) and beside.a.shape[1] > 1 and tape.points == 1:
        return Bias(b.name, beside.b)
    if grad.ndim == 2 and len(grad) == tape.rows:  # one position: nothing to sum, nothing to copy
        return tape.stack(b.name, grad)
    return tape.stack(b.name, grad.reshape(tape.rows, -1, grad.shape[-1]).sum(1, dtype=_wide(grad)))


@rule(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm)
def matmul(tape: Tape, func: Any, x: Tensor, y: Tensor) -> Tensor:
    """x @ M is a linear layer with weight M^T; in M @ y the columns of each y are its positions.

    A stack of matrices, one for each head, say, is broadcast over the rows.
    """
    left, right = tape.weight(x), tape.weight(y)
    if right is not None and y.ndim == 2 and not tape.is_shared(x) and x.ndim > 1 and tape.holds_rows(x):
        into = lambda grad: [
            outer(right.name, tape.by_unit(grad), tape.by_unit(x.detach()), tape.points)
        ]  # x^T y'
        return tape.watch(func(x, y), into)
    if left is not None and x.ndim == 2 and not tape.is_shared(y) and y.ndim > 2 and tape.holds_rows(y):
        turned = lambda t: tape.by_unit(t.detach().mT)
        return tape.watch(func(x, y), lambda grad: [outer(left.name, turned(y), turned(grad), tape.points)])
    weight, data = (x, y) if tape.is_shared(x) else (y, x)
    if 3 <= weight.ndim <= data.ndim and not tape.is_shared(data) and tape.holds_rows(data):
        return RULES[torch.mul](tape, func, x, y)
    return tape.by_vmap(func, x, y)


@rule(Tensor.__rmatmul__)
def matmul_from_the_right(tape: Tape, func: Any, y: Tensor, x: Tensor) -> Tensor:
    """y.__rmatmul__(x) is x @ y."""
    return matmul(tape, torch.matmul, x, y)


@rule(torch.addmm, Tensor.addmm)
def addmm(tape: Tape, func: Any, b: Tensor, x: Tensor, y: Tensor, **kwargs: Any) -> Tensor:
    """b + x @ M, a linear layer as some language models write it."""
    w, c = tape.weight(y), tape.weight(b)
    if (
        kwargs
        or w is None
        or tape.is_shared(x)
        or not tape.holds_rows(x)
        or b.ndim != 1
        or not tape.is_shared(b)
    ):
        return tape.by_vmap(func, b, x, y, **kwargs)

    def keep(grad: Tensor) -> list[Part]:
        into = outer(w.name, tape.by_unit(grad), tape.by_unit(x.detach()), tape.points)
        return [into] if c is None else [into, bias_part(tape, c, grad)]

    return tape.watch(func(b, x, y), keep)


@dataclass(frozen=True)
class Lookup:
    """Rows of a table at constants, which are the same for every unit: positions, token types."""

    table: Weight
    rows: Tensor  # integers
    padding_idx: int | None

    def back(self, part: Part) -> Part:
        """Gradients at what was looked up -> gradients at the table, as its touched rows if that is cheaper.

        Automatic differentiation would write the whole table for every unit: 512 positions, whatever few are used.
        """
        (values,) = part.dense().values()
        count, width = self.table.value.shape
        rows, values = self.rows.flatten(), precise(values).reshape(len(values), -1, width)
        if self.padding_idx is not None:
            values = values.masked_fill((rows == self.padding_idx).unsqueeze(-1), 0)
        touched = Rows(self.table.name, rows.expand(len(values), -1), values, count)
        if factors_are_cheaper(len(rows), width, count * width):
            return touched
        return Dense(self.table.name, touched.dense()[self.table.name])


@rule(F.embedding, table=DERIVATIONS)
def constant_embedding(
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
    """W[row_t] at constants, such as token types that are 0 everywhere: looked up once if all rows ask the same."""
    how = (padding_idx, max_norm, norm_type, scale_grad_by_freq)
    by_row = rows.ndim > 1 and rows.shape[0] == tape.rows > 1
    if by_row and bool((rows == rows[:1]).all()):
        first = tape.again(Tensor.__getitem__, rows, slice(0, 1))
        once = tape.again(func, first, weight, *how)
        return tape.again(Tensor.expand, once, tape.rows, *once.shape[1:])
    table, back = tape.weight(weight), None
    plain = not (by_row or scale_grad_by_freq) and max_norm is None
    if plain and table is not None and table.name in tape.roots:
        back = Lookup(table, rows.clone(), _padding(padding_idx, weight)).back  # rows may be written into
    with torch.enable_grad():
        return tape.share(func(rows, tape.traced(weight), *how), back=back)


def _padding(padding_idx: int | None, weight: Tensor) -> int | None:
    """The row that is never trained, counted from the start."""
    return None if padding_idx is None else padding_idx % len(weight)


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
    padding = _padding(padding_idx, weight)

    def keep(grad: Tensor) -> list[Part]:
        if padding is not None:
            grad = grad.masked_fill((rows == padding).unsqueeze(-1), 0)
        index = rows.reshape(tape.rows // tape.views, -1)
        return [Rows(w.name, index, tape.by_unit(grad), weight.shape[0])]

    return tape.watch(func(rows, weight, padding_idx), keep)


@rule(F.embedding_bag)
def embedding_bag(
    tape: Tape,
    func: Any,
    rows: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """y = sum_t c_t W[row_t], so row_t receives c_t y'; c_t is 1, 1 / (number of words), or the word's own weight.

    Bags are the rows of a matrix of words, or stretches of a flat list of words that begin at ``offsets``.
    """
    if max_norm is not None or scale_grad_by_freq:
        raise ModelError(
            "EmbeddingBag with max_norm or scale_grad_by_freq mixes examples; build it without these options"
        )
    if tape.weight(per_sample_weights) is not None:
        raise ModelError(
            "EmbeddingBag got a trained parameter as per_sample_weights, whose gradient has no rule; look the words' "
            "weights up in an Embedding of width 1"
        )
    if rows.ndim == 1 and not tape.holds_rows(rows):
        raise ModelError(
            f"EmbeddingBag got a flat list of {len(rows)} words for {tape.rows} rows, and it is not known whose the "
            "words are; flatten a matrix (batch, words) in forward, or pad the bags and set padding_idx"
        )
    tape.check_rows(func, rows)
    w = tape.weight(weight)
    last = _padding(padding_idx, weight)
    if rows.ndim == 1:
        bag_of, bags = _bags(tape, rows, offsets, include_last_offset)
    else:
        bag_of, bags = None, 1
    laid = rows if bag_of is None else rows.view(bag_of.shape)
    padding = None if last is None else laid == last
    if mode == "max":
        if bag_of is None:
            return _largest(tape, rows, weight, padding, padding_idx)
        words = tape.again(F.embedding, laid, weight, padding_idx)
        return tape.again(Tensor.flatten, _largest_of_bags(words, bag_of, bags, padding), 0, 1)
    options = {"mode": mode, "per_sample_weights": per_sample_weights, "padding_idx": padding_idx}
    if bag_of is not None:
        options |= {"offsets": offsets, "include_last_offset": include_last_offset}
    y = func(rows, weight, **options)
    if w is not None:
        own = None if per_sample_weights is None else per_sample_weights.detach().view(laid.shape)
        share = _shares(laid, own, padding, mode, bag_of, bags).to(y.dtype).unsqueeze(-1)

        def keep(grad: Tensor) -> list[Part]:
            index = laid.reshape(tape.rows // tape.views, -1)
            at_words = grad.unsqueeze(1)
            if bag_of is not None:
                at_bags = grad.view(len(laid), bags, -1)
                at_words = at_bags.gather(1, bag_of.unsqueeze(-1).expand(-1, -1, at_bags.shape[-1]))
            return [Rows(w.name, index, tape.by_unit(share * at_words), weight.shape[0])]

        y = tape.watch(y, keep)
    return y if bag_of is None else tape.again(Tensor.flatten, y.view(len(laid), bags, -1), 0, 1)


def _bags(tape: Tape, words: Tensor, offsets: Tensor | None, ends: bool) -> tuple[Tensor, int]:
    """The bag of every word, counted from the first bag of its row, and how many bags a row has; (rows, words).

    The flat list has all words of one row before those of the next, as many of each, and a row's first bag begins with
    its first word. ``ends``: the last offset is the end of the last bag.
    """
    rows = tape.rows if tape.rows > tape.views else 1  # of one unit alone everything is its own
    if offsets is None or offsets.ndim != 1:
        raise ModelError(
            "EmbeddingBag got a flat list of words without offsets, so that its bags are not known; pass a matrix "
            "(batch, words), or offsets"
        )
    starts = offsets[:-1] if ends else offsets
    each, bags = len(words) // rows, len(starts) // rows
    local, fits = starts, len(words) == each * rows and len(starts) == bags * rows and bags > 0
    if fits and ends:
        fits = bool(offsets[-1] == len(words))
    if fits:
        local = starts.view(rows, bags) - each * torch.arange(rows, device=starts.device).unsqueeze(1)
        fits = bool((local[:, 0] == 0).all() and (local.diff(dim=1) >= 0).all() and (local <= each).all())
    if not fits and tape.is_shared(offsets):
        raise ModelError(
            f"EmbeddingBag got {len(words)} words and offsets of {len(starts)} bags for {rows} rows, so that a bag "
            "would hold words of several rows; give every row as many words and bags as the others, and begin a bag "
            "with each row's first word"
        )
    if not fits:  # offsets of the data: the unit that they belong to fails by itself, and the others do not
        raise ValueError("offsets that do not fit their row")
    place = torch.arange(each, device=starts.device)
    return torch.searchsorted(local, place.expand(rows, -1).contiguous(), right=True) - 1, bags


def _shares(
    rows: Tensor, own: Tensor | None, padding: Tensor | None, mode: str, bag_of: Tensor | None, bags: int
) -> Tensor:
    """How much each word of a bag counts; the shape of ``rows``."""
    share = torch.ones(rows.shape, device=rows.device, dtype=torch.float64) if own is None else own.detach()
    if padding is not None:
        share = share.masked_fill(padding, 0)
    if mode != "mean":
        return share
    if bag_of is None:
        return share / share.sum(1, keepdim=True).clamp(min=1)
    return share / share.new_zeros(len(rows), bags).scatter_add(1, bag_of, share).clamp(min=1).gather(
        1, bag_of
    )


def _largest_of_bags(words: Tensor, bag_of: Tensor, bags: int, padding: Tensor | None) -> Tensor:
    """The largest entry of each column over the words of each bag, 0 for an empty one; (rows, bags, width)."""
    mine = bag_of.unsqueeze(1) == torch.arange(bags, device=bag_of.device).view(-1, 1)  # (rows, bags, words)
    if padding is not None:
        mine = mine & ~padding.unsqueeze(1)
    found = words.unsqueeze(1).masked_fill(~mine.unsqueeze(-1), float("-inf")).max(2).values
    return torch.where(mine.any(2, keepdim=True), found, 0.0)


def _largest(tape: Tape, rows: Tensor, weight: Tensor, padding: Tensor | None, padding_idx: Any) -> Tensor:
    """The largest entry of each column, over a bag's words; 0 for a bag of padding."""
    words = tape.again(F.embedding, rows, weight, padding_idx)
    if padding is None:
        return words.max(1).values
    found = words.masked_fill(padding.unsqueeze(-1), float("-inf")).max(1).values
    return torch.where(padding.all(1, keepdim=True), 0.0, found)


def _wide(values: Tensor) -> torch.dtype:
    return values.dtype if values.dtype in (torch.float32, torch.float64) else torch.float32
