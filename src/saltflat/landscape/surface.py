"""Loss and accuracy along lines and over planes in weight space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from saltflat.errors import SettingError
from saltflat.landscape.objective import Objective
from saltflat.tree import Tree, add, sub

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """Loss and accuracy at w + alpha d."""

    alphas: Array  # (n,)
    loss: Array  # (n,)
    accuracy: Array  # (n,), NaN where there are no classes


@dataclass(frozen=True)
class Surface:
    """Loss and accuracy at w + alpha d1 + beta d2."""

    alphas: Array  # (n,)
    betas: Array  # (k,)
    loss: Array  # (n, k)
    accuracy: Array  # (n, k)


def line(objective: Objective, params: Tree, direction: Tree, alphas: Sequence[float] | Array) -> Line:
    """L(w + alpha d) for each alpha."""
    steps = _checked(alphas)
    found = [objective.evaluated(add(params, direction, scale=float(a))) for a in steps]
    return Line(steps, np.array([f.loss for f in found]), np.array([f.accuracy for f in found]))


def surface(
    objective: Objective,
    params: Tree,
    directions: Sequence[Tree],
    alphas: Sequence[float] | Array,
    betas: Sequence[float] | Array,
) -> Surface:
    """L(w + alpha d1 + beta d2) for each pair."""
    if len(directions) != 2:
        raise SettingError(f"a surface has two directions; got {len(directions)}")
    rows = [
        line(objective, add(params, directions[0], scale=float(a)), directions[1], betas)
        for a in _checked(alphas)
    ]
    loss, accuracy = np.stack([row.loss for row in rows]), np.stack([row.accuracy for row in rows])
    return Surface(_checked(alphas), _checked(betas), loss, accuracy)


def interpolation(objective: Objective, a: Tree, b: Tree, alphas: Sequence[float] | Array) -> Line:
    """L((1 - alpha) w_a + alpha w_b): 0 is the one model, 1 the other; neurons are not matched up first."""
    different = {n for n in a.keys() | b.keys() if n not in a or n not in b or a[n].shape != b[n].shape}
    if different:
        raise SettingError(
            f"two models of one architecture are needed; {sorted(different)[0]!r} is missing or of another shape"
        )
    return line(objective, a, sub(b, a), alphas)


def _checked(places: Sequence[float] | Array) -> Array:
    found = np.asarray(places, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise SettingError(f"places on a line are finite numbers, at least one; got {places!r}")
    return found
