"""Noise in shares: every client adds its part, and no single message carries all of it.

*Whom to trust.* With noise at the server, clients trust the server with their clipped updates. In shares, N(0, sigma^2
C^2 / m) each, the sum of m clients has the same noise, N(0, sigma^2 C^2), and who sees the sum alone learns no more;
but one message by itself has a noise multiplier of sigma / sqrt(m) only. So it protects against a server that sees
nothing but the sum: **without secure aggregation, which is not part of this library, shares protect less than noise at
an honest server, not more**. And it holds against whoever is outside: clients that work together know their own
shares, and k of them take k / m of the variance away.

*Who is missing.* Shares that do not arrive would leave the sum with too little noise, and Poisson draws alone let their
number vary. The server adds what is missing (`top_up`), so it must be honest about how many arrived. More than m leave
the sum with more noise than is charged for, never with less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from saltflat import tree
from saltflat.core.mechanism import Noise
from saltflat.errors import SettingError
from saltflat.privacy.noise import SecureNoise, is_secret
from saltflat.settings import is_whole
from saltflat.tree import Tree


def share_of(like: Tree, shares: int, source: Noise) -> Tree:
    """One client's part of a standard Gaussian: N(0, 1 / shares), to be scaled as the whole would be."""
    return tree.mul(source.normal(like), 1 / math.sqrt(_checked(shares)))


def top_up(like: Tree, shares: int, arrived: int, source: Noise) -> Tree:
    """What the server adds when ``arrived`` of the shares did: N(0, (shares - arrived) / shares), 0 if all have."""
    if not is_whole(arrived, 0):
        raise SettingError(f"arrived is how many shares there are, a whole number; got {arrived!r}")
    missing = max(0, _checked(shares) - arrived)
    return tree.mul(source.normal(like), math.sqrt(missing / shares))


@dataclass(frozen=True)
class InShares:
    """A source of noise that is the sum of ``shares`` shares, for `Safeguards`; here one process draws them all.

    *Guarantee*: a standard Gaussian in every coordinate, as from ``source``.
    """

    shares: int
    source: Noise = field(default_factory=SecureNoise)

    def __post_init__(self) -> None:
        _checked(self.shares)

    @property
    def private(self) -> bool:
        return is_secret(self.source)

    def normal(self, like: Tree) -> Tree:
        total = share_of(like, self.shares, self.source)
        for _ in range(self.shares - 1):
            total = tree.add(total, share_of(like, self.shares, self.source))
        return total


def _checked(shares: object) -> int:
    if not is_whole(shares):
        raise SettingError(f"shares is a whole number of clients, at least 1; got {shares!r}")
    return shares
