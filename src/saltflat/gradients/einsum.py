"""`torch.einsum` with a weight among its operands: the weight's gradient is an einsum too.

y = einsum("x,w->y", x, W) gives g_W = einsum("x,y->w", x, y'), and with the batch's letter b in front of the answer,
each row's own: einsum("x,y->bw", x, y').
"""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from saltflat.gradients.parts import Part, outer, precise
from saltflat.gradients.tape import Tape, Weight, rule


@rule(torch.einsum)
def einsum(tape: Tape, func: Any, equation: Any, *operands: Any) -> Tensor:
    """Each operand's letters, then the output's; the batch has one letter, the first of all data and of the output."""
    operands = (
        tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    )
    found = _terms(equation, operands) if isinstance(equation, str) else None
    if found is None or not _batch_leads(tape, *found, operands):
        return tape.by_vmap(func, equation, *operands)
    terms, answer = found
    weights = [(place, weight) for place, value in enumerate(operands) if (weight := tape.weight(value))]

    def keep(grad: Tensor) -> list[Part]:
        return [_part(tape, weight, place, terms, answer, operands, grad) for place, weight in weights]

    return tape.watch(func(",".join(terms) + "->" + answer, *operands), keep)


def _terms(equation: str, operands: tuple[Any, ...]) -> tuple[list[str], str] | None:
    """The letters of every operand and of the output, dots spelt out; None where they are more than that."""
    left, arrow, answer = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if (
        not arrow
        or len(terms) != len(operands)
        or any(len(set(term)) < len(term.replace("...", "")) for term in terms)
    ):
        return None
    spare = iter([letter for letter in ascii_letters if letter not in equation])
    most = max(value.ndim - len(term.replace("...", "")) for term, value in zip(terms, operands, strict=True))
    dots = "".join(next(spare) for _ in range(most))

    def spelt(term: str, ndim: int) -> str:
        own = ndim - len(term.replace("...", ""))
        return term.replace("...", dots[len(dots) - own :] if own else "")

    spelt_out = [spelt(term, value.ndim) for term, value in zip(terms, operands, strict=True)]
    if any(
        len(term) != value.ndim or len(set(term)) < len(term)
        for term, value in zip(spelt_out, operands, strict=True)
    ):
        return None
    return spelt_out, answer.replace("...", dots)


def _batch_leads(tape: Tape, terms: list[str], answer: str, operands: tuple[Any, ...]) -> bool:
    """Whether the batch is the first letter of the output and of all data, and no letter of weights and constants."""
    batch = answer[:1]
    sizes: dict[str, int] = {}
    for term, value in zip(terms, operands, strict=True):
        for letter, size in zip(term, value.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                return False  # a letter of length 1 is spread over another's: left to vmap
        if tape.is_shared(value):
            if not batch or batch in term:
                return False
        elif not batch or term[:1] != batch or len(value) != tape.rows:
            return False
    return True


def _part(
    tape: Tape,
    weight: Weight,
    place: int,
    terms: list[str],
    answer: str,
    operands: tuple[Any, ...],
    grad: Tensor,
) -> Part:
    batch, own = answer[0], terms[place]
    others = [(t, v.detach()) for p, (t, v) in enumerate(zip(terms, operands, strict=True)) if p != place]
    linear = _linear_letters(batch, own, others[0][0], answer) if len(others) == 1 else None
    if linear is not None:
        out, into, places = linear
        (term, x), order = others[0], batch + places
        a = tape.by_unit(torch.einsum(f"{term}->{order}{into}", x))
        b = tape.by_unit(torch.einsum(f"{answer}->{order}{out}", grad))
        first, second = (a, b) if own == out + into else (b, a)
        return outer(weight.name, first, second, tape.points)
    alone = [letter for letter in own if not any(letter in t for t, _ in [*others, (answer, grad)])]
    kept = "".join(letter for letter in own if letter not in alone)
    spelt = ",".join([*(t for t, _ in others), answer]) + f"->{batch}{kept}"
    rows = torch.einsum(
        spelt, *(precise(v) if v.is_floating_point() else v for _, v in others), precise(grad)
    )
    sizes = dict(zip(own, weight.value.shape, strict=True))
    for letter in alone:  # summed over in the weight alone: each of its entries has the same gradient
        at = 1 + own.index(letter)
        rows = rows.unsqueeze(at).expand(*rows.shape[:at], sizes[letter], *rows.shape[at:])
    return tape.stack(weight.name, rows)


def _linear_letters(batch: str, own: str, term: str, answer: str) -> tuple[str, str, str] | None:
    """(output's letter, input's letter, letters of positions), if a matrix is a linear layer's weight here."""
    places = "".join(sorted(set(term) & set(answer) - {batch}))
    for out, into in ((own[0], own[1]), (own[1], own[0])) if len(own) == 2 else ():
        if out in answer and out not in term and into in term and into not in answer:
            whole = len(term) == len(answer) == 2 + len(places)  # nothing else is summed over
            return (out, into, places) if whole else None
    return None
