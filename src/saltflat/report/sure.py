"""How sure a comparison is: intervals from test sampling, paired tests on the same examples, spread over repeats.

Plain formulas, without a statistics library; the tests compare each with one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv, ndtr, ndtri, stdtr, stdtrit

LEVEL = 0.95  # of every interval on the page
Bits = NDArray[np.bool_]


def wilson(hits: int, count: int, *, level: float = LEVEL) -> tuple[float, float]:
    """The interval of a share by the sampling of ``count`` test examples, of which ``hits`` were right.

    (p + z^2 / 2n -+ z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),   p = hits / n
    Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", 1927.

    >>> [round(end, 4) for end in wilson(335, 360)]
    [0.8995, 0.9525]
    """
    z, p = float(ndtri((1 + level) / 2)), hits / count
    middle, scale = p + z * z / (2 * count), 1 + z * z / count
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    low = 0.0 if hits == 0 else (middle - half) / scale
    return low, 1.0 if hits == count else (middle + half) / scale


def mcnemar(first: int, second: int) -> float:
    """The exact two-sided p-value that both are right equally often, from the examples that only one is right on.

    2 P(X <= min(b, c)),   X ~ Binomial(b + c, 1/2), at most 1
    McNemar, "Note on the Sampling Error of the Difference between Correlated Proportions", 1947.

    >>> round(mcnemar(3, 12), 4), mcnemar(5, 5), mcnemar(0, 0)
    (0.0352, 1.0, 1.0)
    """
    return min(1.0, 2 * float(bdtr(min(first, second), first + second, 0.5)))


def among_differing(first: int, second: int, *, level: float = LEVEL) -> tuple[float, float]:
    """The interval that belongs to :func:`mcnemar`: without 0 exactly where its p-value is below 1 - level.

    Of b + c examples that only one is right on, the share b / (b + c) that the first is right on has the exact interval
    (l, h); that of b - c is (b + c) (2 l - 1) to (b + c) (2 h - 1).
    Clopper and Pearson, "The Use of Confidence or Fiducial Limits", 1934.

    >>> [round(end, 2) for end in among_differing(12, 3)]
    [0.57, 13.7]
    """
    n, doubt = first + second, (1 - level) / 2
    low = float(betaincinv(first, second + 1, doubt)) if first else 0.0
    high = float(betaincinv(first + 1, second, 1 - doubt)) if second else 1.0
    return n * (2 * low - 1), n * (2 * high - 1)


@dataclass(frozen=True)
class Gap:
    """By how much one is ahead of another, the interval of that, and how likely such a gap is if there is none."""

    value: float
    low: float
    high: float
    p: float
    how: str

    @property
    def shown(self) -> bool:
        """Whether the test tells it from nothing, at 5 %."""
        return self.p < 1 - LEVEL


def paired(one: Sequence[Bits], other: Sequence[Bits], *, level: float = LEVEL) -> Gap:
    """The gap between two models, or two sets of repeats, on the same examples: the mean of their differences d_i.

    The interval is mean -+ z s(d) / sqrt(n), and two sets of repeats, where d_i is a difference of shares, are told
    apart by the z-test of this mean. Two single models are told apart by :func:`mcnemar`, and the interval is widened
    to hold that of :func:`among_differing`, so that test and interval say the same. All of it is about these models on
    examples like these, and says nothing of other runs of the same recipes.
    """
    differences = np.mean(one, axis=0, dtype=float) - np.mean(other, axis=0, dtype=float)
    n, mean = len(differences), float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    half = float(ndtri((1 + level) / 2)) * error
    if len(one) == len(other) == 1:
        ahead, behind = int((one[0] & ~other[0]).sum()), int((other[0] & ~one[0]).sum())
        said = f"McNemar's exact test on the same {n:,} examples"
        low, high = (end / n for end in among_differing(ahead, behind, level=level))
        return Gap(mean, min(low, mean - half), max(high, mean + half), mcnemar(ahead, behind), said)
    p = 2 * float(ndtr(-abs(mean) / error)) if error > 0 else float(mean == 0)
    return Gap(mean, mean - half, mean + half, p, f"paired z-test on the same {n:,} examples")


def welch(one: Sequence[float], other: Sequence[float], *, level: float = LEVEL) -> Gap | None:
    """The gap between means over repeats: Welch's t-test; None where one side has a single run, or nothing varies.

    t = (m1 - m2) / sqrt(s1^2 / k1 + s2^2 / k2), with Satterthwaite's degrees of freedom
    Welch, "The Generalization of 'Student's' Problem When Several Different Population Variances Are Involved", 1947.
    """
    if min(len(one), len(other)) < 2:
        return None
    parts = [float(np.var(side, ddof=1)) / len(side) for side in (one, other)]
    total = sum(parts)
    if total == 0:
        return None
    sides = zip(parts, (one, other), strict=True)
    freedom = total**2 / sum(part**2 / (len(side) - 1) for part, side in sides)
    gap, error = float(np.mean(one)) - float(np.mean(other)), math.sqrt(total)
    half = float(stdtrit(freedom, (1 + level) / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(gap) / error))
    said = f"Welch's t-test over {len(one)} and {len(other)} repeats"
    return Gap(gap, gap - half, gap + half, p, said)


def standard_error(values: Sequence[float]) -> float | None:
    """s / sqrt(k) of a mean over k repeats; None of a single one.

    >>> round(standard_error([0.90, 0.92, 0.94]), 6)
    0.011547
    """
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None


def mean_interval(values: Sequence[float], *, level: float = LEVEL) -> tuple[float, float] | None:
    """The interval of a mean over k repeats: m -+ t s / sqrt(k), with k - 1 degrees of freedom; None of a single one.

    >>> [round(end, 4) for end in mean_interval([0.90, 0.92, 0.94])]
    [0.8703, 0.9697]
    """
    error = standard_error(values)
    if error is None:
        return None
    half = float(stdtrit(len(values) - 1, (1 + level) / 2)) * error
    return float(np.mean(values)) - half, float(np.mean(values)) + half


@dataclass(frozen=True, eq=False)
class Band:
    """The mean of several curves where all of them have a point, and one standard error around it."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    error: NDArray[np.float64]


def band(curves: Sequence[tuple[Any, Any]]) -> Band | None:
    """The band of curves (x, y): at every x that all of them have; None of fewer than two, or where none is common.

    >>> made = band([([1, 2], [0.5, 0.6]), ([1, 2, 3], [0.7, 0.8, 0.9])])
    >>> made.x.tolist(), made.mean.round(2).tolist(), made.error.round(2).tolist()
    ([1.0, 2.0], [0.6, 0.7], [0.1, 0.1])
    """
    tables = [dict(zip((float(a) for a in x), (float(b) for b in y), strict=True)) for x, y in curves]
    if len(tables) < 2:
        return None
    common = sorted(set(tables[0]).intersection(*tables[1:]))
    if not common:
        return None
    values = np.array([[each[place] for place in common] for each in tables])
    with np.errstate(invalid="ignore"):
        error = values.std(axis=0, ddof=1) / math.sqrt(len(tables))
    return Band(np.array(common), values.mean(axis=0), error)
