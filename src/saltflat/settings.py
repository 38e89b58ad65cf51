"""What may stand where a setting asks for a number: asked in one way everywhere, so that nothing slips through.

A bare comparison raises on a text, takes True for 1, and with the wrong sign lets NaN pass.
"""

from __future__ import annotations

import math
import numbers
from typing import TypeGuard

from saltflat.errors import SettingError


def is_number(value: object, low: float = -math.inf, high: float = math.inf) -> TypeGuard[float]:
    """A finite number from ``low`` to ``high``; neither NaN, nor a truth value, nor a text, nor a tensor.

    >>> is_number(0.5, 0, 1), is_number(float("nan")), is_number(True), is_number("0.5")
    (True, False, False, False)
    """
    return _is_real(value) and math.isfinite(value) and low <= value <= high


def is_whole(value: object, least: int = 1, most: float = math.inf) -> TypeGuard[int]:
    """A whole number from ``least`` to ``most``, of Python's own kind.

    >>> is_whole(3), is_whole(0), is_whole(2.0), is_whole(True)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_fraction(value: object) -> TypeGuard[float]:
    """A number in [0, 1).

    >>> is_fraction(0.9), is_fraction(1)
    (True, False)
    """
    return is_number(value, 0, 1) and value != 1


def is_positive(value: object) -> TypeGuard[float]:
    """A finite number above 0.

    >>> is_positive(1e-12), is_positive(0.0), is_positive(float("inf"))
    (True, False, False)
    """
    return is_number(value, 0) and value > 0


def check_descent(epochs: object, batch_size: object, lr: object, momentum: object) -> None:
    """Refuse what is no setting of plain training in minibatches, with a word on what would be.

    >>> check_descent(20, 32, 0.05, 1.0)
    Traceback (most recent call last):
    saltflat.errors.SettingError: momentum must lie in [0, 1); got 1.0
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if not is_whole(value, 1, 10**9):
            raise SettingError(f"{name} is a whole number of 1 or more; got {value!r}")
    if not is_positive(lr):
        raise SettingError(f"lr must be above 0, and finite; got {lr!r}")
    if not is_fraction(momentum):
        raise SettingError(f"momentum must lie in [0, 1); got {momentum!r}")


def _is_real(value: object) -> TypeGuard[float]:
    """A number that a float can hold: 10**400 is none."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True
