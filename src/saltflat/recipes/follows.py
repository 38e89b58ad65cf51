"""Numbers of a recipe that follow what is public about a run: how many examples are declared, and the budget.

How hard to whiten, how long to train and how far to step depend on how loud the noise is beside the signal, and that is
known before anything is read. So a recipe may say, in the place of a number,

    steps = {Follows = {of = "signal", at = [8e3, 6e4, 1.8e5], take = [120, 180, 360]}}

and is made with the number that holds for its size and epsilon. Between two places the number is on the straight line
over the logarithm, beyond the first and the last it stays. A run's own recipe has the number itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from saltflat.recipes.toml import Keys
from saltflat.recipes.wrong import Wrong

NAME = "Follows"
OF = ("size", "epsilon", "signal")  # the declared number of units, the budget, and their product


def resolved(node: Any, known: Mapping[str, float], above: Keys = ()) -> Any:
    """The document with a number wherever it follows one of ``known``.

    >>> rule = {"Follows": {"of": "size", "at": [100, 10_000], "take": [0.0, 1.0]}}
    >>> resolved({"rate": rule}, {"size": 1000})
    {'rate': 0.5}
    """
    if isinstance(node, dict) and node.keys() == {NAME}:
        return _number(node[NAME], known, (*above, NAME))
    if isinstance(node, dict):
        return {name: resolved(each, known, (*above, name)) for name, each in node.items()}
    if isinstance(node, list):
        return [resolved(each, known, (*above, str(place))) for place, each in enumerate(node)]
    return node


def any_in(node: Any) -> bool:
    """Whether anything in a document follows something."""
    if isinstance(node, dict):
        return NAME in node or any(map(any_in, node.values()))
    return isinstance(node, list) and any(map(any_in, node))


def _number(rule: Any, known: Mapping[str, float], spot: Keys) -> float | int:
    of, at, take = _checked(rule, spot)
    if of not in known:
        raise Wrong(spot, f"follows {of}, and the recipe has none: give size and epsilon")
    found = interpolated(known[of], at, take)
    whole = all(isinstance(each, int) for each in take)
    return round(found) if whole else found


def interpolated(value: float, at: list[float], take: list[float]) -> float:
    """What is taken at a value: straight lines over its logarithm, in ``take`` or, if all of it is positive, in its.

    >>> interpolated(1000, [100, 10_000], [1, 4]), interpolated(5, [100, 10_000], [1, 4])
    (2.0, 1.0)
    """
    value = min(max(value, at[0]), at[-1])
    geometric = all(each > 0 for each in take)
    heights = [math.log(each) if geometric else float(each) for each in take]
    for (low, high), (first, second) in zip(pairwise(at), pairwise(heights), strict=True):
        if value <= high:
            part = math.log(value / low) / math.log(high / low)
            height = first + part * (second - first)
            break
    return round(math.exp(height), 12) if geometric else height


def _checked(rule: Any, spot: Keys) -> tuple[str, list[float], list[float]]:
    """The parts of a rule; what is none is refused."""
    if not isinstance(rule, dict) or rule.keys() != {"of", "at", "take"}:
        raise Wrong(spot, "takes of, at and take: of what, at which values, which numbers")
    of, at, take = rule["of"], rule["at"], rule["take"]
    if of not in OF:
        raise Wrong((*spot, "of"), f"is one of {', '.join(OF)}")
    for name, numbers in (("at", at), ("take", take)):
        if not (isinstance(numbers, list) and len(numbers) > 1 and all(map(_is_number, numbers))):
            raise Wrong((*spot, name), "is a list of numbers, two or more")
    if len(at) != len(take) or at[0] <= 0 or any(high <= low for low, high in pairwise(at)):
        raise Wrong((*spot, "at"), "rises, from above 0, and has as many numbers as take")
    return of, at, take


def _is_number(each: Any) -> bool:
    return isinstance(each, (int, float)) and not isinstance(each, bool) and math.isfinite(each)
