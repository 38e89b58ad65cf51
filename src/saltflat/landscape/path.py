"""The plane in which a training path moves most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from saltflat.errors import SettingError
from saltflat.landscape.flat import flatten, unflatten
from saltflat.tree import Tree, sub


@dataclass(frozen=True)
class Plane:
    """Two orthonormal directions, where the path's points lie in them, and what share of the way they show."""

    directions: tuple[Tree, Tree]
    places: NDArray[np.float64]  # (points, 2), in units of length; the last is (0, 0)
    share: tuple[float, float]  # of the sum of squares of (w_t - w_T)


def trajectory_plane(points: Sequence[Tree]) -> Plane:
    """The two main directions of w_t - w_T (PCA without centring: the end of the path is the origin).

    Weights that were released are public: this reads no example.
    Li et al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018, section 7.
    """
    if len(points) < 3:
        raise SettingError(f"a plane needs at least three points of a path; got {len(points)}")
    last = points[-1]
    way = torch.stack([flatten(sub(point, last)).double().cpu() for point in points])  # (points, D)
    left, lengths, right = torch.linalg.svd(way, full_matrices=False)
    if not float(lengths[1]) > 1e-9 * float(lengths[0]):
        raise SettingError("the points of the path lie on one line: they span no plane")
    squares = (lengths**2 / (lengths**2).sum()).tolist()
    return Plane(
        (unflatten(right[0], last), unflatten(right[1], last)),
        (left[:, :2] * lengths[:2]).numpy(),
        (squares[0], squares[1]),
    )
