"""Where commands print: as wide as the terminal, and never wrapped where there is none."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 10_000  # columns: no table and no sentence is longer


def screen(**settings: Any) -> Console:
    """A console on standard output. A pipe or a file has no width: there each line stays one line.

    >>> screen().width == WIDEST or "COLUMNS" in os.environ or sys.stdout.isatty()
    True
    """
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else WIDEST, **settings)
