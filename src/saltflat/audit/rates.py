"""From the errors of a test to a lower bound on epsilon, with a stated confidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from saltflat.errors import SettingError

Scores = NDArray[np.float64]
Counts = NDArray[np.int64]


def upper(errors: int | Counts, trials: int, confidence: float) -> Scores:
    """The largest probability that could still give so few errors: Clopper and Pearson's upper end.

    p with P(Binomial(trials, p) <= errors) = 1 - confidence, and 1 if every trial was an error.

    *Guarantee*: it is at least p with probability ``confidence``, for independent trials of probability p; and for
    independent trials of several probabilities with mean p, whose sum has lighter tails than the binomial
    (Hoeffding, "On the Distribution of the Number of Successes in Independent Trials", 1956).

    >>> round(float(upper(0, 10, 0.95)), 4)  # 1 - 0.05 ** (1 / 10)
    0.2589

    Clopper and Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial", 1934.
    """
    count = np.asarray(errors)
    left = np.maximum(trials - count, 1)  # where it is 0, the answer is 1 without a formula
    return np.where(count >= trials, 1.0, betaincinv(count + 1.0, left, confidence))


def lower(errors: int | Counts, trials: int, confidence: float) -> Scores:
    """The smallest probability that could still give so many errors.

    >>> round(float(lower(10, 10, 0.95)), 4)
    0.7411
    """
    return 1 - upper(trials - np.asarray(errors), trials, confidence)


def epsilon_of(false_positives: Scores | float, false_negatives: Scores | float, delta: float) -> Scores:
    """The least epsilon at which an (epsilon, delta)-DP release permits a test with these error rates.

        max(0, log((1 - delta - b) / a), log((1 - delta - a) / b)),   a, b: false positives, false negatives

    *Guarantee*: it falls in a and in b, so that with upper ends in their place it is a lower bound on epsilon.

    >>> round(float(epsilon_of(0.1, 0.2, 1e-5)), 4)  # log(0.79999 / 0.1)
    2.0794

    Kairouz, Oh and Viswanath, "The Composition Theorem for Differential Privacy", 2015.
    """
    a, b = np.asarray(false_positives, float), np.asarray(false_negatives, float)
    return np.maximum(0.0, np.maximum(_log_ratio(1 - delta - b, a), _log_ratio(1 - delta - a, b)))


def _log_ratio(above: Scores, below: Scores) -> Scores:
    """log(above / below); minus infinity where nothing is left above."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(above > 0, np.log(above) - np.log(below), -np.inf)


@dataclass(frozen=True)
class Worlds:
    """The scores of runs without and with the canary; higher ones speak for the canary."""

    without: Scores
    within: Scores

    def halves(self) -> tuple[Worlds, Worlds]:
        """Runs to choose a threshold on, and runs to judge it by. No run is in both.

        >>> [len(half.without) for half in Worlds(np.zeros(5), np.ones(5)).halves()]
        [2, 3]
        """
        a, b = len(self.without) // 2, len(self.within) // 2
        if min(a, b) < 1:
            raise SettingError(
                "at least 2 runs in each world are needed, one to choose the threshold and one to judge it; got "
                f"{len(self.without)} and {len(self.within)}"
            )
        return Worlds(self.without[:a], self.within[:b]), Worlds(self.without[a:], self.within[b:])

    def errors(self, threshold: float) -> Errors:
        """What goes wrong if scores above ``threshold`` are taken for the canary."""
        wrong = int((self.without > threshold).sum()), int((self.within <= threshold).sum())
        return Errors(*wrong, len(self.without), len(self.within))


@dataclass(frozen=True)
class Errors:
    """How often a test saw a canary that was not there, and missed one that was; and how often it was put."""

    false_positives: int | Counts
    false_negatives: int | Counts
    without: int
    within: int

    def epsilon(self, delta: float, confidence: float) -> Scores:
        """A lower bound on epsilon at ``delta``: `epsilon_of` at upper ends that hold together with ``confidence``.

        >>> round(float(Errors(0, 1, 100, 100).epsilon(1e-5, 0.95)), 3)
        3.262
        """
        each = (1 + confidence) / 2  # two ends, either may fail
        a = upper(self.false_positives, self.without, each)
        b = upper(self.false_negatives, self.within, each)
        return epsilon_of(a, b, delta)

    def wrong(self, confidence: float) -> Scores:
        """(a + b) / 2 at most, the chance of a wrong guess from even odds; all guesses are counted together.

        >>> round(float(Errors(30, 32, 100, 100).wrong(0.95)), 3)
        0.368
        """
        if self.without != self.within:  # then the mean over all guesses is not the mean of the two rates
            each = (1 + confidence) / 2
            a = upper(self.false_positives, self.without, each)
            return (a + upper(self.false_negatives, self.within, each)) / 2
        return upper(self.false_positives + self.false_negatives, self.without + self.within, confidence)


def best_threshold(worlds: Worlds, worth: Callable[[Errors], Scores]) -> float:
    """The threshold at which the test is worth most, on these runs.

    What is won by choosing it is true of these runs only: judge it on others (`Worlds.halves`).
    """
    without, within = np.sort(worlds.without), np.sort(worlds.within)
    places = np.unique(np.concatenate([without, within]))
    wrong = len(without) - np.searchsorted(without, places, side="right")
    missed = np.searchsorted(within, places, side="right")
    return float(places[np.argmax(worth(Errors(wrong, missed, len(without), len(within))))])


def advantage(errors: Errors, confidence: float) -> float:
    """1 - a - b at least: how much better than a coin the test tells the worlds apart; 0 if that is not shown."""
    return max(0.0, 1 - 2 * float(errors.wrong(confidence)))
