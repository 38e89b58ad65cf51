"""Colours, dashes and markers: told apart without colour vision, readable on white paper and on a dark screen.

A picture is drawn by one function of a :class:`Look`. Files get :data:`LIGHT`. The page gets :data:`THEMED`, whose
colours stand for names: :func:`themed` puts the names in their place, and the page's style sheet gives each name a
colour for light, for dark and for print.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (7, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MAP = "cividis"  # the same for all kinds of colour vision, and it gets lighter all the way


@dataclass(frozen=True)
class Look:
    """The colours of one drawing."""

    ink: str  # text and axes
    faint: str  # grid
    paper: str  # behind it all
    runs: tuple[str, ...]

    def line(self, place: int) -> dict[str, Any]:
        """How the run in this place is drawn; no two of the first 35 agree in dash and marker."""
        return {
            "color": self.runs[place % len(self.runs)],
            "linestyle": DASHES[place % len(DASHES)],
            "marker": MARKERS[place % len(MARKERS)],
        }


LIGHT = Look(
    ink="#1c1c1c",
    faint="#d9d9d9",
    paper="#ffffff",
    runs=("#0064b0", "#c2410c", "#2b9b6b", "#3a0a4e", "#b565a0", "#4f2a00"),
)
DARK = Look(
    ink="#ececec",
    faint="#4a4a4a",
    paper="#16181c",
    runs=("#6ab7ff", "#ff9a62", "#b9f5d0", "#8f5bff", "#e8468f", "#e8f27a"),
)
THEMED = Look(
    ink="#010101",
    faint="#020202",
    paper="none",
    runs=tuple(f"#03030{place}" for place in range(len(LIGHT.runs))),
)
_NAMES = {
    THEMED.ink: "--ink",
    THEMED.faint: "--faint",
    **{code: f"--run-{place}" for place, code in enumerate(THEMED.runs)},
}


def themed(svg: str) -> str:
    """A drawing in :data:`THEMED` whose colours are the page's.

    >>> themed("stroke: #030301; fill: #440154")
    'stroke: var(--run-1); fill: #440154'
    """
    return re.sub("|".join(_NAMES), lambda match: f"var({_NAMES[match[0]]})", svg)


def variables(look: Look) -> str:
    """The page's colours as declarations of a style sheet."""
    colours = {"--ink": look.ink, "--faint": look.faint, "--paper": look.paper}
    colours |= {f"--run-{place}": colour for place, colour in enumerate(look.runs)}
    return "".join(f"{name}:{colour};" for name, colour in colours.items())
