"""The clients of a recipe: how rows become clients, how many are declared, and how each trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from saltflat.core.plan import LARGEST_SIZE
from saltflat.errors import SettingError
from saltflat.federated.local import Local
from saltflat.federated.partition import Divide
from saltflat.recipes.wrong import Wrong
from saltflat.settings import is_whole


@dataclass(frozen=True, kw_only=True)
class Federation:
    """``count`` clients are declared, a public number and not smaller than there are; each trains as ``local`` says.

    Whose a row is says the column ``user`` of a file of yours. Or the examples are divided by ``split`` (`IID`,
    `Dirichlet`, `DirichletEqual`) and its ``seed``, to simulate clients.

    >>> from saltflat.federated import Dirichlet
    >>> Federation(count=500, split=Dirichlet(alpha=0.6)).local.epochs
    1
    """

    CALLED: ClassVar[str] = "clients"

    count: int
    split: Divide | None = None
    user: str | None = None
    seed: int = 0
    local: Local = field(default_factory=Local)

    def __post_init__(self) -> None:
        if not is_whole(self.count, 1, LARGEST_SIZE):
            raise Wrong(
                ("count",), f"is the declared number of clients, from 1 to {LARGEST_SIZE}; got {self.count!r}"
            )
        if (self.split is None) == (self.user is None):
            raise SettingError(
                "clients come from a column of yours (user) or by dividing the examples (split): give one of them"
            )
        if self.user is not None and not self.user.strip():
            raise Wrong(("user",), "is the name of a column; got none")
        if not is_whole(self.seed, 0, 2**63 - 1):
            raise Wrong(("seed",), f"must be a whole number from 0 on; got {self.seed!r}")
