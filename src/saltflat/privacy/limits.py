"""What the accountants accept: every number is checked here once, NaN included, before any arithmetic."""

from __future__ import annotations

import math
import numbers
from contextlib import suppress

from saltflat.errors import AccountingError

DELTA_FLOOR = 1e-30
ADVANTAGE_FLOOR = 1e-5  # of a target: no noise in range gives much less
STEPS_CEILING = 10**9
NOISE_RANGE = (1e-6, 1e12)
SEEDED = "NOT PRIVATE: seeded"  # what every report on repeatable noise must say
BARE = "NOT PRIVATE: no clipping and no noise"  # what every report on a plain baseline must say


def checked_delta(delta: object) -> float:
    """``delta`` as a float in [1e-30, 1), or a refusal.

    >>> checked_delta(1e-5)
    1e-05
    """
    value = real("delta", delta)
    if DELTA_FLOOR <= value < 1:
        return value
    raise AccountingError(
        f"delta is {delta}: it must be at least {DELTA_FLOOR:g} (below that no accountant is accurate) and "
        "below 1; take about 1 / (10 x the number of units)"
    )


def checked_epsilon(epsilon: object) -> float:
    """``epsilon`` as a finite float of at least 0, or a refusal."""
    value = real("epsilon", epsilon)
    if 0 <= value < math.inf:
        return value
    raise AccountingError(f"epsilon is {epsilon}: it must be a finite number of at least 0")


def checked_advantage(advantage: object) -> float:
    """A membership advantage in [1e-5, 1) as a target, or a refusal.

    >>> checked_advantage(0.1)
    0.1
    """
    value = real("advantage", advantage)
    if ADVANTAGE_FLOOR <= value < 1:
        return value
    raise AccountingError(
        f"advantage is {advantage}: it must be at least {ADVANTAGE_FLOOR:g} and below 1. It is the true minus the "
        "false positive rate of the best attack; advantage=0.1 keeps right guesses to 55 % of cases"
    )


def checked_probability(name: str, value: object) -> float:
    """A probability from 0 to 1, or a refusal."""
    found = real(name, value)
    if 0 <= found <= 1:
        return found
    raise AccountingError(f"{name} is {value}: it is a probability, from 0 to 1")


def checked_rate(rate: object) -> float:
    """A sampling rate in (0, 1], or a refusal."""
    value = real("the sampling rate", rate)
    if 0 < value <= 1:
        return value
    raise AccountingError(
        f"the sampling rate is {rate}: it must be above 0 and at most 1; "
        "it is the expected batch divided by the declared number of units"
    )


def checked_noise(noise_multiplier: object) -> float:
    """A noise multiplier (sigma divided by the sensitivity), or a refusal.

    >>> checked_noise(0.0)
    Traceback (most recent call last):
    saltflat.errors.AccountingError: the noise multiplier is 0.0: it must lie in [1e-06, 1e+12]; ...
    """
    value = real("the noise multiplier", noise_multiplier)
    low, high = NOISE_RANGE
    if low <= value <= high:
        return value
    raise AccountingError(
        f"the noise multiplier is {noise_multiplier}: it must lie in [{low:g}, {high:g}]; "
        "without noise there is no privacy, and useful values are between 0.5 and 50"
    )


def checked_count(name: str, count: object, *, ceiling: int = STEPS_CEILING) -> int:
    """A whole number from 1 to ``ceiling``, or a refusal."""
    if isinstance(count, numbers.Integral) and not isinstance(count, bool) and 1 <= int(count) <= ceiling:
        return int(count)
    raise AccountingError(f"{name} is {count!r}: it must be a whole number from 1 to {ceiling}")


def checked_share(share: object) -> float:
    """A share of a budget in (0, 1], or a refusal."""
    value = real("a share", share)
    if 0 < value <= 1:
        return value
    raise AccountingError(f"a share is {share}: it must be above 0 and at most 1")


def real(name: str, value: object) -> float:
    """``value`` as a float, or a refusal; a truth value, a text and 10**400 are none. Ranges refuse NaN."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            return float(value)
    raise AccountingError(f"{name} is {value!r}: it must be a number")


def rounded_up(value: float, digits: int = 3) -> str:
    """``value`` to so many significant digits, rounded up: a bound may not shrink on its way to the page.

    >>> rounded_up(2.3812), rounded_up(6269.5), rounded_up(0.5)
    ('2.39', '6270', '0.5')
    """
    if real("value", value) < 0:
        raise AccountingError(f"value is {value}: a bound is at least 0")
    digits, value = checked_count("digits", digits, ceiling=15), float(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    value = max(value, 1e-290)  # what is smaller has no so many decimal places
    places = digits - 1 - math.floor(math.log10(value))
    scaled = math.ceil(value * 10.0**places * (1 - 1e-12)) / 10.0**places
    return f"{scaled:.{places}f}".rstrip("0").rstrip(".") if places > 0 else f"{scaled:.0f}"


def rounded_down(value: float, digits: int = 2) -> str:
    """``value`` to so many significant digits, rounded down: an advised limit may not grow on its way to the page.

    >>> rounded_down(0.1 / 60_000), rounded_down(1e-5)
    ('1.6e-06', '1e-05')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    tens = math.floor(math.log10(value)) - digits + 1
    front = math.floor(value / 10.0**tens * (1 + 1e-12))
    return f"{float(f'{front}e{tens}'):.{digits}g}"
