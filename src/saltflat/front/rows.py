"""A look at one's own data before training: which rows would contribute nothing, and why. Its result is private."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from saltflat.core.contribution import Loss, PerExample, Private
from saltflat.core.sampling import Batch, Indices, leaves, physical, pick
from saltflat.core.train import trainable
from saltflat.errors import PrivacyError
from saltflat.front.answers import answering
from saltflat.front.given import given
from saltflat.landscape.access import PUBLIC, Access, declared
from saltflat.tree import Tree

UNREAD = "cannot be read, or have another number of rows than one"
NOT_FINITE = "hold a NaN or an infinity"
LABEL = "have a label that the loss does not take"
FAILS = "make the loss or its gradient fail"
REASONS = (UNREAD, NOT_FINITE, LABEL, FAILS)


@dataclass(frozen=True, eq=False)
class Preflight:
    """How many of ``looked`` rows would contribute nothing, by reason. It is counted on the raw rows, without noise."""

    looked: int
    found: Counter[str]
    access: Access

    @property
    def share(self) -> float:
        """Of the rows, how many would contribute nothing, from 0 to 1."""
        return self.found.total() / self.looked

    def __repr__(self) -> str:
        mark = (
            ""
            if self.access is PUBLIC
            else "PRIVATE, for this screen only: no epsilon covers these numbers.\n"
        )
        head = f"{_percent(self.share)} of {self.looked} rows would contribute nothing"
        return mark + "\n".join(
            [
                f"{head}{':' if self.found else '.'}",
                *(f"  {_percent(self.found[why] / self.looked)} {why}" for why in REASONS if self.found[why]),
            ]
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PrivacyError(
            "a preflight is read from raw rows and stays on the screen: it is not stored or sent"
        )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


@answering
def preflight(
    model: nn.Module,
    loss: nn.Module | Loss,
    data: Any,
    *,
    access: Access | None = None,
    rows: int | None = None,
    views: int = 1,
    augment: Callable[[Batch], Batch] | None = None,
    workers: int = 0,
) -> Preflight:
    """What `fit` would silently leave out: rows that are NaN, fail, or have bad labels; model, loss and data as there.

    Training says nothing about single rows, since whatever it said would tell of them. Here you look at your own data,
    on your own screen: at the first ``rows`` of it, or all. Say ``access=sf.landscape.STAYS_PRIVATE`` to declare that
    the result is kept as private as the data is, or ``PUBLIC`` if the data is public. Nothing of it is written to disk.

    *Not private*: the counts are exact. Correct what is wrong by what you know of the data's making; what you decide by
    the counts themselves is not covered by any epsilon.

    >>> from saltflat.landscape import STAYS_PRIVATE
    >>> x, y = torch.randn(100, 5), torch.randint(2, (100,))
    >>> x[0], y[1:3] = torch.nan, 7
    >>> preflight(nn.Linear(5, 2), nn.CrossEntropyLoss(reduction="none"), (x, y), access=STAYS_PRIVATE)
    PRIVATE, for this screen only: no epsilon covers these numbers.
    3 % of 100 rows would contribute nothing:
      1 % hold a NaN or an infinity
      2 % have a label that the loss does not take
    """
    access = declared(access, "a preflight")
    known = given(model, loss, data, views=views, augment=augment, workers=workers)
    private = Private.of(known.contribution, known.units)
    look = _Look(private, known.contribution, trainable(model))
    looked = known.count if rows is None else min(rows, known.count)
    found: Counter[str] = Counter()
    try:
        for part in physical(np.arange(looked), 256):
            found.update(look.at(part))
    finally:
        known.units.close()
    return Preflight(looked, found, access)


@dataclass(frozen=True)
class _Look:
    """What training would do with rows, one physical batch at a time."""

    private: Private
    contribution: PerExample
    params: Tree

    def at(self, part: Indices) -> list[str]:
        """The reasons of the rows that would contribute nothing."""
        batch = self.private.together(part)
        if batch is None:
            if len(part) == 1:
                return [UNREAD]
            return [why for one in part for why in self.at(np.array([one]))]
        norms = self._norms(batch)
        if len(norms) != len(part):  # all of them fail
            norms = torch.full((len(part),), torch.nan)
        return [self._why(pick(batch, row)) for row in torch.nonzero(~norms.isfinite())]

    def _why(self, one: Batch) -> str:
        if any(leaf.is_floating_point() and not bool(leaf.isfinite().all()) for leaf in leaves(one)):
            return NOT_FINITE
        return LABEL if self._another_label_does(one) else FAILS

    def _another_label_does(self, one: Batch) -> bool:
        """Whether the row would pass with the label 0: of (inputs, targets) alone."""
        if not (isinstance(one, Sequence) and len(one) == 2):
            return False
        norms = self._norms((one[0], torch.zeros_like(one[1])))
        return len(norms) == 1 and bool(norms.isfinite().all())

    def _norms(self, batch: Batch) -> torch.Tensor:
        return self.contribution([self.params], [1.0], batch).norms().cpu()
