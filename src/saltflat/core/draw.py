"""How the units of a step are drawn: a value of the plan, which knows the cost of such a step, and its adjacency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from saltflat.core.sampling import Indices, Sampler, poisson, without_replacement
from saltflat.errors import SettingError
from saltflat.privacy.record.costs import ADJACENCIES, Cost, FixedSize

__all__ = ["Poisson", "WithoutReplacement"]


class Draw(Protocol):
    """A secret, fresh sample for each step, at ``rate`` of ``size`` declared units, of which ``count`` are there."""

    @property
    def adjacency(self) -> str: ...

    def check(self, rate: float, size: int) -> None: ...

    def units(self, count: int, rate: float, size: int, source: Sampler) -> Indices: ...

    def cost(self, rate: float, size: int, noise_multiplier: float) -> Cost: ...


@dataclass(frozen=True)
class Poisson:
    """Each unit joins with probability ``rate``, whoever else does: the usual draw.

    *Guarantee*: one unit that is added or removed moves the sum by at most C.
    """

    adjacency: ClassVar[str] = ADJACENCIES[0]

    def check(self, rate: float, size: int) -> None:
        """Any rate will do."""

    def units(self, count: int, rate: float, size: int, source: Sampler) -> Indices:
        """The units of one step; there may be none."""
        return poisson(count, rate, source)

    def cost(self, rate: float, size: int, noise_multiplier: float) -> Cost:
        """What such a step is charged as."""
        return rate, noise_multiplier


@dataclass(frozen=True)
class WithoutReplacement:
    """Exactly ``rate x size`` units join, every such set being as likely.

    Places of declared units that are not there are drawn like others and stay empty, so that who is there joins with
    probability ``rate``, however many there are.

    *Guarantee*: one unit that is *replaced* moves the sum by at most 2C, and the accountants count with that. Nothing
    is promised for a unit that is added or removed: how many there are is taken as public. A budget asks for far more
    noise than with `Poisson`.

    >>> WithoutReplacement().cost(0.1, 500, 2.0)
    FixedSize(size=500, batch=50, noise_multiplier=2.0)
    """

    adjacency: ClassVar[str] = ADJACENCIES[1]

    def check(self, rate: float, size: int) -> None:
        """rate x size must be a whole number of units."""
        batch = round(rate * size)
        if not (batch >= 1 and abs(batch / size - rate) <= 1e-12):
            raise SettingError(
                f"WithoutReplacement draws exactly rate x size units, a whole number; got {rate} x {size} = "
                f"{rate * size:g}; take rate = {max(1, batch)} / {size}"
            )

    def units(self, count: int, rate: float, size: int, source: Sampler) -> Indices:
        """The units of one step, in their order."""
        places = without_replacement(size, round(rate * size), source)
        return places[places < count]

    def cost(self, rate: float, size: int, noise_multiplier: float) -> Cost:
        """What such a step is charged as; one without noise, a baseline's, is charged to nobody."""
        if noise_multiplier == 0:
            return rate, noise_multiplier
        return FixedSize(size, round(rate * size), noise_multiplier)
