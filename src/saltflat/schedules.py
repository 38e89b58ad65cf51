"""Schedules fixed in advance: a number for every step of a phase, for learning rates and for noise.

A schedule depends on the step alone, so it is free; a rule that looks at results is not a schedule. As values
they can be compared, printed and stored in a recipe. Any function of the step does too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from saltflat.errors import SettingError
from saltflat.settings import is_number, is_whole

__all__ = ["Cosine", "Linear", "Piecewise", "QuarterCosine"]

Schedule = float | Callable[[int], float]  # one number for all steps, or one for each, counted from 0


def at(schedule: Schedule, step: int) -> float:
    """The schedule's number for a step."""
    return schedule(step) if callable(schedule) else schedule


def first(schedule: Callable[[int], float]) -> object:
    """What a function of the step gives for the first one; None if it fails."""
    try:
        return schedule(0)
    except Exception:  # it may be anything that was handed in
        return None


@dataclass(frozen=True)
class Piecewise:
    """``values[k]`` until step ``ends[k]``, and the last value from then on.

    >>> drop = Piecewise((2.0, 0.1), ends=(100,))
    >>> drop(99), drop(100)
    (2.0, 0.1)
    """

    values: tuple[float, ...]
    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (isinstance(self.values, tuple | list) and all(map(is_number, self.values))):
            raise SettingError(f"values of a piecewise schedule are finite numbers; got {self.values!r}")
        if not (isinstance(self.ends, tuple | list) and all(is_whole(end, 0) for end in self.ends)):
            raise SettingError(f"ends of a piecewise schedule are numbers of steps; got {self.ends!r}")
        if len(self.values) != len(self.ends) + 1 or list(self.ends) != sorted(set(self.ends)):
            raise SettingError(
                "a piecewise schedule has one of its values more than ends, which increase; got "
                f"{self.values}, {self.ends}"
            )

    def __call__(self, step: int) -> float:
        return self.values[sum(step >= end for end in self.ends)]


@dataclass(frozen=True)
class _Ramp:
    """From ``start`` to ``end`` over ``steps`` steps, in ``levels`` equal stairs if given."""

    start: float
    end: float
    steps: int
    levels: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if not is_number(getattr(self, name)):
                raise SettingError(f"{name} of a schedule is a finite number; got {getattr(self, name)!r}")
        if not (is_whole(self.steps) and (self.levels is None or is_whole(self.levels, 2))):
            raise SettingError(
                "a schedule runs over at least one step, in two levels or more; got "
                f"steps={self.steps!r}, levels={self.levels!r}"
            )

    def progress(self, step: int) -> float:
        """How far along, from 0 to 1."""
        if self.levels is None:
            return min(step / self.steps, 1.0)
        return min(step * self.levels // self.steps, self.levels - 1) / (self.levels - 1)


@dataclass(frozen=True)
class Linear(_Ramp):
    """From ``start`` to ``end`` over ``steps`` steps in a straight line, in ``levels`` equal stairs if given.

    Accounting costs time for every distinct noise level, so noise should take few.

    >>> [round(Linear(1.0, 0.5, steps=4)(t), 3) for t in range(5)]
    [1.0, 0.875, 0.75, 0.625, 0.5]
    >>> [round(Linear(1.0, 0.5, steps=4, levels=2)(t), 3) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.5]
    """

    def __call__(self, step: int) -> float:
        return self.start + (self.end - self.start) * self.progress(step)


@dataclass(frozen=True)
class Cosine(_Ramp):
    """From ``start`` to ``end`` along half a cosine; ``levels`` as in `Linear`.

    >>> [round(Cosine(1.0, 0.0, steps=4)(t), 3) for t in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    def __call__(self, step: int) -> float:
        wave = (1 + math.cos(math.pi * self.progress(step))) / 2
        return self.end + (self.start - self.end) * wave


@dataclass(frozen=True)
class QuarterCosine(_Ramp):
    """From ``start`` to ``end`` along a quarter of a cosine, slowly at first; ``levels`` as in `Linear`.

    >>> [round(QuarterCosine(1.0, 0.0, steps=4)(t), 3) for t in range(5)]
    [1.0, 0.924, 0.707, 0.383, 0.0]
    """

    def __call__(self, step: int) -> float:
        return self.end + (self.start - self.end) * math.cos(math.pi / 2 * self.progress(step))
