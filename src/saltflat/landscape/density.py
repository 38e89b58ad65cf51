"""The density of all eigenvalues, by stochastic Lanczos quadrature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.landscape.draws import rademacher, source
from saltflat.landscape.lanczos import Krylov, krylov
from saltflat.landscape.operator import Operator, Product, as_operator

Array = NDArray[np.float64]
TAILS = 6.0  # standard deviations of a bump that the grid holds on either side


@dataclass(frozen=True)
class Density:
    """Weighted eigenvalues, and the curve through them: density(t) = sum_k weights_k N(t; nodes_k, width^2)."""

    nodes: Array  # (k,)
    weights: Array  # (k,), sum 1
    width: float
    grid: Array  # (points,)
    density: Array  # (points,)
    dimension: int

    @property
    def mass(self) -> float:
        """The area under the curve: 1."""
        return _area(self.density, self.grid)

    @property
    def mean(self) -> float:
        """The first moment of the curve: trace / dimension."""
        return _area(self.density * self.grid, self.grid)


def spectral_density(
    operator: Any,
    *,
    probes: int = 5,
    steps: int = 80,
    points: int = 10_000,
    seed: int = 0,
    known: Krylov | None = None,
) -> Density:
    """phi(t) = (1/n) sum_j sum_k (V_1k)^2 N(t; Lambda_kk, s^2),   T_j = V Lambda V^T from n random signs.

    s is a hundredth of the spectrum's range, at least 1e-5. With a ``known`` Lanczos space the k eigenvalues that
    have converged in it stand for themselves, each with its true weight 1 / D, and the quadrature is of the rest,
    with weight (D - k) / D: few large eigenvalues are then exact in height, and not only on the average.

    Ghorbani et al., "An Investigation into Neural Net Optimization via Hessian Eigenvalue Density", ICML 2019.
    """
    given = as_operator(operator)
    if not (probes >= 1 and points >= 100):
        raise SettingError(f"at least 1 probe and 100 points are needed; got {probes} and {points}")
    dimension = given.shape[0]
    values, vectors = _found(known, dimension, given)
    rest = dimension - len(values)
    nodes, weights = [values], [torch.full((len(values),), 1 / dimension, dtype=torch.float64)]
    drawn = source(seed, 2)
    for _ in range(probes if rest else 0):
        theta, weight = _quadrature(given, rademacher(dimension, drawn), vectors, min(steps, rest))
        nodes.append(theta)
        weights.append(weight * rest / (dimension * probes))
    return smooth(torch.cat(nodes).numpy(), torch.cat(weights).numpy(), dimension=dimension, points=points)


def smooth(nodes: Array, weights: Array, *, dimension: int, points: int = 10_000) -> Density:
    """The curve through weighted eigenvalues."""
    width = max((nodes.max() - nodes.min()) / 100, 1e-5)
    grid = np.linspace(nodes.min() - TAILS * width, nodes.max() + TAILS * width, points)
    curve = np.zeros(points)
    for node, weight in zip(nodes, weights, strict=True):
        curve += weight * np.exp(-0.5 * ((grid - node) / width) ** 2)
    curve /= width * np.sqrt(2 * np.pi)
    return Density(nodes, weights, float(width), grid, curve, dimension)


def _area(heights: Array, places: Array) -> float:
    """The integral by the trapezoidal rule."""
    return float(np.sum((heights[1:] + heights[:-1]) / 2 * np.diff(places)))


def _found(known: Krylov | None, dimension: int, operator: Operator) -> tuple[Tensor, Tensor]:
    """The eigenvalues that have converged in a Lanczos space, and their vectors as rows."""
    if known is None:
        none = torch.zeros(0, dimension, dtype=operator.dtype, device=operator.device)
        return torch.zeros(0, dtype=torch.float64), none
    values, vectors = known.ritz()
    good = known.residuals(vectors) <= 1e-3 * values.abs()  # the value's error is about its square
    return values[good].cpu(), known.lifted(vectors[:, good])


def _quadrature(operator: Operator, signs: Tensor, out: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights (sum 1) of one random start, away from the rows of ``out``."""
    project = lambda v: v - out.T @ (out @ v)
    outside = Product(
        lambda v: project(operator @ project(v)), operator.shape[0], operator.dtype, operator.device
    )
    start = project(signs.to(device=operator.device, dtype=operator.dtype))
    values, vectors = krylov(outside, start, steps=steps).ritz()
    return values.cpu(), vectors[0].cpu() ** 2
