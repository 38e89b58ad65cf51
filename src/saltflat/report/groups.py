"""Runs of one recipe that ended, and differ in their seed alone, are repeats: one colour, one mean, one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saltflat.report.chart import Series
from saltflat.report.folder import Kept
from saltflat.report.sure import Bits, band, standard_error
from saltflat.runs.layout import number

FREE = ("seed", "physical")  # what repeats may differ in: neither changes what is promised or compared


@dataclass(frozen=True)
class Group:
    """Runs of one recipe; mostly one. ``place`` is their colour on the whole page."""

    place: int
    name: str
    runs: tuple[Kept, ...]

    @property
    def ended(self) -> tuple[Kept, ...]:
        """Those that have a result."""
        return tuple(run for run in self.runs if run.finished and run.accuracy is not None)

    @property
    def accuracies(self) -> list[float]:
        return [run.accuracy for run in self.ended if run.accuracy is not None]

    @property
    def accuracy(self) -> float | None:
        """The mean over repeats of the last weights' accuracy."""
        return float(np.mean(self.accuracies)) if self.accuracies else None

    @property
    def error(self) -> float | None:
        """Its standard error over repeats."""
        return standard_error(self.accuracies)

    @property
    def bits(self) -> list[Bits]:
        """Which test examples each run is right on, of those that kept it."""
        return [run.evaluation.value.right for run in self.ended if run.evaluation.value is not None]

    @property
    def tested(self) -> str:
        """The name of the test examples, if all its runs were judged on the same; else nothing."""
        found = [run.evaluation.value for run in self.ended]
        names = {each.examples for each in found if each is not None}
        return names.pop() if len(names) == 1 and None not in found else ""

    def measured(self, key: str) -> list[float]:
        """A measure of the landscape, of each run that has it."""
        found = [number((run.shapes.measures.value or {}).get(key)) for run in self.runs]
        return [value for value in found if value is not None]

    def measure(self, key: str) -> tuple[float, float | None] | None:
        """The mean over repeats with its standard error; of a single run its value, with its own error if known."""
        values = self.measured(key)
        if not values:
            return None
        if len(values) > 1:
            return float(np.mean(values)), standard_error(values)
        own = self.measured(f"{key}_error")
        return values[0], own[0] if own else None


def grouped(runs: Sequence[Kept]) -> list[Group]:
    """The groups, in the order of their first runs."""
    found: dict[Any, list[Kept]] = {}
    for run in runs:
        found.setdefault(_key(run), []).append(run)
    names = _names(list(found.values()))
    return [
        Group(place, name, tuple(them))
        for place, (name, them) in enumerate(zip(names, found.values(), strict=True))
    ]


def _key(run: Kept) -> Any:
    """What repeats agree in; a run that has not ended, or whose recipe cannot be read, is like no other."""
    recipe = run.recipe.value
    if not recipe or run.recipe.trouble or not run.finished:
        return run.name
    return tuple(sorted((key, str(value)) for key, value in recipe.items() if key not in FREE))


def _names(groups: Sequence[Sequence[Kept]]) -> list[str]:
    """Of a single run its name; of repeats the folder that holds them, if it is theirs alone."""
    names = [runs[0].name if len(runs) == 1 else _shared(runs) for runs in groups]
    return [
        name
        if names.count(name) == 1
        else f"{runs[0].name} and {len(runs) - 1} more"
        if len(runs) > 1
        else name
        for name, runs in zip(names, groups, strict=True)
    ]


def _shared(runs: Sequence[Kept]) -> str:
    parents = {run.path.resolve().parent for run in runs}
    if len(parents) == 1:
        heads = {"/".join(run.name.split("/")[:-1]) for run in runs}
        name = heads.pop() if len(heads) == 1 else ""
        if name or all(run.name.startswith("seed-") for run in runs):
            return name or "".join(c if c.isprintable() else "\ufffd" for c in parents.pop().name)
    return f"{runs[0].name} and {len(runs) - 1} more"


def place_of(run: Kept, groups: Sequence[Group]) -> int:
    """The colour of a run: that of its group."""
    return next(group.place for group in groups if run in group.runs)


def lines(groups: Sequence[Group], curve: Any) -> list[Series]:
    """A line for each group: of repeats the mean with a band, where their points are at the same places.

    ``curve(run)`` is a `Series` of a run, or None where it has none; its place and name are set here.
    """
    found: list[Series] = []
    for group in groups:
        made = [(run, each) for run in group.runs if (each := curve(run)) is not None]
        middle = band([(each.x, each.y) for _, each in made]) if len(made) > 1 else None
        if middle is not None:
            ends = [each.end for _, each in made if each.end]
            end = tuple(float(np.mean(part)) for part in zip(*ends, strict=True)) if ends else None
            name = f"{group.name} (mean of {len(made)})"
            first = made[0][1]
            shown = first.shown if first.shown is not None and len(first.shown) == len(middle.x) else None
            found.append(
                Series(group.place, name, middle.x, middle.mean, end, first.at, middle.error, shown)  # type: ignore[arg-type]
            )
            continue
        for run, each in made:
            found.append(
                Series(group.place, run.name, each.x, each.y, each.end, each.at, each.error, each.shown)
            )
    return found
