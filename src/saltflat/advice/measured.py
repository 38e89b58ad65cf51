"""The measured table that suggestions are read from; it needs no torch.

`experiments/suggest.py` made it: settings chosen on four families of made-up tables, and measured on five others.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources

FEATURES, CLASSES = (6, 60), (2, 5)  # of the problems, the fewest and the most


@dataclass(frozen=True)
class Row:
    """The settings that did best at a size and an epsilon, and how they did on problems they were not chosen on.

    ``depth`` is the network's: 0 is linear, 1 has a hidden layer of 32. Accuracies are means over five families and
    three draws of each; ``lowest`` and ``highest`` are families' means. ``plain`` is the same network without
    privacy, ``guess`` always the most common class.
    """

    size: int
    epsilon: float
    depth: int
    method: str
    clip: float
    lr: float
    rate: float
    steps: int
    accuracy: float
    lowest: float
    highest: float
    plain: float
    guess: float
    chosen_on: float


@cache
def rows() -> tuple[Row, ...]:
    """All of the table."""
    text = (resources.files("saltflat.advice") / "measured.csv").read_text(encoding="utf-8")
    kinds = {"int": int, "float": float, "str": str}
    form = {field.name: kinds[str(field.type)] for field in fields(Row)}
    lines = csv.DictReader(text.splitlines())
    return tuple(Row(**{name: form[name](value) for name, value in line.items()}) for line in lines)


def nearest(size: int, epsilon: float) -> tuple[Row, ...]:
    """The rows of the largest measured size and epsilon that are not larger; of the smallest ones where all are.

    More rows and more budget do not make a result worse, so what was measured there is a careful guess here.
    """
    at_size = _below({row.size for row in rows()}, size)
    at_epsilon = _below({row.epsilon for row in rows()}, epsilon)
    return tuple(row for row in rows() if (row.size, row.epsilon) == (at_size, at_epsilon))


def _below(known: set[int] | set[float], wanted: float) -> float:
    return max((each for each in known if each <= wanted), default=min(known))


def outside(size: int, epsilon: float, features: int, classes: int) -> list[str]:
    """In words, what of a request lies outside of what was measured."""
    sizes, epsilons = [row.size for row in rows()], [row.epsilon for row in rows()]
    asked: Sequence[tuple[str, float, float, float]] = (
        ("size", size, min(sizes), max(sizes)),
        ("epsilon", epsilon, min(epsilons), max(epsilons)),
        ("features", features, *FEATURES),
        ("classes", classes, *CLASSES),
    )
    return [
        f"{name} {value:g} is outside of what was measured, {low:g} to {high:g}"
        for name, value, low, high in asked
        if not low <= value <= high
    ]
