"""Colours, dashes and markers: told apart without colour vision, readable on white paper and on a dark screen.

Pictures in files are drawn in :data:`LIGHT`. Those of the page name their colours (``var(--run-0)``), and its style
sheet gives each name a colour for light, for dark and for print.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.4)), (0, (7, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SHADES = 16  # of a map, from the lowest loss to the highest


@dataclass(frozen=True)
class Look:
    """The colours of one drawing."""

    ink: str  # text and axes
    faint: str  # grid
    paper: str  # behind it all
    runs: tuple[str, ...]
    link: str  # what can be clicked
    warn: str  # what must not be overlooked
    ramp: tuple[str, ...]  # of maps: lighter all the way, each at least 3:1 against the paper

    def line(self, place: int) -> dict[str, Any]:
        """How the run in this place is drawn; no two of the first 35 agree in dash and marker."""
        return {
            "color": self.runs[place % len(self.runs)],
            "linestyle": DASHES[place % len(DASHES)],
            "marker": MARKERS[place % len(MARKERS)],
        }


LIGHT = Look(
    ink="#1c1c1c",
    faint="#8f8f8f",
    paper="#ffffff",
    runs=("#0064b0", "#c2410c", "#2b9b6b", "#3a0a4e", "#b565a0", "#4f2a00"),
    link="#0b4f9e",
    warn="#a8320a",
    ramp=("#12104a", "#1f3f8f", "#17698f", "#2c8a6a", "#9c9420"),
)
DARK = Look(
    ink="#ececec",
    faint="#767676",
    paper="#16181c",
    runs=("#6ab7ff", "#ff9a62", "#b9f5d0", "#8f5bff", "#e8468f", "#e8f27a"),
    link="#8cc4ff",
    warn="#ffb08a",
    ramp=("#4f78c8", "#5f9fd8", "#8fc9c0", "#cfe39a", "#fff7b0"),
)


def shades(look: Look) -> list[str]:
    """The colours of a map, from the lowest to the highest, mixed between those of the ramp.

    >>> len(shades(LIGHT)), shades(LIGHT)[0], shades(LIGHT)[-1]
    (16, '#12104a', '#9c9420')
    """
    codes = [[int(code[k : k + 2], 16) for k in (1, 3, 5)] for code in look.ramp]
    found = []
    for place in range(SHADES):
        at = place / (SHADES - 1) * (len(codes) - 1)
        low = min(int(at), len(codes) - 2)
        mixed = [round(a + (b - a) * (at - low)) for a, b in zip(codes[low], codes[low + 1], strict=True)]
        found.append("#" + "".join(f"{part:02x}" for part in mixed))
    return found


def variables(look: Look) -> str:
    """The page's colours as declarations of a style sheet."""
    colours = {name: getattr(look, name) for name in ("ink", "faint", "paper", "link", "warn")}
    colours |= {f"run-{place}": colour for place, colour in enumerate(look.runs)}
    colours |= {f"map-{place}": colour for place, colour in enumerate(shades(look))}
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
