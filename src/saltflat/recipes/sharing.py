"""What of a recipe is public: which examples people share, and what is made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from saltflat.recipes.wrong import Wrong
from saltflat.settings import is_whole
from saltflat.synthesis import Fit, Guidance

_SEEDS = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """About ``count`` training examples are public, by a hash of each under ``seed``: see `saltflat.data.shared`.

    The rate is ``count`` over the declared number of examples.

    *Guarantee*: whether an example is public depends on it alone. Public examples are taken out of the private units,
    so that nothing protects them; the declared number of units stays, as a bound.

    >>> Sharing(count=60).seed
    0
    """

    CALLED: ClassVar[str] = "public"

    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_whole(self.count, 1):
            raise Wrong(
                ("count",), f"is the expected number of public examples, at least 1; got {self.count!r}"
            )
        if not is_whole(self.seed, 0, _SEEDS):
            raise Wrong(("seed",), f"must be a whole number from 0 on; got {self.seed!r}")


@dataclass(frozen=True, kw_only=True)
class Making:
    """So many ``images``, as many of each class, of a generator that ``fit`` fits to the public examples.

    ``steps`` of the sampler; with ``guidance`` a discriminator pulls them towards the public ones.
    """

    CALLED: ClassVar[str] = "synthetic"

    images: int
    fit: Fit = field(default_factory=Fit)
    steps: int = 18
    guidance: Guidance | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_whole(self.images, 1, 10**9):
            raise Wrong(("images",), f"is a whole number of 1 or more; got {self.images!r}")
        if not is_whole(self.steps, 2, 10**6):
            raise Wrong(("steps",), f"is a whole number of 2 or more; got {self.steps!r}")
        if not is_whole(self.seed, 0, _SEEDS):
            raise Wrong(("seed",), f"must be a whole number from 0 on; got {self.seed!r}")
