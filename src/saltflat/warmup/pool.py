"""Public examples by their name, where a recipe speaks of them before they are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from torch import Generator

from saltflat.errors import SettingError
from saltflat.tree import Tree
from saltflat.warmup.supervised import POOLS


@dataclass(frozen=True)
class Pool:
    """The ``public`` or ``synthetic`` examples of a recipe, for a method that uses such in the private phase.

    A run puts the examples in its place, `saltflat.Public`, once they are known; by itself it gives no gradient.

    >>> Pool("synthetic").described
    'the synthetic examples'
    """

    of: str = "synthetic"

    def __post_init__(self) -> None:
        if self.of not in POOLS:
            raise SettingError(f"of is one of {', '.join(POOLS)}; got {self.of!r}")

    @property
    def described(self) -> str:
        return f"the {self.of} examples"

    def gradient(self, point: Tree, *, batch: int = 1, source: Generator | None = None) -> Tree:
        self._absent()

    def gradients(self, point: Tree, *, batch: int, sources: Sequence[Generator]) -> Iterator[Tree]:
        self._absent()

    def loss(self, point: Tree) -> float:
        self._absent()

    def check_linear(self, point: Tree) -> None:
        self._absent()

    def _absent(self) -> NoReturn:
        raise SettingError(
            f"Pool({self.of!r}) stands for examples of a recipe; run it with saltflat train, or hand in Public(...)"
        )
