"""Units are read each by itself: what is read of one does not depend on who is read beside it, or was before."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from saltflat.core.chance import repeated
from saltflat.core.sampling import Batch, Indices, form_of, leaves, rows_in
from saltflat.errors import DataError

Take = Callable[[Indices], Batch]
T = TypeVar("T")
Rows = list[Tensor]  # of a batch, one tensor for each of its leaves, rows on the first axis

_MIXED = (
    "what is read of one {unit} changes with the others that are read beside it, or were before: the data's collate, "
    "or the dataset, mixes them (a batch statistic, a running one, mixup, padding with others' values); read each "
    "{unit} by itself, keep nothing of it for the next, and do such things to one {unit} alone"
)


AT_FIRST = 32  # units that are read before the first step: with few of them a running maximum may never move
_ROUNDING = 1e-6
_FEW = 3  # units of a batch that are read alone, beside the first
_CHANCE = random.SystemRandom()


def check_read(take: Take, units: Indices, rows: int) -> None:
    """Refuse data through which one unit reaches another's rows: each, read alone, stands among all that are read.

    And it is the same after the others were read as before: a dataset may keep no statistic of what it gave out. Rows
    may come in any order: a collate may sort. Where reading draws by chance, the first of ``units`` is compared, under
    the same draws; and none, where nobody can repeat them. Of many units some are compared, by chance. ``rows`` are a
    unit's own. Whatever cannot be read adds nothing, and nothing is said of it.
    """
    _check(units, "example", lambda some: _mixes(take, some, rows))


def check_each_read(
    take: Callable[[Indices], Sequence[T]], units: Indices, rows_of: Callable[[T], Batch]
) -> None:
    """The same of clients, which are no rows but have some: each, read alone, is what it is among others."""
    read = lambda some: [list(leaves(rows_of(each))) for each in take(some)]
    _check(units, "client", lambda some: _mix(read, some))


def _check(units: Indices, unit: str, mixes: Callable[[Indices], bool]) -> None:
    try:
        mixed = len(units) > 1 and mixes(units)
    except Exception:
        return
    if mixed:
        raise DataError(_MIXED.format(unit=unit))


def _mix(read: Callable[[Indices], list[Rows]], units: Indices) -> bool:
    def alone(unit: int) -> Rows:
        with repeated():
            return read(np.array([unit]))[0]

    first, *others = units.tolist()
    _, before, again = (alone(first) for _ in range(3))  # what was read before the first time may be another
    with repeated():
        together = dict(zip(units.tolist(), read(units), strict=True))
    alike = [each for each in together.values() if len(each) == len(before)]  # clients may have other shapes
    beside = [torch.cat([leaf.flatten() for leaf in part]) for part in zip(*alike, strict=True)]
    if _remembers(before, again, alone(first), beside):
        return True
    if not _same(before, again):
        return False  # draws that nobody can repeat
    if not _same(before, together[first]):
        return True
    if not _same(read(units[:1])[0], read(units[:1])[0]):
        return False  # draws: those of later units depend on how many came before
    some = _CHANCE.sample(others, min(_FEW, len(others)))
    return not all(_same(alone(unit), together[unit]) for unit in some)


def _mixes(take: Take, units: Indices, rows: int) -> bool:
    first = units[:1]
    _, alone, again = (
        _read(take, first) for _ in range(3)
    )  # what was read before the first time may be another
    together, after = _read(take, units), _read(take, first)
    if form_of(together) != form_of(alone) or len(together[0]) != rows * len(units):
        return False  # such a batch is left out as a whole
    if _remembers(alone, again, after, together):
        return True
    if not (_same(alone, again) and _same(together, _read(take, units))):
        return False  # draws that nobody can repeat
    if not _stands_in(alone, together, rows):
        return True
    if not _same(list(leaves(take(first))), list(leaves(take(first)))):
        return False  # draws: those of later units depend on how many came before
    others = _CHANCE.sample(units[1:].tolist(), min(_FEW, len(units) - 1))
    return not all(_stands_in(_read(take, np.array([unit])), together, rows) for unit in others)


def _read(take: Take, units: Indices) -> Rows:
    with repeated():
        return list(leaves(take(units)))


def _remembers(before: Rows, again: Rows, after: Rows, beside: Rows) -> bool:
    """Whether a unit that is the same twice, but for rounding, is another one once others were read."""
    return _near(before, again, beside) and not _near(before, after, beside)


def _near(one: Rows, other: Rows, beside: Rows) -> bool:
    """Apart by no more than rounding, beside the largest number that is read."""
    if [leaf.shape for leaf in one] != [leaf.shape for leaf in other]:
        return False
    for a, b, all_of in zip(one, other, beside, strict=True):
        if not (a.is_floating_point() and a.numel()):
            if not torch.equal(a, b):
                return False
            continue
        gap, largest = (
            (_plain(a.double()) - _plain(b.double())).abs().max(),
            _plain(all_of.double()).abs().max(),
        )
        if not gap <= _ROUNDING * largest:
            return False
    return True


def _same(one: Rows, other: Rows) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(_plain(a), _plain(b)) for a, b in zip(one, other, strict=True)
    )


def _stands_in(own: Rows, together: Rows, rows: int) -> bool:
    """Whether a unit's rows are those of some place in the batch."""
    here = torch.ones(rows_in(together) // rows, dtype=torch.bool)
    for mine, all_of in zip(own, together, strict=True):
        there = _plain(all_of).reshape(len(here), -1)
        here &= (there == _plain(mine).reshape(1, -1)).all(1).cpu()
    return bool(here.any())


def _plain(leaf: Tensor) -> Tensor:
    """With 0 for NaN, which equals nothing, itself neither."""
    return torch.nan_to_num(leaf) if leaf.is_floating_point() else leaf
