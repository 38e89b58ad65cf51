"""Many canaries in one training: how many right guesses a private release permits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from saltflat.errors import SettingError


@dataclass(frozen=True, kw_only=True)
class Guessed:
    """``right`` of ``made`` guesses about ``canaries`` coins; about the other coins nothing was guessed."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries:
            raise SettingError(
                f"right guesses are some of the guesses, and those at most as many as canaries; got {self}"
            )

    def chance(self, epsilon: float, delta: float) -> float:
        """At most how likely so many right guesses are, if the training is (epsilon, delta)-DP.

            f(v) + 2 m delta max_i (f(v - i) - f(v)) / i,   f(v) = P(Binomial(r, 1 / (1 + e^-epsilon)) >= v)

        m canaries, r guesses, v right ones; i runs from 1 to v.

        *Guarantee*: for fair coins, whatever the guesses are made of, and without any independence of the canaries.
        The number of guesses is fixed in advance.

        >>> Guessed(canaries=2, made=2, right=2).chance(0.0, 0.0)
        0.25

        Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, corollary 5.4.
        """
        coin = binom(self.made, 1 / (1 + math.exp(-epsilon)))
        tail = float(coin.sf(self.right - 1))
        if not self.right:
            return 1.0
        below = np.cumsum(coin.pmf(np.arange(self.right - 1, -1, -1)))  # P(v - i <= W < v), i = 1, 2, ...
        slope = float((below / np.arange(1, self.right + 1)).max())
        return min(1.0, tail + 2 * self.canaries * delta * slope)

    def epsilon(self, delta: float, confidence: float) -> float:
        """A lower bound on epsilon at ``delta``: the largest that these guesses contradict.

        >>> round(Guessed(canaries=1000, made=1000, right=1000).epsilon(0.0, 0.95), 2)  # q^1000 = 0.05
        5.81
        """
        refuted = lambda epsilon: self.chance(epsilon, delta) <= 1 - confidence
        if not refuted(0.0):
            return 0.0
        low, high = 0.0, 1.0
        while refuted(high) and high < 64:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if refuted(middle) else (low, middle)
        return low


def guessed(scores: NDArray[np.float64], coins: NDArray[np.bool_], made: int) -> Guessed:
    """Guess "in" for high scores and "out" for low ones, about the ``made`` canaries whose scores are farthest out.

    High and low are told from the middle between the first and the last tenth: about half of the canaries are in, so
    these two are on the two sides, wherever the scores lie.

    >>> guessed(np.array([3.0, 0.1, -2.0, 0.2]), np.array([True, True, False, False]), made=2)
    Guessed(canaries=4, made=2, right=2)
    """
    centred = scores - np.quantile(scores, (0.1, 0.9)).mean()
    surest = np.argsort(-np.abs(centred), kind="stable")[:made]
    right = int(((centred > 0) == coins)[surest].sum())
    return Guessed(canaries=len(coins), made=made, right=right)


def best(several: list[Guessed], delta: float, confidence: float) -> tuple[Guessed, float]:
    """The guesses with the largest bound, and that bound at a confidence that covers having looked at all of them.

    >>> one = Guessed(canaries=100, made=100, right=100)
    >>> best([one, one], 0.0, 0.95)[1] < one.epsilon(0.0, 0.95)
    True
    """
    each = 1 - (1 - confidence) / len(several)
    found = [(one.epsilon(delta, each), place) for place, one in enumerate(several)]
    bound, place = max(found, key=lambda pair: (pair[0], -pair[1]))
    return several[place], bound
