"""(C_eps, A)-sharpness: how much the loss rises in a small box around the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from saltflat.errors import SettingError
from saltflat.landscape.draws import source
from saltflat.landscape.flat import flatten, unflatten
from saltflat.landscape.objective import Objective
from saltflat.landscape.sampled import rise_error
from saltflat.tree import Tree, size

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sharpness:
    """The largest rise that was found, a lower bound on the true one; compare only what one ``solver`` found."""

    value: float
    worst: float  # the largest loss in the box
    solver: str
    error: float = math.nan  # standard error over the examples, at the point that was found


def sharpness(
    objective: Objective,
    params: Tree,
    *,
    eps: float = 0.0045,
    subspace: int | None = None,
    iterations: int = 10,
    restarts: int = 3,
    seed: int = 0,
) -> Sharpness:
    """S = 100 (max over y in C of L(w + A y) - L(w)) / (1 + L(w)),   C = {|y_i| <= eps (|(A^+ w)_i| + 1)}.

    A is the identity, or ``subspace`` random directions with N(0, 1) entries. The maximum is sought with L-BFGS-B,
    first from the centre and then from random points of the box; the best of all is taken.
    Keskar et al., "On Large-Batch Training for Deep Learning", ICLR 2017.
    """
    if not (eps > 0 and iterations >= 1 and restarts >= 1):
        raise SettingError(
            f"eps must be above 0, iterations and restarts at least 1; got {eps}, {iterations} and {restarts}"
        )
    box = _Box(objective, params, None if subspace is None else _directions(params, subspace, seed))
    bound, drawn = box.bound(eps), np.random.default_rng(seed)
    here, worst, place = objective.value(params), -np.inf, np.zeros_like(bound)
    for turn in range(restarts):
        start = np.zeros_like(bound) if turn == 0 else drawn.uniform(-bound, bound)
        found, where = box.climb(start, bound, iterations)
        worst, place = (found, where) if found > worst else (worst, place)
    basis = "A = I" if subspace is None else f"A: {subspace} random directions"
    solver = f"L-BFGS-B, {iterations} iterations, {restarts} starts, eps {eps:g}, {basis}"
    error = rise_error(objective, params, box.moved(place if worst > here else 0 * place))
    return Sharpness(100 * (max(worst, here) - here) / (1 + here), max(worst, here), solver, error)


@dataclass(frozen=True)
class _Box:
    """L(w + A y) as a function of y."""

    objective: Objective
    params: Tree
    directions: Tensor | None  # (D, p), or None for the identity

    def bound(self, eps: float) -> Array:
        w = flatten(self.params).double().cpu()
        if self.directions is not None:
            w = torch.linalg.lstsq(self.directions, w.unsqueeze(1)).solution.squeeze(1)
        return eps * (w.abs().numpy() + 1)

    def climb(self, start: Array, bound: Array, iterations: int) -> tuple[float, Array]:
        """The largest loss on the way up from ``start``, and where it was."""
        best, place = -np.inf, start

        def downhill(y: Array) -> tuple[float, Array]:
            nonlocal best, place
            loss, slope = self._loss(y)
            if np.isfinite(loss) and loss > best:
                best, place = loss, y.copy()
            return -loss, -slope

        limits = np.stack([-bound, bound], axis=1)
        minimize(downhill, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": iterations})
        return best, place

    def moved(self, y: Array) -> Tree:
        """w + A y."""
        step = torch.from_numpy(y) if self.directions is None else self.directions @ torch.from_numpy(y)
        return unflatten(flatten(self.params).double().cpu() + step, self.params)

    def _loss(self, y: Array) -> tuple[float, Array]:
        loss, slope = self.objective.gradient(self.moved(y))
        flat = flatten(slope).double().cpu()
        return loss, (flat if self.directions is None else self.directions.T @ flat).numpy()


def _directions(params: Tree, count: int, seed: int) -> Tensor:
    if not 1 <= count <= size(params):
        raise SettingError(f"subspace must lie in 1 to {size(params)}, the number of weights; got {count}")
    return torch.randn(size(params), count, generator=source(seed, 3), dtype=torch.float64)
