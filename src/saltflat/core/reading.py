"""Units are read each by itself: what is read of one does not depend on who is read beside it, or was before."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from saltflat.core.chance import repeated
from saltflat.core.rng import find_generators
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
_HIDDEN = (
    "reading one {unit} twice under the same random state gives different values: the data keeps something of what it "
    "read before, or draws from a generator that saltflat cannot reach, whose stream all units would share. Draw from "
    "torch, numpy.random or random (each unit then gets secret draws of its own), or keep the generator as an "
    "attribute of the dataset, transform or collate"
)


AT_FIRST = 32  # units that are read before the first step: with few of them a running maximum may never move
_ROUNDING = 1e-6
_FEW = 3  # units of a batch that are read alone, beside the first
_CHANCE = random.SystemRandom()


def check_read(take: Take, units: Indices, rows: int) -> None:
    """Refuse data through which one unit reaches another's rows: each, read alone, stands among all that are read.

    And it is the same after the others were read as before: a dataset may keep no statistic of what it gave out. Rows
    may come in any order: a collate may sort. Draws are repeated for the comparison; data that does not repeat itself
    then has a random stream that all units share, and is refused too. Of many units some are compared, by chance.
    Whatever cannot be read adds nothing, and nothing is said of it.

    Args:
        take: Reads some units into a batch.
        units: The units that are read.
        rows: The rows of one unit.

    Raises:
        DataError: What is read of one unit changes with the others, or does not repeat itself.
    """
    _check(units, "example", lambda some: _fault_of_rows(take, some, rows))


def check_each_read(
    take: Callable[[Indices], Sequence[T]], units: Indices, rows_of: Callable[[T], Batch]
) -> None:
    """The same of clients, which are no rows but have some: each, read alone, is what it is among others."""
    read = lambda some: [list(leaves(rows_of(each))) for each in take(some)]

    def read_again(some: Indices) -> list[Rows]:
        with repeated(find_generators(take)):  # looked for each time: one may be made at the first read
            return read(some)

    _check(units, "client", lambda some: _fault_of_clients(read, read_again, some))


def _check(units: Indices, unit: str, fault_of: Callable[[Indices], str | None]) -> None:
    try:
        fault = fault_of(units) if len(units) > 1 else None
    except Exception:
        return
    if fault:
        raise DataError(fault.format(unit=unit))


def _fault_of_clients(
    read: Callable[[Indices], list[Rows]], read_again: Callable[[Indices], list[Rows]], units: Indices
) -> str | None:
    """What is wrong with clients, if anything; ``read_again`` repeats the draws, and ``read`` does not."""
    alone = lambda unit: read_again(np.array([unit]))[0]
    first, *others = units.tolist()
    _, before, again = (alone(first) for _ in range(3))  # what was read before the first time may be another
    together = dict(zip(units.tolist(), read_again(units), strict=True))
    alike = [each for each in together.values() if len(each) == len(before)]  # clients may have other shapes
    beside = [torch.cat([leaf.flatten() for leaf in part]) for part in zip(*alike, strict=True)]
    if not _near(before, again, beside):
        return _HIDDEN
    if _remembers(before, again, alone(first), beside):
        return _MIXED
    if not _same(before, again):
        return None  # apart by rounding only
    if not _same(before, together[first]):
        return _MIXED
    if not _same(read(units[:1])[0], read(units[:1])[0]):
        return None  # draws: those of later units depend on how many came before
    some = _CHANCE.sample(others, min(_FEW, len(others)))
    return None if all(_same(alone(unit), together[unit]) for unit in some) else _MIXED


def _fault_of_rows(take: Take, units: Indices, rows: int) -> str | None:
    def read(some: Indices) -> Rows:
        with repeated(find_generators(take)):  # looked for each time: one may be made at the first read
            return list(leaves(take(some)))

    first = units[:1]
    _, alone, again = (read(first) for _ in range(3))  # what was read before the first time may be another
    together = _read_or_none(read, units)
    if together is None:
        for unit in units[1:]:
            _read_or_none(read, np.array([unit]))
    after = read(first)
    beside = together if together is not None and form_of(together) == form_of(alone) else None
    if _remembers(alone, again, after, alone if beside is None else beside):
        return _MIXED
    if not _near(alone, again, alone):
        return _HIDDEN
    if beside is None or len(beside[0]) != rows * len(units):
        return None  # they are read one at a time, and kept apart by their form
    if not (_same(alone, again) and _same(beside, read(units))):
        return None  # apart by rounding only
    if not _stands_in(alone, beside, rows):
        return _MIXED
    if not _same(list(leaves(take(first))), list(leaves(take(first)))):
        return None  # draws: those of later units depend on how many came before
    others = _CHANCE.sample(units[1:].tolist(), min(_FEW, len(units) - 1))
    return None if all(_stands_in(read(np.array([unit])), beside, rows) for unit in others) else _MIXED


def _read_or_none(read: Callable[[Indices], Rows], units: Indices) -> Rows | None:
    """These units together; None if they cannot be read so."""
    try:
        return read(units)
    except Exception:
        return None


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
