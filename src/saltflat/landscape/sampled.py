"""How far a measure would move if other examples had been drawn: standard errors over the examples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saltflat.landscape.flat import unflatten
from saltflat.landscape.objective import Objective
from saltflat.tree import Tree, add

REACH = 1e-2  # of a unit direction: far enough for float32, near enough for a second derivative


@torch.no_grad()
def each_loss(objective: Objective, params: Tree) -> Tensor:
    """l_i(w) of every example, in float64."""
    found = torch.cat([objective.losses(params, batch).double().cpu() for batch in objective.batches])
    objective.watch()
    return found


def standard_error(values: Tensor) -> float:
    """s / sqrt(n) of a mean; NaN of a single value.

    >>> standard_error(torch.tensor([1.0, 3.0]))
    1.0
    """
    return float(values.double().std() / math.sqrt(len(values))) if len(values) > 1 else math.nan


def loss_error(objective: Objective, params: Tree) -> float:
    """The standard error of L(w), the mean of the l_i."""
    return standard_error(each_loss(objective, params))


def curvature_error(objective: Objective, params: Tree, direction: Tensor) -> float:
    """The standard error of v^T H v = mean of v^T H_i v,   v = ``direction`` of length 1.

    v^T H_i v ~ (l_i(w + h v) - 2 l_i(w) + l_i(w - h v)) / h^2. At an eigenvector that is the standard error of the
    eigenvalue, to first order: d lambda = v^T dH v.
    """
    way = unflatten(direction / direction.norm(), params)
    ahead, here, behind = (each_loss(objective, add(params, way, scale=s)) for s in (REACH, 0.0, -REACH))
    return standard_error((ahead - 2 * here + behind) / REACH**2)


def rise_error(objective: Objective, params: Tree, worst: Tree) -> float:
    """The standard error of S = 100 (L(w') - L(w)) / (1 + L(w)), at fixed w and w' = ``worst``, by the delta method.

    d S_i = 100 (r_i (1 + L) - R (l_i - L)) / (1 + L)^2,   r_i = l_i(w') - l_i(w),   R and L their means
    """
    here = each_loss(objective, params)
    rises, loss = each_loss(objective, worst) - here, float(here.mean())
    rise = float(rises.mean())
    return standard_error(100 * (rises * (1 + loss) - rise * (here - loss)) / (1 + loss) ** 2)
