"""DP-SGD: ask at the weights themselves."""

from __future__ import annotations

from dataclasses import dataclass

from saltflat.door import Door
from saltflat.tree import Tree


@dataclass(frozen=True)
class DPSGD:
    """g_t = ask(w_t).

    *Guarantee*: one question per step.
    Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.
    """

    def init(self, params: Tree) -> None:
        return None

    def step(self, ask: Door, params: Tree, state: None) -> tuple[Tree, None]:
        return ask(params), None
