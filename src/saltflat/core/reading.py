"""Units are read each by itself: what is read of one does not depend on who is read beside it."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from saltflat.core.chance import repeated
from saltflat.core.sampling import Batch, Indices, form_of, leaves, rows_in
from saltflat.errors import DataError

Take = Callable[[Indices], Batch]
Rows = list[Tensor]  # of a batch, one tensor for each of its leaves, rows on the first axis

_MIXED = (
    "what is read of one example changes with the others that are read beside it: the data's collate, or the dataset, "
    "mixes the batch (a batch statistic, mixup, padding with others' values); read each example by itself, and do such "
    "things to one example alone"
)


_FEW = 3  # units of a batch that are read alone, beside the first
_CHANCE = random.SystemRandom()


def check_read(take: Take, units: Indices, rows: int) -> None:
    """Refuse data through which one unit reaches another's rows: each, read alone, stands among all that are read.

    Rows may come in any order: a collate may sort. Where reading draws by chance, the unit that is read first is
    compared, under the same draws; and none, where nobody can repeat them. Of many units some are compared, by chance.
    ``rows`` are a unit's own. Whatever cannot
    be read adds nothing, and nothing is said of it.
    """
    try:
        mixed = len(units) > 1 and _mixes(take, np.roll(units, _CHANCE.randrange(len(units))), rows)
    except Exception:
        return
    if mixed:
        raise DataError(_MIXED)


def _mixes(take: Take, units: Indices, rows: int) -> bool:
    first = units[:1]
    together, alone = _read(take, units), _read(take, first)
    if form_of(together) != form_of(alone) or len(together[0]) != rows * len(units):
        return False  # such a batch is left out as a whole
    if not (_same(together, _read(take, units)) and _same(alone, _read(take, first))):
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
