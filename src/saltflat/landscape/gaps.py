"""How much the loss rises at a distance: uphill, on the average, and under the noise of private steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from saltflat.errors import SettingError
from saltflat.landscape.draws import gaussian, source
from saltflat.landscape.objective import Objective
from saltflat.tree import Tree, add, climb, map_tree, norm, times


def sam_gap(objective: Objective, params: Tree, *, radius: float = 0.05) -> float:
    """L(w + radius g / ||g||) - L(w),   g = dL(w).

    Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", ICLR 2021.
    """
    here, gradient = objective.gradient(params)
    return objective.value(climb(params, gradient, _positive("radius", radius))) - here


def adaptive_gap(objective: Objective, params: Tree, *, radius: float = 0.5) -> float:
    """L(w + radius |w|^2 g / || |w| g ||) - L(w): each weight moves in proportion to its own size.

    Scaling one layer up and the next one down, which leaves a ReLU network's function alone, leaves this alone.
    Kwon et al., "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning", ICML 2021.
    """
    here, gradient = objective.gradient(params)
    own = map_tree(lambda leaf: leaf.abs(), params)
    scaled = times(own, gradient)
    length = float(norm(scaled)) + 1e-16
    return objective.value(add(params, times(own, scaled), scale=_positive("radius", radius) / length)) - here


def m_sharpness(objective: Objective, params: Tree, *, radius: float = 0.05) -> float:
    """The mean of `sam_gap` over the objective's batches, each with its own climb; m is their size."""
    alone = [replace(objective, batches=[batch]) for batch in objective.batches]
    return sum(sam_gap(one, params, radius=radius) for one in alone) / len(alone)


def average_gap(objective: Objective, params: Tree, *, radius: float, draws: int = 5, seed: int = 0) -> float:
    """E[L(w + radius u)] - L(w),   u uniform on the unit sphere; ``draws`` pairs u and -u, so the slope cancels."""
    drawn, sides = source(seed, 4), (_positive("radius", radius), -radius)
    uphill = [gaussian(params, drawn) for _ in range(draws)]
    return _mean_rise(objective, params, [climb(params, u, side) for u in uphill for side in sides])


def noise_tolerance(
    objective: Objective,
    params: Tree,
    *,
    std: float,
    momentum: float = 0.0,
    steps: Sequence[int] = (1, 10, 100, 1000),
    draws: int = 5,
    seed: int = 0,
) -> list[tuple[int, float]]:
    """(t, E[L(w + a(t) std xi)] - L(w)),   xi ~ N(0, I): the rise under the noise of t private steps.

    ``std`` = lr sigma C / expected units is what one step of SGD leaves on each weight at once, and a(t) how t steps
    add up (`noise_growth`). The same ``draws`` pairs of xi and -xi serve every t.
    """
    if not (math.isfinite(std) and std >= 0) or any(t < 1 for t in steps):
        raise SettingError(f"std must be 0 or more and steps at least 1; got {std} and {list(steps)}")
    rises = []
    for t in steps:
        drawn, far = source(seed, 5), noise_growth(t, momentum=momentum) * std
        noise = [gaussian(params, drawn) for _ in range(draws)]
        points = [add(params, xi, scale=side) for xi in noise for side in (far, -far)]
        rises.append((int(t), _mean_rise(objective, params, points)))
    return rises


def noise_growth(steps: int, *, momentum: float = 0.0) -> float:
    """a(t) = sqrt(sum_{k<t} ((1 - m^(k+1)) / (1 - m))^2): how many times one step's noise t steps of SGD leave.

    Heavy-ball momentum m hands the noise of a step on to all later ones: after k more steps it has moved the weight by
    1 + m + ... + m^k times what it did at once. For many steps a(t) is about sqrt(t) / (1 - m); it starts from rest.

    >>> noise_growth(100), round(noise_growth(1000, momentum=0.9), 1)
    (10.0, 314.0)
    """
    if not 0 <= momentum < 1:
        raise SettingError(f"momentum must lie in [0, 1); got {momentum}")
    carried = ((1 - momentum ** (k + 1)) / (1 - momentum) for k in range(int(steps)))
    return math.sqrt(math.fsum(each * each for each in carried))


def _mean_rise(objective: Objective, params: Tree, points: Sequence[Tree]) -> float:
    if not points:
        raise SettingError("draws must be at least 1")
    here = objective.value(params)
    return sum(objective.value(point) for point in points) / len(points) - here


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise SettingError(f"{name} must be above 0, and finite; got {value}")
    return value
